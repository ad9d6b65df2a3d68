"""Trains vocabularies on text: SentencePiece, WordPiece, byte-level BPE, words; used by `t2t vocab`."""

import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence
import contextlib
import io
import pathlib
import re
import signal
import threading
import time

import sentencepiece
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from t2t import UserError
from t2t.runtime import cache_folder, console
from t2t.storage import vocabulary_files

_ALPHABET_SIZE = 1000  # most frequent characters that always get a token; BERT's uncased vocabulary has 997
_COVERAGE = 0.9995  # as in T5, and in mT5 with its scripts of thousands of characters


def train_sentencepiece(
  texts: Iterable[str],
  *,
  size: int,
  output_dir: str | pathlib.Path,
  character_coverage: float | None = None,
  byte_fallback: bool = False,
  symbols: Sequence[str] = (),
  is_limit: bool = False,
) -> pathlib.Path:
  """Trains a unigram model in T5's format (pad 0, </s> 1, <unk> 2, no BOS, no sentinels) and writes spiece.model.

  Args:
    texts: documents; long ones are split at spaces into at most 4,000 bytes.
    size: number of tokens, including the three special ones and 256 bytes if any.
    output_dir: local folder; created if missing.
    character_coverage: fraction of the text covered by characters with a token; None: `coverage_for` it.
    symbols: strings that are always one token, such as the tags of config.data.language_tags.
    byte_fallback: whether a character without a token becomes UTF-8 bytes instead of unknown.
    is_limit: whether little text gives fewer tokens than `size`, instead of an error.

  Returns:
    The path of the model.

  Raises:
    UserError: there is no text, or too little for the size; gives the largest possible size.

  Source: Kudo 2018 (unigram), Raffel et al. 2020 section 2.2.1 (special tokens).
  """
  if size < 4:
    raise UserError(f"--size {size}: too small for pad, </s>, <unk> and at least one token; give 4 or more")
  model = io.BytesIO()
  lines = list(sentences(texts))
  if not lines:
    raise UserError("--input: there is no text to train a vocabulary on; give files with text")
  if character_coverage is None:
    character_coverage = coverage_for(count_characters(lines), size=size)
  try:
    with _announced(f"training a SentencePiece vocabulary of {size:,} tokens on {len(lines):,} lines"):
      sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="unigram",
        vocab_size=size,
        character_coverage=character_coverage,
        byte_fallback=byte_fallback,
        hard_vocab_limit=not is_limit,
        user_defined_symbols=list(symbols),
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        pad_piece="<pad>",
        max_sentence_length=_MAX_LINE_BYTES + 1,
        # The default of 1,000,000 suits gigabytes of text; a small vocabulary of a small corpus needs far fewer seeds.
        seed_sentencepiece_size=min(1_000_000, max(20 * size, 50_000)),
        train_extremely_large_corpus=False,
        minloglevel=2,
      )
  except (RuntimeError, OSError) as error:
    raise _trainer_error(error, size) from error
  path = pathlib.Path(output_dir) / "spiece.model"
  cache_folder.write_atomically(path, model.getvalue())
  return path


def count_characters(lines: Iterable[str]) -> collections.Counter[str]:
  """Counts characters after SentencePiece's normalization, spaces included."""
  normalizer = sentencepiece.SentencePieceNormalizer(rule_name="nmt_nfkc")
  characters = collections.Counter()
  for line in lines:
    characters.update(normalizer.normalize(line))
  return characters


def coverage_for(characters: Mapping[str, int], *, size: int) -> float:
  """Returns the fraction of a text whose characters should get a token.

  In:  {"a": 99_996, "V": 4}, size 100
  Out: 1.0                                  T5's 0.9995 would exclude V

  An alphabet is covered completely, because 0.9995 of English novels excludes the capitals V and K. Scripts of
  thousands of characters have 0.9995, or the fraction of the thousand most frequent characters if that is more.
  Characters use at most about half of the tokens.

  Args:
    characters: see `count_characters`.
    size: number of pieces.
  """
  most = max(1, min(_ALPHABET_SIZE, size // 2))
  if len(characters) <= most:
    return 1.0
  frequent = sum(sorted(characters.values(), reverse=True)[:most])
  return max(_COVERAGE, frequent / sum(characters.values()))


_MAX_LINE_BYTES = 4000


def sentences(texts: Iterable[str]) -> Iterator[str]:
  """Yields lines short enough for the trainer, which silently drops longer ones."""
  for text in texts:
    for line in text.splitlines():
      line = line.strip().replace("\0", "")
      while line:
        # A character has at most 4 bytes in UTF-8.
        if len(line) <= _MAX_LINE_BYTES // 4 or len(line.encode()) <= _MAX_LINE_BYTES:
          head, line = line, ""
        else:
          cut = line.rfind(" ", 1, _MAX_LINE_BYTES // 4)
          cut = cut if cut > 0 else _MAX_LINE_BYTES // 4
          head, line = line[:cut], line[cut:].lstrip()
        yield head


@contextlib.contextmanager
def _announced(activity: str):
  """Prints when training begins and ends; the libraries' own progress output has hundreds of lines.

  The libraries return to Python only at the end, so Python's handlers would delay Ctrl-C. In the block a signal ends
  the process at once. No file is written before the end.
  """
  main = threading.current_thread() is threading.main_thread()
  before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGTERM) if main}
  console.tell(f"{activity} ...")
  began = time.monotonic()
  try:
    yield
  finally:
    for number, handler in before.items():
      if handler is not None:  # a handler that was not set from Python
        signal.signal(number, handler)
  console.tell(f"{activity}: done in {time.monotonic() - began:.0f} s")


def _trainer_error(error: Exception, size: int) -> UserError:
  message = str(error)
  largest = re.search(r"set it to a value <= (\d+)", message)
  if largest:
    return UserError(f"--size {size}: too large for this text; the largest that works is {largest.group(1)}")
  required = re.search(r"smaller than required_chars\. (\d+) vs (\d+)", message)
  if required:
    return UserError(
      f"--size {size}: too small, because the characters of this text alone need {required.group(2)} tokens. "
      "Give a size several times as large, or lower --character_coverage."
    )
  return UserError(
    f"--size {size}: SentencePiece could not train on this text ({message.splitlines()[0]}). Give other text or another"
    " size."
  )


def train_wordpiece(
  texts: Iterable[str],
  *,
  size: int,
  output_dir: str | pathlib.Path,
  cased: bool = False,
) -> pathlib.Path:
  """Trains a WordPiece vocabulary in BERT's format ([PAD] 0, then [UNK], [CLS], [SEP], [MASK]) and writes vocab.txt.

  Args:
    texts: documents.
    size: number of tokens, the five special ones included.
    output_dir: local folder; created if missing.
    cased: whether to keep capitals and accents.

  Returns:
    The path of vocab.txt.

  Raises:
    UserError: there is no text, too little for the size, or the size is too small for its characters.

  Source: Wu et al. 2016; tokens are merged by frequency, as in BPE.
  """
  tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
  tokenizer.normalizer = normalizers.BertNormalizer(lowercase=not cased)
  tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  documents = list(texts)
  characters = collections.Counter()
  for document in documents:
    characters.update(tokenizer.normalizer.normalize_str(document))
  alphabet = [character for character, _ in sorted(characters.items(), key=lambda item: (-item[1], item[0]))]
  alphabet = [character for character in alphabet if not character.isspace()][:_ALPHABET_SIZE]
  inner = [f"##{c}" for c in sorted(alphabet) if len(tokenizer.pre_tokenizer.pre_tokenize_str(f"a{c}")) == 1]
  # The trainer would number inner letters in the order of a hash table, which varies between processes, and break ties
  # by these numbers. Declared as special tokens, they come first and in order.
  special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
  trainer = trainers.WordPieceTrainer(
    vocab_size=size,
    special_tokens=[*special, *inner],
    initial_alphabet=alphabet,
    limit_alphabet=_ALPHABET_SIZE,
    show_progress=False,
  )
  _train(tokenizer, trainer, documents, size)
  ids = tokenizer.get_vocab()
  path = pathlib.Path(output_dir) / "vocab.txt"
  cache_folder.write_atomically(path, "".join(f"{piece}\n" for piece in sorted(ids, key=ids.__getitem__)).encode())
  return path


def train_bpe(texts: Iterable[str], *, size: int, output_dir: str | pathlib.Path) -> pathlib.Path:
  """Trains a byte-level BPE vocabulary (<pad> 0, </s> 1, then the 256 bytes) and writes tokenizer.json.

  Args:
    texts: documents.
    size: number of tokens, special tokens and bytes included.
    output_dir: local folder; created if missing.

  Returns:
    The path of tokenizer.json.

  Raises:
    UserError: there is no text, too little for the size, or the size is too small for the 256 bytes.

  Source: Radford et al. 2019, section 2.2.
  """
  tokenizer = tokenizers.Tokenizer(models.BPE())
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  tokenizer.decoder = decoders.ByteLevel()
  trainer = trainers.BpeTrainer(
    vocab_size=size,
    special_tokens=["<pad>", "</s>"],
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
  )
  _train(tokenizer, trainer, texts, size)
  path = pathlib.Path(output_dir) / "tokenizer.json"
  cache_folder.write_atomically(path, tokenizer.to_str(pretty=True).encode())
  return path


def train_words(
  texts: Iterable[str], *, size: int, output_dir: str | pathlib.Path, min_count: int = 5, cased: bool = False
) -> pathlib.Path:
  """Writes the most frequent words (<pad> 0, </s> 1, <unk> 2, then words) as tokenizer.json and word_counts.tsv.

  Words are runs of letters and digits, or of punctuation. Ids ascend as counts fall; words of one count are sorted.

  Args:
    texts: documents.
    size: largest number of tokens, the three special ones included.
    output_dir: local folder; created if missing.
    min_count: number of times that a word must occur.
    cased: whether to keep capitals.

  Returns:
    The path of tokenizer.json.

  Raises:
    UserError: there is no text, or no word that occurs often enough.

  Source: Mikolov et al. 2013b, section 3, omit words with fewer than 5 occurrences.
  """
  special = ["<pad>", "</s>", "<unk>"]
  if size <= len(special):
    raise UserError(f"--size {size}: too small for <pad>, </s>, <unk> and at least one word; give 4 or more")
  tokenizer = tokenizers.Tokenizer(models.WordLevel({}, unk_token="<unk>"))
  tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), *([] if cased else [normalizers.Lowercase()])])
  tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
  counts = collections.Counter()
  for text in texts:
    words = tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text))
    counts.update(word for word, _ in words)
  if not counts:
    raise UserError("--input: there is no text to train a vocabulary on; give files with text")
  for name in special:
    counts.pop(name, None)
  kept = sorted((word for word, count in counts.items() if count >= min_count), key=lambda word: (-counts[word], word))
  if not kept:
    word, most = max(counts.items(), key=lambda item: item[1])
    raise UserError(
      f"--min_count {min_count}: the vocabulary is empty, because the most frequent word, {word!r}, occurs {most} "
      f"times. Give more text, or --min_count {most} or less."
    )
  kept = kept[: size - len(special)]
  tokenizer.model = models.WordLevel({word: i for i, word in enumerate([*special, *kept])}, unk_token="<unk>")
  tokenizer.add_special_tokens(special)
  path = pathlib.Path(output_dir) / "tokenizer.json"
  table = "".join(f"{word}\t{counts[word]}\n" for word in kept)
  cache_folder.write_atomically(path.parent / vocabulary_files.COUNTS, table.encode())
  cache_folder.write_atomically(path, tokenizer.to_str(pretty=True).encode())
  return path


def quotas(sizes: Mapping[str, int], *, alpha: float, most: int) -> dict[str, int]:
  """Returns the number of training lines per language, proportional to its size to the power of alpha.

  In:  {"en": 10_000, "sw": 100}, alpha 0.5, most 1_100
  Out: {"en": 1_000, "sw": 100}             with alpha 0.3 {"en": 879, "sw": 221}: lines of sw are repeated

  Args:
    sizes: language -> lines.
    alpha: 1: proportional to size; 0: equal.
    most: maximum number of lines of all languages.

  Source: Conneau & Lample 2019 (XLM), section 3.1, with 0.5; Conneau et al. 2020 (XLM-R) use 0.3.
  """
  weights = {name: size**alpha for name, size in sizes.items()}
  total = min(most, sum(sizes.values()))
  return {name: max(1, round(total * weight / sum(weights.values()))) for name, weight in weights.items()}


def drawn(lines: Iterable[str], *, size: int, quota: int) -> Iterator[str]:
  """Yields `quota` lines, spread evenly over the text; lines repeat if there are fewer.

  In:  ["a", "b", "c", "d"], size 4, quota 2; 6
  Out: ["b", "d"]; ["a", "b", "b", "c", "d", "d"]
  """
  for number, line in enumerate(lines):
    for _ in range((number + 1) * quota // size - number * quota // size):
      yield line


def _train(tokenizer: tokenizers.Tokenizer, trainer, documents: Iterable[str], size: int) -> None:
  empty = True

  def noted():
    nonlocal empty
    for document in documents:
      empty = False
      yield document

  with _announced(f"training a vocabulary of {size:,} tokens"):
    tokenizer.train_from_iterator(noted(), trainer)
  if empty:
    raise UserError("--input: there is no text to train a vocabulary on; give files with text")
  vocab_size = tokenizer.get_vocab_size()
  if vocab_size < size:
    raise UserError(f"--size {size}: too large for this text; the largest that works is {vocab_size}")
  if vocab_size > size:
    raise UserError(
      f"--size {size}: too small, because special tokens and single characters alone are {vocab_size} tokens; give a"
      " larger size"
    )
