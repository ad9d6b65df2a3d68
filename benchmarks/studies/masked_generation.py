"""Text written by masked language models, in several orders, against a causal one; a causal judge reads it."""

from collections.abc import Callable
import dataclasses
import functools
import json
from typing import Any

from etils import epath
import numpy as np

from t2t.studies import claims, suite
from t2t.studies.definition import (
  HIGHER,
  LOWER,
  NEITHER,
  ActionStage,
  Arm,
  Column,
  Folders,
  Scale,
  Setting,
  Study,
  TrainStage,
)

AT_ONCE, LEFT_TO_RIGHT, EASIEST_FIRST = "at once", "left to right", "easiest first"
# Arm -> stage of its model, and order of writing; "": the held-out text itself.
ARMS = {
  "masked at once": ("masked", AT_ONCE),
  "masked left to right": ("masked", LEFT_TO_RIGHT),
  "masked easiest first": ("masked", EASIEST_FIRST),
  "diffusion at once": ("diffusion", AT_ONCE),
  "diffusion left to right": ("diffusion", LEFT_TO_RIGHT),
  "diffusion easiest first": ("diffusion", EASIEST_FIRST),
  "causal left to right": ("causal", LEFT_TO_RIGHT),
  "held-out text": ("", ""),
}

TEXTS = 128
PROMPT = 32  # tokens before the text to write, in both tasks
INFILLED = 8  # tokens of a gap, with the text behind it
CONTINUED = 16  # tokens at the end
# Masked diffusion draws the rate, and replaces tokens by [MASK] alone.
_ALL_RATES = {"data.objective": "masked_diffusion", "train.loss": "diffusion", "data.noise_density": 0.0}
_JUDGE_SEED = 1_000  # unlike that of any causal model of the study
_FIGURES = "figures.json"


# ---- Models ----------------------------------------------------------------------------------------------------------


def models(setting: Setting) -> dict[str, TrainStage]:
  """Returns the stages of the masked model, of masked diffusion, of the causal model, and of the larger judge."""
  steps = setting.sized(toy=suite.TOY_STEPS, small=30_000, base=100_000)
  length = {"data.inputs_length": 64, "data.targets_length": 64}
  common = {**suite.text_keys(setting), **length, **suite.budget(steps)}
  causal = {**common, "data.objective": "causal_lm"}
  if setting.scale == "toy":
    shape = {**suite.TOY_MODEL, "train.batch_size": 32}
    masked = suite.encoder(setting, name="masked")
    diffusion = suite.encoder(setting, {"train.loss": "diffusion"}, objective="masked_diffusion", name="diffusion")
    writer = TrainStage(
      "causal", "tiny_llama", {**causal, **shape, "model.num_kv_heads": 0, "model.num_decoder_layers": 2}
    )
    judge = TrainStage("judge", "tiny_llama", {**causal, "train.batch_size": 32}, seed=_JUDGE_SEED)
  else:
    # Encoders and decoders of one body and vocabulary.
    size, larger = setting.sized(small=("32m", "68m"), base=("150m", "400m"))
    common, causal = ({**keys, "train.batch_size": 512, "stages": ()} for keys in (common, causal))
    masked = TrainStage("masked", f"ettin_encoder_{size}", {**common, "data.objective": "masked_lm"})
    diffusion = dataclasses.replace(masked, name="diffusion", keys={**masked.keys, **_ALL_RATES})
    writer = TrainStage("causal", f"ettin_decoder_{size}", causal)
    judge = TrainStage("judge", f"ettin_decoder_{larger}", causal, seed=_JUDGE_SEED)
  return {"masked": masked, "diffusion": diffusion, "causal": writer, "judge": judge}


def _gathered_logits(graphdef: Any, side: str, params: Any, tokens: Any, places: Any) -> Any:
  """Returns the log-probabilities of the tokens at `places` of each row, [rows, places, vocab]."""
  from flax import nnx
  import jax
  import jax.numpy as jnp

  model = nnx.merge(graphdef, params)
  batch = {f"{side}_input_tokens": tokens, f"{side}_segment_ids": jnp.ones_like(tokens)}
  return jax.nn.log_softmax(model.logits(model(batch)[:, places]))


class TokenReader:
  """A model of ids: log-probabilities of ordinary tokens at places of rows.

  Args:
    workdir: of its run.
  """

  def __init__(self, workdir: epath.Path):
    import jax

    from t2t.checkpoints import pretrained
    from t2t.data import vocabularies
    from t2t.data.objectives import masking
    from t2t.inference import batch_inference

    source = pretrained.read_source(str(workdir))
    self._vocabulary = pretrained.vocabulary(source)
    self._mesh = batch_inference.make_mesh(1)
    model = pretrained.load(source, self._mesh)
    side = "decoder" if model.config.kind.is_decoder_only else "encoder"
    self._params = model.params
    self._program = jax.jit(functools.partial(_gathered_logits, model.graphdef, side))
    self.is_causal = side == "decoder"
    self.ordinary_ids = np.asarray(vocabularies.ordinary_ids(self._vocabulary))
    self.mask_id = vocabularies.find_mask_id(self._vocabulary)
    bos = vocabularies.bos_id(self._vocabulary)
    self._around = ([bos], []) if self.is_causal else masking.special_ids(self._vocabulary)

  def __call__(self, rows: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Returns log-probabilities, float32 [rows, places, vocab]; a causal model reads only the tokens before a place."""
    import jax

    begin, end = (np.tile(np.asarray(ids, np.int32), (len(rows), 1)) for ids in self._around)
    tokens = np.concatenate([begin, rows[:, :-1] if self.is_causal else rows, end], axis=1).astype(np.int32)
    # The output of a causal model at BOS predicts the first token.
    at = places if self.is_causal else places + begin.shape[1]
    with jax.set_mesh(self._mesh):
      return np.asarray(self._program(self._params, tokens, at))


# ---- Writing ---------------------------------------------------------------------------------------------------------


def write(
  read: Callable[[np.ndarray, np.ndarray], np.ndarray],
  rows: np.ndarray,
  places: np.ndarray,
  *,
  order: str,
  blank: int,
  ordinary_ids: np.ndarray,
  rng: np.random.Generator | None,
) -> np.ndarray:
  """Returns the rows with tokens of a model at `places`.

  Args:
    read: rows and places -> log-probabilities, see `TokenReader`.
    rows: int [rows, length]; their tokens at `places` are not used.
    places: ascending positions to write.
    order: `AT_ONCE`, `LEFT_TO_RIGHT` or `EASIEST_FIRST`, the place with the highest probability of a token.
    blank: token at places that are not written yet.
    ordinary_ids: tokens that may be written.
    rng: draws tokens from their probabilities; None: the most probable.
  """
  rows = rows.copy()
  rows[:, places] = blank
  is_open = np.ones((len(rows), len(places)), bool)
  everywhere = np.arange(len(rows))
  while is_open.any():
    scores = read(rows, places)[..., ordinary_ids].astype(np.float64)
    keys = scores if rng is None else scores + rng.gumbel(size=scores.shape)
    tokens = ordinary_ids[np.argmax(keys, axis=-1)]
    if order == AT_ONCE:
      rows[:, places] = tokens
      break
    sureness = np.where(is_open, scores.max(axis=-1), -np.inf)
    next_place = np.argmax(is_open if order == LEFT_TO_RIGHT else sureness, axis=1)
    rows[everywhere, places[next_place]] = tokens[everywhere, next_place]
    is_open[everywhere, next_place] = False
  return rows


def distinct_bigrams(texts: np.ndarray) -> float:
  """Returns the number of distinct pairs of neighbouring tokens, int [texts, length], in percent of all pairs."""
  pairs = np.stack([texts[:, :-1].ravel(), texts[:, 1:].ravel()], axis=1)
  return 100.0 * len(np.unique(pairs, axis=0)) / len(pairs)


def held_out(workdir: epath.Path, ordinary_ids: np.ndarray) -> np.ndarray:
  """Returns held-out rows of a causal run that have only ordinary tokens, int [texts, length]."""
  from t2t.data import pipeline
  from t2t.training import replay_step

  run = replay_step.config_of(workdir)
  batches = pipeline.eval_rows(run.data, run.model.architecture, batch_size=32, max_batches=40)
  rows = np.concatenate([batch["decoder_target_tokens"] for batch in batches])
  # EOS and padding are excluded: a document that ends within a row cannot be continued from its beginning.
  return rows[np.isin(rows, ordinary_ids).all(axis=1)][:TEXTS]


def _measure(workdir: epath.Path, folders: Folders, seed: int, order: str) -> None:
  """Writes both tasks with the model of an arm, and the judge's figures."""
  judge = TokenReader(folders["judge"])
  rows = held_out(folders["judge"], judge.ordinary_ids)
  gap, rest = np.arange(PROMPT, PROMPT + INFILLED), np.arange(PROMPT, PROMPT + CONTINUED)
  infilled, continued = rows, rows[:, : PROMPT + CONTINUED]
  if order:
    (name,) = (name for name in folders if name != "judge")
    model = TokenReader(folders[name])
    # A causal model does not read blanks: they are behind the token that it predicts.
    blank = int(model.ordinary_ids[0]) if model.mask_id is None else model.mask_id
    options: dict[str, Any] = {"order": order, "blank": blank, "ordinary_ids": model.ordinary_ids}
    infilled = write(model, rows, gap, rng=None, **options)
    continued = write(model, continued, rest, rng=np.random.default_rng(seed), **options)

  def nats(texts: np.ndarray, places: np.ndarray) -> float:
    values = np.take_along_axis(judge(texts, places), texts[:, places, None], axis=2)
    return -float(values.mean())

  figures = {
    "infilled %": 100.0 * float((infilled == rows)[:, gap].mean()),
    "whole gaps %": 100.0 * float((infilled == rows)[:, gap].all(axis=1).mean()),
    # The tokens behind the gap count, too: they show whether it fits.
    "infilled, nats": nats(infilled, np.arange(PROMPT, PROMPT + 2 * INFILLED)),
    "continued, nats": nats(continued, rest),
    "distinct pairs %": distinct_bigrams(continued[:, rest]),
  }
  (workdir / _FIGURES).write_text(json.dumps(figures))


# The functions have names of their own: a stage is known by its function.
def write_at_once(workdir: epath.Path, workdirs: Folders, seed: int) -> None:
  """Writes all tokens at once."""
  _measure(workdir, workdirs, seed, AT_ONCE)


def write_left_to_right(workdir: epath.Path, workdirs: Folders, seed: int) -> None:
  """Writes token by token from left to right."""
  _measure(workdir, workdirs, seed, LEFT_TO_RIGHT)


def write_easiest_first(workdir: epath.Path, workdirs: Folders, seed: int) -> None:
  """Writes token by token, the surest first."""
  _measure(workdir, workdirs, seed, EASIEST_FIRST)


def judge_text(workdir: epath.Path, workdirs: Folders, seed: int) -> None:
  """Measures the held-out text itself."""
  _measure(workdir, workdirs, seed, "")


_ACTIONS = {
  AT_ONCE: write_at_once,
  LEFT_TO_RIGHT: write_left_to_right,
  EASIEST_FIRST: write_easiest_first,
  "": judge_text,
}


def arms(setting: Setting) -> list[Arm]:
  """Returns an arm for each model and order."""
  stages = models(setting)
  built = []
  for name, (model, order) in ARMS.items():
    used = [*([model] if model else []), "judge"]
    write_stage = ActionStage("write", _ACTIONS[order], reads=tuple(used))
    built.append(Arm(name, [*suite.text_stages(setting), *(stages[x] for x in used), write_stage]))
  return built


def columns(setting: Setting) -> list[Column]:
  """Returns the figures of both tasks."""
  del setting
  better = {"infilled %": HIGHER, "whole gaps %": HIGHER, "infilled, nats": LOWER, "continued, nats": LOWER}
  better |= {"distinct pairs %": NEITHER}

  def column(name: str) -> Column:
    return Column(name, lambda folders: json.loads((folders["write"] / _FIGURES).read_text())[name], better[name])

  return [column(name) for name in better]


STUDY = Study(
  title="Text from masked language models",
  question="How well does a masked language model write text, in which order, and compared with a causal one?",
  paper=(
    "Wang and Cho 2019, BERT has a Mouth, and It Must Speak, abstract; Ghazvininejad et al. 2019, Mask-Predict, "
    "abstract"
  ),
  claim=(
    "BERT writes sentences that are more diverse, but of slightly worse quality, than those of a left-to-right model "
    "(Wang and Cho). Predicting all tokens at once is worse than several rounds that predict the least sure tokens "
    "again. These rounds come within about one BLEU point of a left-to-right model in translation (Ghazvininejad et "
    "al.)."
  ),
  rule=claims.all_of(
    claims.lower("causal left to right", than="masked left to right", column="continued, nats"),
    claims.lower("masked easiest first", than="masked at once", column="infilled, nats"),
  ),
  arms=arms,
  columns=columns,
  scales={
    "toy": Scale(
      "two CPU cores",
      40,
      "Two tiny encoders and a tiny decoder, 2 layers of width 64, 1,000 steps of 32 x 64 tokens of the installed "
      "documentation; a judge of 3 layers of width 128; 128 texts.",
    ),
    "small": Scale("one H200", 400, "Ettin of 32 M as encoder and decoder, 30,000 steps; its decoder of 68 M judges."),
    "base": Scale("eight H200", 1_500, "Ettin of 150 M, 100,000 steps; its decoder of 400 M judges."),
  },
  caveats=(
    "the masked model was trained with 15 % masks, not with whole gaps; masked diffusion was trained with every rate. "
    "Both write one token per round and never rewrite one, unlike Mask-Predict. A judge that is itself a small causal "
    "model favours text like that of causal models. Encoders read the end of the text behind the tokens to write, and "
    "the text behind a gap; the causal model reads neither. The diversity is reported, not tested."
  ),
)
