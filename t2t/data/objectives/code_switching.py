"""Switching codes: words of a text are replaced by their translations in a dictionary, before any objective."""

from collections.abc import Mapping, Sequence
import functools
import hashlib
import re
import unicodedata

from etils import epath
import numpy as np
import seqio
import tensorflow as tf

from t2t import UserError
from t2t.storage import gcs

Features = dict[str, tf.Tensor]

# Letters with their marks, which Python's \w has not: vowels of Hindi and Thai, accents that are characters of their
# own; and what joins two letters of a word, or keeps them apart.
_MARKS = "".join(filter(lambda x: unicodedata.category(x).startswith("M"), map(chr, range(0x300, 0x1F000))))
_WORD = re.compile(rf"\w[\w{_MARKS}\u200c\u200d]*")


def read_dictionary(path: str) -> Mapping[str, tuple[str, ...]]:
  """Word -> its translations, of a TSV with a word and a translation in each line.

  In:  "red<tab>rouge", "house<tab>maison", "house<tab>casa"
  Out: {"red": ("rouge",), "house": ("maison", "casa")}

  Raises:
    UserError: it cannot be read, or a line is no such pair; names the line.
  """
  return _parsed(_content(path), f"config.data.dictionary={path}")


def named(path: str) -> str:
  """A dictionary by its name and what it holds.

  Raises:
    UserError: it cannot be read.
  """
  return f"{path.rsplit('/', 1)[-1]} ({hashlib.sha256(_content(path)).hexdigest()[:12]})"


def _content(path: str) -> bytes:
  gcs.check(path, where="config.data.dictionary=")
  try:
    return gcs.read(epath.Path(path).expanduser())
  except OSError as error:
    raise UserError(f"config.data.dictionary={path}: cannot be read ({error.strerror or error})") from error


@functools.lru_cache(maxsize=8)
def _parsed(content: bytes, location: str) -> Mapping[str, tuple[str, ...]]:
  try:
    lines = content.decode("utf-8-sig").split("\n")
  except UnicodeDecodeError as error:
    raise UserError(f"{location}: not valid UTF-8 (byte {error.start + 1})") from error
  dictionary: dict[str, list[str]] = {}
  for number, line in enumerate(lines, 1):
    if not line.strip():
      continue
    columns = [column.strip() for column in line.split("\t")]
    if len(columns) != 2 or not all(columns):
      raise UserError(f"{location}, line {number}: {line.strip()!r} is not a word, a tab and its translation")
    if not _WORD.fullmatch(columns[0]):
      raise UserError(
        f"{location}, line {number}: {columns[0]!r} is not one word, and one word after another is replaced"
      )
    dictionary.setdefault(columns[0], []).append(columns[1])
  if not dictionary:
    raise UserError(f"{location}: has no words; give a word, a tab and its translation in each line")
  return {word: tuple(dict.fromkeys(translations)) for word, translations in dictionary.items()}


def check(dictionary: str, rate: float, *, objective: str, reads_text: bool) -> None:
  """Whether a dictionary and a rate go together, and with an objective.

  Raises:
    UserError: they do not; names the configuration key.
  """
  if not dictionary:
    raise UserError(f"config.data.switching_rate={rate}: by which words? config.data.dictionary is empty")
  if not reads_text:
    raise UserError(
      f"config.data.dictionary={dictionary}: words are replaced in texts alone, and config.data.objective={objective}"
      " reads more; leave it empty"
    )
  if not 0 < rate <= 1:
    raise UserError(
      f"config.data.switching_rate={rate}: of the words of config.data.dictionary must be above 0 and at most 1, or set"
      " config.data.dictionary to nothing"
    )


def switch(text: str, draws: np.ndarray, *, dictionary: Mapping[str, Sequence[str]], rate: float) -> str:
  """A text with translations in place of some of its words; what the dictionary does not have stays.

  In:  "The red house.", draws [[0.9, 0.1, 0.2], [0, 0, 0.9]], {"red": ["rouge"], "house": ["maison", "casa"]}, rate 0.5
  Out: "The rouge casa."

  A word is looked up as it stands, then in lower case; its translation stands as the dictionary has it.

  Args:
    text: words are runs of letters with their marks, digits and underscores.
    draws: [2, words or more], of each word uniform in [0, 1): whether it is replaced, and by which translation.
    dictionary: see `read_dictionary`.
    rate: probability of each word that the dictionary has.
  """
  number = -1

  def replaced(match: re.Match) -> str:
    nonlocal number
    number += 1
    word = match.group()
    translations = dictionary.get(word) or dictionary.get(word.lower())
    if not translations or draws[0, number] >= rate:
      return word
    return translations[int(draws[1, number] * len(translations))]

  return _WORD.sub(replaced, text)


def code_switching(dataset: tf.data.Dataset, *, dictionary: str, rate: float) -> tf.data.Dataset:
  """Replaces words of texts by their translations; stands in front of an objective's preprocessors.

  In:  {"text": "the red house"}            dictionary "red<tab>rouge", "house<tab>maison", rate 0.5
  Out: {"text": "the rouge house"}

  Each epoch switches other words.

  Args:
    dataset: {"text": string} and what else there is.
    dictionary: path of a TSV, see `read_dictionary`.
    rate: probability with which a word that the dictionary has is replaced.

  Raises:
    UserError: a dictionary that cannot be used.

  Source: words replaced by a dictionary, as in Qin et al. 2020 (CoSDA-ML).
  """
  translations = read_dictionary(dictionary)

  def in_python(text: bytes, draws: np.ndarray) -> bytes:
    return switch(text.decode(), draws, dictionary=translations, rate=rate).encode()

  @seqio.map_over_dataset(num_seeds=1)
  def switched(features: Features, seed: tf.Tensor) -> Features:
    text = features["text"]
    # Between two words is at least a character.
    most = tf.strings.length(text) // 2 + 1
    draws = tf.random.stateless_uniform([2, most], seed)
    switched_text = tf.numpy_function(in_python, [text, draws], tf.string, stateful=False)
    return features | {"text": tf.ensure_shape(switched_text, [])}

  return switched(dataset)
