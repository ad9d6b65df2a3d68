"""`t2t infer`: every line once and in order, also after interruptions; and errors."""

import dataclasses
import importlib.util
import io
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import types

from etils import epath
import numpy as np
import pytest
import tensorflow as tf
import toy
import trained

from t2t import UserError
from t2t import __main__ as command
from t2t.checkpoints import manifest, pretrained
from t2t.configuration.schema import DataConfig
from t2t.data import pipeline
from t2t.inference import batch_inference, jsonl_io, prompt_builder, prompt_features, text_generation

TEXTS = [
  "the quick brown fox",
  "",
  "a",
  "jumps over a lazy dog while seven wizards box with dire liquid jugs",
  "naïve 校服 😀",
  " a dog ",
  "the quick brown foy",
  "dire",
  "seven",
  "jugs of jugs of jugs",
  "\t",
  "liquid wizards",
]
SAMPLED = ("--temperature", "0.9", "--top_p", "0.95", "--seed", "3")


@pytest.fixture
def run(tmp_path, capsys):
  """Runs the command on a model; returns exit code, rows and output."""

  def run(*options, architecture="encoder_decoder", source=None, output=None):
    source = source or text_file(tmp_path, TEXTS)
    output = output or tmp_path / "out.jsonl"
    capsys.readouterr()
    code = command.main(arguments(source, output, *options, architecture=architecture))
    captured = capsys.readouterr()
    rows = rows_of(output) if str(output) != "-" else [json.loads(line) for line in captured.out.splitlines()]
    return code, rows, captured.out + captured.err if str(output) != "-" else captured.err

  return run


@pytest.fixture
def finished(done, tmp_path) -> pathlib.Path:
  """Returns a copy of the output of `TEXTS`."""
  for path in done.parent.glob("out.jsonl*"):
    shutil.copy(path, tmp_path)
  return tmp_path / "out.jsonl"


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> pathlib.Path:
  folder = tmp_path_factory.mktemp("done")
  assert command.main(arguments(text_file(folder, TEXTS), folder / "out.jsonl")) == 0
  return folder / "out.jsonl"


def arguments(source, output, *options, architecture: str = "encoder_decoder") -> list[str]:
  fixed = ("--checkpoint", trained.workdir(architecture), "--input", source, "--output", output)
  return [str(argument) for argument in ("infer", *fixed, "--max_length", "6", "--batch_size", "1", *options)]


def text_file(folder: pathlib.Path, texts, name: str = "in.txt") -> pathlib.Path:
  path = folder / name
  path.write_bytes("".join(f"{text}\n" for text in texts).encode())
  return path


def json_file(folder: pathlib.Path, objects, name: str = "in.jsonl") -> pathlib.Path:
  return text_file(folder, map(json.dumps, objects), name)


def rows_of(path) -> list[dict]:
  path = pathlib.Path(path)
  return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def bare(row: dict) -> dict:
  """Returns the fields that do not depend on the position of a line."""
  return {name: value for name, value in row.items() if name != "line"}


# ---- Every line, in order --------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_who_has_learned_to_fill_blanks_is_told_of_texts_without(run, tmp_path):
  """The note contains the number of lines without a blank; causal models need none."""
  texts = ["a <extra_id_0> b", "no blank", "", "<extra_id_1>", "nor here"]
  source = text_file(tmp_path, texts)
  code, rows, said = run(source=source)
  assert code == 0 and [row["inputs"] for row in rows] == texts
  assert "(1 empty, 2 without a blank)" in said and "put <extra_id_0>" in said
  said = run(source=source, architecture="decoder_only", output=tmp_path / "other.jsonl")[2]
  assert "(1 empty" in said and "blank" not in said


@pytest.mark.exhaustive
@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder_only"])
def test_a_row_for_each_line_in_their_order(architecture, run, tmp_path):
  """Rows have the order of the lines, at any length, and equal the prediction of each line alone."""
  code, rows, said = run(architecture=architecture)
  assert code == 0
  assert [row["line"] for row in rows] == list(range(1, len(TEXTS) + 1))
  assert [row["inputs"] for row in rows] == [text if text.strip() else "" for text in TEXTS]
  assert [row["line"] for row in rows if row["prediction"] is None] == [2, 11]
  assert rows[1] == {"line": 2, "inputs": "", "prediction": None, "score": None, "error": "empty line"}
  assert all(row["score"] < 0 for row in rows if "error" not in row)
  # A model of two steps may prefer empty text.
  blanks = ", 10 without a blank" if architecture == "encoder_decoder" else ""
  counted = rf"lines          12 \(2 empty, (\d+ with an empty prediction, )?1 truncated to 48 tokens{blanks}\)"
  assert re.search(counted, said) and "out.jsonl" in said
  backwards = text_file(tmp_path, reversed(TEXTS), "backwards.txt")
  _, again, _ = run(architecture=architecture, source=backwards, output=tmp_path / "backwards.jsonl")
  assert sorted(map(str, map(bare, again))) == sorted(map(str, map(bare, rows)))
  assert [bare(row) for row in reversed(again)] == [bare(row) for row in rows]


@pytest.mark.slow
def test_fields_of_objects_are_kept(run, tmp_path):
  """The text may be in any field; other fields are copied to the output."""
  objects = [{"question": "a dog", "id": 7, "tags": ["x", {"y": None}]}, {"id": "8", "question": ""}, {"question": "b"}]
  code, rows, _ = run("--field", "question", source=json_file(tmp_path, objects))
  assert code == 0
  assert [row["inputs"] for row in rows] == ["a dog", "", "b"]
  assert rows[0]["id"] == 7 and rows[0]["tags"] == ["x", {"y": None}] and rows[1]["id"] == "8"
  assert rows[1]["error"] == "empty line" and set(rows[2]) == {"line", "inputs", "prediction", "score"}


@pytest.mark.exhaustive
def test_beams_are_alternatives(run):
  """The best beam is the prediction; the others follow with scores in order, without duplicates."""
  _, rows, _ = run("--beam", "3")
  for row in rows:
    if "error" not in row:
      scores = [row["score"], *(each["score"] for each in row["alternatives"])]
      assert len(scores) == 3 and scores == sorted(scores, reverse=True)


@pytest.mark.exhaustive
def test_what_is_drawn_depends_on_seed_and_line_alone(run, tmp_path):
  """Samples are independent of the batch size, depend on the seed, and differ between equal lines."""
  source = text_file(tmp_path, ["a dog"] * 5 + [""] + ["a dog"] * 4)
  texts = lambda rows: [row["prediction"] for row in rows]
  _, first, _ = run(*SAMPLED, source=source)
  _, wide, _ = run(*SAMPLED, "--batch_size", "3", source=source, output=tmp_path / "wide.jsonl")
  _, other, _ = run(*SAMPLED[:-1], "4", source=source, output=tmp_path / "other.jsonl")
  assert texts(first) == texts(wide) != texts(other)
  assert len(set(texts(first))) > 5


@pytest.mark.exhaustive
def test_standard_input_and_output(run, tmp_path, monkeypatch):
  """The output contains only rows, identical to those of files; with a field the lines are objects."""
  _, expected, _ = run()
  pipe = lambda content: monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
  pipe("\n".join(TEXTS).encode())
  code, rows, said = run(source="-", output="-")
  assert code == 0 and rows == expected and "lines          12" in said
  pipe(json_file(tmp_path, [{"q": text} for text in TEXTS]).read_bytes())
  assert run("--field", "q", source="-", output=tmp_path / "of_objects.jsonl")[1] == expected


# ---- Killed and resumed ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "options"), [("encoder_decoder", ("--beam", "3")), ("decoder_only", SAMPLED)])
def test_resumed_at_any_byte_equals_uninterrupted(architecture, options, run, tmp_path):
  """After truncation at any byte, the same command completes an identical file."""
  output = tmp_path / "out.jsonl"
  options = (*options, "--inputs_length", "15")
  run(*options, architecture=architecture)
  whole = output.read_bytes()
  ends = [index + 1 for index, byte in enumerate(whole) if byte == ord("\n")]
  # In the first line; at the end of one, in either window, and just before it; anywhere.
  for size in (1, ends[3], ends[9] - 1, random.Random(0).randrange(len(whole))):
    output.write_bytes(whole[:size])
    assert run(*options, architecture=architecture)[0] == 0
    assert output.read_bytes() == whole, size


def test_a_complete_output_is_left_alone(run, finished):
  before = finished.stat()
  code, _, said = run()
  assert code == 0 and "is complete: 12 lines; nothing left to do" in said
  assert finished.stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.slow
def test_lines_that_were_added_are_done(run, finished, tmp_path):
  """Finished rows are not computed again."""
  before = finished.read_bytes()
  code, rows, said = run(source=text_file(tmp_path, [*TEXTS, "one more"]))
  assert code == 0 and "has 12 lines; resuming after them" in said
  assert len(rows) == 13 and finished.read_bytes().startswith(before)


@pytest.mark.exhaustive
def test_standard_input_is_resumed_with_the_same_lines(run, finished, monkeypatch):
  """Finished lines are read and compared; different lines are an error."""
  whole = finished.read_bytes()
  pipe = lambda texts: monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(texts).encode())))
  finished.write_bytes(whole[:-30])
  pipe(TEXTS)
  assert run(source="-")[0] == 0 and finished.read_bytes() == whole
  finished.write_bytes(b"".join(whole.splitlines(keepends=True)[:5]))
  pipe([*TEXTS[:3], "another", *TEXTS[4:]])
  code, _, said = run(source="-")
  assert code == 2 and "line 4 differs from standard input, line 4" in said


@pytest.mark.exhaustive
def test_tokens_are_counted_as_they_are_written(run):
  """An EOS or truncated end counts as a token; empty texts do too."""
  _, rows, said = run("--max_length", "1")
  assert f"new tokens     {len(rows)} in " in said


def test_beams_write_a_token_at_least():
  """The default minimum is one token with beams, and none without."""
  config = text_generation.decode_config
  assert [config(max_length=4, beam=beam).min_length for beam in (1, 4)] == [0, 1]
  assert config(max_length=4, beam=4, min_length=0).min_length == 0
  with pytest.raises(UserError, match="--min_length 5 must be 0 to 4, the value of --max_length"):
    config(max_length=4, min_length=5)


def test_empty_predictions_are_counted(tmp_path, capsys):
  """Only for generated text."""
  counts = batch_inference._Counts(blank="")
  counts.add(
    [{"prediction": ""}, {"prediction": " "}, {"prediction": "a"}, {"prediction": None, "error": batch_inference.EMPTY}]
  )
  job = batch_inference.InferenceJob("in.txt", "out.jsonl", "", 1, False)
  with batch_inference._LineProgress(4, "new tokens") as progress:
    pass
  way = types.SimpleNamespace(asks="write", unit="new tokens", cut_to="", remarks=())
  batch_inference._summarise(counts, progress, way, job)
  assert "lines          4 (1 empty, 2 with an empty prediction)\n" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killed_for_real(number, run, tmp_path):
  """After a kill, the same command gives the same output; SIGTERM logs the progress."""
  source = text_file(tmp_path, [f"{text} {number}" for number, text in enumerate(TEXTS * 20)])
  run("--inputs_length", "15", source=source, output=tmp_path / "whole.jsonl")
  output = tmp_path / "out.jsonl"
  command_line = [sys.executable, "-m", "t2t", *arguments(source, output, "--inputs_length", "15")]
  environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
  process = subprocess.Popen(command_line, env=environment, stderr=subprocess.PIPE, text=True)
  while not (output.exists() and output.stat().st_size) and process.poll() is None:
    time.sleep(0.01)
  process.send_signal(number)
  told = process.communicate()[1]
  assert process.returncode == (143 if number == signal.SIGTERM else -number)
  if number == signal.SIGTERM:
    assert re.search(r"ended at once; finished \d+ of 240 lines; rerun the same command to resume", told)
  assert 0 < len(rows_of(output)) < 240
  assert run("--inputs_length", "15", source=source)[0] == 0
  texts = lambda path: [(row["line"], row["inputs"], row["prediction"]) for row in rows_of(path)]
  assert texts(output) == texts(tmp_path / "whole.jsonl")


# ---- What does not belong together -----------------------------------------------------------------------------------


def another_checkpoint(tmp_path, output):
  shutil.copytree(trained.workdir("encoder_decoder"), tmp_path / "copy")
  return ("--checkpoint", tmp_path / "copy")


def another_input(tmp_path, output):
  return ("--input", text_file(tmp_path, [*TEXTS[:2], "b", *TEXTS[3:]], "other.txt"))


def a_shorter_input(tmp_path, output):
  return ("--input", text_file(tmp_path, TEXTS[:4], "shorter.txt"))


def no_record(tmp_path, output):
  pathlib.Path(f"{output}.run.json").unlink()
  return ()


def a_line_of_something_else(tmp_path, output):
  output.write_bytes(output.read_bytes() + b'{"line": 1}\n')
  return ()


REFUSED = {
  "options": (lambda *_: ("--max_length", "7"), ["--max_length 7, previously 6"]),
  "beams": (lambda *_: ("--beam", "2"), ["--beam 2, previously 1", "--length_penalty 0.6, previously None"]),
  "seed": (
    lambda *_: ("--temperature", "1", "--top_k", "5", "--top_p", "0.5", "--seed", "4"),
    [
      "--temperature 1.0, previously 0.0",
      "--top_k 5, previously",
      "--top_p 0.5, previously",
      "--seed 4, previously None",
    ],
  ),
  "checkpoint": (another_checkpoint, ["--checkpoint", "copy/checkpoints/2", "previously"]),
  "input": (another_input, ["line 3 of the output differs from line 3 of", "other.txt"]),
  "shorter input": (a_shorter_input, ["the output has 12 lines, more than", "shorter.txt"]),
  "no record": (no_record, ["exists, but its record out.jsonl.run.json is missing"]),
  "written by something else": (a_line_of_something_else, ["line 13 was not written by t2t"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_output_of_another_run_is_refused(name, run, finished, tmp_path):
  """The message contains difference and remedy, and the output is unchanged."""
  change, expected = REFUSED[name]
  options = change(tmp_path, finished)
  before = finished.read_bytes()
  code, _, said = run(*options)
  assert code == 2 and "Traceback" not in said
  for part in [*expected, "another --output", "to start over"]:
    assert part in said
  assert finished.read_bytes() == before


def test_rows_leave_for_a_pipe_when_they_are_written():
  """A reader of the pipe waits for one window of lines, not for the last."""
  read, write = os.pipe()
  os.set_blocking(read, False)
  with open(read, "rb", buffering=0) as reader, open(write, "wb") as writer:
    jsonl_io.Output(writer, jsonl_io.PIPE, {}).write([{"line": 1}])
    assert reader.read() == b'{"line": 1}\n'


def test_two_runs_do_not_write_to_one_output(tmp_path):
  output = lambda: jsonl_io.output(str(tmp_path / "out.jsonl"), {})
  with output(), pytest.raises(UserError, match="another process is writing"), output():
    pass


# ---- Bad input -------------------------------------------------------------------------------------------------------


def written(content: bytes, name: str):
  def write(folder: pathlib.Path) -> list:
    (folder / name).write_bytes(content)
    return ["--input", folder / name]

  return write


LONG = b"a\n" + b"x" * 60 + b"\n"

BAD = {
  "no checkpoint": (lambda t: ["--checkpoint", t / "none"], ["--checkpoint", "none", "no checkpoint in"]),
  "no input": (lambda t: ["--input", t / "none.txt"], ["--input", "none.txt", "no such file"]),
  "a folder": (lambda t: ["--input", (t / "a.txt").mkdir() or t / "a.txt"], ["a.txt", "cannot be read"]),
  "another ending": (written(b"a\n", "in.odt"), ["in.odt", ".txt", ".jsonl", ".csv"]),
  "nothing in it": (written(b"", "bad.txt"), ["bad.txt is empty"]),
  "only empty lines": (written(b"\n \n", "bad.txt"), ["bad.txt: all lines are empty"]),
  "not UTF-8": (written(b"fine\n\xff\xfe\n", "bad.txt"), ["bad.txt, line 2", "not valid UTF-8", "0xff"]),
  "not JSON": (
    written(b'{"inputs": "a"}\n{oops\n', "in.jsonl"),
    ["in.jsonl, line 2", "not valid JSON", "column 2", "{oops"],
  ),
  "no object": (written(b'["a"]\n', "in.jsonl"), ["in.jsonl, line 1", "not a JSON object"]),
  "no such field": (
    written(b'{"text": "a", "id": 1}\n', "in.jsonl"),
    ["line 1", "'inputs'", "'text', 'id'", "--field"],
  ),
  "no string": (written(b'{"inputs": 3}\n', "in.jsonl"), ["line 1", "field 'inputs' is 3, not a string"]),
  "half a character": (written(b'{"inputs": "\\ud800"}\n', "in.jsonl"), ["line 1", "unpaired surrogate"]),
  "a field of the output": (written(b'{"inputs": "a", "score": 3}\n', "in.jsonl"), ["line 1", "'score'", "rename"]),
  "a field of text": (lambda t: ["--field", "a"], ["--field a", "lines of text"]),
  "strict, empty": (lambda t: ["--strict"], ["in.txt, line 2", "empty", "leave out --strict"]),
  "strict, too long": (
    lambda t: ["--strict", *written(LONG, "long.txt")(t)],
    ["long.txt, line 2", "of its 61 tokens do not fit (limit: 48 tokens)", "--inputs_length"],
  ),
  "no beams": (lambda t: ["--beam", "0"], ["--beam 0"]),
  "beams and chance": (lambda t: ["--beam", "2", "--top_k", "5"], ["--beam 2 and --top_k 5"]),
  "a penalty without beams": (lambda t: ["--length_penalty", "1"], ["--length_penalty 1.0", "--beam"]),
  "chance without temperature": (lambda t: ["--temperature", "0", "--top_p", "0.5"], ["--temperature 0", "--top_p"]),
  "no room": (lambda t: ["--max_length", "0"], ["max_length=0"]),
  "no length": (lambda t: ["--inputs_length", "-1"], ["--inputs_length -1"]),
  "a foreign name": (lambda t: ["--num_beams=4"], ["--num_beams: no such option; Hugging Face's num_beams is --beam"]),
  "a server with files": (lambda t: ["--server"], ["--input and --server exclude each other"]),
  "too many beams": (lambda t: ["--beam", "1000000000"], ["--beam 1000000000", "at most 10,000"]),
  "devices": (lambda t: ["--tensor", "3"], ["--tensor 3", "[1, 2, 4, 8]"]),
  "output in a bucket": (lambda t: ["--output", "gs://bucket/out.jsonl"], ["gs://bucket/out.jsonl", "local file"]),
  "output is a folder": (lambda t: ["--output", t], ["cannot be written"]),
}


def test_the_server_needs_its_extra(monkeypatch, capsys):
  """The error comes before the checkpoint is read."""
  find = importlib.util.find_spec
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "starlette" else find(name))
  assert command.main(["infer", "--checkpoint", "no/such/folder", "--server"]) == 2
  said = capsys.readouterr().err
  assert "t2t infer --server needs Starlette and uvicorn. Run: pip install -e '.[serve]'" in said


@pytest.mark.exhaustive_from(14)
@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_clear_error(name, run, tmp_path):
  """Exit code 2, file and line, the remedy, and no output."""
  options, expected = BAD[name]
  code, rows, said = run(*options(tmp_path))
  assert code == 2 and not rows
  assert "Traceback" not in said and said.count("error:") == 1
  for part in expected:
    assert part in said
  assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.exhaustive
def test_an_encoder_alone_writes_nothing(run):
  code, _, said = run(architecture="encoder_only")
  assert (
    code == 2
    and "is an encoder without decoder, which fills blanks and generates no text. Leave out generation options" in said
  )


@pytest.mark.exhaustive
def test_positions_that_were_not_learned(run):
  """More positions are an error; without --inputs_length prompts are truncated to fit."""
  code, _, said = run("--inputs_length", "75", architecture="decoder_only")
  assert code == 2 and "80 positions" in said
  code, rows, _ = run("--max_length", "56", architecture="decoder_only")
  assert code == 0
  # 80 positions, 56 of them for the answer.
  assert [row["cut"] for row in rows if "cut" in row] == [len(TEXTS[3]) - 24]


def test_a_prompt_is_cut_at_its_end_and_keeps_eos():
  class Letters:
    eos_id = 1

    def encode(self, text):
      return [ord(letter) for letter in text]

  assert prompt_builder.Prompts(Letters(), ends=True, longest=3)("ABCD") == ([65, 66, 1], 2)
  assert prompt_builder.Prompts(Letters(), ends=True, longest=3)("AB") == ([65, 66, 1], 0)
  assert prompt_builder.Prompts(Letters(), ends=False, longest=3)("ABCD") == ([65, 66, 67], 1)


def trained_on(**data) -> pretrained.Source:
  """Returns a decoder-only source with this config and no parameters."""
  return pretrained.Source(epath.Path("nowhere"), toy.KINDS["prefix_lm"], {"data": data}, "")


@pytest.mark.parametrize("objective", ["prefix_lm", "causal_lm"])
def test_a_prompt_is_what_training_showed(objective, tmp_path):
  """Compares the tokens up to the first target; for language modeling, the first tokens of the text."""
  text = "the quick brown fox jumps over a lazy dog"
  lengths = dict(inputs_length=64, targets_length=64)
  file = str(text_file(tmp_path, [text]))
  data = DataConfig(files=file, eval_files=file, vocabulary="bytes", objective=objective, pack=True, **lengths)
  task = pipeline.load_task(data)
  example = next(pipeline.task_examples(data, "decoder_only", task, split="train", seed=1).as_numpy_iterator())
  examples = tf.data.Dataset.from_tensors(example)
  (shown,) = pipeline.model_features(
    dataclasses.replace(data, pack=False), "decoder_only", task, examples
  ).as_numpy_iterator()
  vocabulary = pipeline.vocabulary(data)
  end, _ = prompt_builder.ends_prompts(trained_on(files=file, objective=objective))
  given = example["inputs"][:-1] if "inputs" in example else example["targets"][:10]
  tokens, cut = prompt_builder.Prompts(vocabulary, ends=end, longest=64)(vocabulary.decode(given.tolist()))
  made = prompt_features.prompt_features(
    [tokens], 64, architecture="decoder_only", framing=prompt_features.framing(vocabulary)
  )
  number = 1 + len(tokens)
  assert not cut and number > 1
  assert made["decoder_input_tokens"][0, :number].tolist() == shown["decoder_input_tokens"][:number].tolist()
  if objective == "causal_lm":
    assert "decoder_causal_attention" not in shown
  else:
    assert np.flatnonzero(shown["decoder_loss_weights"])[0] == len(tokens)
    assert made["decoder_causal_attention"][0].tolist() == shown["decoder_causal_attention"][:64].tolist()


@pytest.mark.exhaustive
def test_what_a_decoder_was_trained_on_decides(run, tmp_path):
  """EOS follows the prompt if the checkpoint's training or the option says so."""
  source = text_file(tmp_path, ["a dog"])
  copy = shutil.copytree(trained.workdir("decoder_only"), tmp_path / "run")
  path = copy / "checkpoints" / "2" / "config" / "metadata"
  (copy / "checkpoints" / "2" / manifest.NAME).unlink()
  config = json.loads(path.read_text())
  config["data"] |= {"objective": "prefix_lm"}
  path.write_text(json.dumps(config))
  asked = lambda *options, **of: run(*options, source=source, architecture="decoder_only", **of)
  _, ended, said = asked("--checkpoint", copy, output=tmp_path / "ended.jsonl")
  assert "prompts end in EOS, as in training: config.data.objective=prefix_lm" in said
  _, wanted, said = asked("--prompt_eos", "yes")
  assert "prompts end in EOS, --prompt_eos yes" in said and wanted == ended
  code, _, said = asked()  # the previous output
  assert "prompts end without EOS, as in training: config.data.objective=causal_lm" in said
  assert code == 2 and "--prompt_eos None, previously yes" in said


def test_what_a_mixture_showed():
  """Text-to-text tasks have no EOS after a decoder's prompt; unknown data are reported."""
  asked = lambda mixture, *modules: prompt_builder.ends_prompts(
    trained_on(files="", mixture=mixture, task_modules=modules)
  )
  docs = "t2t.tasks.docs"
  assert asked("docs_prefix_lm", docs) == (True, "as in training: config.data.mixture=docs_prefix_lm")
  assert asked("docs_match", docs)[0] is asked("docs_causal_lm", docs)[0] is False
  ends, said = asked("docs_prefix_lm,docs_match", docs)
  assert not ends and "docs_match has tasks with EOS and tasks without; --prompt_eos yes adds it" in said
  ends, said = asked("nothing_like_it", docs)
  assert not ends and "nothing_like_it: no task or mixture has this name" in said
  ends, said = prompt_builder.ends_prompts(trained_on(inputs_length=64))
  assert not ends and "does not record its training data" in said


def test_missing_options(capsys):
  assert command.main(["infer", "--input", "a.txt", "--output", "b.jsonl"]) == 2
  assert "--checkpoint is missing" in capsys.readouterr().err
  assert command.main(["infer", "--checkpoint", "runs", "--output", "b.jsonl"]) == 2
  assert "--input is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
  ("text", "prediction", "filled"),
  [
    (
      "The default <extra_id_0> is None.",
      "<extra_id_0> value <extra_id_1> the <extra_id_2> of",
      "The default value is None.",
    ),
    ("<extra_id_0> is <extra_id_1>.", "<extra_id_0> It <extra_id_1> wet <extra_id_2>", "It is wet."),
    ("<extra_id_0> is <extra_id_1>.", "<extra_id_0> It", "It is <extra_id_1>."),
    ("a <extra_id_0> b", "<extra_id_0> <extra_id_1> x", "a b"),
    ("a <extra_id_0> b", "nothing", "a <extra_id_0> b"),
    ("a <extra_id_0> b", "<extra_id_0> c <extra_id_0> d", "a c b"),
  ],
)
def test_a_text_is_shown_with_its_own_blanks_filled(text, prediction, filled):
  assert text_generation.filled(text, prediction) == filled
