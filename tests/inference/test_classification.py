"""`t2t infer` with models that do not generate: predictions of heads, and blanks of masked language models."""

import functools
import json
import math
import os
import pathlib
import shutil
import textwrap

from flax import nnx
import jax
import numpy as np
import pytest
import test_hosts
import toy
import trained

import t2t
from t2t import UserError, sharding
from t2t import __main__ as command
from t2t.checkpoints import manifest, pretrained
from t2t.data import vocabularies
from t2t.inference import classification, fill_mask, head_predictor
from t2t.models.head_config import HeadConfig

# A task for each kind of head that predicts for whole texts.
MODULE = """
  import functools
  import seqio
  import tensorflow as tf
  from t2t.evaluation import task_metrics
  from t2t.data import postprocessors, preprocessors

  LABELS = ("no", "yes")
  NUMBERS = ("0", "1", "2", "3", "4")

  def add(name, record, metric, formats, postprocess):
    def records(split, shuffle_files, seed=None):
      found = [record(i) for i in range({"train": 5, "validation": 4}[split])]
      return tf.data.Dataset.from_tensor_slices({key: [each[key] for each in found] for key in found[0]})

    seqio.TaskRegistry.add(
      name,
      source=seqio.FunctionDataSource(records, splits=("train", "validation"), num_input_examples={"train": 5}),
      preprocessors=preprocessors.text_to_text(formats),
      output_features=preprocessors.t5_features(),
      postprocess_fn=postprocess,
      metric_fns=[metric],
    )

  add(
    "asked_pair",
    lambda i: {"a": "dog " * i, "b": f"fox {i}", "label": i % 2, "idx": i},
    task_metrics.accuracy,
    functools.partial(preprocessors.labelled, prefix="pair", fields=("a", "b"), labels=LABELS),
    postprocessors.label(LABELS),
  )
  add(
    "asked_copa",
    lambda i: {"premise": f"dog {i}", "choice1": "x" * i, "choice2": "fox", "question": "cause", "label": 0, "idx": i},
    task_metrics.accuracy,
    preprocessors.copa,
    postprocessors.label(("choice1", "choice2")),
  )
  add(
    "asked_stsb",
    lambda i: {"sentence1": "dog " * i, "sentence2": f"fox {i}", "label": 0.5 * i, "idx": i},
    task_metrics.pearson,
    preprocessors.stsb,
    postprocessors.number(),
  )
  seqio.MixtureRegistry.add("asked", [("asked_pair", 1.0), ("asked_copa", 1.0), ("asked_stsb", 1.0)])
"""
# Lines equal to the examples of each head's task.
LINES = {
  "copa": [
    {"inputs": f"dog {i} What was the cause of this?", "candidates": ["x" * i, "fox"], "id": f"a{i}"} for i in range(5)
  ],
  "stsb": [{"parts": ["dog " * i, f"fox {i}"]} for i in range(5)],
  "pair": [{"parts": ["dog " * i, f"fox {i}"]} for i in range(5)],
}


@functools.cache
def module() -> pathlib.Path:
  """Writes the file that registers the tasks; a process registers a task only once."""
  path = pathlib.Path(os.environ["T2T_TEST_PROGRAMS"]) / f"asked_tasks_{os.getpid()}.py"
  path.write_text(textwrap.dedent(MODULE))
  return path


def options(mixture: str) -> list[str]:
  found = [f"--config.data.mixture={mixture}", f"--config.data.task_modules={module()}", "--config.train.batch_size=8"]
  return [*found, "--config.data.inputs_length=72", "--config.data.targets_length=6"]


def tuned(folder: pathlib.Path, architecture: str, mixture: str, *others: str) -> pathlib.Path:
  """Fine-tunes a model for a step; returns its workdir."""
  path = folder / f"{architecture}_{mixture}"
  started = f"--config.init.checkpoint={trained.workdir(architecture)}"
  argv = ["train", "--config=finetune_superglue", started, f"--workdir={path}", *options(mixture)]
  assert command.main([*argv, "--config.train.steps=1", "--config.train.loss=heads", *others]) == 0
  return path


@pytest.fixture(scope="module")
def several(tmp_path_factory) -> pathlib.Path:
  """An encoder with three heads."""
  return tuned(tmp_path_factory.mktemp("several"), "encoder_only", "asked")


@pytest.fixture(scope="module")
def behind_a_prefix(tmp_path_factory) -> pathlib.Path:
  """P-tuning v2: three heads, and a learned prefix that each candidate of a row attends to."""
  prefix = "--config.prefix.length=4", "--config.prefix.hidden=0"
  return tuned(tmp_path_factory.mktemp("prefix"), "encoder_only", "asked", *prefix)


@pytest.fixture
def run(tmp_path, capsys):
  """Runs the command; returns its exit code, rows and output."""

  def run(checkpoint, lines, *others, name="in.jsonl", output="out.jsonl"):
    (tmp_path / name).write_text("".join(f"{line if name.endswith('txt') else json.dumps(line)}\n" for line in lines))
    capsys.readouterr()
    files = ["--input", str(tmp_path / name), "--output", str(tmp_path / output), "--batch_size", "1"]
    code = command.main(["infer", "--checkpoint", str(checkpoint), *files, *map(str, others)])
    said = capsys.readouterr()
    path = tmp_path / output
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return code, rows, said.out + said.err

  return run


# ---- Heads -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.exhaustive_from(2)
@pytest.mark.parametrize("head", LINES)
def test_a_line_is_answered_as_the_example_of_a_task(head, several, run, tmp_path):
  """Predictions equal those of `t2t eval` on the same examples, for every kind of head."""
  check_answers(head, several, run, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("head", ["pair", "copa"])
def test_python_gets_what_the_command_gets(head, several, run):
  """`t2t.load` predicts the same for the same lines."""
  code, rows, _ = run(several, LINES[head], "--head", head)
  assert code == 0
  found = t2t.load(str(several)).answer(LINES[head], task=head)
  assert found == [{name: row[name] for name in each} for row, each in zip(rows, found, strict=True)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("head", ["pair", "copa"])
def test_behind_a_prefix_a_line_is_answered_as_the_example_of_a_task(head, behind_a_prefix, run, tmp_path):
  """Training, evaluation and inference apply the prefix, with one text per row and with several."""
  check_answers(head, behind_a_prefix, run, tmp_path)


@pytest.mark.exhaustive
def test_a_prompt_is_for_one_text_in_a_row(run, tmp_path, capsys):
  """A task with candidates is refused with an alternative; other tasks work."""
  started = f"--config.init.checkpoint={trained.workdir('encoder_only')}"
  fixed = ["train", "--config=finetune_superglue", started, "--config.train.loss=heads", "--config.prompt.length=5"]
  assert command.main([*fixed, f"--workdir={tmp_path / 'refused'}", *options("asked")]) == 2
  said = " ".join(capsys.readouterr().err.split())
  assert (
    "rows have several texts here (a task with candidates, each a text). Use config.prefix, which applies to each"
    in said
  )
  checkpoint = tuned(tmp_path, "encoder_only", "asked_pair", "--config.prompt.length=5")
  code, rows, _ = run(checkpoint, LINES["pair"])
  assert code == 0 and all(row["prediction"] in ("no", "yes") for row in rows)


def check_answers(head, several, run, tmp_path):
  evaluated = ["eval", f"--checkpoint={several}", f"--workdir={tmp_path / 'eval'}", *options(f"asked_{head}")]
  evaluated += ["--config.data.eval_split=train"]
  assert command.main(evaluated) == 0
  path = tmp_path / "eval" / "predictions" / f"asked_{head}.train.jsonl"
  expected = [json.loads(line) for line in path.read_text().splitlines()]
  code, rows, said = run(several, LINES[head], "--head", head)
  assert code == 0 and "lines          5" in said and "tokens  " in said
  assert [row["line"] for row in rows] == [1, 2, 3, 4, 5]
  for row, other, line in zip(rows, expected, LINES[head], strict=True):
    assert line.items() <= row.items()
    if head == "stsb":
      assert row["prediction"] == pytest.approx(float(other["prediction"]), rel=1e-4)
      assert set(row) == {"line", "inputs", "prediction", "parts"}
      continue
    assert row["score"] == pytest.approx(other["score"], rel=1e-4, abs=1e-5)
    if head == "pair":
      assert row["prediction"] == other["prediction"] and list(row["probabilities"]) == ["no", "yes"]
      probabilities = list(row["probabilities"].values())
      assert row["prediction"] == max(row["probabilities"], key=row["probabilities"].get)
    else:
      chosen = int(np.argmax(row["probabilities"]))
      assert other["prediction"] == f"choice{chosen + 1}" and row["prediction"] == line["candidates"][chosen]
      probabilities = row["probabilities"]
    assert sum(probabilities) == pytest.approx(1.0, abs=1e-4)
    assert max(probabilities) == pytest.approx(math.exp(row["score"]), rel=1e-4)


@pytest.mark.exhaustive
def test_a_model_that_writes_answers_by_its_head(run, tmp_path):
  """A single head need not be named; the input is the joined text, and parts are refused."""
  checkpoint = tuned(tmp_path, "encoder_decoder", "asked_pair")
  texts = ["pair a: dog b: fox 1", "", "pair a: b: fox 0"]
  code, rows, said = run(checkpoint, texts, name="in.txt")
  assert code == 0 and "(1 empty)" in said
  assert {"prediction": None, "score": None, "error": "empty line"}.items() <= rows[1].items()
  assert list(rows[0]["probabilities"]) == ["no", "yes"] and rows[0]["inputs"] == texts[0]
  code, _, said = run(checkpoint, LINES["pair"])
  assert code == 2 and "line 1 has several 'parts'" in said


@pytest.mark.exhaustive
def test_resumed_at_any_byte_equals_uninterrupted(several, run, tmp_path):
  lines = [{"parts": ["dog " * (i % 7), f"fox {i}"]} for i in range(20)]
  run(several, lines, "--head=pair")
  whole = (tmp_path / "out.jsonl").read_bytes()
  for size in (1, len(whole) // 2, len(whole) - 1):
    (tmp_path / "out.jsonl").write_bytes(whole[:size])
    assert run(several, lines, "--head=pair")[0] == 0
    assert (tmp_path / "out.jsonl").read_bytes() == whole
  code, _, said = run(several, lines, "--head=stsb")
  assert code == 2 and "--head stsb, previously pair" in said


@pytest.mark.exhaustive
def test_two_processes_answer_as_one_does(several, run, tmp_path):
  """The first process reads and writes, both compute; for heads and blanks."""
  _, expected, _ = run(several, LINES["copa"], "--head=copa", name="copa.jsonl")
  blanks = ["the [MASK] fox", "", "no blank", "dog <mask>"] * 5
  _, filled, _ = run(trained.workdir("encoder_only"), blanks, name="blanks.txt", output="filled.jsonl")
  asked = ["--batch_size=1", f"--input={tmp_path / 'copa.jsonl'}", f"--output={tmp_path / 'two.jsonl'}"]
  of_blanks = ["--batch_size=1", f"--input={tmp_path / 'blanks.txt'}", f"--output={tmp_path / 'two_filled.jsonl'}"]
  runs = [
    ["infer", f"--checkpoint={several}", "--head=copa", *asked],
    ["infer", f"--checkpoint={trained.workdir('encoder_only')}", *of_blanks],
  ]
  codes, said = test_hosts.Processes(2, 1, runs, cache=tmp_path).wait()
  assert codes == [0, 0], "\n".join(said)
  for name, rows in (("two", expected), ("two_filled", filled)):
    found = [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
    assert [row["prediction"] for row in found] == [row["prediction"] for row in rows]
    for row, other in zip(found, rows, strict=True):
      assert (row["score"] or 0.0) == pytest.approx(other["score"] or 0.0, rel=1e-4)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  ("line", "others", "message"),
  [
    ({"inputs": "a"}, ("--head=copa",), "line 1 has no field 'candidates' for the head copa"),
    (
      {"inputs": "a", "candidates": "b"},
      ("--head=copa",),
      "line 1: field 'candidates' is \"b\", not a list of texts; give a list",
    ),
    (
      {"inputs": "a", "candidates": []},
      ("--head=copa",),
      "line 1: field 'candidates' is [], not a list of texts; give a list",
    ),
    ({"inputs": "a", "candidates": ["b"] * 40}, ("--head=copa",), "line 1 has 40 'candidates', more than the "),
    ({"parts": ["a", 3]}, ("--head=pair",), "line 1: field 'parts' is [\"a\", 3], not a list of texts; give a list"),
    ({"text": "a"}, ("--head=pair",), "line 1 has no field 'inputs'"),
    ({"inputs": "a"}, (), "has several heads; give --head with one of "),
    ({"inputs": "a"}, ("--head=pairs",), "--head pairs: --checkpoint"),
    ({"inputs": "a"}, ("--head=pair", "--beam=4"), "predicts with a head and generates no text"),
    ({"inputs": "a"}, ("--head=pair", "--top=4"), "fills no blanks"),
    (
      {"inputs": "a"},
      ("--head=pair", "--inputs_length=100"),
      "--inputs_length 100: the model has only 80",
    ),
    ({"inputs": "x" * 90}, ("--head=pair", "--strict"), "line 1: 19 of the 91 tokens do not fit (limit: 72 tokens)"),
  ],
)
def test_what_cannot_be_asked(line, others, message, several, run, tmp_path):
  """A line is refused before anything is computed."""
  code, rows, said = run(several, [line], *others)
  assert code == 2 and message in said and not rows


def test_fields_of_a_row():
  """The example of the docstring; classes without labels are named by number."""
  head = HeadConfig("h", 2, labels=("no", "yes"))
  expected = {"prediction": "yes", "score": -0.313262, "probabilities": {"no": 0.268941, "yes": 0.731059}}
  assert head_predictor.fields(head, {}, np.array([[0.0, 1.0]])) == expected
  assert head_predictor.fields(HeadConfig("h", 2), {}, np.array([[1.0, 0.0]]))["prediction"] == "0"


@pytest.mark.slow
def test_a_head_that_says_no_number():
  """NaN logits raise an error, rather than predicting the first class."""
  head = HeadConfig("pair", 2, labels=("no", "yes"))
  config = toy.encoder(heads=(head,))
  graphdef, params = toy.split(toy.model(config))
  params["heads"]["pair"]["projection_bias"] = np.array([0.0, np.nan], np.float32)
  asks = head_predictor.Answerer(config, graphdef, sharding.make_mesh({"data": -1}), pad_id=0, batch_size=2)
  given = {"inputs": [3, 4], "token_types": [0, 0], "texts": [0, 0], "answer_heads": [1, 0]}
  with pytest.raises(UserError, match="head pair produced NaN or Inf; use a different checkpoint"):
    asks.logits(params, head, [given])


def test_a_head_that_answers_nothing():
  """ELECTRA's head predicts no answers."""
  config = toy.encoder(heads=(HeadConfig("replaced", 1, kind="detector"),))
  with pytest.raises(UserError, match="C has no head"):
    classification.choose_head(config, "", where="C")


# ---- Blanks ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_blanks_are_filled(run):
  """Fillings are the likeliest tokens, best first; the text has the best; a line without a blank gets an error."""
  lines = ["the quick <mask> fox <mask>ver", "no blank", "", "[MASK]", "<extra_id_0> dog" * 3, "x" * 60 + "[MASK]"]
  code, rows, said = run(trained.workdir("encoder_only"), lines, "--top=3", name="in.txt")
  assert code == 0 and "lines          6 (1 empty, 2 without a blank, 1 truncated to 48 tokens)" in said
  assert [row.get("error") for row in rows] == [None, "no blank", "empty line", None, None, "no blank"]
  assert [len(row["fillings"] or ()) for row in rows] == [2, 0, 0, 1, 3, 0]
  for row in (rows[0], rows[3], rows[4]):
    for of_blank in row["fillings"]:
      probabilities = [each["probability"] for each in of_blank]
      assert len(of_blank) == 3 and probabilities == sorted(probabilities, reverse=True) and sum(probabilities) <= 1
    assert row["score"] == pytest.approx(sum(math.log(each[0]["probability"]) for each in row["fillings"]), rel=1e-3)
  assert set(rows[0]["fillings"][0][0]) == {"text", "id", "probability"}
  assert rows[0]["prediction"].startswith("the quick ") and " fox " in rows[0]["prediction"]


@pytest.mark.exhaustive
def test_a_filling_is_as_likely_as_the_model_says():
  """Probabilities equal the model's softmax on the masked text with special tokens."""
  source = pretrained.read_source(str(trained.workdir("encoder_only")))
  mesh = sharding.make_mesh({"data": -1})
  way = fill_mask.Filling(source, mesh, top=359, longest=48, batch_size=2)
  params = pretrained.load(source, mesh).params
  given = [[100, 358, 104, 1], [100, 101, 102, 103, 104, 358, 105, 358, 1]]  # bytes; the last id is the mask
  rows = way.answer(params, given, numbers=range(len(given)), done=None)
  model = nnx.merge(pretrained.abstract(source, mesh).graphdef, params)
  for ids, row in zip(given, rows, strict=True):
    batch = {"encoder_input_tokens": np.array([ids]), "encoder_segment_ids": np.ones((1, len(ids)), np.int32)}
    batch["encoder_token_types"] = np.zeros((1, len(ids)), np.int32)
    log_p = np.asarray(jax.nn.log_softmax(model.logits(model(jax.tree.map(jax.numpy.asarray, batch)))[0]))
    places = [i for i, token in enumerate(ids) if token == 358]
    assert len(row["fillings"]) == len(places)
    for place, of_blank in zip(places, row["fillings"], strict=True):
      found = np.zeros(359)
      for each in of_blank:
        found[each["id"]] = each["probability"]
      np.testing.assert_allclose(found[:359], np.exp(log_p[place])[:359], rtol=1e-3)


def word_pieces(folder: pathlib.Path):
  words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "paris", "is", "the", "of", "capital", "s", "##s", "."]
  (folder / "vocab.txt").write_text("\n".join(words))
  return vocabularies.load(str(folder / "vocab.txt"), extra_ids=0)


@pytest.mark.parametrize("blank", ["[MASK]", "<mask>", "<extra_id_0>", "<extra_id_7>"])
def test_a_blank_has_any_of_its_names(blank, tmp_path):
  """Special tokens are as in pre-training; long texts are truncated at the end."""
  blanks = fill_mask.Blanks(word_pieces(tmp_path), "encoder_only")
  assert blanks(f"Paris is the {blank} of {blank}.", 20) == ([2, 5, 6, 7, 4, 8, 4, 12, 3], 0)
  assert blanks(f"Paris is the {blank} of {blank}.", 7) == ([2, 5, 6, 7, 4, 8, 3], 2)
  assert blanks.places([2, 5, 6, 7, 4, 8, 4, 12, 3]) == [4, 6]


def test_blanks_of_bytes():
  """Text between blanks is encoded unchanged, including spaces, if the vocabulary cannot parse its mask."""
  vocabulary = vocabularies.load("bytes", extra_ids=1)
  ids, cut = fill_mask.Blanks(vocabulary, "encoder_only")("a [MASK] <mask>b", 20)
  assert (ids, cut) == ([100, 35, 259, 35, 259, 101, 1], 0)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("loss", "asked"), [("tokens_and_heads", "fillings"), ("heads", "probabilities")])
def test_what_was_learned_beside_tokens_is_asked_by_name(loss, asked, several, run, tmp_path):
  """A model trained to predict tokens, too, fills blanks unless a head is named."""
  copy = shutil.copytree(several, tmp_path / "run", ignore=shutil.ignore_patterns(manifest.NAME))
  for path in copy.glob("checkpoints/*/config/metadata"):
    config = json.loads(path.read_text())
    config["train"] |= {"loss": loss}
    path.write_text(json.dumps(config))
  named = ("--head=pair",) if loss == "heads" else ()
  code, rows, _ = run(copy, [{"inputs": "a [MASK]"}], *named)
  assert code == 0 and asked in rows[0]
  assert "probabilities" in run(copy, [{"inputs": "a [MASK]"}], "--head=pair", output="named.jsonl")[1][0]


def test_replaced_tokens_are_no_fillings(run, tmp_path):
  """ELECTRA's discriminator detects replaced tokens, but does not predict tokens."""
  copy = shutil.copytree(trained.workdir("encoder_only"), tmp_path / "run")
  path = copy / "checkpoints" / "2" / "config" / "metadata"
  (copy / "checkpoints" / "2" / manifest.NAME).unlink()
  config = json.loads(path.read_text())
  config["model"] |= {"heads": [{"name": "replaced", "num_classes": 1, "kind": "detector"}]}
  path.write_text(json.dumps(config))
  code, _, said = run(copy, ["[MASK]"], name="in.txt")
  assert code == 2 and "is a discriminator, which detects replaced tokens" in said
