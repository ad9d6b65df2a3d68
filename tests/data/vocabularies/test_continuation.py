"""The text of a continuation, concatenated to the previous text, is the text of all ids."""

import json

from hypothesis import given, settings, strategies
import pytest
import tokenizers

from t2t.data import vocabularies
from t2t.data.vocabularies import continuation, subwords, training

TEXT = [f"the number {i} of things, in naïve 日本語 text isn't \U0001f600" for i in range(200)]


def llama(folder):
  """A tokenizer like Llama 2's: Metaspace, and byte tokens for unknown characters."""
  made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>", byte_fallback=True))
  steps = [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
  made.normalizer = tokenizers.normalizers.Sequence(steps)
  special = ["<unk>", "<pad>", "</s>", "<mask>"]
  trainer = tokenizers.trainers.BpeTrainer(vocab_size=90, special_tokens=special, show_progress=False)
  made.train_from_iterator(TEXT[:20], trainer)
  decoders = tokenizers.decoders
  made.decoder = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
  )
  content = json.loads(made.to_str())
  pieces = content["model"]["vocab"]
  pieces |= {f"<0x{byte:02X}>": len(pieces) + byte for byte in range(256)}
  (folder / "tokenizer.json").write_text(json.dumps(content))
  return str(folder / "tokenizer.json")


def gpt2(folder):
  made = tokenizers.ByteLevelBPETokenizer()
  made.train_from_iterator(TEXT, vocab_size=320, special_tokens=["<|endoftext|>"], show_progress=False)
  made.save_model(str(folder))
  return str(folder / "vocab.json")


KINDS = {
  "bytes": lambda folder: "bytes",
  "unigram": lambda folder: str(
    training.train_sentencepiece(TEXT, size=57, output_dir=folder, character_coverage=0.99)
  ),
  "wordpiece": lambda folder: str(training.train_wordpiece(TEXT, size=90, output_dir=folder, cased=True)),
  "gpt2": gpt2,
  "llama": llama,
}


@pytest.fixture(scope="module", params=list(KINDS))
def vocabulary(request, tmp_path_factory):
  return vocabularies.load(KINDS[request.param](tmp_path_factory.mktemp(request.param)), extra_ids=3)


TEXTS = strategies.one_of(
  strategies.text(max_size=12), strategies.text(alphabet="the numbr of,. isn't日é\U0001f600", max_size=40)
)


@settings(max_examples=40)
@given(TEXTS, strategies.integers(0, 40))
def test_a_prompt_and_its_continuation_are_the_text_of_both(vocabulary, text, cut):
  """Also token by token, and for characters of several tokens."""
  ids = [i for i in vocabulary.encode(text) if i not in vocabularies.framing_ids(vocabulary)]
  before, after = ids[:cut], ids[cut:]
  texts = continuation.continuation_texts(vocabulary, before, after)
  assert len(texts) == len(after)
  joined = continuation.decode_continuation(vocabulary, before, after)
  assert joined == "".join(texts)
  shown = vocabulary.decode(before)
  if not shown.endswith("\ufffd") and vocabulary.decode(ids).startswith(shown):
    assert shown + joined == vocabulary.decode(ids)


@settings(max_examples=40)
@given(strategies.lists(strategies.integers(0, 56), max_size=20), strategies.integers(0, 20))
def test_any_ids_are_a_text_and_its_rest(vocabulary, ids, cut):
  ids = [i for i in ids if i not in vocabularies.framing_ids(vocabulary)]
  texts = continuation.continuation_texts(vocabulary, [], ids)
  assert "".join(texts) == vocabulary.decode(ids)
  assert len(continuation.continuation_texts(vocabulary, ids[:cut], ids[cut:])) == len(ids[cut:])


def test_a_leading_space_is_kept(vocabulary):
  ids = list(vocabulary.encode("the number of things"))
  for cut in range(1, len(ids)):
    before, after = ids[:cut], ids[cut:]
    text = continuation.decode_continuation(vocabulary, before, after)
    assert vocabulary.decode(before) + text == "the number of things"


def test_a_text_begins_anew_behind_what_frames_it(vocabulary):
  first, second = (list(vocabulary.encode(text)) for text in ("the number", "of things"))
  end = vocabulary.eos_id
  assert continuation.decode_continuation(vocabulary, [*first, end], second) == "of things"
  texts = continuation.continuation_texts(vocabulary, [], [*first, end, *second, end])
  assert "".join(texts) == "the numberof things" and texts[len(first)] == texts[-1] == ""


def test_a_character_of_several_tokens(tmp_path):
  """The character is the text of its last token; an incomplete one at the end is U+FFFD, as decoded."""
  vocabulary = subwords.SubwordVocabulary(llama(tmp_path))
  ids = list(vocabulary.encode("a \u3042b"))
  texts = [vocabulary.tokenizer.id_to_token(i) for i in ids]
  first = texts.index("<0xE3>")
  found = continuation.continuation_texts(vocabulary, ids[:first], ids[first:])
  assert found == ["", "", "\u3042", "b"]
  assert continuation.continuation_texts(vocabulary, ids[: first + 1], ids[first + 1 :]) == ["", "\u3042", "b"]
  assert continuation.decode_continuation(vocabulary, ids[:first], ids[first : first + 2]) == "\ufffd\ufffd"


def test_long_texts_take_linear_time(vocabulary):
  """The number of decoded ids per token is constant."""
  ids = list(vocabulary.encode("the number of things " * 200))
  decoded = 0

  class Counted:
    def __getattr__(self, name):
      return getattr(vocabulary, name)

  counted, decode = Counted(), vocabulary.decode

  def count(own):
    nonlocal decoded
    decoded += len(own)
    return decode(own)

  counted.decode = count
  texts = continuation._by_window(counted, [], ids)
  assert "".join(texts) == vocabulary.decode(ids) and decoded < 20 * len(ids)
