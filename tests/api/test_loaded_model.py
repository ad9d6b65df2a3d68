"""`t2t.load`: Python gives the results of the commands, and errors for what a model cannot do."""

import json
import subprocess
import sys

import numpy as np
import pytest
import t5x_files
import trained

import t2t
from t2t import UserError
from t2t import __main__ as command

pytestmark = pytest.mark.slow

TEXTS = ["the quick brown fox", "over lazy", "seven wizards jugs"]
MASKED = ["the quick [MASK] fox", "[MASK] lazy [MASK] dog"]


@pytest.fixture(scope="module")
def writer():
  return t2t.load(str(trained.workdir("encoder_decoder")))


@pytest.fixture(scope="module")
def decoder():
  return t2t.load(str(trained.workdir("decoder_only")))


@pytest.fixture(scope="module")
def encoder():
  return t2t.load(str(trained.workdir("encoder_only")))


def asked(tmp_path, name, texts, *options):
  """Returns the rows written by the command."""
  (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in texts))
  files = ["--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "out.jsonl")]
  assert command.main(["infer", "--checkpoint", str(trained.workdir(name)), *files, *options]) == 0
  return [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]


def test_it_is_imported_at_once():
  """Importing t2t loads neither JAX nor TensorFlow, and unknown names raise an error."""
  code = "import sys, t2t; assert not {'jax', 'tensorflow', 'numpy'} & set(sys.modules); t2t.loads"
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
  assert "AttributeError: module 't2t' has no attribute 'loads'" in done.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize("options", [{}, {"temperature": 0.7, "seed": 3}, {"beam": 2}])
def test_it_writes_what_the_command_writes(options, writer, tmp_path):
  flags = [f"--{name}={value}" for name, value in options.items()]
  rows = asked(tmp_path, "encoder_decoder", TEXTS, "--max_length=8", *flags)
  assert writer.generate(TEXTS, max_length=8, **options) == [row["prediction"] for row in rows]


@pytest.mark.exhaustive
def test_it_fills_what_the_command_fills(encoder, tmp_path):
  rows = asked(tmp_path, "encoder_only", MASKED, "--top=3")
  found = encoder.fill(MASKED, top=3)
  assert found == [{name: row[name] for name in each} for row, each in zip(rows, found, strict=True)]
  assert len(found[1]["fillings"]) == 2 and all(len(each) == 3 for each in found[1]["fillings"])


@pytest.mark.exhaustive
@pytest.mark.parametrize(("pool", "layer", "shape"), [("mean", "", ()), ("first", 0, ()), ("last", "all", (2,))])
def test_it_embeds_as_the_command(pool, layer, shape, writer, tmp_path):
  (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in TEXTS))
  files = ["--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "out.npy")]
  options = ["--pool", pool, *(["--layer", str(layer)] if layer != "" else [])]
  assert command.main(["embed", "--checkpoint", str(trained.workdir("encoder_decoder")), *files, *options]) == 0
  found = writer.embed(TEXTS, pool=pool, layer=layer)
  np.testing.assert_array_equal(found, np.load(tmp_path / "out.npy"))
  assert found.shape == (3, *shape, 16) and found.dtype == np.float32


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("name", ["writer", "decoder"])
def test_a_score_is_the_sum_of_its_tokens(name, request):
  """The score is the log-softmax of the logits at the target's tokens."""
  model = request.getfixturevalue(name)
  inputs, targets = ["the quick", "over"], ["brown fox", "lazy dog jumps"]
  scores, logits = model.score(inputs, targets), model.logits(inputs, targets)
  end = [model.vocabulary.eos_id] if name == "writer" else []
  for score, of_tokens, ids in zip(scores, logits, model.tokenize(targets), strict=True):
    assert of_tokens.shape == (len(ids) + len(end), model.config.vocab_size)
    log_p = of_tokens - np.log(np.sum(np.exp(of_tokens), axis=-1, keepdims=True))
    np.testing.assert_allclose(score, sum(log_p[i, x] for i, x in enumerate([*ids, *end])), rtol=1e-4)


def test_a_decoder_tells_each_token_from_those_before(decoder):
  """The logits of a text equal those of its second part after its first."""
  (whole,) = decoder.logits(["the quick brown"])
  ids = decoder.tokenize(["the quick brown"])[0]
  assert whole.shape == (len(ids), decoder.config.vocab_size)
  score = decoder.score([""], ["the quick brown"])[0]
  log_p = whole - np.log(np.sum(np.exp(whole), axis=-1, keepdims=True))
  np.testing.assert_allclose(score, sum(log_p[i, x] for i, x in enumerate(ids)), rtol=1e-4)


def test_an_encoder_finds_likely_what_it_fills_in(encoder):
  """The logits at the blank give the probability reported by `fill`."""
  (row,), (logits,) = encoder.fill(MASKED[:1], top=1), encoder.logits(MASKED[:1])
  ((filling,),) = row["fillings"]
  shares = np.exp(logits) / np.sum(np.exp(logits), axis=-1, keepdims=True)
  assert logits.shape[1] == encoder.config.vocab_size
  assert np.min(np.abs(shares[:, filling["id"]] - filling["probability"])) < 1e-6


def test_tokens_there_and_back(writer):
  assert writer.detokenize(writer.tokenize(TEXTS)) == TEXTS


def test_a_generator_of_texts_is_read_once(decoder):
  """A generator gives the results of a list; no texts give no results, and other types raise an error."""
  texts = ["quick", "brown fox"]
  for ask in (lambda x: decoder.generate(x, max_length=2), decoder.tokenize, lambda x: list(decoder.score(x, x))):
    assert ask(texts) == ask(tuple(texts))
  assert decoder.generate(iter(texts), max_length=2) == decoder.generate(texts, max_length=2)
  assert decoder.tokenize(text for text in texts) == decoder.tokenize(texts)
  assert decoder.generate([]) == []
  for ask in (decoder.tokenize, decoder.generate, decoder.embed):
    with pytest.raises(UserError, match="'texts' has type NoneType; give a list of texts"):
      ask(None)
  with pytest.raises(UserError, match="'texts' is empty; give at least one text"):
    decoder.embed([])


def test_beams_are_no_positions(decoder):
  """The number of beams may exceed the number of learned positions."""
  assert len(decoder.generate(["quick"], beam=decoder.config.most_positions + 10, max_length=2)) == 1


def test_a_storage_that_is_not_read_is_named():
  with pytest.raises(
    UserError, match="checkpoint is hdfs://host/run: hdfs:// is not supported. Give a local path, or one of gs://"
  ):
    t2t.load("hdfs://host/run")


def test_what_is_too_long_is_cut_and_told(writer):
  with pytest.warns(UserWarning, match=r"texts\[0\]: 52 of the 100 tokens were cut.*inputs_length"):
    assert len(writer.embed(["a" * 99])) == 1
  with pytest.warns(UserWarning, match=r"inputs\[0\]: 52 of the 100 tokens were cut.*inputs_length"):
    assert len(writer.score(["a" * 99], ["b"])) == 1


@pytest.mark.parametrize(
  ("name", "ask", "message"),
  [
    ("encoder", lambda model: model.generate(TEXTS), "encoder_only> is an encoder and generates no text"),
    ("writer", lambda model: model.fill(MASKED), "generates text and fills no blanks"),
    ("writer", lambda model: model.generate("the fox"), "'texts' is a single text; put the text in a list"),
    ("encoder", lambda model: model.embed("the fox"), "'texts' is a single text; put the text in a list"),
    (
      "encoder",
      lambda model: model.embed({"inputs": "the fox"}),
      "'texts' is a single mapping; put the mapping in a list",
    ),
    ("writer", lambda model: model.generate(["a", " "]), r"texts\[1\] is empty"),
    ("writer", lambda model: model.generate([3]), r"texts\[0\] has type int; give a text"),
    (
      "writer",
      lambda model: model.generate(TEXTS, beam=2, top_k=3),
      "^beam 2 and top_k 3: beam search does not sample",
    ),
    (
      "writer",
      lambda model: model.generate(TEXTS, beam=2, length_penalty=np.nan),
      "^length_penalty=nan must be a finite",
    ),
    ("writer", lambda model: model.generate(TEXTS, temperature=np.inf), "^temperature=inf must be a finite number"),
    ("writer", lambda model: model.generate(TEXTS, max_length=True), "^max_length=True must be a whole number"),
    ("writer", lambda model: model.generate(TEXTS, seed=-1), "^seed=-1 must be a whole number, 0 to 4,294,967,295"),
    (
      "writer",
      lambda model: model.generate(["a", "b\ud800"]),
      r"^texts\[1\] is not valid Unicode: character 2",
    ),
    (
      "writer",
      lambda model: model.score(["a"], ["\udfff"]),
      r"^targets\[0\] is not valid Unicode: character 1",
    ),
    ("encoder", lambda model: model.fill(MASKED, top=2.0), "^top=2.0 must be a whole number"),
    ("encoder", lambda model: model.embed([{"parts": ["\ud800"]}]), "'parts' is not valid Unicode"),
    ("writer", lambda model: model.score(TEXTS, ["a"]), "there are 3 inputs and 1 targets"),
    (
      "writer",
      lambda model: model.logits(TEXTS),
      "^'targets' is missing, .* predicts the tokens of targets; give one target for each input",
    ),
    ("encoder", lambda model: model.fill(["no blank"]), r"texts\[0\]: no blank in 'no blank'; put \[MASK\]"),
    ("encoder", lambda model: model.answer(TEXTS), "has no head|no head"),
    ("encoder", lambda model: model.embed(TEXTS, layer=7), "^layer 7: no such layer; give 0"),
    ("encoder", lambda model: model.embed(TEXTS, pool="max"), "pool=max: unknown value; give one of mean, first, last"),
    ("encoder", lambda model: model.embed([{"part": ["a"]}]), r"texts\[0\] has no field 'inputs'"),
  ],
)
def test_what_cannot_be_asked_is_said(name, ask, message, request):
  with pytest.raises(UserError, match=message):
    ask(request.getfixturevalue(name))


@pytest.mark.exhaustive
def test_a_checkpoint_of_t5x_is_given_its_vocabulary(tmp_path, monkeypatch):
  """With the vocabulary given, scores equal those of the converted checkpoint to the last digit."""
  monkeypatch.setattr(t5x_files, "VOCAB", 384)
  theirs = t5x_files.write(tmp_path / "run" / "checkpoint_7", t5x_files.parameters())
  with pytest.raises(UserError, match="no vocabulary beside .*t2t convert --from CHECKPOINT --to t2t OUT --vocabulary"):
    t2t.load(str(theirs))
  assert command.main(["convert", str(theirs), "--to", "t2t", str(tmp_path / "ours"), "--vocabulary", "bytes"]) == 0
  ours = t2t.load(str(tmp_path / "ours"))
  pairs = (["one two", "a"], ["three", "b c"])
  for place in (theirs, theirs.parent):
    np.testing.assert_array_equal(t2t.load(str(place), vocabulary="bytes").score(*pairs), ours.score(*pairs))
  with pytest.raises(UserError, match="^vocabulary=bytes: .*leave out 'vocabulary'"):
    t2t.load(str(tmp_path / "ours"), vocabulary="bytes")


def test_what_is_no_checkpoint_is_told(tmp_path):
  """The error lists the content of the folder, without an option name."""
  with pytest.raises(UserError, match="(?s)^(?!.*--).*") as error:
    t2t.load(str(tmp_path / "none"))
  assert str(tmp_path / "none") in str(error.value)
  for option, least in (("batch_size", 1), ("inputs_length", 0)):
    with pytest.raises(UserError, match=f"{option}=-1 must be a whole number, {least} or more"):
      t2t.load(str(trained.workdir("encoder_decoder")), **{option: -1})


def test_it_saves_what_the_command_writes(writer, encoder, tmp_path):
  """The files are equal byte for byte, for a path or a string; the notes name the class."""
  for name, model, options in (("encoder_decoder", writer, {}), ("encoder_only", encoder, {"dtype": "bfloat16"})):
    flags = [f"--{key}={value}" for key, value in options.items()]
    out = tmp_path / name
    assert command.main(["convert", str(trained.workdir(name)), "--to", "hf", str(out / "command"), *flags]) == 0
    notes = model.save_pretrained(out / "python", **options)
    written = lambda folder: {
      str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }
    assert written(out / "python") == written(out / "command")
    assert any(note.startswith("written as a ") for note in notes)
    assert t2t.load(str(out / "python")).config.embed_dim == model.config.embed_dim
    with pytest.raises(UserError, match="python"):
      model.save_pretrained(str(out / "python"))
