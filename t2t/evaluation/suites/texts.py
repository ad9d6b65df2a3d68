r"""Perplexity and bits per byte of a text, and the conventions of Penn Treebank and WikiText-2.

Words are those of the original file, whatever the vocabulary of the model: word perplexity is
exp(nats of the text / words), and bits per byte are nats / ln 2 / bytes of the text in UTF-8.
"""

from collections.abc import Sequence
import dataclasses
import math
import re

import numpy as np

from t2t import UserError
from t2t.evaluation import results
from t2t.evaluation.item_statistics import Statistics, value_of
from t2t.evaluation.suites import items as items_lib
from t2t.evaluation.suites import scoring as scoring_lib
from t2t.inference.text_scores import ScoredText
from t2t.param_tree import Params
from t2t.storage import encoding, gcs, safe_read


@dataclasses.dataclass(frozen=True)
class EvaluatedText:
  """Documents, each a list of the lines that end in EOS, or one line without EOS.

  documents: text of each line.
  num_words: words of the original file; with `ends_lines` a line end is a word, too.
  num_bytes: of the lines in UTF-8; with `ends_lines` a line end has one byte.
  ends_lines: whether the model predicts EOS after each line.
  path: of the file, for messages.
  """

  documents: tuple[tuple[str, ...], ...]
  num_words: int
  num_bytes: int
  ends_lines: bool = False
  path: str = dataclasses.field(default="", compare=False)

  @property
  def num_lines(self) -> int:
    """Number of lines of all documents."""
    return sum(map(len, self.documents))


def plain(path: str, where: str) -> EvaluatedText:
  """Reads a text: a .txt file is one document, a .jsonl file one document in the field "text" of each line."""
  (file,) = items_lib.files(path, where=where) if path.endswith((".jsonl", ".txt")) else _refuse(path, where)
  if file.name.endswith(".jsonl"):
    documents = [items_lib.field(row, "text", place) for place, row in items_lib.objects(file, where=where)]
  else:
    documents = [safe_read.read_text(file, where=f"{where}{file}")]
  if not any(document.strip() for document in documents):
    raise UserError(f"{where}{path}: the file has no text. Give a file with text.")
  num_words = sum(len(document.split()) for document in documents)
  num_bytes = sum(len(document.encode()) for document in documents)
  return EvaluatedText(tuple((document,) for document in documents), num_words, num_bytes, path=path)


def _refuse(path: str, where: str):
  raise UserError(f"{where}{path}: unknown file type. Give a .txt file, or a .jsonl file with a field 'text'.")


def ptb(path: str, where: str) -> EvaluatedText:
  """Reads Penn Treebank as Mikolov et al. 2010 prepared it, ptb.test.txt: <unk>, N, and a line end that is a word."""
  lines = [" ".join(line.split()) for line in _lines(path, where, ("ptb.test.txt",))]
  return _of_lines(lines, [len(line.split()) for line in lines], path)


def wikitext(path: str, where: str) -> EvaluatedText:
  """Reads WikiText (Merity et al. 2016), wiki.test.tokens or wiki.test.raw: detokenized for the model.

  Words are counted as in the file, with one for the end of each line, also of blank lines.
  """
  lines = _lines(path, where, ("wiki.test.tokens", "wiki.test.raw"))
  return _of_lines([detokenized(line) for line in lines], [len(line.split()) for line in lines], path)


def _lines(path: str, where: str, names: Sequence[str]) -> list[str]:
  """Returns the lines of a file, or of the only file of `names` in a folder."""
  if path.endswith((".json", ".jsonl")):
    raise UserError(f"{where}{path}: JSON lines are no released text. Give {' or '.join(names)}, or text={path}.")
  gcs.check(path, where=where)
  folder = gcs.absolute(path)
  if folder.is_dir():
    found = [name for name in names if (folder / name).is_file()]
    if len(found) != 1:
      listed = f"has both {' and '.join(found)}" if found else f"has no {' or '.join(names)}"
      raise UserError(f"{where}{path}: the folder {listed}. Give the path of the file.")
    path = str(folder / found[0])
  (file,) = items_lib.files(path, where=where)
  lines = encoding.lines(safe_read.read_text(file, where=f"{where}{file}"))
  if not any(line.strip() for line in lines):
    raise UserError(f"{where}{path}: the file has no text. Give the released file.")
  return lines


def _of_lines(lines: Sequence[str], num_words: Sequence[int], path: str = "") -> EvaluatedText:
  num_bytes = sum(len(line.encode()) + 1 for line in lines)
  return EvaluatedText((tuple(lines),), sum(num_words) + len(lines), num_bytes, ends_lines=True, path=path)


_INSIDE = re.compile(r" @([-,.])@ ")
_BEFORE = re.compile(r" (?=[,.;:!?)\]%]|'(?:s|re|ve|ll|d|m|t)\b|n't\b)")
_AFTER = re.compile(r"(?<=[(\[$]) ")
_QUOTED = re.compile(r'" ([^"]*) "')


def detokenized(line: str) -> str:
  """Returns a line of WikiText as ordinary text.

  In:  " The 15 @-@ year @-@ old said ( in 1 @,@ 000 words ) : " no " . "
  Out: "The 15-year-old said (in 1,000 words): "no"."
  """
  line = _INSIDE.sub(r"\1", line)
  line = _QUOTED.sub(r'"\1"', line)
  return _AFTER.sub("", _BEFORE.sub("", line)).strip()


class TextSuite:
  """Perplexities of a text; the units of intervals are the windows that the model reads.

  The ratios of tokens to bytes and words are those of the whole text.

  Args:
    name: of the suite.
    text: see `EvaluatedText`.
    scoring: of the model.
  """

  def __init__(self, name: str, text: EvaluatedText, scoring: scoring_lib.SuiteScoring, **unused):
    del unused
    self.name, self._text, self._scoring = name, text, scoring
    self._is_pseudo = bool(scoring.scorer.pseudo_likelihood)
    # Encoders were never trained to predict EOS: a line end that has no score is neither a word nor a byte.
    end = [scoring.vocabulary.eos_id] if text.ends_lines and not self._is_pseudo else []
    unscored = text.num_lines if text.ends_lines and not end else 0
    self._num_words, self._num_bytes = text.num_words - unscored, text.num_bytes - unscored
    self._texts = [self._encoded(document, end) for document in text.documents]
    layouts = [scoring.scorer.layout(encoded) for encoded in self._texts]
    self._spans = [(number, window) for number, layout in enumerate(layouts) for window in layout.windows]
    if not self._spans:
      raise UserError(f"{name}={text.path}: the model's vocabulary has no token of this text. Give another text.")
    self.num_items, self.num_long = len(self._spans), sum(layout.is_long for layout in layouts)
    self.long_note = scoring_lib.long_note(f"of {len(layouts):,} documents are", scoring)

  def _encoded(self, document: Sequence[str], end: list[int]) -> ScoredText:
    tokens = [token for line in document for token in (*self._scoring.scorer.encode(line), *end)]
    size = sum(len(line.encode()) for line in document)
    if not self._scoring.form:
      return ScoredText((), tokens, size)
    eos = self._scoring.vocabulary.eos_id
    if self._scoring.form == "prefix":
      return ScoredText([eos], tokens, size)
    from t2t.data import vocabularies

    sentinel = vocabularies.sentinel_ids(self._scoring.vocabulary, 1)[0]
    return ScoredText([sentinel, eos], [sentinel, *tokens], size, num_unscored=1)

  def run(self, params: Params, on_batch: scoring_lib.Done | None = None) -> results.Result:
    """Scores the text."""
    log_p, num_tokens = self._scoring.scorer.by_window(params, self._texts, on_batch=on_batch)
    scoring_lib.check_finite([log_p])
    nats, tokens = -log_p.astype(np.float64), float(num_tokens.sum())
    per_token = lambda number: num_tokens * (number / tokens)
    rows = {
      "bits_per_byte": ("quotient", per_token(math.log(2) * self._num_bytes)),
      "word_perplexity": ("perplexity", per_token(self._num_words)),
      "perplexity": ("perplexity", per_token(tokens)),
    }
    prefix = "pseudo_" if self._is_pseudo else ""
    statistics = {
      prefix + name: Statistics(value, np.stack([nats, divisor], axis=-1)) for name, (value, divisor) in rows.items()
    }
    units = [str(number) for number in range(len(nats))]
    answers = [
      results.Answer(
        {"idx": number, "inputs_pretokenized": f"document {document}, tokens {span.first} to {span.last - 1}".encode()},
        "",
        float(window_log_p),
        None,
        float(window_log_p),
      )
      for number, ((document, span), window_log_p) in enumerate(zip(self._spans, log_p, strict=True))
    ]
    return results.Result(
      self.name,
      scoring_lib.SPLIT,
      {name: value_of(statistic) for name, statistic in statistics.items()},
      answers,
      rule={name: value for name, value in self._scoring.rule.items() if name != "normalize"},
      intervals=scoring_lib.of_statistics(statistics, units),
      statistics=statistics,
      units=units,
      details={
        "long": self.num_long,
        "tokens": int(tokens),
        "words": self._num_words,
        "bytes": self._num_bytes,
        "stride": self._scoring.scorer.stride,
      },
    )
