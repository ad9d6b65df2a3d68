"""Code switching: replaces words of texts by translations from a dictionary, before any objective."""

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

# Letters with marks that Python's \w lacks (vowels of Hindi and Thai, combining accents), and joiners between two
# letters of a word.
_MARKS = "".join(filter(lambda x: unicodedata.category(x).startswith("M"), map(chr, range(0x300, 0x1F000))))
_WORD = re.compile(rf"\w[\w{_MARKS}\u200c\u200d]*")


def read_dictionary(path: str) -> Mapping[str, tuple[str, ...]]:
  """Reads a dictionary, word -> its translations, from a TSV with a word and a translation per line.

  In:  "red<tab>rouge", "house<tab>maison", "house<tab>casa"
  Out: {"red": ("rouge",), "house": ("maison", "casa")}

  Raises:
    UserError: the file cannot be read, or a line is not such a pair (gives the line).
  """
  return _parsed(_content(path), f"config.data.dictionary={path}")


def named(path: str) -> str:
  """Returns the name and content hash of a dictionary, for fingerprints.

  Raises:
    UserError: the file cannot be read.
  """
  return f"{path.rsplit('/', 1)[-1]} ({hashlib.sha256(_content(path)).hexdigest()[:12]})"


def _content(path: str) -> bytes:
  gcs.check(path, where="config.data.dictionary=")
  try:
    return gcs.read(epath.Path(path).expanduser())
  except OSError as error:
    raise UserError(
      f"config.data.dictionary={path} cannot be read ({error.strerror or error}). Check the path of the file."
    ) from error


@functools.lru_cache(maxsize=8)
def _parsed(content: bytes, location: str) -> Mapping[str, tuple[str, ...]]:
  try:
    lines = content.decode("utf-8-sig").split("\n")
  except UnicodeDecodeError as error:
    raise UserError(
      f"{location} is not valid UTF-8 (byte {error.start + 1}). Save the file with the encoding UTF-8."
    ) from error
  dictionary: dict[str, list[str]] = {}
  for number, line in enumerate(lines, 1):
    if not line.strip():
      continue
    columns = [column.strip() for column in line.split("\t")]
    if len(columns) != 2 or not all(columns):
      raise UserError(
        f"{location}, line {number}: {line.strip()!r} is not a word and a translation, separated by a tab. Correct the "
        "line."
      )
    if not _WORD.fullmatch(columns[0]):
      raise UserError(
        f"{location}, line {number}: {columns[0]!r} is not a single word; only single words are replaced. Remove "
        "the line."
      )
    dictionary.setdefault(columns[0], []).append(columns[1])
  if not dictionary:
    raise UserError(f"{location} has no words. Give a word, a tab and a translation on each line.")
  return {word: tuple(dict.fromkeys(translations)) for word, translations in dictionary.items()}


def check(dictionary: str, rate: float, *, objective: str, reads_text: bool) -> None:
  """Checks that dictionary, rate and objective fit together.

  Raises:
    UserError: they do not fit; names the config key.
  """
  if not dictionary:
    raise UserError(
      f"config.data.switching_rate={rate} has no effect, because config.data.dictionary is empty. Give "
      "--config.data.dictionary=FILE.tsv, or leave config.data.switching_rate out."
    )
  if not reads_text:
    raise UserError(
      f"config.data.dictionary={dictionary} works only with objectives of plain text, but "
      f"config.data.objective={objective} reads annotations or pairs. Leave config.data.dictionary empty."
    )
  if not 0 < rate <= 1:
    raise UserError(
      f"config.data.switching_rate={rate}: the rate must be above 0 and at most 1. Correct the rate, or leave "
      "config.data.dictionary empty."
    )


def switch(text: str, draws: np.ndarray, *, dictionary: Mapping[str, Sequence[str]], rate: float) -> str:
  """Replaces some words of a text by their translations; other words stay unchanged.

  In:  "The red house.", draws [[0.9, 0.1, 0.2], [0, 0, 0.9]], {"red": ["rouge"], "house": ["maison", "casa"]}, rate 0.5
  Out: "The rouge casa."

  A word is looked up unchanged, then in lower case; its translation is inserted as in the dictionary.

  Args:
    text: words are runs of letters with their marks, digits and underscores.
    draws: [2, at least the number of words], uniform in [0, 1): whether to replace a word, and by which translation.
    dictionary: see `read_dictionary`.
    rate: probability of replacing a word that the dictionary contains.
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
  """Replaces words of texts by translations; runs before an objective's preprocessors.

  In:  {"text": "the red house"}            dictionary "red<tab>rouge", "house<tab>maison", rate 0.5
  Out: {"text": "the rouge house"}

  Each epoch replaces other words.

  Args:
    dataset: {"text": string} and further features.
    dictionary: path of a TSV, see `read_dictionary`.
    rate: probability of replacing a word that the dictionary contains.

  Raises:
    UserError: the dictionary is invalid.

  Source: word replacement by a dictionary, Qin et al. 2020 (CoSDA-ML).
  """
  translations = read_dictionary(dictionary)

  def in_python(text: bytes, draws: np.ndarray) -> bytes:
    return switch(text.decode(), draws, dictionary=translations, rate=rate).encode()

  @seqio.map_over_dataset(num_seeds=1)
  def switched(features: Features, seed: tf.Tensor) -> Features:
    text = features["text"]
    # At least one character separates two words.
    most = tf.strings.length(text) // 2 + 1
    draws = tf.random.stateless_uniform([2, most], seed)
    switched_text = tf.numpy_function(in_python, [text, draws], tf.string, stateful=False)
    return features | {"text": tf.ensure_shape(switched_text, [])}

  return switched(dataset)
