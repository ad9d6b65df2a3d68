"""Characters of each id of a vocabulary, and the callback that puts them into a model."""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t2t import UserError
from t2t.data import vocabularies, vocabulary_classes
from t2t.param_tree import Vocabulary, flatten, unflatten
from t2t.training.run import Callback, Run

# Characters after the 256 bytes, of the released models. In the table all numbers are one higher, and 0 is no token.
BEGIN_TEXT, END_TEXT, BEGIN_TOKEN, END_TOKEN, PADDING = range(256, 261)
# Bytes that UTF-8 never uses: characters of special tokens, which have no text.
_UNUSED = (0xC0, 0xC1, *range(0xF5, 0x100))
PATH = "embed/characters"


def row(characters: Sequence[int], longest: int) -> list[int]:
  """Returns a row of the table: the characters between marks, cut and padded, plus one.

  In:  b"at", 6
  Out: [259, 98, 117, 260, 261, 261]

  Source: `ELMoCharacterMapper` of AllenNLP.
  """
  marked = [BEGIN_TOKEN, *characters[: longest - 2], END_TOKEN]
  return [character + 1 for character in (*marked, *[PADDING] * (longest - len(marked)))]


def _special(vocabulary: Vocabulary) -> Mapping[int, int]:
  """Returns the single characters of special ids: marks of texts, then bytes that UTF-8 never uses."""
  marks = {vocabularies.bos_id(vocabulary): BEGIN_TEXT, vocabulary.eos_id: END_TEXT}
  sentinels = vocabularies.sentinel_ids(vocabulary, vocabulary.extra_ids)
  others = sorted(vocabularies.special_ids(vocabulary) - {vocabulary.pad_id, *marks, *sentinels})
  return dict(zip(others, _UNUSED, strict=False)) | marks


def table(vocabulary: Vocabulary, *, rows: int, longest: int) -> np.ndarray:
  """Returns the characters of each id plus one, int32 [rows, longest].

  The padding id and rows after the vocabulary are 0. BOS, EOS and the first 13 other special ids have a character each.
  Further special ids and sentinels are spelled by their names. A space before a word is a character.

  Args:
    vocabulary: of the run.
    rows: rows of the model.
    longest: characters of an id with both marks.
  """
  special = _special(vocabulary)
  texts = vocabularies.token_texts(vocabulary, errors="surrogateescape")
  if vocabulary_classes.is_sentencepiece(vocabulary):  # pieces of one byte are called <0xC3>
    model = vocabulary.tokenizer
    for i in filter(model.is_byte, range(model.get_piece_size())):
      texts[i] = bytes([int(model.id_to_piece(i)[3:-1], 16)]).decode(errors="surrogateescape")
  made = np.zeros((rows, longest), np.int32)
  for i, text in enumerate(texts[:rows]):
    if i != vocabulary.pad_id:
      made[i] = row([special[i]] if i in special else text.encode(errors="surrogateescape"), longest)
  return made


class CharacterTable(Callback):
  """Fills the table of characters from the run's vocabulary, before the first step.

  A model that starts from another checkpoint is filled, too. So its CNN reads words of a new vocabulary.
  """

  def on_start(self, run: Run) -> None:
    if run.step:
      return
    part = run.program.made.loss.part
    frozen: dict[str, Any] = dict(flatten(run.state.frozen_params))
    paths = [path for path in frozen if path.startswith(part) and path.endswith(PATH)]
    if run.vocabulary is None:
      if not all(bool(jnp.any(frozen[path])) for path in paths):
        raise UserError(
          f"config.model.embedding={run.config.model.embedding} reads the characters of tokens, but the vocabulary is "
          "unknown, because config.data.vocabulary is empty. Give --config.data.vocabulary=FILE."
        )
      return
    for path in paths:
      rows, longest = frozen[path].shape
      filled = table(run.vocabulary, rows=rows, longest=longest)
      # Each process has the whole table, and makes its shards.
      frozen[path] = jax.make_array_from_callback(filled.shape, frozen[path].sharding, lambda i, x=filled: x[i])
    run.state = dataclasses.replace(run.state, frozen_params=unflatten(frozen))
