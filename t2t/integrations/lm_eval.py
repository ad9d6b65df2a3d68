"""Model `t2t` of lm-evaluation-harness, for checkpoints of every architecture.

`python -m t2t.integrations.lm_eval run --model t2t --model_args checkpoint=runs/tiny --tasks ...` runs the harness with
this model. Texts are framed as the harness' own Hugging Face model frames them (lm_eval 0.4.13, models/huggingface.py):

- A decoder reads its start token, the context and the continuation, encoded together.
- An encoder-decoder reads context and EOS in the encoder, and predicts the continuation without EOS.
- An encoder, which the harness has no model for, has pseudo-log-likelihoods.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import functools
import json
import logging
import sys
from typing import Any, NamedTuple

import jax
import numpy as np

from t2t import UserError, did_you_mean
from t2t.api import loaded_model
from t2t.checkpoints import pretrained
from t2t.inference import batch_inference, decoding, predictor, prompt_builder, text_scores
from t2t.param_tree import Params
from t2t.runtime import console, numeric, versions

try:
  from lm_eval import utils
  from lm_eval.api import model as harness_model
  from lm_eval.api import registry
  from lm_eval.models import utils as harness_utils
  import tqdm
except ModuleNotFoundError as error:
  raise ModuleNotFoundError(f"{error}. Run: {versions.install_command('lm_eval')}", name=error.name) from error

_ARGUMENTS = (
  *("checkpoint", "batch_size", "max_length", "max_gen_toks", "pseudo_likelihood", "target_eos", "special_tokens"),
  *("task", "tensor", "task_modules", "vocabulary"),
)
_DECODING = ("temperature", "top_k", "top_p", "num_beams")  # options of a task that t2t has, too
_BAR = "{l_bar}{bar}| {n:.0f}/{total:.0f} [{elapsed}<{remaining}]"
_DEVICE = "cuda:0"  # the harness' default, which it also passes on machines without this device
_LOG = logging.getLogger(__name__)
_LENGTH = 256  # tokens to generate, for a task that does not say; as the harness' Hugging Face model
_Pair = tuple[Any, list[int], list[int]]  # request or None, context, continuation


@registry.register_model("t2t")
class Harness(harness_model.TemplateLM):
  """A checkpoint as a model of lm-evaluation-harness; parameters are loaded after the requests are checked.

  Args:
    checkpoint: see `t2t.load`, as are `task`, `tensor`, `task_modules`, `vocabulary` and `special_tokens`.
    batch_size: rows of a batch, over all devices.
    max_length: maximum number of tokens read at once; 0: the positions of the model. Longer texts are scored in
      windows, and longer prompts lose their first tokens; both are counted in a warning.
    max_gen_toks: tokens to generate, for a task that does not set it.
    pseudo_likelihood: of an encoder, as config.eval.pseudo_likelihood; "": the default.
    target_eos: whether EOS after a continuation is scored, as `t2t.load(...).score` does for an encoder-decoder.
    device: option of the harness; absent, or the platform that JAX uses.
    max_batch_size: option of the harness; must be absent.
    others: unknown arguments, which are an error.

  Raises:
    UserError: an argument is unknown or out of range, or the checkpoint cannot be read.
  """

  def __init__(
    self,
    checkpoint: str = "",
    *,
    batch_size: int | str = 32,
    max_length: int = 0,
    max_gen_toks: int = _LENGTH,
    pseudo_likelihood: str = "",
    target_eos: bool = False,
    special_tokens: str = "",
    task: str = "",
    tensor: int = 1,
    task_modules: str = "",
    vocabulary: str = "",
    device: str | None = None,
    max_batch_size: int | None = None,
    **others: Any,
  ):
    super().__init__()
    for name, value in others.items():
      near = did_you_mean(name, _ARGUMENTS)
      raise UserError(f"--model_args {name}={value}: unknown argument{near}. Known: {', '.join(_ARGUMENTS)}")
    if device not in (None, _DEVICE, jax.default_backend()):
      raise UserError(
        f"--device {device}: JAX selects the devices, and uses {jax.default_backend()}. Leave out --device, or set "
        "JAX_PLATFORMS."
      )
    if max_batch_size is not None or not str(batch_size).isdecimal():
      raise UserError(f"--batch_size {batch_size}: t2t does not measure the batch size. Give a number, such as 32.")
    self.batch_size = int(batch_size)
    numeric.check("batch_size", self.batch_size, 1, whole=True)
    numeric.check("max_length", max_length, 0, whole=True)
    numeric.check("max_gen_toks", max_gen_toks, 1, whole=True)
    with loaded_model.in_python():
      source = loaded_model.read_source(checkpoint, task=task, task_modules=task_modules, vocabulary=str(vocabulary))
      self._source, self._mesh = source, batch_inference.make_mesh(tensor)
      self._kind, self._vocabulary = source.model.kind, pretrained.vocabulary(source)
      self._special_tokens = prompt_builder.special_tokens(source, special_tokens)
      lengths = {"max_tokens": max_length} if max_length else {}
      self._scorer = text_scores.of_source(
        source,
        self._mesh,
        batch_size=self.batch_size,
        pseudo_likelihood=pseudo_likelihood,
        encode=self._encode,
        **lengths,
      )
    self._framing = self._scorer.reader.framing
    self.max_gen_toks, self._target_eos = max_gen_toks, bool(target_eos) and self._kind.has_encoder_and_decoder
    self._ends_prompts = self._kind.is_generative and prompt_builder.ends_prompts(source)[0]
    # "seq2seq": context and continuation are encoded apart, because the model reads EOS between them.
    self.backend = "seq2seq" if self._ends_prompts else "causal"

  # ---- What the harness reads ----------------------------------------------------------------------------------------

  @property
  def eot_token_id(self) -> int:
    return self._vocabulary.eos_id

  @property
  def prefix_token_id(self) -> int:
    """The context of a text without context: the start token, of an encoder-decoder EOS, of an encoder [CLS]."""
    if self._kind.is_decoder_only:
      return self._framing.bos_id
    return self.eot_token_id if self._kind.is_generative or self._framing.cls_id is None else self._framing.cls_id

  @property
  def max_length(self) -> int:
    """Maximum number of tokens read at once; 0: any number."""
    return self._scorer.max_tokens

  @property
  def tokenizer_name(self) -> str:
    return self._source.name

  def tok_encode(self, string: str, add_special_tokens: bool | None = None, **others: Any) -> list[int]:
    """Returns the token ids of a text; of a context with EOS, if the model reads EOS after it."""
    del others
    ends = self._ends_prompts and add_special_tokens is not False
    return [*self._encode(string), *([self.eot_token_id] if ends else [])]

  # ---- Log-likelihoods -----------------------------------------------------------------------------------------------

  def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
    """Returns the log-likelihood of each text; long texts in the harness' windows, an encoder's in those of t2t."""
    texts = [request.args[0] for request in requests]
    if not self._kind.is_generative:
      totals = [log_p for log_p, _ in self._score([text_scores.ScoredText("", text) for text in texts], disable_tqdm)]
    else:
      groups = [self._rolling_rows(text) for text in texts]
      self._warn(sum(len(group) > 1 for group in groups), 0, len(groups))
      rows = [row for group in groups for row in group]
      with _progress(len(rows), "rolling log-likelihoods", disable_tqdm) as done:
        log_p, _ = self._scorer.reader.likelihoods(self._params, rows, on_batch=done)
      ends = np.cumsum([0, *map(len, groups)])
      totals = [float(np.sum(log_p[start:end])) for start, end in zip(ends, ends[1:], strict=False)]
    for text, total in zip(texts, totals, strict=True):
      self.cache_hook.add_partial("loglikelihood_rolling", (text,), total)
    return totals

  def _rolling_rows(self, text: str) -> list[predictor.ScoredRow]:
    """Returns a row for each window, which reads one token before the tokens that it scores."""
    apart = self._kind.has_encoder_and_decoder
    tokens = [*self._encode(text), *([self.eot_token_id] if apart else [])]
    spans = utils.get_rolling_token_windows(
      tokens, self.prefix_token_id, max_seq_len=self.max_length or max(len(tokens), 1), context_len=1
    )
    pairs = map(utils.make_disjoint_window, spans)
    if apart:
      return [predictor.ScoredRow(context, target) for context, target in pairs]
    return [predictor.ScoredRow(context[1:], target, start=context[0]) for context, target in pairs]

  def _loglikelihood_tokens(
    self, requests: Sequence[_Pair], disable_tqdm: bool = False, **others: Any
  ) -> list[tuple[float, bool]]:
    del others
    end = [self.eot_token_id] if self._target_eos else []
    items = [text_scores.ScoredText(self._prompt(context), [*target, *end], 0) for _, context, target in requests]
    results = self._score(items, disable_tqdm)
    for (request, _, _), result in zip(requests, results, strict=True):
      if request is not None:
        self.cache_hook.add_partial("loglikelihood", request, result)
    return results

  def _prompt(self, context: list[int]) -> list[int]:
    """Returns a context without the start token, which the model's rows have already."""
    starts = not self._kind.has_encoder_and_decoder and context[:1] == [self.prefix_token_id]
    return context[1:] if starts else context

  def _score(self, items: Sequence[text_scores.ScoredText], disable_tqdm: bool) -> list[tuple[float, bool]]:
    layouts = [self._scorer.layout(item) for item in items]
    self._warn(sum(layout.is_long for layout in layouts), sum(layout.num_cut > 0 for layout in layouts), len(items))
    with _progress(len(items), "log-likelihoods", disable_tqdm) as done:
      scores = self._scorer(self._params, items, on_batch=done)
    return [(score.log_p, score.is_greedy) for score in scores]

  # ---- Generation ----------------------------------------------------------------------------------------------------

  def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
    """Returns the text after each context, up to a stop string, EOS, or the maximum number of tokens.

    Raises:
      UserError: the model is an encoder, a decoding option is unknown, or no positions are left for a context.
    """
    if not self._kind.is_generative:
      tasks = ", ".join(sorted({str(request.task_name) for request in requests}))
      raise UserError(
        f"checkpoint={self._source.name} is an encoder and generates no text, which the tasks {tasks} need. Choose "
        "tasks of log-likelihoods, or a checkpoint of another architecture."
      )
    groups: dict[str, list[int]] = {}
    for number, request in enumerate(requests):
      groups.setdefault(json.dumps(request.args[1], sort_keys=True), []).append(number)
    # All groups are checked before the first generates.
    jobs = [self._job([requests[i].args[0] for i in group], requests[group[0]].args[1]) for group in groups.values()]
    self._warn(0, sum(job.num_cut for job in jobs), len(requests), what="contexts")
    texts = [""] * len(requests)
    with _progress(len(requests), "generation", disable_tqdm) as done:
      for numbers, job in zip(groups.values(), jobs, strict=True):
        generations = job.writer.generate(self._params, job.prompts, numbers=numbers, on_batch=done)
        for number, generation in zip(numbers, generations, strict=True):
          text = self._vocabulary.decode([token for token in generation.tokens[0] if token not in self._special_ids])
          texts[number] = harness_utils.postprocess_generated_text(text, job.stop, think_end_token=None)
          self.cache_hook.add_partial("generate_until", requests[number].args, texts[number])
    return texts

  def _job(self, contexts: Sequence[str], settings: Mapping[str, Any]) -> "_Job":
    options = dict(harness_utils.normalize_gen_kwargs(dict(settings), self.max_gen_toks))
    stop, length = options.pop("until"), options.pop("max_gen_toks")
    samples = options.pop("do_sample") and options.get("temperature", 1.0) > 0
    for name, value in options.items():
      if name not in _DECODING:
        raise UserError(
          f"--gen_kwargs {name}={value}: t2t has no such option. Known: until, max_gen_toks, do_sample, "
          f"{', '.join(_DECODING)}{did_you_mean(name, _DECODING)}"
        )
    sampling = ("temperature", "top_k", "top_p")
    chosen = {name: value for name, value in options.items() if samples or name not in sampling}
    chosen |= {"temperature": options.get("temperature", 1.0)} if samples else {}
    # As in transformers, whose log-probabilities of beams are divided by length.
    beams = {"length_penalty": 1.0, "length_penalty_form": "power"} if chosen.get("num_beams", 1) > 1 else {}
    decode = decoding.DecodeConfig(length, **chosen, **beams)
    prompts = [self._prompt(self.tok_encode(context)) for context in contexts]
    room = self._room(length)
    cut = [prompt[-room:] if room else prompt for prompt in prompts]
    model = pretrained.abstract(self._source, self._mesh)
    writer = predictor.Predictor(
      model.config,
      model.graphdef,
      self._mesh,
      self._framing,
      decode=decode,
      batch_size=self.batch_size,
      max_inputs=max(1, *map(len, cut)),
    )
    return _Job(writer, cut, stop, sum(len(prompt) > len(read) for prompt, read in zip(prompts, cut, strict=True)))

  def _room(self, length: int) -> int:
    """Returns the maximum number of tokens of a context; 0: any number."""
    if not (self._kind.is_decoder_only and self._source.asked.most_positions):
      return self.max_length
    if length >= self.max_length:
      raise UserError(
        f"max_gen_toks={length} leaves no room for a context in the {self.max_length} positions of the model. Give "
        f"--gen_kwargs max_gen_toks={max(1, self.max_length // 2)}, or less."
      )
    return self.max_length - length

  # ---- Model ---------------------------------------------------------------------------------------------------------

  def _encode(self, text: str) -> list[int]:
    from t2t.data import vocabularies

    return [int(i) for i in vocabularies.encode_text(self._vocabulary, text, special_tokens=self._special_tokens)]

  @functools.cached_property
  def _special_ids(self) -> frozenset[int]:
    """Ids without text; the harness' Hugging Face model leaves sentinels out, too."""
    from t2t.data import vocabularies

    sentinels = vocabularies.sentinel_ids(self._vocabulary, vocabularies.num_sentinels(self._vocabulary))
    return frozenset({*vocabularies.framing_ids(self._vocabulary), *sentinels})

  @functools.cached_property
  def _params(self) -> Params:
    with loaded_model.in_python():
      return pretrained.load(self._source, self._mesh).params

  def _warn(self, num_long: int, num_cut: int, number: int, *, what: str = "texts") -> None:
    """Reports the items that are longer than the model, before the parameters are loaded."""
    parts = [f"{num_long:,} of {number:,} {what} are scored in windows"] if num_long else []
    parts += [f"the first tokens of {num_cut:,} of {number:,} contexts are not read"] if num_cut else []
    if parts:
      _LOG.warning("%s: the model reads %s tokens at once", "; ".join(parts), f"{self.max_length:,}")


class _Job(NamedTuple):
  """Contexts with the same decoding options.

  writer: generates with these options.
  prompts: token ids of each context.
  stop: strings that end a text.
  num_cut: number of contexts that lost their first tokens.
  """

  writer: predictor.Predictor
  prompts: list[list[int]]
  stop: list[str]
  num_cut: int


@contextlib.contextmanager
def _progress(number: int, what: str, disabled: bool) -> Iterator[Callable[[float, int], Any]]:
  """Yields a function that advances a progress bar."""
  with tqdm.tqdm(total=number, desc=f"t2t: {what}", disable=disabled, bar_format=_BAR) as bar:
    yield lambda done, tokens: bar.update(done)


def main() -> int:
  """Runs the harness with the model `t2t`; returns the exit code."""
  from lm_eval import __main__ as harness

  try:
    harness.cli_evaluate()
  except UserError as error:
    console.told_of(error)
    return error.exit_code
  return 0


if __name__ == "__main__":
  sys.exit(main())
