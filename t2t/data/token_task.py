"""Files of token ids in config.data.files, as a source of a run; see sources/token_files.py."""

from collections.abc import Sequence
import functools
from typing import Any

import seqio
import tensorflow as tf

from t2t import UserError
from t2t.data import run_sources
from t2t.data.objectives import chunking
from t2t.data.sources import file_validation, text_files, token_files
from t2t.models.head_config import HeadConfig


class TokenFiles(run_sources.TextFiles):
  """Files of ids; the objective starts from them, without a tokenizer."""

  unit = "tokens"

  def make_source(self) -> token_files.TokenSource:
    files = self._records("files").files
    where = {"train": f"{self.where}.files", "validation": f"{self.where}.files"}
    options: dict[str, Any] = {"malformed": self.data.max_bad_record_fraction, "format_": self._format()}
    if self.data.eval_files:
      where["validation"] = f"{self.where}.eval_files"
      held_out = self._records("eval_files").files
      return token_files.TokenSource({"train": files, "validation": held_out}, where=where, **options)
    scanned = self._scan()
    if scanned.complete and not file_validation.documents_by_split(scanned)["train"]:
      raise UserError(
        f"{self.key}: the only document is held out, so nothing is left to train on. Give evaluation ids as "
        f"{self.where}.eval_files, or more documents. Id {self._format().end} ends a document "
        "(config.data.tokens_end)."
      )
    below = file_validation.held_out_below(scanned)
    return token_files.TokenSource({"train": files, "validation": files}, where=where, held_out_below=below, **options)

  def load_task(self, architecture: str = "", *, heads: Sequence[HeadConfig] = ()) -> seqio.Task:
    data = self.data
    if data.special_tokens:
      raise UserError(
        f"config.data.special_tokens=True reads letters of text as control tokens, but {self.key} has ids. Leave out "
        "config.data.special_tokens."
      )
    task = super().load_task(architecture, heads=heads)
    first, *steps = task.preprocessors
    if getattr(first, "func", first) is not chunking.tokenize:
      why = "config.data.dictionary" if data.dictionary else f"config.data.objective={data.objective}"
      raise UserError(
        f"{why} reads words, phrases or translations of text, but {self.key} has token ids alone. Give text in "
        f"{self.where}.files, or another objective, such as causal_lm or span_corruption."
      )
    # A document of the file has an end id already, but the parts of a text without end ids have none.
    plain_steps = [step for step in steps if getattr(step, "func", step) is not seqio.preprocessors.append_eos]
    eos = task.output_features["targets" if "targets" in task.output_features else "inputs"].vocabulary.eos_id
    keep = eos if len(plain_steps) < len(steps) else None
    given = functools.partial(as_targets, end=self._format().end, eos=keep)
    given.objective = data.objective  # read by `objectives.of`
    return task.replace(preprocessors=[given, *plain_steps])

  def _format(self) -> token_files.IdFormat:
    vocabulary, end = self.vocabulary(), self.data.tokens_end
    if not -1 <= end < vocabulary.vocab_size:
      raise UserError(
        f"config.data.tokens_end={end} is not an id of config.data.vocabulary, which has {vocabulary.vocab_size:,}. "
        "Give the id after each document, or -1 for the EOS of the vocabulary."
      )
    return token_files.IdFormat(self.data.tokens_dtype, vocabulary.eos_id if end < 0 else end, vocabulary.vocab_size)

  def _records(self, key: str) -> token_files.TokenRecords:
    where = f"{self.where}.{key}"
    files = text_files.find_files(getattr(self.data, key), where=where)
    if other := [path for path in files if text_files.kind(path, where=where) != "tokens"]:
      raise UserError(
        f"{where}: {other[0]} has text, but other files have token ids. Give text and ids as two sources of "
        "config.data.sources."
      )
    return token_files.TokenRecords(files, self._format(), where)

  def _scan(self, key: str = "files", where: str = "") -> file_validation.Scan:
    return token_files.scan(self._records(key))

  def size(self, task: seqio.Task) -> float:
    scanned = self._scan()
    if scanned.complete and self.data.mixing_unit == "examples":
      return float(scanned.documents)
    total = sum(shard.weight for shard in task.source.records("train").shards())
    # Sizes of text are in characters, of which a weight is an estimate.
    return total if self.data.mixing_unit == "tokens" else total * scanned.documents / max(scanned.size, 1)

  def identity(self) -> dict[str, Any]:
    settings = {f"{self.where}.tokens_end".removeprefix("config."): self._format().end}
    return (
      super().identity() | settings | {f"{self.where}.tokens_dtype".removeprefix("config."): self.data.tokens_dtype}
    )

  def identity_keys(self) -> frozenset[str]:
    return super().identity_keys() - {"field"}

  def check_files(self) -> None:
    for key in ("files", "eval_files"):
      if getattr(self.data, key):
        self._scan(key)


def as_targets(dataset: tf.data.Dataset, *, end: int, eos: int | None) -> tf.data.Dataset:
  """Returns the ids of documents as "targets", in place of `chunking.tokenize`.

  In:  {"tokens": [5, 6, 1]}, {"tokens": [7, 8]}       end 1
  Out: {"targets": [5, 6]}, {"targets": [7, 8]}        with eos 1 the first keeps its end

  Args:
    dataset: documents of token_files.py.
    end: id after each document of the file.
    eos: EOS in its place; None: no EOS.
  """

  def targets(features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    ids = features["tokens"]
    has_end = ids[-1] == end
    ids = tf.cond(has_end, lambda: ids[:-1], lambda: ids)
    if eos is not None:
      ids = tf.cond(has_end, lambda: tf.concat([ids, [eos]], 0), lambda: ids)
    return {"targets": tf.ensure_shape(ids, [None])}

  return dataset.map(tf.autograph.experimental.do_not_convert(targets), num_parallel_calls=tf.data.AUTOTUNE)
