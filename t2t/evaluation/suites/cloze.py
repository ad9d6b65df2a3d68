"""Cloze questions with an answer of one token, in the formats of LAMA (Petroni et al. 2019).

A masked language model reads the mask between the words on both sides. An encoder-decoder reads <extra_id_0> there. A
decoder reads the words before the mask alone.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import functools
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from t2t import UserError
from t2t.evaluation import results
from t2t.evaluation.item_statistics import Statistics, value_of
from t2t.evaluation.suites import items as items_lib
from t2t.evaluation.suites import scoring as scoring_lib
from t2t.evaluation.suites.items import OptionItem
from t2t.inference import ties
from t2t.inference.predictor import ScoredRow
from t2t.models.architecture import Batch, predicted_side
from t2t.param_tree import Params

MASK = "[MASK]"
_MOST_WORDS = 100  # LAMA leaves out longer sentences
# LAMA's templates of Google-RE; those of T-REx are in relations.jsonl.
_GOOGLE_RE = {
  "place_of_birth": "[X] was born in [Y] .",
  "date_of_birth": "[X] (born [Y]).",
  "place_of_death": "[X] died in [Y] .",
}


@dataclasses.dataclass(frozen=True)
class ClozeItem:
  """A sentence with one mask, the word that it hides, and its relation."""

  before: str
  after: str
  answer: str
  relation: str


@dataclasses.dataclass(frozen=True)
class ClozeItems:
  """Items, and the number of items that were left out, by reason."""

  items: tuple[ClozeItem, ...]
  left_out: Mapping[str, int]


# ---- Files -----------------------------------------------------------------------------------------------------------


def own(path: str, where: str) -> ClozeItems:
  """Reads sentences of JSON lines: masked_sentences, a list of texts with one [MASK] in all, and obj_label."""
  return _of_sentences(items_lib.files(path, where=where), where)


def conceptnet(path: str, where: str) -> ClozeItems:
  """Reads ConceptNet/test.jsonl in LAMA's folder data."""
  return _of_sentences(items_lib.files(f"{path}/ConceptNet", where=where, expected=("test",)), where)


def squad(path: str, where: str) -> ClozeItems:
  """Reads Squad/test.jsonl in LAMA's folder data."""
  return _of_sentences(items_lib.files(f"{path}/Squad", where=where, expected=("test",)), where)


def google_re(path: str, where: str) -> ClozeItems:
  """Reads the three files of Google_RE in LAMA's folder data, without facts that most annotators rejected."""
  files = items_lib.files(f"{path}/Google_RE", where=where, expected=[f"{name}_test" for name in _GOOGLE_RE])
  relations = [(name, _GOOGLE_RE[name], file) for name, file in zip(_GOOGLE_RE, files, strict=True)]
  return _of_facts(relations, where)


def trex(path: str, where: str) -> ClozeItems:
  """Reads relations.jsonl and a file in TREx for each of its relations, in LAMA's folder data."""
  (listed,) = items_lib.files(f"{path}/relations.jsonl", where=where)
  templates = {}
  for place, row in items_lib.objects(listed, where=where):
    templates[items_lib.field(row, "relation", place)] = items_lib.field(row, "template", place)
  # LAMA's list has relations that T-REx does not have, and skips them.
  found = {file.name.removesuffix(".jsonl"): file for file in items_lib.files(f"{path}/TREx", where=where)}
  relations = [(name, template, found[name]) for name, template in templates.items() if name in found]
  if not relations:
    raise UserError(f"{where}{path}: no relation of relations.jsonl has a file in TREx. Download the folder again.")
  return _of_facts(relations, where)


def _of_sentences(files: Sequence[Any], where: str) -> ClozeItems:
  read, long = [], 0
  for file in files:
    for place, row in items_lib.objects(file, where=where):
      sentences = items_lib.field(row, "masked_sentences", place, list)
      if not all(isinstance(sentence, str) for sentence in sentences):
        raise UserError(f"{place}: field 'masked_sentences' is {sentences!r}; give a list of texts. Correct the file.")
      text = " ".join(sentences)
      if len(text.split()) > _MOST_WORDS:
        long += 1
        continue
      relation = str(row.get("predicate_id", row.get("pred", file.name.removesuffix(".jsonl"))))
      read.append(_item(text, items_lib.field(row, "obj_label", place), relation, place))
  return ClozeItems(tuple(read), {f"more than {_MOST_WORDS} words": long} if long else {})


def _of_facts(relations: Iterable[tuple[str, str, Any]], where: str) -> ClozeItems:
  read: list[ClozeItem] = []
  rejected = 0
  for name, template, file in relations:
    facts: dict[tuple[str, str], None] = {}
    for place, row in items_lib.objects(file, where=where):
      judgments = items_lib.field(row, "judgments", place, list) if "judgments" in row else []
      if not all(isinstance(judgment, Mapping) for judgment in judgments):
        raise UserError(f"{place}: field 'judgments' is {judgments!r}; give a list of objects. Correct the file.")
      votes = [judgment.get("judgment") == "yes" for judgment in judgments]
      if 2 * sum(votes) < len(votes):
        rejected += 1
        continue
      facts[items_lib.field(row, "sub_label", place), items_lib.field(row, "obj_label", place)] = None
    for subject, answer in facts:
      text = template.strip().replace("[X]", subject.strip()).replace("[Y]", MASK)
      read.append(_item(text, answer, name, f"{where}{file}, {subject}"))
  return ClozeItems(tuple(read), {"rejected by annotators": rejected} if rejected else {})


def _item(text: str, answer: str, relation: str, place: str) -> ClozeItem:
  before, *after = text.split(MASK)
  if len(after) != 1:
    raise UserError(f"{place}: the text has {len(after)} {MASK}, not one: {text[:80]!r}. Correct the line.")
  return ClozeItem(before, after[0], answer, relation)


# ---- Ranks -----------------------------------------------------------------------------------------------------------


def _ranks(graphdef: nnx.GraphDef, candidates: np.ndarray, params: Params, batch: Batch) -> tuple[jax.Array, ...]:
  """Returns for the scored position of each row the number of likelier candidates, the number of candidates that tie
  with the target, itself included, the likeliest candidate, and the target's log-probability.
  """
  model, side = nnx.merge(graphdef, params), predicted_side(batch)
  position = jnp.argmax(batch[f"{side}_loss_weights"], axis=1)[:, None]
  hidden = jnp.take_along_axis(model(batch), position[..., None], axis=1)
  log_p = jax.nn.log_softmax(model.logits_fn()(hidden)[:, 0].astype(jnp.float32))
  target = jnp.take_along_axis(batch[f"{side}_target_tokens"], position, axis=1)
  gold = jnp.take_along_axis(log_p, target, axis=1)
  among = log_p[:, candidates]
  slack = ties.TOLERANCE * jnp.maximum(1.0, jnp.abs(gold))
  likelier, tied = jnp.sum(among > gold + slack, axis=1), jnp.sum(jnp.abs(among - gold) <= slack, axis=1)
  return likelier, jnp.maximum(tied, 1), jnp.asarray(candidates)[jnp.argmax(among, axis=1)], gold[:, 0]


class ClozeSuite:
  """Precision at 1 and at 10 of answers of one token.

  Args:
    name: of the suite.
    items: see `ClozeItems`.
    scoring: of the model.
    candidates: texts of the answers that compete; empty: all tokens of text.

  Raises:
    UserError: no item is left, or the model cannot fill a gap.
  """

  def __init__(
    self, name: str, items: ClozeItems, scoring: scoring_lib.SuiteScoring, *, candidates: Sequence[str] = (), **unused
  ):
    del unused
    from t2t.data import vocabularies

    self.name, self._scoring, self._vocabulary = name, scoring, scoring.vocabulary
    self._kind = scoring.scorer.reader.config.kind
    self._sentinel = None
    if self._kind.has_encoder_and_decoder:
      if not vocabularies.num_sentinels(scoring.vocabulary):
        raise UserError(f"{name}: the vocabulary has no sentinel <extra_id_0> for the gap. Leave out this suite.")
      self._sentinel = vocabularies.sentinel_ids(scoring.vocabulary, 1)[0]
    ids = {split[1] for word in candidates if (split := self._split(". ", word)) is not None}
    self._candidates = np.array(sorted(ids) or vocabularies.ordinary_ids(scoring.vocabulary), np.int32)
    allowed = set(self._candidates.tolist())
    self._items: list[ClozeItem] = []
    self._rows: list[ScoredRow] = []
    left_out = dict(items.left_out)
    self.num_long = 0
    for item in items.items:
      split = self._split(item.before, item.answer)
      if split is None or split[1] not in allowed:
        reason = "answer of several tokens" if split is None else "answer is no candidate"
        left_out[reason] = left_out.get(reason, 0) + 1
        continue
      row = self._row(item, *split)
      longest = scoring.scorer.max_tokens
      length = (
        max(len(row.prompt), len(row.target)) if self._sentinel is not None else len(row.prompt) + len(row.target)
      )
      special = 0 if self._kind.is_generative else len(scoring.scorer.reader.framing.around)
      if longest and length + special > longest:
        self.num_long += 1
        continue
      self._items.append(item)
      self._rows.append(row)
    if self.num_long:
      left_out["longer than the model"] = self.num_long
    self._left_out, self.num_items = left_out, len(self._items)
    self.long_note = f"items are longer than the {scoring.scorer.max_tokens:,} tokens of the model, and left out"
    if not self._items:
      reasons = ", ".join(f"{number:,} {reason}" for reason, number in left_out.items())
      raise UserError(f"{name}: no item is left ({reasons}). Give other files, or leave out this suite.")

  def _split(self, before: str, answer: str) -> tuple[list[int], int] | None:
    """Returns the tokens before an answer, and the token of the answer; None if the answer has several tokens.

    A space before the answer belongs to the answer's token in most vocabularies, but is a token of bytes.
    """
    encode = self._scoring.scorer.encode
    whole = encode(f"{before}{answer}")
    for start in (encode(before.rstrip()), encode(before)):
      if whole[:-1] == start:
        return start, int(whole[-1])
    return None

  def _row(self, item: ClozeItem, before: list[int], token: int) -> ScoredRow:
    if self._kind.is_decoder_only:
      return ScoredRow(before, [token])
    after = self._scoring.scorer.encode(item.after)
    if self._sentinel is not None:
      return ScoredRow([*before, self._sentinel, *after, self._vocabulary.eos_id], [self._sentinel, token], [1])
    return ScoredRow([], [*before, token, *after], [len(before)])

  def run(self, params: Params, on_batch: scoring_lib.Done | None = None) -> results.Result:
    """Ranks the answers."""
    reader = self._scoring.scorer.reader
    program: Callable = jax.jit(functools.partial(_ranks, reader.graphdef, self._candidates))
    likelier, tied, best, gold = reader.scored(program, params, self._rows, on_batch=on_batch)
    scoring_lib.check_finite([gold])
    at = lambda number: np.clip((number - likelier) / tied, 0.0, 1.0)
    grouped = [OptionItem((), (item.relation,), "") for item in self._items]
    factors = items_lib.weights(grouped)
    shares = {"accuracy": at(1), "precision_at_10": at(10)}
    statistics = {name: Statistics("mean", np.stack([x * factors, factors], axis=-1)) for name, x in shares.items()}
    from t2t.data import vocabularies

    texts = vocabularies.token_texts(self._vocabulary)
    answers = [
      results.Answer(
        {
          "idx": number,
          "inputs_pretokenized": f"{item.before}{MASK}{item.after}".encode(),
          "group": item.relation,
          "rank": int(likelier[number]) + 1,
        },
        texts[int(best[number])].strip(),
        int(likelier[number] == 0 and tied[number] == 1),
        1,
        float(gold[number]),
        tied=("",) * int(tied[number]) if tied[number] > 1 else (),
      )
      for number, item in enumerate(self._items)
    ]
    units = [str(number) for number in range(len(answers))]
    groups = scoring_lib.groups(
      [OptionItem((), (item.relation,), "") for item in self._items],
      shares["accuracy"],
      [bool(x.tied) for x in answers],
    )
    return results.Result(
      self.name,
      scoring_lib.SPLIT,
      {name: value_of(rows) for name, rows in statistics.items()},
      answers,
      set(statistics),
      rule={name: value for name, value in self._scoring.rule.items() if name == "form"},
      intervals=scoring_lib.of_statistics(statistics, units),
      statistics=statistics,
      units=units,
      details={
        "long": self.num_long,
        "left_out": self._left_out,
        "candidates": len(self._candidates),
        "groups": groups,
      },
    )
