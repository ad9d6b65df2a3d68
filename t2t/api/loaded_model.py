"""Checkpoint in Python: `t2t.load` returns a model that generates, predicts, fills blanks, embeds and scores.

It uses the code of the commands (`t2t.inference`): the same text gives the same result, to the last digit.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import functools
import os
import re
from typing import Any
import warnings

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from t2t import UserError
from t2t.checkpoints import pretrained, select_task, tensor_writer
from t2t.configuration import foreign_names
from t2t.convert import huggingface, lazy_tensors, vocab_override
from t2t.inference import (
  batch_inference,
  classification,
  embedding,
  fill_mask,
  jsonl_io,
  predictor,
  prompt_builder,
  prompt_features,
  ranking,
  row_batches,
  table_inputs,
  text_generation,
  text_scores,
  token_classify,
)
from t2t.models.architecture import Batch
from t2t.models.config import TransformerConfig
from t2t.param_tree import Params
from t2t.runtime import numeric
from t2t.storage import encoding, gcs, given_paths

Asked = str | Mapping[str, Any]  # a text, or a mapping as in a line of `t2t infer`: {"parts": ["a", "b"]}


@foreign_names.translating
def load(
  checkpoint: str | os.PathLike,
  *,
  task: str = "",
  tensor: int = 1,
  batch_size: int = 32,
  inputs_length: int = 0,
  task_modules: str | os.PathLike | Sequence[str | os.PathLike] = "",
  vocabulary: str | os.PathLike = "",
  special_tokens: str = "",
  weights: str = "",
) -> "Model":
  """Loads a checkpoint onto the devices of this process.

  Args:
    checkpoint: a t2t workdir, one of its steps, or a Hugging Face or T5X folder; local or gs://. An adapter is loaded
      together with its base model.
    task: the task to predict, for a model with task-specific adapters (`config.pals`).
    tensor: devices that share one copy of the model.
    batch_size: texts per batch, over all devices.
    inputs_length: maximum number of tokens of a text; 0: as in training.
    task_modules: task modules that you trust, comma-separated or a list, if they define the checkpoint's vocabulary.
    vocabulary: "bytes" or a vocabulary file, for a checkpoint without a vocabulary: a T5X folder, or a run on own
      batches that named none.
    special_tokens: the control tokens that are recognized in texts: "none"; "blanks" (sentinels and masks, for
      filling); "all"; "": blanks, or the training setting of a model that was fine-tuned on a table. Heads and
      `embed` always read control tokens as text.
    weights: "average" or "trained" (the last step), for a run with an average (`config.optimizer.average`); "": as the
      run evaluated; "int8": these with matrices rounded to 8 bits, which `save_pretrained` writes without rounding.

  Raises:
    UserError: the checkpoint is missing or cannot be read, or has no average.
  """
  with in_python():
    source = read_source(checkpoint, task=task, task_modules=task_modules, vocabulary=vocabulary, weights=weights)
    return Model(
      source, tensor=tensor, batch_size=batch_size, inputs_length=inputs_length, special_tokens=special_tokens
    )


def read_source(
  checkpoint: str | os.PathLike,
  *,
  task: str = "",
  task_modules: str | os.PathLike | Sequence[str | os.PathLike] = "",
  vocabulary: str | os.PathLike = "",
  weights: str = "",
) -> pretrained.Source:
  """Returns a checkpoint without its parameters; uses no device.

  Args: see `load`.

  Raises:
    UserError: the checkpoint is missing or cannot be read.
  """
  checkpoint, vocabulary = (
    given_paths.text(path, called=called) for path, called in ((checkpoint, "checkpoint"), (vocabulary, "vocabulary"))
  )
  if not checkpoint:
    raise UserError("checkpoint='' is empty: give a workdir, one of its steps, or a Hugging Face or T5X folder")
  source = select_task.choose(pretrained.read_source(checkpoint, where="", weights=weights), task, where="task")
  source = _with_vocabulary(source, vocabulary) if vocabulary else source
  pretrained.trust(_listed(task_modules))
  return source


def _listed(modules: str | os.PathLike | Sequence[str | os.PathLike]) -> str:
  module_list = [modules] if isinstance(modules, str | os.PathLike) else modules
  return ",".join(given_paths.text(module, called="task_modules") for module in module_list)


def _with_vocabulary(source: pretrained.Source, spec: str) -> pretrained.Source:
  """Adds the user's vocabulary to a checkpoint without one: from T5X, or trained on ids."""
  if source.foreign is not None:
    return dataclasses.replace(pretrained.of_foreign(vocab_override.give(source.foreign, spec)), int8=source.int8)
  data = source.run["data"]
  if source.vocabulary or data.get("vocabulary") or data.get("mixture") or data.get("sources"):
    raise UserError(
      f"vocabulary={spec}: {source.name} already has the vocabulary of its training; leave out 'vocabulary'"
    )
  return dataclasses.replace(source, run={**source.run, "data": {**data, "vocabulary": spec}})


class Model:
  """Loaded model.

  Programs are compiled on first use and cached: one for each set of options and each text length, rounded up to a power
  of two.

  Args:
    source: the checkpoint.
    tensor, batch_size, inputs_length, special_tokens: see `load`.

  Raises:
    UserError: the checkpoint cannot be read, or `tensor` does not divide the number of devices.
  """

  def __init__(
    self,
    source: pretrained.Source,
    *,
    tensor: int = 1,
    batch_size: int = 32,
    inputs_length: int = 0,
    special_tokens: str = "",
  ):
    numeric.check("batch_size", batch_size, 1, whole=True)
    numeric.check("tensor", tensor, whole=True)
    numeric.check("inputs_length", inputs_length, 0, whole=True)
    if special_tokens not in ("", *prompt_builder.SPECIAL_TOKENS):
      raise UserError(
        f"special_tokens={special_tokens!r}: unknown value; give one of {', '.join(prompt_builder.SPECIAL_TOKENS)}"
      )
    self._special_tokens = prompt_builder.special_tokens(source, special_tokens)
    self._source, self._batch_size, self._inputs_length = source, batch_size, inputs_length
    self._mesh = batch_inference.make_mesh(tensor)
    self._vocabulary = pretrained.vocabulary(source)
    self._model = pretrained.load(source, self._mesh)
    self._way = functools.cache(self._make_way)

  def __repr__(self) -> str:
    return f"<t2t model {self._source.name}: {self.config.architecture}>"

  @property
  def config(self) -> TransformerConfig:
    return self._source.asked

  @property
  def params(self) -> Params:
    """Parameters, a nested dict of arrays on the devices."""
    return self._model.params

  @property
  def vocabulary(self):
    """seqio vocabulary of the model."""
    return self._vocabulary

  @foreign_names.translating
  def save_pretrained(self, folder: str | os.PathLike, *, dtype: str = "float32", head: str = "") -> list[str]:
    """Writes a Hugging Face folder, as `t2t convert --to hf` does; transformers loads it with `from_pretrained`.

    Args:
      folder: a new or empty folder, local or gs://.
      dtype: float32, bfloat16 or float16.
      head: name of the head to write, or "vocabulary"; "": the only head.

    Returns:
      Notes: the transformers class, and what was left out or assumed.

    Raises:
      UserError: transformers has no such model, or the folder is not empty.
    """
    with in_python():
      foreign = self._source.foreign or tensor_writer.open_foreign(str(self._source.path), weights=self._source.weights)
      spec = self._source.run["data"].get("vocabulary", "")
      if not foreign.vocabulary and spec:
        foreign = vocab_override.give(foreign, spec)
      lazy_tensors.check(foreign)
      out = gcs.absolute(os.fspath(folder))
      return [*foreign.notes, *huggingface.save(foreign, out, dtype=dtype, head=head)]

  # ---- Tokens --------------------------------------------------------------

  @foreign_names.translating
  def tokenize(self, texts: Sequence[str], *, special_tokens: str = "none") -> list[list[int]]:
    """Returns the ids of each text, without added special tokens.

    Args:
      texts: of any length.
      special_tokens: see `load`; by default control tokens in a text are read as text.
    """
    return [self._encode(text, special_tokens) for text in _texts(texts)]

  def _encode(self, text: str, special_tokens: str) -> list[int]:
    from t2t.data import vocabularies

    return vocabularies.encode_text(self._vocabulary, text, special_tokens=special_tokens)

  def detokenize(self, ids: Sequence[Sequence[int]]) -> list[str]:
    """Returns the text of each id sequence."""
    return [self._vocabulary.decode([int(x) for x in sequence]) for sequence in ids]

  # ---- Text ----------------------------------------------------------------

  @foreign_names.translating
  def generate(
    self,
    texts: Sequence[str],
    *,
    max_length: int = 64,
    min_length: int | None = None,
    beam: int = 1,
    length_penalty: float | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    seed: int = 0,
  ) -> list[str]:
    """Generates a text for each input: greedily, unless a beam or a temperature is given.

    Args:
      texts: inputs; longer ones are cut, with a warning.
      max_length, min_length: number of tokens to generate.
      beam: beam size; a larger `length_penalty` favours longer texts.
      temperature, top_p, top_k: sampling settings.
      seed: sampling seed; the sample of a text depends on its index in `texts`.

    Raises:
      UserError: the model is an encoder, options exclude each other, or a text is empty.
    """
    if not self.config.is_generative:
      raise UserError(f"{self!r} is an encoder and generates no text; call fill(), answer() or embed()")
    numeric.check("seed", seed, 0, 2**32 - 1, whole=True)
    with in_python():
      decode = text_generation.decode_config(
        max_length=max_length,
        min_length=min_length,
        beam=beam,
        length_penalty=length_penalty,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
      )
      rows = self._ask(self._way("write", decode=decode, seed=seed), _texts(texts))
      return [row["prediction"] for row in rows]

  @foreign_names.translating
  def fill(self, texts: Sequence[str], *, top: int = 10) -> list[dict[str, Any]]:
    """Predicts the tokens of the blanks in each text, written [MASK], <mask> or <extra_id_0>, with an encoder.

    Args:
      texts: each with at least one blank.
      top: number of fillings for each blank.

    Returns:
      For each text "prediction" (the text with the most likely token in each blank), its "score", and the "fillings" of
      each blank, as in `t2t infer`.

    Raises:
      UserError: the model does not fill blanks, or a text has none.
    """
    if self.config.kind.is_generative:
      raise UserError(f"{self!r} generates text and fills no blanks; call generate() or score()")
    numeric.check("top", top, whole=True)
    with in_python():
      predictor.check_predicts_tokens(self._source.model, where=repr(self))
      return self._ask(self._way("fill", top=top), _texts(texts))

  @foreign_names.translating
  def answer(self, texts: Sequence[Asked], task: str = "") -> list[dict[str, Any]]:
    """Predicts with a head: a class with probabilities, a number, a candidate, entities, or a span of a context.

    Args:
      texts: texts, or mappings as in a line of `t2t infer`: {"parts": ["a", "b"]} for two segments; {"inputs": "...",
        "candidates": [...]}; {"question": "...", "context": "..."}; {"words": [...]}. For a model that was fine-tuned
        on a table: a row with the columns of its training.
      task: name of the head, if the model has several.

    Raises:
      UserError: the model has no such head, or a text lacks a field that the head needs.
    """
    with in_python():
      return self._ask(self._answering(task), texts)

  @foreign_names.translating
  def classify(
    self, texts: Sequence[Asked], *, exit_entropy: float = 0.0, exit_patience: int = 0
  ) -> list[dict[str, Any]]:
    """Returns the class of each text and the probability of each class of the fine-tuning.

    Args:
      texts: texts, or mappings with the columns of the table that the model was fine-tuned on.
      exit_entropy, exit_patience: a text leaves before the last layer, as in `t2t infer`; 0: never.

    Returns:
      For each text {"prediction": "yes", "score": -0.3, "probabilities": {"no": 0.27, "yes": 0.73}}; with early exit
      also "layers", the number of layers that it took.

    Raises:
      UserError: the model was not fine-tuned on classes, has no exits, or a text lacks a column.
    """
    with in_python():
      way = (
        self._answering("") if not exit_entropy and not exit_patience else self._leaving(exit_entropy, exit_patience)
      )
      if way.asks != "class":
        raise UserError(f"{self!r} is not a classifier (kind of prediction: {way.asks}); call answer() or generate()")
      return self._ask(way, texts)

  def __call__(self, texts: Asked | Sequence[Asked]) -> dict[str, Any] | list[dict[str, Any]]:
    """Runs what the model was trained for: `answer`, `fill` or `generate`; a single text returns a single row."""
    single = isinstance(texts, str | Mapping)
    batch = [texts] if single else texts
    if self._source.model.is_generative or pretrained.answers_by_heads(self._source):
      rows = self.answer(batch) if self._is_answered else [{"prediction": text} for text in self.generate(batch)]
    else:
      rows = self.fill(batch)
    return rows[0] if single else rows

  @property
  def _is_answered(self) -> bool:
    by_heads = pretrained.answers_by_heads(self._source) and not pretrained.predicts_tokens(self._source)
    return by_heads or table_inputs.spec_of(self._source) is not None

  def _answering(self, task: str) -> batch_inference.Way:
    """Selects the method of the model's head, or of the table that a generative model was fine-tuned on."""
    spec = table_inputs.spec_of(self._source)
    if task or spec is None or pretrained.answers_by_heads(self._source) or not self.config.is_generative:
      return self._way("answer", head=classification.choose_head(self._source.model, task, where=repr(self)))
    if spec.kind in ("class", "choice"):
      return self._way("rank", classes=spec.classes)
    length = self._source.run["data"]["targets_length"]
    return self._way("write", decode=text_generation.decode_config(max_length=length), seed=0)

  def _leaving(self, entropy: float, patience: int) -> batch_inference.Way:
    """Returns the method of the model's head with early exit."""
    from t2t.inference import early_exit  # few models have exits

    numeric.check("exit_entropy", entropy, 0.0)
    numeric.check("exit_patience", patience, 0, whole=True)
    early_exit.rule_of(self.config, entropy, patience)
    head = classification.choose_head(self._source.model, "", where=repr(self))
    early_exit.rule_of(self.config, entropy, patience, head=head)
    return self._way("answer", head=head, exits=(entropy, patience))

  # ---- Numbers -------------------------------------------------------------

  @foreign_names.translating
  def embed(self, texts: Sequence[Asked], *, pool: str = "mean", layer: int | str = "") -> np.ndarray:
    """Returns a vector of each text, float32 [texts, embed]; with layer="all" [texts, layers + 1, embed].

    Args:
      texts: texts, or {"parts": ["a", "b"]} for two segments.
      pool: mean, first or last of the tokens.
      layer: 0 (embeddings) to the last layer, or "all"; "": the last.

    Raises:
      UserError: there is no such pool or layer.
    """
    if pool not in embedding.POOLS:
      raise UserError(f"pool={pool}: unknown value; give one of {', '.join(embedding.POOLS)}")
    with in_python():
      rows = self._ask(self._way("embed", pool=pool, layer=str(layer)), texts)
    if not rows:
      raise UserError("'texts' is empty; give at least one text")
    return np.stack([row["vector"] for row in rows])

  @foreign_names.translating
  def score(self, inputs: Sequence[str], targets: Sequence[str], *, pseudo_likelihood: str = "") -> np.ndarray:
    """Returns the log-probability of each target given its input, in nats, summed over tokens: float32 [texts].

    The end-of-sequence token counts for encoder-decoder models. An encoder has pseudo-log-likelihoods. A text beyond
    the model's positions is scored in windows, with a warning.

    Args:
      inputs: may be "" for a decoder-only model or an encoder.
      targets: one for each input.
      pseudo_likelihood: of an encoder, as config.eval.pseudo_likelihood; "": the default.

    Raises:
      UserError: the numbers of inputs and targets differ, or the pseudo-log-likelihood does not fit the model.
    """
    with in_python():
      scorer = text_scores.Scorer(self._reader, self._vocabulary, pseudo_likelihood=pseudo_likelihood)
      scores = scorer(self.params, self._pairs(inputs, targets))
      if note := scorer.long_note(scores):
        warnings.warn(note, stacklevel=3)
      return np.array([score.log_p for score in scores], np.float32)

  @foreign_names.translating
  def logits(self, inputs: Sequence[str], targets: Sequence[str] | None = None) -> list[np.ndarray]:
    """Returns the logits of each token, before the softmax: for each text float32 [tokens, vocabulary].

    Args:
      inputs: texts.
      targets: texts to predict after the inputs, for a generative model. A decoder-only model without targets predicts
        each token of `inputs` from the tokens before it. An encoder takes None, and predicts the tokens of the text as
        it reads it, special tokens included.

    Raises:
      UserError: targets are missing, or given to an encoder.
    """
    kind = self.config.kind
    if not kind.is_generative and targets is not None:
      raise UserError(
        f"{self!r} is an encoder and takes no 'targets'; leave out 'targets', and mask the tokens to predict in"
        " 'inputs'"
      )
    if kind.has_encoder_and_decoder and targets is None:
      raise UserError(
        f"'targets' is missing, but {self!r} predicts the tokens of targets; give one target for each input"
      )
    with in_python():
      if not kind.is_generative:
        predictor.check_predicts_tokens(self._source.model, where=repr(self))
        blanks = fill_mask.Blanks(self._vocabulary, self.config.architecture, special_tokens=self._special_tokens)
        read = [blanks(text, self._longest_text())[0] for text in _texts(inputs)]
        return [self._of_encoder(ids) for ids in read]
      pairs = (
        self._pairs(inputs, targets)
        if targets is not None
        else [([], x) for x in self.tokenize(inputs, special_tokens=self._special_tokens)]
      )
      return [self._of_decoder(pair) for pair in pairs]

  # ---- Predictors ----------------------------------------------------------------------------------------------------

  def _make_way(self, asks: str, **options: Any) -> batch_inference.Way:
    """Builds a prediction method; a text may be a mapping with the columns of the checkpoint's table."""
    if asks in ("embed", "fill"):
      return self._way_of_text(asks, self._mesh, **options)
    return table_inputs.around(self._source, lambda mesh: self._way_of_text(asks, mesh, **options))(self._mesh)

  def _way_of_text(self, asks: str, mesh: jax.sharding.Mesh, **options: Any) -> batch_inference.Way:
    source, size = self._source, self._batch_size
    if asks == "rank":
      longest = prompt_builder.longest_prompt(source, inputs_length=self._inputs_length, max_length=1)
      ends = prompt_builder.ends_prompts(source)[0]
      options["special_tokens"] = self._special_tokens
      return ranking.Ranking(source, mesh, longest=longest, ends_prompts=ends, batch_size=size, **options)
    if asks == "write":
      length = options["decode"].max_length
      longest = prompt_builder.longest_prompt(source, inputs_length=self._inputs_length, max_length=length)
      ends = prompt_builder.ends_prompts(source)[0]
      options["special_tokens"] = self._special_tokens
      return text_generation.Writing(source, mesh, longest=longest, ends_prompts=ends, batch_size=size, **options)
    if asks == "fill":
      options["special_tokens"] = self._special_tokens
    make = {"fill": fill_mask.Filling, "embed": embedding.Embedding}.get(asks) or token_classify.way_of(options["head"])
    return make(source, mesh, longest=self._longest_text(), batch_size=size, **options)

  def _longest_text(self) -> int:
    return prompt_builder.longest_text(self._source, inputs_length=self._inputs_length)

  def _ask(self, way: batch_inference.Way, texts: Sequence[Asked]) -> list[dict[str, Any]]:
    """Returns the prediction of each text.

    Raises:
      UserError: a text cannot be read.
    """
    if isinstance(texts, str | Mapping):
      kind = "text" if isinstance(texts, str) else "mapping"
      raise UserError(f"'texts' is a single {kind}; put the {kind} in a list: [...]")
    if not isinstance(texts, Iterable):
      raise UserError(f"'texts' has type {type(texts).__name__}; give a list of texts")
    examples = []
    for number, text in enumerate(texts):
      where = f"texts[{number}]"
      line = jsonl_io.made(number + 1, text, form=way.form, where=where)
      if not line.text:
        raise UserError(f"{where} is empty; give a text")
      way.check(line, where)
      example = way.read(line)
      if example.error:
        raise UserError(f"{where}: {example.error} in {line.text[:60]!r}; {batch_inference.REMEDIES[example.error]}")
      if example.cut:
        message = f"{where}: {example.cut:,} of the {example.tokens:,} tokens were cut (limit: {way.cut_to})"
        warnings.warn(f"{message}; load the model with a larger inputs_length", stacklevel=4)
      examples.append(example.given)
    return way.answer(self.params, examples, numbers=range(len(examples)), done=None) if examples else []

  # ---- Pairs and logits ----------------------------------------------------

  @functools.cached_property
  def _framing(self) -> prompt_features.PromptFraming:
    return prompt_features.framing(self._vocabulary, causal=pretrained.reads_causally(self._source))

  @functools.cached_property
  def _reader(self) -> predictor.Predictor:
    return predictor.Predictor(
      self._model.config,
      self._model.graphdef,
      self._mesh,
      self._framing,
      decode=None,
      batch_size=self._batch_size,
      max_inputs=self._longest_text(),
    )

  def _pairs(self, inputs: Sequence[str], targets: Sequence[str]) -> list[tuple[list[int], list[int]]]:
    inputs, targets = _texts(inputs, "inputs"), _texts(targets, "targets")
    if len(inputs) != len(targets):
      raise UserError(f"there are {len(inputs)} inputs and {len(targets)} targets; give one target for each input")
    kind = self.config.kind
    longest = self._inputs_length or self._source.run["data"]["inputs_length"]
    read = prompt_builder.Prompts(
      self._vocabulary,
      ends=kind.is_generative and prompt_builder.ends_prompts(self._source)[0],
      longest=longest,
      special_tokens=self._special_tokens,
      prefix=prompt_builder.prefix(self._source) if kind.is_generative else None,
    )
    end = [self._vocabulary.eos_id] if kind.has_encoder_and_decoder else []
    pairs = []
    for number, (text, target) in enumerate(zip(inputs, targets, strict=True)):
      prompt, cut = read(text)
      if cut:
        message = f"inputs[{number}]: {cut:,} of the {len(prompt) + cut:,} tokens were cut (limit: {longest:,} tokens)"
        warnings.warn(f"{message}; load the model with a larger inputs_length", stacklevel=4)
      pairs.append((prompt, [*read.encode(target), *end]))
    return pairs

  def _of_decoder(self, pair: tuple[list[int], list[int]]) -> np.ndarray:
    prompt, target = pair
    most = self.config.most_positions or 1 << 30
    apart = self.config.kind.has_encoder_and_decoder
    lengths = (len(prompt), len(target)) if apart else (len(prompt) + len(target),)
    widths = [predictor.bucket(max(length, 1), most) for length in lengths]
    row = predictor.ScoredRow(prompt, target)
    batch = predictor.scored_features([row], widths, architecture=self.config.architecture, framing=self._framing)
    logits = self._logits(batch)
    return logits[: len(target)] if apart else logits[len(prompt) : len(prompt) + len(target)]

  def _of_encoder(self, ids: list[int]) -> np.ndarray:
    width = predictor.bucket(len(ids), self.config.most_positions or 1 << 30)
    pad_id = max(self._vocabulary.pad_id, 0)
    batch = row_batches.features_of([{"inputs": ids}], width, side="encoder", pad_id=pad_id)
    if self._framing.mask_id in ids:
      batch = prompt_features.predicted_last(self.config, batch, self._framing.mask_id)
    return self._logits(batch)[: len(ids)]

  def _logits(self, batch: Mapping[str, np.ndarray]) -> np.ndarray:
    with jax.set_mesh(self._mesh):
      return np.asarray(self._program(self.params, {name: jnp.asarray(x) for name, x in batch.items()}))[0]

  @functools.cached_property
  def _program(self):
    graphdef = self._model.graphdef

    def logits(params: Params, batch: Batch) -> jax.Array:
      model = nnx.merge(graphdef, params)
      return model.logits(model(batch)).astype(jnp.float32)

    return jax.jit(logits)


def _texts(texts: Iterable[str], called: str = "texts") -> list[str]:
  """Checks that the argument is an iterable of texts, and not a single text."""
  if isinstance(texts, str):
    raise UserError(f"{called!r} is a single text; put the text in a list: [{texts[:20]!r}]")
  if not isinstance(texts, Iterable):
    raise UserError(f"{called!r} has type {type(texts).__name__}; give a list of texts")
  texts = list(texts)  # a generator can be read only once
  for number, text in enumerate(texts):
    if not isinstance(text, str):
      raise UserError(f"{called}[{number}] has type {type(text).__name__}; give a text")
    if reason := encoding.unpaired_surrogate(text):
      raise UserError(f"{called}[{number}] {reason}")
  return texts


@contextlib.contextmanager
def in_python() -> Iterator[None]:
  """Rewrites options in error messages as Python arguments, `--beam 4` as beam 4; leaves commands unchanged."""
  from t2t.runtime import data_packages

  try:
    with data_packages.says_what_is_missing():
      yield
  except UserError as error:
    text = str(error).replace("--checkpoint: ", "")
    raise type(error)(re.sub(r"(`[^`]*`|t2t [a-z]+ --[^;,`\n]*)|--", lambda match: match[1] or "", text)) from None
