"""Decodes the text that ids add to the text of previous ids, as a whole or token by token."""

from collections.abc import Iterator, Sequence
import os

from t2t.data.vocabularies import reserved_ids as ids_lib
from t2t.param_tree import Vocabulary

_CONTEXT = 16  # previous ids decoded together with a continuation
_UNFINISHED = "\ufffd"  # decoded form of an incomplete character


def decode_continuation(vocabulary: Vocabulary, prefix_ids: Sequence[int], ids: Sequence[int]) -> str:
  """Returns the text that `ids` add after `prefix_ids`, with its leading space.

  In:  " of" as prefix, " the", " number" in T5's vocabulary
  Out: " the number"                        `decode` alone gives "the number"

  The text of the prefix plus this text is the text of all ids. Padding, BOS, EOS, [CLS] and [SEP] have no text, and a
  new text starts after each.

  Args:
    vocabulary: vocabulary of both.
    prefix_ids: ids of the prompt; empty: the continuation starts a text.
    ids: ids of the continuation.
  """
  return "".join(_decoded(vocabulary, *run)[0] for run in _runs(vocabulary, prefix_ids, ids) if run is not None)


def continuation_texts(vocabulary: Vocabulary, prefix_ids: Sequence[int], ids: Sequence[int]) -> list[str]:
  """Returns the text that each id adds; concatenated, the texts are `decode_continuation`.

  In:  [] as prefix, the bytes 72, 105, 195, 169 of "Hié"
  Out: ["H", "i", "", "é"]                  a character is the text of its last token

  Args: see `decode_continuation`.
  """
  texts = []
  for run in _runs(vocabulary, prefix_ids, ids):
    texts += [""] if run is None else _added(vocabulary, *run)
  return texts


def _runs(
  vocabulary: Vocabulary, prefix_ids: Sequence[int], ids: Sequence[int]
) -> Iterator[tuple[list[int], list[int]] | None]:
  """Yields ids of each text with their preceding ids, and None for each framing id."""
  framing = ids_lib.framing_ids(vocabulary)
  prefix = [int(i) for i in prefix_ids]
  begin = next((index + 1 for index in reversed(range(len(prefix))) if prefix[index] in framing), 0)
  prefix, text_ids = prefix[begin:], []
  for i in map(int, ids):
    if i not in framing:
      text_ids.append(i)
      continue
    yield prefix, text_ids
    yield None
    prefix, text_ids = [], []
  yield prefix, text_ids


def _decoded(vocabulary: Vocabulary, prefix: list[int], ids: list[int]) -> tuple[str, list[int], str, str]:
  """Returns the text that `ids` add to `prefix`, the context used for decoding, and the texts before and after."""
  context = prefix[-_CONTEXT:]
  before = vocabulary.decode(context)
  if not before.strip() or _UNFINISHED in before:
    context, before = prefix, vocabulary.decode(prefix)
  text = vocabulary.decode([*context, *ids])
  return text[len(os.path.commonprefix([before, text])) :] if ids else "", context, before, text


def _added(vocabulary: Vocabulary, prefix: list[int], ids: list[int]) -> list[str]:
  """Returns the text that each id adds to the text of `prefix`; there are no framing ids."""
  if not ids:
    return []
  whole_text, context, before, text = _decoded(vocabulary, prefix, ids)
  texts = _by_window(vocabulary, context, ids)
  return texts if "".join(texts) == whole_text else _by_prefixes(vocabulary, context, ids, before, text)


def _by_window(vocabulary: Vocabulary, context: list[int], ids: list[int]) -> list[str]:
  """Decodes each token with a few previous tokens, in linear time."""
  everything = [*context, *ids]
  begin, context_end, texts = 0, len(context), []
  before = vocabulary.decode(context)
  for end in range(len(context) + 1, len(everything) + 1):
    text = vocabulary.decode(everything[begin:end])
    is_last = end == len(everything)
    if not is_last and (text.endswith(_UNFINISHED) or not text.startswith(before.rstrip(_UNFINISHED))):
      texts.append("")
      continue
    texts.append(text[len(os.path.commonprefix([before, text])) :])
    if texts[-1].strip():  # white space is no context, because decoders strip it at the start of a text
      begin, context_end = context_end, end
      before = vocabulary.decode(everything[begin:context_end])
    else:
      context_end, before = end, text
  return texts


def _by_prefixes(vocabulary: Vocabulary, context: list[int], ids: list[int], before: str, text: str) -> list[str]:
  """Decodes each prefix of the ids, for vocabularies whose later ids change the text of earlier ids."""
  ends = [len(os.path.commonprefix([before, text]))]
  for number in range(1, len(ids)):
    num_common = len(os.path.commonprefix([vocabulary.decode([*context, *ids[:number]]), text]))
    ends.append(max(ends[-1], num_common))
  ends.append(len(text))
  return [text[start:end] for start, end in zip(ends, ends[1:], strict=False)]
