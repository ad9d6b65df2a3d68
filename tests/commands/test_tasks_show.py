"""`t2t tasks` and `t2t tasks show`: content, width, colors, and errors."""

import dataclasses
import re

from etils import epath
import foreign
import pytest
import rich.cells
import seqio
import test_convert_heads

from t2t import UserError, tasks
from t2t import __main__ as t2t_main
from t2t.commands import tasks as tasks_command
from t2t.convert import huggingface
from t2t.data import objectives, registry

pytestmark = pytest.mark.slow

MODULE = '''"""Tasks of a test."""

import seqio
import tensorflow as tf
from t2t.evaluation import task_metrics
from t2t.data import postprocessors, objectives, preprocessors, vocabularies

BYTES = vocabularies.load("bytes", extra_ids=100)
PAIR = {"inputs": seqio.Feature(BYTES), "targets": seqio.Feature(BYTES)}
NOWHERE = seqio.SentencePieceVocabulary("/nowhere/spiece.model")


def texts(split, shuffle_files, seed=None):
  return tf.data.Dataset.from_tensor_slices({"text": ["ab", "a longer text: 日本語 and \\x1b[31mred", "c" * 300]})


@seqio.map_over_dataset
def to_pair(features):
  return {"inputs": features["text"], "targets": tf.strings.substr(features["text"], 0, 1), "extra": 7}


@seqio.map_over_dataset
def fails(features):
  return {"inputs": features["nothing"]}


def add(name, *preprocessors, features=PAIR, source=None):
  source = source or seqio.FunctionDataSource(texts, splits=("train", "validation"))
  seqio.TaskRegistry.add(name, source=source, preprocessors=preprocessors, output_features=features)


add("show_test_pair", to_pair, seqio.preprocessors.tokenize, seqio.preprocessors.append_eos)
add("show_test_fails", fails)
for name in ("masked_lm", "span_corruption"):
  add("show_test_" + name, *objectives.preprocessors(name), features=objectives.output_features(name, BYTES))
add(
  "show_test_nowhere",
  to_pair,
  features={"targets": seqio.Feature(NOWHERE)},
  source=seqio.TextLineDataSource({"test": "/nowhere/text.txt"}),
)


def pairs(split, shuffle_files, seed=None):
  return tf.data.Dataset.from_tensor_slices({"one": ["a cat sat"], "two": ["it did"], "label": [1]})


seqio.TaskRegistry.add(
  "show_test_labelled",
  source=seqio.FunctionDataSource(pairs, splits=("train", "validation")),
  preprocessors=preprocessors.text_to_text(
    preprocessors.labelled, prefix="match", fields=("one", "two"), labels=("no", "yes")
  ),
  output_features=preprocessors.t5_features(),
  postprocess_fn=postprocessors.label(("no", "yes")),
  metric_fns=[task_metrics.accuracy],
)
seqio.MixtureRegistry.add("show_test_mixture", ["show_test_pair", "show_test_nowhere"][:1], default_rate=1)
'''


@pytest.fixture(scope="module")
def module(tmp_path_factory):
  path = tmp_path_factory.mktemp("show") / "show_tasks.py"
  path.write_text(MODULE)
  return str(path)


@pytest.fixture
def printed(module, capsys, monkeypatch):
  """Returns the output of a command on a terminal of this width."""

  def run(*arguments, columns=80):
    monkeypatch.setenv("COLUMNS", str(columns))
    tasks_command.main([*arguments, "--task_modules", module])
    return capsys.readouterr().out

  return run


def plain(text):
  return re.sub(r"\x1b\[[0-9;]*m", "", text)


# ---- List ------------------------------------------------------------------------------------------------------------


def test_the_list_has_every_task_that_comes_with_t2t(printed):
  """Each task has one line under its module, at most 80 columns; no vocabulary or source file is opened."""
  lines = printed().splitlines()
  names = [line.split()[0] for line in lines if line.startswith("  ")]
  assert {f"docs_{objective}" for objective in objectives.OF_TEXT} <= set(names)
  assert {name for module in registry.shipped() for name in registry.load(module)} <= set(names)
  assert len(names) == len(set(names))
  assert max(map(rich.cells.cell_len, lines)) <= 80
  assert any(line.startswith("t2t.tasks.docs: Default corpus") for line in lines)


@pytest.mark.parametrize("objective", objectives.OF_TEXT)
def test_a_task_is_shown_to_a_model_that_it_fits(objective):
  """The architecture fits the objective regardless of the features: an encoder-decoder has weights, too."""
  registry.load("t2t.tasks.docs")
  objectives.check_fits(objective, tasks_command._architecture(seqio.TaskRegistry.get(f"docs_{objective}")))


def test_what_a_line_says(printed, module):
  """Features, splits and source; common values of a module are printed once above."""
  lines = printed("show_test_*", columns=120).splitlines()
  words = " ".join(" ".join(lines[: lines.index("")]).replace(module, "FILE").split())
  assert words == (
    "FILE: Tasks of a test."
    " show_test_fails inputs targets train validation FunctionDataSource"
    " show_test_labelled inputs targets train validation FunctionDataSource"
    " show_test_masked_lm inputs targets loss_weights train validation FunctionDataSource"
    " show_test_mixture inputs targets train validation mixes show_test_pair"
    " show_test_nowhere targets test test: /nowhere/text.txt"
    " show_test_pair inputs targets train validation FunctionDataSource"
    " show_test_span_corruption inputs targets train validation FunctionDataSource"
  )
  common = printed("c4_*lm").splitlines()
  assert "source: c4/en:3.*.*; splits: train validation" in common
  assert "  c4_span_masked_lm           inputs targets loss_weights" in common


@pytest.mark.parametrize(
  ("pattern", "found"),
  [("show_test_pa", "show_test_pair"), ("show*_lm", "show_test_masked_lm"), ("ow_test_f", "show_test_fails")],
)
def test_patterns(printed, pattern, found):
  """A pattern is a part of a name, or a glob."""
  assert [line.split()[0] for line in printed(pattern).splitlines() if line.startswith("  ")] == [found]


def test_a_pattern_that_nothing_matches(printed):
  with pytest.raises(UserError, match="show_tset_pair: no task .* did you mean show_test_pair"):
    printed("show_tset_pair")


def test_a_module_that_cannot_be_imported_does_not_stop_the_rest(printed, tmp_path, monkeypatch):
  (tmp_path / "needs_more.py").write_text("import a_package_that_is_not_there\n")
  monkeypatch.setattr(tasks, "__path__", [*tasks.__path__, str(tmp_path)])
  text = " ".join(printed("show_test_pair").split())
  assert "t2t.tasks.needs_more cannot be imported: No module named 'a_package_that_is_not_there'" in text
  assert "show_test_pair" in text


# ---- One task --------------------------------------------------------------------------------------------------------


def test_an_example(printed):
  """Record, tokens with ids, other features, and model features."""
  text = printed("show", "show_test_pair", "--examples", "1", "--config.data.inputs_length=4")
  start = text.index("Example 1")
  assert text[start : text.index("Summary")].splitlines()[1:-1] == [
    "the source's record",
    "  text  ab",
    "inputs  3 tokens; limit 4",
    "  a   b   </s>",
    "  100 101 1",
    "targets  2 tokens; limit 4",
    "  a   </s>",
    "  100 1",
    "and",
    "  inputs_pretokenized   ab",
    "  targets_pretokenized  a",
    "  extra                 7",
    "features of the model (encoder_decoder)",
    "  encoder_input_tokens   int32 [4]    100 101 1 0",
    "  decoder_target_tokens  int32 [4]    100 1 0 0",
    "  decoder_input_tokens   int32 [4]    0 100 1 0",
    "  decoder_loss_weights   float32 [4]  1 1 0 0",
    "  encoder: 1 of 4 positions are padding (25%)",
    "  decoder: 2 of 4 positions are padding (50%), 2 count in the loss",
  ]


def test_what_is_cut_is_said(printed):
  text = printed("show", "show_test_pair", "--config.data.inputs_length=6")
  assert "inputs  6 tokens, cut from 301; limit 6" in text
  assert re.search(r"inputs +\d+\.\d +3 +301 +6 +2 \(67%\)", text)


@pytest.mark.exhaustive
def test_masked_positions_are_marked(printed):
  """A ^ marks exactly the tokens with a loss, in inputs and targets."""
  text = printed("show", "show_test_masked_lm", "--tokens", "0", "--examples", "1", "--summary", "0")
  count = int(re.search(r"(\d+) of \d+ positions count in the loss \(\^\)", text)[1])
  assert text[: text.index("\nand\n")].count("^") == 2 * count > 0
  lines = text.splitlines()
  for ids, marks in zip(lines, lines[1:], strict=False):
    if set(marks) == {" ", "^"}:
      assert all(ids[i] != " " for i, character in enumerate(marks) if character == "^")


def test_long_examples_are_shortened(printed):
  """`--tokens` limits the shown tokens, including the last ones."""
  text = printed("show", "show_test_pair", "--split", "train", "--tokens", "20", "--summary", "0")
  assert "... 281 more ..." in text and "c   </s>" in text


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("columns", [40, 80])
def test_nothing_is_wider_than_the_terminal_or_acts_on_it(printed, columns):
  """Wide characters count double; escape codes in the text are printed literally."""
  text = printed("show", "show_test_pair", columns=columns)
  assert max(map(rich.cells.cell_len, text.splitlines())) <= columns
  assert "日本語" in text.replace("\n", "") and "\\x1b[31m" in re.sub(r"\s", "", text) and "\x1b" not in text


@pytest.mark.exhaustive
def test_colours(printed, monkeypatch):
  """Colors do not change the text; without a terminal, or with NO_COLOR, they need --color always."""
  arguments = ("show", "show_test_masked_lm", "--examples", "1", "--summary", "0")
  without, always = printed(*arguments), printed(*arguments, "--color", "always")
  assert "\x1b" not in without
  assert [line for line in plain(always).splitlines() if "  colours  " not in line] == without.splitlines()
  assert re.search(r"\x1b\[1;30;43m<extra_id_0>\x1b\[0m", always)
  monkeypatch.setenv("NO_COLOR", "1")
  assert printed(*arguments, "--color", "always") == always
  assert printed(*arguments, "--color", "never") == without


@pytest.mark.exhaustive
def test_spans_are_shown_as_the_objective_makes_them(printed):
  text = printed("show", "show_test_span_corruption", "--config.data.inputs_length=64", "--examples", "1")
  assert "objective      span_corruption" in text and "architecture   encoder_decoder" in text
  assert "Records are mixed, joined, split or dropped" in text
  assert "<extra_id_0>" in text and "of the text is removed from the inputs" in text


@pytest.mark.exhaustive
def test_with_a_config(printed, tmp_path, module):
  """Model, lengths, vocabulary and mixture come from the config; NAME replaces the mixture."""
  path = tmp_path / "config.py"
  path.write_text(
    "from t2t.configs import tiny\n"
    "def get_config():\n"
    "  config = tiny.get_config('bert')\n"
    f"  config.data.mixture, config.data.task_modules = 'show_test_masked_lm', ({module!r},)\n"
    "  return config\n"
  )
  text = printed("show", "--config", str(path), "--config.data.inputs_length=16", "--examples", "1")
  assert text.startswith("show_test_masked_lm\n") and "architecture   encoder_only" in text
  assert "encoder_token_types    int32 [16]" in text
  with pytest.raises(UserError, match="config.model.vocab_size=100 is too small"):
    printed("show", "--config", str(path), "--config.model.vocab_size=100")
  with pytest.raises(
    UserError, match="the objective span_corruption does not fit config.model.architecture=encoder_only"
  ):
    printed("show", "show_test_span_corruption", "--config", str(path))


@pytest.mark.exhaustive
def test_a_stage(printed):
  """Selects the named stage or the first, also without a config."""
  said = '--config.stages={"name": "short", "fraction": 0.9, "data.inputs_length": 24}, {"name": "long"}'
  arguments = ("show", "show_test_masked_lm", "--config.data.inputs_length=40", "--examples=1", "--summary=0", said)
  text = printed(*arguments)
  assert text.startswith("stage short, steps 1 to ") and "data.inputs_length=24; --stage long shows another" in text
  assert "encoder_token_types    int32 [24]" in text
  text = printed(*arguments, "--config", "tiny_bert", "--stage", "long")
  assert text.startswith("stage long, steps ") and "shows another" not in text
  assert "encoder_token_types    int32 [40]" in text


@pytest.mark.exhaustive
def test_what_a_head_is_asked(printed, tmp_path):
  """With a checkpoint the examples are those of training from it, here of an encoder with a head."""
  model = dataclasses.replace(test_convert_heads.BERT, heads=())
  foreign_model = foreign.in_memory(model, foreign.random_params(model))
  huggingface.save(foreign_model, epath.Path(tmp_path / "bert"))
  pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "cat", "sat", "it", "did"]
  (tmp_path / "bert" / "vocab.txt").write_text("\n".join(pieces))
  arguments = (
    "--config=finetune_superglue",
    f"--config.init.checkpoint={tmp_path}/bert",
    "--examples=1",
    "--summary=0",
  )
  text = printed("show", "show_test_labelled", *arguments)
  assert "architecture   encoder_only" in text and "lengths        inputs" in text
  assert "heads          match, a class of 2 at the first token (no, yes)" in text
  lines = text[text.index("inputs  ") :].splitlines()
  assert [line.split() for line in lines[1:4]] == [
    ["[CLS]", "▁a", "▁cat", "▁sat", "[SEP]", "▁it", "▁did", "[SEP]"],
    ["2", "5", "6", "7", "3", "8", "9", "3"],
    ["^"],
  ]
  assert "asked                 match; the right answer is yes" in text
  assert re.search(r"encoder_answer_targets +int32 \[\d+\] +1 0 0", text)
  with pytest.raises(UserError, match="config.init.checkpoint=runs/bert needs the training config"):
    printed("show", "show_test_labelled", "--config.init.checkpoint=runs/bert")


@pytest.mark.exhaustive
def test_files_of_ones_own(printed, tmp_path):
  (tmp_path / "text.txt").write_text("".join(f"a line of text, number {i}\n" for i in range(200)))
  arguments = (f"--config.data.files={tmp_path}/*.txt", "--config.data.vocabulary=bytes")
  text = printed("show", *arguments, "--config.data.inputs_length=64", "--examples", "1", "--split", "train")
  assert "split          train (available: train, validation)" in text and "a line of text, number" in text


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["show_test_piar"], "^show_test_piar: no task or mixture has this name. Similar names: show_test_pair"),
    ([], "^NAME is missing"),
    (
      ["show_test_pair", "--split", "test"],
      "--split test: show_test_pair has no such split. Give one of: train, validation",
    ),
    (["show_test_fails"], r"preprocessor 1 of 1, fails \(.*show_tasks.py, line 24\): KeyError: 'nothing'"),
    (["show_test_pair", "--config", "tinny"], "--config tinny: no such config; nearest: tiny"),
    (["show_test_pair", "--config.data.inputs_lenth=3"], "config.data.inputs_lenth: no such key"),
    (["--config.data.vocabulary=a b"], "^NAME is missing"),
    (["--config", "tiny", "--config.data.inputs_length=a b"], "config.data.inputs_length"),
    (["show_test_pair", "--stage", "a"], "--stage a: no such stage. config.stages is empty"),
    (
      ["show_test_pair", "--stage", "lnog", '--config.stages={"name": "short", "fraction": 0.5}, {"name": "long"}'],
      "--stage lnog: no such stage. Give one of: short, long; did you mean long?",
    ),
    (["show_test_pair", "--examples", "0", "--summary", "0"], "nothing to show"),
  ],
)
def test_what_is_refused(printed, arguments, message):
  with pytest.raises(UserError, match=message):
    printed("show", *arguments)


def test_a_module_of_the_user_that_is_not_there(capsys):
  with pytest.raises(UserError, match="--task_modules: none.py: no such file"):
    tasks_command.main(["--task_modules", "none.py"])
  assert t2t_main.main(["tasks", "--task_modules", "none.py"]) == 2
  assert "t2t tasks: error: --task_modules: none.py: no such file" in capsys.readouterr().err


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("arguments", [["--help"], ["show", "--help"]])
def test_help_fits(capsys, monkeypatch, arguments):
  monkeypatch.setenv("COLUMNS", "80")
  with pytest.raises(SystemExit) as stopped:
    tasks_command.main(arguments)
  lines = capsys.readouterr().out.splitlines()
  assert stopped.value.code == 0 and max(map(len, lines)) <= 80 and "examples:" in lines
