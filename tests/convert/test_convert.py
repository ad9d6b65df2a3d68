"""`t2t convert`: exact round trips, usable results, atomic output, and errors."""

import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading

from etils import epath
import foreign
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sentencepiece
import t5x_files
import toy
import trained

from t2t import UserError, sharding
from t2t import __main__ as command
from t2t.checkpoints import manager, pretrained, tensor_writer
from t2t.convert import open_foreign, t5x, vocab_override
from t2t.convert.lazy_tensors import Foreign
from t2t.param_tree import split_frozen
from t2t.training import train_state

LETTERS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrst")


@pytest.fixture
def convert(capsys):
  """Runs the command; returns its exit code and output."""

  def convert(*arguments) -> tuple[int, str]:
    capsys.readouterr()
    code = command.main(["convert", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out + captured.err

  return convert


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> pathlib.Path:
  """The trained encoder-decoder as a Hugging Face folder of several files."""
  path = tmp_path_factory.mktemp("exported") / "hf"
  source = trained.workdir("encoder_decoder")
  assert (
    command.main(["convert", "--from", "t2t", str(source), "--to", "hf", str(path), "--max_shard_size", "30KB"]) == 0
  )
  return path


@pytest.fixture
def t5x_folder(tmp_path) -> pathlib.Path:
  return t5x_files.write(tmp_path / "t5x" / "checkpoint_7", t5x_files.parameters())


@pytest.fixture
def letters(tmp_path) -> pathlib.Path:
  """A WordPiece vocabulary of 25 ids."""
  path = tmp_path / "letters" / "vocab.txt"
  path.parent.mkdir()
  path.write_text("".join(f"{piece}\n" for piece in LETTERS))
  return path


def params_of(path: pathlib.Path) -> list[np.ndarray]:
  """Returns the parameters as `t2t eval`, `t2t infer` and fine-tuning read them."""
  return jax.tree.leaves(pretrained.load(pretrained.read_source(str(path)), sharding.make_mesh({"data": 8})).params)


def contents(folder: pathlib.Path) -> dict[str, bytes]:
  return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ---- Round trips -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_there_and_back(exported, convert, tmp_path):
  """Bit-identical in both directions, for any number of files; --from and --to equal the detected kinds."""
  assert len(list(exported.glob("*.safetensors"))) > 2
  code, said = convert("--from", "hf", exported, "--to", "t2t", tmp_path / "t2t")
  assert code == 0
  source = trained.workdir("encoder_decoder")
  for before, after in zip(params_of(source), params_of(tmp_path / "t2t"), strict=True):
    np.testing.assert_array_equal(before, after)
  assert convert(tmp_path / "t2t", tmp_path / "again", "--max_shard_size=30KB")[0] == 0
  assert contents(tmp_path / "again") == contents(exported)
  number = sum(x.size for x in params_of(source))
  for words in (f"{number:,}", "encoder_decoder, 1 + 1 layers", str(tmp_path / "t2t"), "float32", "tensors"):
    assert words in said, words


@pytest.mark.exhaustive
def test_what_was_converted_is_a_workdir(exported, convert, tmp_path, capsys):
  """`t2t infer` gives the same predictions as with the original."""
  assert convert(exported, tmp_path / "t2t")[0] == 0
  (tmp_path / "in.txt").write_text("the quick brown fox\njugs\n")
  for name, source in (("before", trained.workdir("encoder_decoder")), ("after", tmp_path / "t2t")):
    options = ["--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / f"{name}.jsonl"), "--max_length", "4"]
    assert command.main(["infer", "--checkpoint", str(source), *options]) == 0
  assert (tmp_path / "after.jsonl").read_text() == (tmp_path / "before.jsonl").read_text()
  config = json.loads((tmp_path / "t2t" / "config.json").read_text())
  assert config["model"]["embed_dim"] == 16
  assert config["data"]["vocabulary"] == str(tmp_path / "t2t" / "vocabulary")


@pytest.mark.slow
def test_the_dtype_of_an_export(exported, convert, tmp_path):
  """bfloat16 halves the files; conversion between Hugging Face folders needs no t2t checkpoint."""
  assert convert("--from=hf", exported, "--to=hf", tmp_path / "half", "--dtype=bfloat16")[0] == 0
  tensors = [open_foreign(str(path)).tensors for path in (exported, tmp_path / "half")]
  for path, whole in tensors[0].items():
    half = tensors[1][path]
    assert half.dtype == jnp.bfloat16
    np.testing.assert_allclose(half.read(), whole.read(), rtol=2**-8, err_msg=path)


# ---- From T5X --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("stored", ["joined", "scanned"])
def test_from_t5x(stored, convert, tmp_path):
  """A folder of arrays, scanned or not, gives the parameters of its arrays."""
  folder = t5x_files.write(tmp_path / "checkpoint_7", t5x_files.STORED[stored](t5x_files.parameters()))
  code, said = convert("--from", "t5x", folder, "--to", "t2t", tmp_path / "t2t")
  assert code == 0
  theirs = t5x.open_foreign(str(folder))
  found = tensor_writer.open_foreign(str(tmp_path / "t2t")).tensors
  for path, tensor in theirs.tensors.items():
    np.testing.assert_array_equal(found[path].read(), tensor.read(), err_msg=path)
  assert pretrained.read_source(str(tmp_path / "t2t")).model == theirs.model
  assert len(params_of(tmp_path / "t2t")) == len(theirs.tensors)
  for note in theirs.notes:
    assert note in " ".join(said.split())
  told = said[said.index("note: ") : said.index("next:")].splitlines()
  assert len(told) > len(theirs.notes) and max(map(len, told)) <= 80


def test_the_older_single_file_of_t5x(convert, tmp_path):
  path = t5x_files.single_file(tmp_path / "model.checkpoint_3", t5x_files.parameters())
  assert convert(path, tmp_path / "t2t")[0] == 0
  table = tensor_writer.open_foreign(str(tmp_path / "t2t")).tensors["embed/table"].read()
  np.testing.assert_array_equal(table, t5x_files.parameters()["token_embedder/embedding"])


def test_a_checkpoint_without_a_vocabulary(t5x_folder, convert, tmp_path):
  """The report contains the key for a later vocabulary, and the next command has it."""
  code, said = convert(t5x_folder, tmp_path / "t2t")
  assert code == 0
  assert "has no vocabulary" in said and "37 rows" in said
  assert "t2t eval" in said and "--config.data.vocabulary=FILE" in said and "t2t infer" not in said
  assert pretrained.read_source(str(tmp_path / "t2t")).vocabulary == ""


def test_the_vocabulary_of_a_checkpoint_that_has_none(t5x_folder, letters, convert, tmp_path):
  """It is checked against the embedding, and copied beside the checkpoint."""
  code, said = convert(t5x_folder, tmp_path / "t2t", "--vocabulary", letters, "--extra_ids=4")
  assert code == 0
  said = " ".join(said.split())
  assert "4 sentinels included: 29 of 37 rows used; the last 8 are padding" in said
  assert "has no vocabulary" not in said and "t2t infer" in said
  vocabulary = pretrained.vocabulary(pretrained.read_source(str(tmp_path / "t2t")))
  assert (vocabulary.vocab_size, vocabulary.extra_ids) == (29, 4)
  assert convert(t5x_folder, tmp_path / "two", "--vocabulary", tmp_path / "t2t" / "vocabulary")[0] == 0
  assert contents(tmp_path / "two" / "vocabulary") == contents(tmp_path / "t2t" / "vocabulary")


# ---- Vocabularies ----------------------------------------------------------------------------------------------------


@pytest.fixture
def pieces(tmp_path) -> pathlib.Path:
  """A SentencePiece model without sentinels, with T5's first ids."""
  text = ["the quick brown fox jumps over a lazy dog"] * 20
  options = dict(pad_id=0, eos_id=1, unk_id=2, bos_id=-1, hard_vocab_limit=False, minloglevel=2)
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(text), model_prefix=str(tmp_path / "small"), vocab_size=40, **options
  )
  return tmp_path / "small.model"


@pytest.mark.parametrize("kind", ["bytes", "SentencePiece", "WordPiece", "BPE"])
def test_the_copy_of_a_vocabulary(kind, pieces, letters, tmp_path):
  """The files equal those of training, byte by byte, but are written without TensorFlow."""
  from t2t.data import vocabularies
  from t2t.data.vocabularies import subwords

  (tmp_path / "gpt-vocab.json").write_text('{"a": 0}')
  (tmp_path / "gpt-merges.txt").write_text("#version\n")
  paths = {"bytes": "bytes", "SentencePiece": pieces, "WordPiece": letters, "BPE": tmp_path / "gpt-merges.txt"}
  spec = str(paths[kind])
  load = vocabularies.load if kind in ("bytes", "SentencePiece") else subwords.SubwordVocabulary
  vocabularies.save(load(spec, extra_ids=3), epath.Path(tmp_path / "trained"))
  given = vocab_override.give(_with_rows(300), spec, extra_ids=3)
  vocab_override.save(given, epath.Path(tmp_path / "copied"))
  assert contents(tmp_path / "copied") == contents(tmp_path / "trained")


def _with_rows(rows: int) -> Foreign:
  """Returns a checkpoint with an embedding of this many rows."""
  return foreign.in_memory(toy.config(vocab_size=rows), {})


@pytest.mark.parametrize(("more_rows", "extra_ids"), [(100, 100), (99, 0)])
def test_sentinels_of_t5(more_rows, extra_ids, pieces):
  """A SentencePiece model without sentinels gets 100, if the embedding has rows for them."""
  size = sentencepiece.SentencePieceProcessor(model_file=str(pieces)).get_piece_size()
  assert vocab_override.give(_with_rows(size + more_rows), str(pieces)).extra_ids == extra_ids


@pytest.mark.parametrize(
  ("options", "words"),
  [
    (["--vocabulary=bytes"], "259 ids (0 sentinels included), but the embedding of"),
    (["--vocabulary={letters}", "--extra_ids=13"], "38 ids (13 sentinels included), but the embedding of"),
    (["--vocabulary={letters}", "--extra_ids=13"], "or --extra_ids 12 or less"),
    (["--vocabulary={folder}/gone.model"], "--vocabulary {folder}/gone.model: no such file"),
    (["--vocabulary={folder}/odd.model"], "odd.model is not a valid .model file"),
    (["--vocabulary={folder}/vocab.json"], "merges.txt is missing in the same folder"),
    (["--vocabulary={folder}/sentinels.txt", "--extra_ids=2"], "already contains sentinels"),
    (["--vocabulary={folder}/t5x"], "is not a vocabulary. Give "),
    (["--extra_ids=3"], "--extra_ids 3 needs --vocabulary"),
  ],
)
def test_vocabularies_that_do_not_fit(options, words, t5x_folder, letters, convert, tmp_path):
  """The error comes before anything is written."""
  (tmp_path / "odd.model").write_text("not a model")
  (tmp_path / "vocab.json").write_text("{}")
  (tmp_path / "sentinels.txt").write_text("a\n<extra_id_0>\n")
  names = {"letters": letters, "folder": tmp_path}
  code, said = convert(t5x_folder, tmp_path / "t2t", *(option.format(**names) for option in options))
  assert code == 2
  assert words.format(**names) in said
  assert not (tmp_path / "t2t").exists()


def test_fewer_than_no_sentinels(letters, convert, tmp_path, capsys):
  """The command and the function give the same error."""
  with pytest.raises(SystemExit) as stopped:
    convert(tmp_path, tmp_path / "t2t", f"--vocabulary={letters}", "--extra_ids=-1")
  assert stopped.value.code == 2
  assert "argument --extra_ids: -1 is not valid. Give a whole number, 0 or more" in capsys.readouterr().err
  with pytest.raises(UserError, match="--extra_ids -1 is negative. Give 0 or more"):
    vocab_override.give(_with_rows(40), str(letters), extra_ids=-1)


# ---- From t2t --------------------------------------------------------------------------------------------------------


def test_an_embedding_and_its_difference_are_added(tmp_path):
  """The converted model has one table, as without gradient-disentangled sharing."""
  config = toy.encoder(embedding_difference=True, num_encoder_layers=1)
  params = foreign.random_params(config)
  tensor_writer.save(foreign.in_memory(config, params), epath.Path(tmp_path / "run"))
  found = tensor_writer.open_foreign(str(tmp_path / "run"))
  assert found.model == dataclasses.replace(config, embedding_difference=False)
  total = params.pop("embed/difference") + params["embed/table"]
  assert found.tensors.keys() == params.keys()
  np.testing.assert_array_equal(found.tensors["embed/table"].read(), total)


@pytest.mark.slow
def test_parameters_that_were_not_trained(tmp_path):
  """A checkpoint stores them separately; they are read with the others, without optimizer state."""
  config = toy.config()
  params = toy.split(toy.model(config))[1]
  trained_params, frozen = split_frozen(params, ("^encoder",))
  state = train_state.TrainState(jnp.array(3, jnp.int32), trained_params, frozen, {"mean": jnp.ones(5)})
  checkpoints = manager.Checkpoints(epath.Path(tmp_path), keep=1)
  checkpoints.save(3, state, {}, {"model": dataclasses.asdict(config)}, metrics=None)
  checkpoints.close()
  found = foreign.read(tensor_writer.open_foreign(str(tmp_path)))
  assert found.keys() == toy.flat(params).keys()
  for path, x in toy.flat(params).items():
    np.testing.assert_array_equal(found[path], x, err_msg=path)


# ---- Atomic output ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["t2t", "hf"])
def test_a_source_that_breaks_off(target, t5x_folder, convert, tmp_path):
  """The output before the broken array is removed, and no thread remains."""
  chunk = t5x_folder / "target.decoder.layers_1.mlp.wo.kernel" / "1.0"
  chunk.write_bytes(chunk.read_bytes()[:20])
  before = set(threading.enumerate())
  code, said = convert(t5x_folder, tmp_path / "out", "--to", target)
  assert code == 2
  assert str(chunk.parent) in said and "Copy the checkpoint again" in said
  assert sorted(path.name for path in tmp_path.iterdir()) == ["t5x"]
  assert not [thread for thread in set(threading.enumerate()) - before if not thread.daemon]


# ---- Bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  ("arguments", "words"),
  [
    ([], "the checkpoint and the output folder are missing"),
    (["{hf}"], "the output folder is missing"),
    (["{hf}", "{out}", "{out}"], "{out}: too many paths. Give one checkpoint and one output folder"),
    (["--from=torch", "{hf}", "{out}"], "--from torch: unknown kind. Give one of: hf, peft, t5x, t2t, int8"),
    (["--from=t5", "{hf}", "{out}"], "did you mean t5x?"),
    (
      ["--from", "{hf}", "--to", "{out}"],
      "unknown kind. Give one of: hf, peft, t5x, t2t, int8. Give the kind before the path: --from KIND {hf}",
    ),
    (["--to=flax", "{hf}", "{out}"], "--to flax: unknown kind. Give one of:"),
    (["--to=t5x", "{hf}", "{out}"], "t2t cannot write T5X checkpoints"),
    (["--from=t5x", "{hf}", "{out}"], "--from t5x: {hf} is a Hugging Face folder. Give --from hf, or leave out --from"),
    (["--from=t5x", "{empty}", "{out}"], "{empty}: no T5X checkpoint; looked for"),
    (["--from=hf", "{empty}", "{out}"], "{empty} contains no config.json"),
    (["--from=t2t", "{empty}", "{out}"], "{empty}: no checkpoint in"),
    (
      ["{empty}", "{out}"],
      "{empty}: no checkpoint found. Give a folder with the files of one of these kinds:\n"
      "  hf: config.json with a model_type",
    ),
    (["{empty}", "{out}"], "\n  t5x: msgpack in {empty} and "),
    (["{empty}", "{out}"], "\n  t2t: {empty}/state, {empty}/checkpoints/STEP"),
    (["{empty}/gone", "{out}"], "{empty}/gone: no such file or folder"),
    (["{tensorflow}", "{out}"], "{tensorflow} is a TensorFlow checkpoint"),
    (["{hf}", "{tensorflow}"], "{tensorflow} exists and is not an empty folder"),
    (["{hf}", "{tensorflow}/checkpoint"], "{tensorflow}/checkpoint exists and is not an empty folder"),
    (["{t2t}", "--to=t2t", "{out}"], "is a t2t checkpoint already"),
    (["{hf}", "{out}", "--dtype=bfloat16"], "--dtype bfloat16 applies only to --to hf"),
    (["{hf}", "{out}", "--max_shard_size=1GB"], "--max_shard_size 1GB applies only to --to hf"),
    (["{t2t}", "{out}", "--max_shard_size=much"], "--max_shard_size much is not a size"),
    (["{t2t}", "{out}", "--max_shard_size=0.1"], "--max_shard_size 0.1 is not a size"),
    (["{t2t}", "{out}", "--dtype=int8"], "--dtype int8: unknown dtype. Known values: float32"),
    (["--gin=a.gin", "{hf}", "{out}"], "--gin_file a.gin prints a config and converts no checkpoint"),
    (["--gin={empty}/a.gin"], "--gin_file {empty}/a.gin: no such file"),
  ],
)
def test_what_cannot_be_done(arguments, words, exported, convert, tmp_path):
  """Exit code 2, a message with the remedy, and no output."""
  names = {name: tmp_path / name for name in ("out", "empty", "tensorflow")}
  names |= {"hf": exported, "t2t": trained.workdir("encoder_decoder")}
  names["empty"].mkdir()
  names["tensorflow"].mkdir()
  (names["tensorflow"] / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-7"\n')
  code, said = convert(*(argument.format(**names) for argument in arguments))
  assert code == 2
  assert words.format(**names) in said
  assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "tensorflow"]


def test_arrays_that_do_not_belong_together(convert, tmp_path):
  """The message contains the first name, with the expected and the found shape."""
  params = t5x_files.parameters()
  params["decoder/layers_2/mlp/wo/kernel"] = np.zeros((10, 14), np.float32)
  del params["encoder/layers_1/mlp/wo/kernel"]
  folder = t5x_files.write(tmp_path / "checkpoint_7", params)
  code, said = convert(folder, tmp_path / "out")
  assert code == 2
  assert "decoder/layers_2/mlp/wo/kernel: expected [14, 10], found [10, 14]" in said
  assert "encoder/layers_1/mlp/wo/kernel: missing; expected [14, 10]" in said


def test_a_folder_that_was_not_written_to_its_end(exported, convert, tmp_path):
  """A file of the index is missing."""
  shutil.copytree(exported, tmp_path / "hf")
  file = sorted((tmp_path / "hf").glob("*.safetensors"))[1]
  file.unlink()
  code, said = convert(tmp_path / "hf", tmp_path / "out")
  assert code == 2
  assert f"missing: {file.name}" in said


# ---- Help and imports ------------------------------------------------------------------------------------------------


def test_gin(convert, tmp_path):
  """The config goes to standard output, the rest to stderr; see test_convert_gin.py."""
  path = tmp_path / "mine.gin"
  path.write_text("include 't5x/examples/t5/t5_1_1/base.gin'\nDROPOUT_RATE = 0.1\nAdafactor.beta1 = 0.9\n")
  code, said = convert("--gin", path)
  assert code == 0
  assert 'presets.t5_1_1("base")' in said
  assert f"{path}:3: Adafactor.beta1 = 0.9" in said


_WITHOUT_TENSORFLOW = """
import contextlib, sys
from t2t import __main__ as command
with contextlib.suppress(SystemExit):
  command.main(["convert", "--help"])
for source in sys.argv[2:]:
  assert command.main(["convert", source, f"{sys.argv[1]}/{len(sys.modules)}", "--vocabulary", "bytes"]) == 0
  assert command.main(["convert", "--gin", "gone.gin"]) == 2
found = {"tensorflow", "seqio", "torch"} & set(sys.modules)
assert not found, found
"""


@pytest.mark.exhaustive
def test_tensorflow_stays_away(exported, tmp_path):
  """--help is fast and 80 columns wide, and imports do not load TensorFlow."""
  arguments = [sys.executable, "-c", _WITHOUT_TENSORFLOW, str(tmp_path), str(exported)]
  done = subprocess.run(arguments, capture_output=True, text=True, env=os.environ | {"COLUMNS": "80"})
  assert done.returncode == 0, done.stderr
  help_text = done.stdout.partition("\nfrom  ")[0]  # the beginning of the report, which has paths of any length
  assert "t2t convert --from hf flan-t5-base --to t2t" in help_text
  assert max(len(line) for line in help_text.splitlines()) <= 80
