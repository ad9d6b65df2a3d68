"""A run resumes with its vocabulary, and initialization from a checkpoint compares vocabularies."""

import json
import pathlib
import shutil

from etils import epath
import pytest
import trained

from t2t import UserError
from t2t import __main__ as command
from t2t.data import vocabularies
from t2t.data.vocabularies import training

TEXT = [f"the quick brown fox number {i} jumps over {i * 7} lazy dogs in the garden" for i in range(300)]
OTHER = [f"a wizard boxes {i} liquid jugs while seven dire owls sleep" for i in range(300)]


def made(folder: pathlib.Path, texts: list[str]) -> str:
  return str(training.train_sentencepiece(texts, size=60, output_dir=folder, character_coverage=1.0))


def load(spec: str, *, extra_ids: int = 100):
  return vocabularies.load(spec, extra_ids=extra_ids)


def test_a_digest_is_of_the_content_alone(tmp_path):
  """The digest is equal after moving files, also in the run's copy; it depends on tokens and number of sentinels."""
  path = made(tmp_path / "a", TEXT)
  first = vocabularies.digest(load(path))
  vocabularies.save(load(path), epath.Path(tmp_path / "kept"))
  assert first == vocabularies.digest(load(str(tmp_path / "kept"))) != ""
  others = [load(path, extra_ids=99), load(made(tmp_path / "b", OTHER)), load("bytes")]
  assert len({first, *map(vocabularies.digest, others)}) == 4


def test_what_the_checkpoint_says_is_right_and_else_its_copy(tmp_path):
  """A modified copy is rewritten; for an older checkpoint without digest, the copy is compared."""
  own, other, kept = load(made(tmp_path / "a", TEXT)), load(made(tmp_path / "b", OTHER)), epath.Path(tmp_path / "kept")
  vocabularies.save(other, kept)
  check = lambda given, noted: vocabularies.check_saved(given, kept, noted=noted, spec="X")
  check(own, vocabularies.digest(own))
  check(other, "")
  for given, noted, remedy in (
    (own, "", "Use the run's vocabulary"),
    (other, vocabularies.digest(own), "Restore the original vocabulary"),
  ):
    with pytest.raises(UserError, match=f"config.data.vocabulary=X: this run started with another .*. {remedy}"):
      check(given, noted)
  (tmp_path / "kept" / "vocabulary.json").write_text("{")
  check(own, vocabularies.digest(own))
  shutil.rmtree(kept)
  check(own, "")


def test_a_few_other_pieces_are_told_and_many_refused(tmp_path):
  """A few replaced tokens give a message, many an error; additional tokens are reported, too."""
  vocabulary = lambda name, pieces: tmp_path.joinpath(name).write_text("\n".join(pieces)) and str(tmp_path / name)
  pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{i}" for i in range(45))]
  wordpiece = lambda name, pieces: load(vocabulary(name, pieces), extra_ids=0)
  own = wordpiece("a-vocab.txt", pieces)
  compare = lambda pieces: vocabularies.compare_start(
    own, wordpiece(f"{hash(tuple(pieces))}-vocab.txt", pieces), where="W", by_ids=("embed/table", "head")
  )
  assert compare(pieces) == ""
  assert "0 of 50 ids have other tokens" in compare([*pieces, "more"])
  assert "(id 10 is ' new', not ' word5'): 1 of 50 ids" in compare([*pieces[:10], "new", *pieces[11:]])
  with pytest.raises(
    UserError, match=r"W was trained with a vocabulary that differs .* 44 of 50 ids .*init.reinit=embed/table,head..$"
  ):
    compare([*pieces[:5], *reversed(pieces[5:])])


def test_sentinels_that_are_missing_are_named_with_their_key(tmp_path):
  """The message has both sizes, the checkpoint's first, and the option to set."""
  path = made(tmp_path / "a", TEXT)
  trained, given = (load(path, extra_ids=number) for number in (100, 0))
  said = vocabularies.compare_start(trained, given, where="W", by_ids=("embed/table",))
  sizes = f"the checkpoint's vocabulary has {trained.vocab_size:,} ids, the run's vocabulary {given.vocab_size:,}"
  assert f"({sizes}: 100 and 0 of them are sentinels; the checkpoint's number is --config.data.extra_ids=100)" in said


@pytest.mark.slow
def test_another_vocabulary_under_the_same_name_is_refused(tmp_path, capsys):
  """Refused for resuming, which keeps the run's copy, and for initializing another run."""
  vocabulary, run = tmp_path / "vocabulary", tmp_path / "run"
  made(vocabulary, TEXT)
  (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": 5 * text}) + "\n" for text in TEXT))
  arguments = [*trained.arguments("encoder_decoder", run), f"--config.data.files={tmp_path / 'text.jsonl'}"]
  arguments += [f"--config.data.vocabulary={vocabulary / 'spiece.model'}"]
  assert command.main(arguments) == 0
  kept = {path.name: path.read_bytes() for path in (run / "vocabulary").iterdir()}
  shutil.rmtree(vocabulary)
  made(vocabulary, OTHER)
  more = "--config.train.steps=3"
  capsys.readouterr()
  assert command.main([*arguments, more]) == 2
  said = capsys.readouterr().err
  assert "this run started with another vocabulary (" in said and f"vocabulary={run / 'vocabulary'}" in said
  assert {path.name: path.read_bytes() for path in (run / "vocabulary").iterdir()} == kept
  assert command.main([*arguments, more, f"--config.data.vocabulary={run / 'vocabulary'}"]) == 0
  assert {path.name: path.read_bytes() for path in (run / "vocabulary").iterdir()} == kept
  new = [*arguments, f"--config.init.checkpoint={run}", "--workdir", str(tmp_path / "new")]
  new += [f"--config.data.vocabulary={made(tmp_path / 'other', OTHER)}"]  # seqio caches by path
  assert command.main(new) == 2
  assert "was trained with a vocabulary that differs from the run's (id " in capsys.readouterr().err
