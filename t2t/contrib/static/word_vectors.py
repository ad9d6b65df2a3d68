"""Tables of word vectors: read from a run, from word2vec's text format or GloVe's, and written in word2vec's."""

from collections.abc import Iterator, Sequence
import dataclasses
import functools

from etils import epath
import numpy as np

from t2t import UserError
from t2t.checkpoints import pretrained
from t2t.contrib.static import subwords
from t2t.data import vocabularies
from t2t.storage import encoding, gcs

_MOST_SUGGESTED = 5


@dataclasses.dataclass(frozen=True)
class WordVectors:
  """Words in the order of their frequency, and a vector for each, float32 [words, width].

  where: the file or run, for messages.
  compose: word -> its vector or None, for words without a row (fastText); None: there are no such vectors.
  """

  words: tuple[str, ...]
  vectors: np.ndarray
  where: str
  compose: subwords.Composer | None = None

  @functools.cached_property
  def rows(self) -> dict[str, int]:
    """Row of each word."""
    return {word: row for row, word in enumerate(self.words)}

  @functools.cached_property
  def unit(self) -> np.ndarray:
    """Vectors of length 1, float32 [words, width]; zero vectors stay zero."""
    return _unit(self.vectors)

  def row(self, word: str) -> int | None:
    """Returns the row of a word, or of the word in small letters; None if there is neither."""
    return self.rows.get(word, self.rows.get(word.lower()))

  def unit_vector(self, word: str, *, where: str = "WORD") -> np.ndarray:
    """Returns the vector of a word with length 1, float32 [width].

    Raises:
      UserError: the word has none; gives the words that are spelled most alike.
    """
    row = self.row(word)
    if row is not None:
      return self.unit[row]
    composed = None if self.compose is None else self.compose(word)
    if composed is None:
      raise UserError(
        f"{where}: {word!r} is not among the {len(self.words):,} words of {self.where}. {self._alike(word)}"
      )
    return _unit(composed[None])[0]

  def _alike(self, word: str) -> str:
    import difflib  # few queries need it

    # Exact distances to hundreds of thousands of words would take seconds.
    small = word.lower()
    candidates = [x for x in self.words if abs(len(x) - len(small)) <= 2 and x[:1] == small[:1]][:20_000]
    near = difflib.get_close_matches(small, candidates or self.words[:20_000], n=_MOST_SUGGESTED, cutoff=0.6)
    return (
      f"Words that are spelled alike: {', '.join(near)}." if near else "No word is spelled alike. Give another word."
    )


def _unit(vectors: np.ndarray) -> np.ndarray:
  lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
  return (vectors / np.maximum(lengths, 1e-30)).astype(np.float32)


# ---- Files -----------------------------------------------------------------------------------------------------------


def read_text(path: epath.Path) -> WordVectors:
  """Reads word2vec's text format, with a line "WORDS WIDTH" at the beginning, or GloVe's, without.

  Raises:
    UserError: a line has no word or another number of values, or a value is no number; gives file and line.
  """
  lines = encoding.lines(gcs.read(path).decode("utf-8", errors="replace"))
  lines = [line for line in lines if line.strip()]
  if not lines:
    raise UserError(f"{path} is empty. Give a file with a word and its numbers in each line.")
  header = lines[0].split()
  has_header = len(header) == 2 and all(x.isascii() and x.isdigit() for x in header)
  width = int(header[1]) if has_header else len(lines[0].rstrip().split(" ")) - 1
  body = lines[1:] if has_header else lines
  if width < 1 or not body:
    raise UserError(f"{path}, line 1: no vector follows. Give a file with a word and its numbers in each line.")
  if has_header and int(header[0]) != len(body):
    raise UserError(f"{path}, line 1: announces {header[0]} words, but {len(body)} follow. Copy the file again.")
  words, vectors = [], np.empty((len(body), width), np.float32)
  for row, line in enumerate(body):
    number = row + 1 + has_header
    # GloVe's words may contain spaces: the last numbers are the vector.
    word, *values = line.rstrip().rsplit(" ", width)
    try:
      if len(values) != width or not word:
        raise ValueError(f"{len(values)} numbers")
      vectors[row] = [float(value) for value in values]
    except ValueError as error:
      raise UserError(
        f"{path}, line {number}: {line[:40]!r} is not a word and {width} numbers ({error}). Correct the line."
      ) from error
    words.append(word)
  if not np.isfinite(vectors).all():
    row = int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])
    raise UserError(
      f"{path}, line {row + 1 + has_header}: the vector of {words[row]!r} is not finite. Remove the line."
    )
  return WordVectors(tuple(words), vectors, str(path))


def lines_of(table: WordVectors) -> Iterator[str]:
  """Yields the lines of word2vec's text format; float32 numbers are written so that they are read back exactly.

  Raises:
    UserError: a word contains a space.
  """
  yield f"{len(table.words)} {table.vectors.shape[1]}\n"
  for word, vector in zip(table.words, table.vectors, strict=True):
    if not word or any(character.isspace() for character in word):
      raise UserError(
        f"{table.where}: the word {word!r} is empty or contains a space, which separates numbers in word2vec's format. "
        "Use a vocabulary of `t2t vocab train --type word`."
      )
    yield f"{word} {' '.join(np.format_float_positional(x, unique=True) for x in vector)}\n"


def write(table: WordVectors, path: epath.Path) -> None:
  """Writes word2vec's text format; an incomplete file never has the final name.

  Raises:
    UserError: the path is a folder, or see `lines_of`.
  """
  if path.exists() and path.is_dir():
    raise UserError(f"{path} is a folder, but word2vec's format is a file. Give a path such as {path / 'vectors.txt'}.")
  path.parent.mkdir(parents=True, exist_ok=True)
  part = path.parent / f"{path.name}.part"
  with part.open("w") as file:
    for line in lines_of(table):
      file.write(line)
  part.replace(path)


# ---- Runs ------------------------------------------------------------------------------------------------------------


def read(path: str, *, where: str = "--vectors ") -> WordVectors:
  """Reads the vectors of a run, of one of its checkpoints, or of a text file.

  Raises:
    UserError: there is none, or the run has no static vectors.
  """
  local = epath.Path(gcs.fetched(path, where=where)).expanduser()
  if not local.exists():
    raise UserError(f"{where}{path}: no such file or folder. Give a run of word vectors, or a text file.")
  return of_run(path, where=where) if local.is_dir() else read_text(local)


def of_run(path: str, *, where: str = "--vectors ") -> WordVectors:
  """Returns the vectors of the words of a run's vocabulary, without its special tokens.

  Raises:
    UserError: the run's model has layers, so that its words have no static vectors.
  """
  source = pretrained.read_source(path, where=where)
  if source.model.block != "none":
    raise UserError(
      f"{where}{path} has layers, so that a word's vector depends on its context. Give a run of word vectors, or "
      "compare words in sentences: t2t neighbours --checkpoint RUN --query 'Kids [[play]] outside' FILE."
    )
  vocabulary = pretrained.vocabulary(source)
  special = vocabularies.special_ids(vocabulary)
  texts = vocabularies.token_texts(vocabulary)
  ids = [i for i, text in enumerate(texts) if i not in special and text.strip()]
  arrays, words = _arrays(source), tuple(texts[i].strip() for i in ids)
  vectors = arrays["embed/table"][ids]
  if source.run["train"]["loss"] == "glove":  # the sum of both tables (Pennington et al. 2014, section 4.2)
    vectors = vectors + _of_context(source)[ids]
  if "embed/buckets" not in arrays:
    return WordVectors(words, vectors, source.name)
  composer = subwords.Composer(arrays["embed/buckets"], source.model.most_subwords)
  return WordVectors(words, composer.added(vectors, words), source.name, composer)


def _of_context(source: pretrained.Source) -> np.ndarray:
  """Returns the context words' vectors of GloVe, which are no part of the model, float32 [rows, width]."""
  import jax

  from t2t import sharding
  from t2t.inference import batch_inference

  shape = (source.model.vocab_size, source.model.embed_dim)
  everywhere = sharding.replicated(batch_inference.make_mesh(1))
  wanted = {"context": ("context", jax.ShapeDtypeStruct(shape, np.float32, sharding=everywhere))}
  return np.asarray(pretrained.read(dataclasses.replace(source, part=""), wanted)["context"])


def _arrays(source: pretrained.Source) -> dict[str, np.ndarray]:
  import jax

  from t2t.inference import batch_inference
  from t2t.param_tree import path_name

  params = pretrained.load(source, batch_inference.make_mesh(1)).params
  return {path_name(key): np.asarray(x, np.float32) for key, x in jax.tree_util.tree_leaves_with_path(params)}


# ---- Nearest words ---------------------------------------------------------------------------------------------------


def nearest(
  table: WordVectors, query: np.ndarray, *, top: int, left_out: Sequence[str] = ()
) -> list[tuple[str, float]]:
  """Returns the words with the highest cosine, best first.

  Args:
    table: the words.
    query: float32 [width].
    top: number of words.
    left_out: words that are no result.
  """
  cosines = table.unit @ _unit(query[None])[0]
  for word in left_out:
    row = table.row(word)
    if row is not None:
      cosines[row] = -np.inf
  best = np.argsort(-cosines, kind="stable")[:top]
  return [(table.words[row], float(cosines[row])) for row in best if np.isfinite(cosines[row])]


def combination(table: WordVectors, terms: Sequence[tuple[int, str]]) -> np.ndarray:
  """Returns the sum of signed unit vectors, float32 [width]: 3CosAdd (Mikolov et al. 2013c).

  In:  ((1, "king"), (-1, "man"), (1, "woman"))
  """
  return np.sum([sign * table.unit_vector(word) for sign, word in terms], axis=0)
