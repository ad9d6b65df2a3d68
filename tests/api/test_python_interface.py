"""Arguments from Python code: paths of any type, values of other types, and names of other libraries."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest

import t2t
from t2t.configuration import loading
from t2t.data import batch_checks
from t2t.data.objectives import other_names, registry


def test_completion_has_the_names_that_are_for_users():
  names = [name for name in dir(t2t) if not name.startswith("__")]
  assert names == sorted(t2t.__all__) == ["Callback", "UserError", "config", "load", "train"]
  scope: dict = {}
  exec("from t2t import *", scope)
  assert scope["load"] is t2t.load


def test_dir_loads_nothing():
  code = "import sys, t2t; dir(t2t); assert 'jax' not in sys.modules"
  subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
  ("old", "new"),
  [
    ("t2t.task_metrics", "t2t.evaluation.task_metrics"),
    ("t2t.data.answers", "t2t.data.postprocessors"),
    ("t2t.data.reading_formats", "t2t.data.qa_preprocessors"),
    ("t2t.data.text_formats", "t2t.data.preprocessors"),
  ],
)
def test_tasks_of_users_import_modules_by_their_earlier_names(old, new):
  package, _, name = old.rpartition(".")
  scope: dict = {}
  with pytest.warns(FutureWarning, match=rf"{old} is now {new}: change the import"):
    exec(f"from {package} import {name}", scope)
  assert scope[name].__name__ == new


def test_paths_are_taken_wherever_a_path_is_given(tmp_path):
  (tmp_path / "own.py").write_text("from t2t.configs import tiny\nget_config = tiny.get_config\n")
  config = t2t.config(tmp_path / "own.py", {"data.files": tmp_path / "a.txt"})
  assert config.data.files == f"{tmp_path}/a.txt"
  config.data.files = tmp_path / "b.txt"
  assert config.data.files == f"{tmp_path}/b.txt"
  config.init.checkpoint = pathlib.Path("gs://bucket") / "x"
  assert isinstance(config.init.checkpoint, str)
  with pytest.raises(t2t.UserError, match=r"nowhere: no checkpoint in"):
    t2t.load(tmp_path / "nowhere")
  t2t.train(config, tmp_path / "run").close()


@pytest.mark.parametrize("path", [None, 3, ["a"]])
def test_what_is_no_path_is_a_sentence(path):
  with pytest.raises(t2t.UserError, match="checkpoint is .*, not a path. Give a str or a pathlib.Path"):
    t2t.load(path)
  with pytest.raises(t2t.UserError, match="workdir is .*, not a path. Give a str"):
    t2t.train(t2t.config("tiny"), path)
  with pytest.raises(t2t.UserError, match="the config's name is .*, not a path. Give a str"):
    t2t.config(path)


@pytest.mark.parametrize(
  ("key", "value", "message"),
  [
    ("train.steps", "10", "config.train.steps='10' must be an integer; give 10"),
    ("train.steps", 10.0, "config.train.steps=10.0 must be an integer; give 10"),
    ("train.steps", 10.5, "config.train.steps=10.5 must be an integer$"),
    ("train.steps", None, "config.train.steps=None must be an integer; the current value is"),
    ("optimizer.learning_rate", "1e-3", "must be a number; give 0.001"),
    ("data.pack", "true", "must be True or False; give True"),
    ("data.files", ["a.txt", "b.txt"], "must be a string; separate several values by commas: 'a.txt,b.txt'"),
    ("eval.tasks", "a", r"config.eval.tasks='a' must be a tuple; give \('a',\)"),
  ],
)
def test_a_value_of_another_type_is_a_sentence(key, value, message):
  section, name = key.split(".")
  config = t2t.config("tiny")
  with pytest.raises(t2t.UserError, match=message):
    setattr(config[section], name, value)
  with pytest.raises(t2t.UserError, match=message.split(";")[0]):
    config.update({section: {name: value}})


def test_a_value_for_a_section_is_a_sentence():
  with pytest.raises(t2t.UserError, match="config.train=3 must be a section; set keys of this section: batch_size, "):
    t2t.config("tiny").train = 3


def test_numpys_numbers_are_taken_and_copies_stay_checked():
  config = t2t.config("tiny").copy_and_resolve_references()
  config = t2t.config("tiny")
  config.train.steps = np.int64(3)
  assert config.train.steps == 3 and loading.records(config).train.steps == 3
  import copy

  copied = copy.deepcopy(config)
  with pytest.raises(t2t.UserError, match="config.train.steps='x' must be an integer"):
    copied.train.steps = "x"


@pytest.mark.parametrize(
  ("name", "here"),
  [("mlm", "masked_lm"), ("CLM", "causal_lm"), ("span-corruption", "span_corruption"), ("Span Corruption", "")]
  + [("denoising", "span_corruption"), ("whole-word-masking", "whole_word_masked_lm"), ("fim", "fill_in_the_middle")],
)
def test_an_objective_by_another_name(name, here):
  with pytest.raises(t2t.UserError, match=f"config.data.objective={name}: no such objective; .*{here or 'span_corr'}"):
    registry.heads_of(name)


def test_other_names_lead_to_objectives():
  assert set(other_names._OTHER_NAMES.values()) <= set(registry.OBJECTIVES)
  assert not set(other_names._OTHER_NAMES) & set(registry.OBJECTIVES)


IDS = np.full((2, 8), 5)


@pytest.mark.parametrize(
  ("name", "rows", "message"),
  [
    ("tiny_bert", {"input_ids": IDS}, "Hugging Face's input_ids is called encoder_input_tokens here"),
    ("tiny_bert", {"token_type_ids": IDS}, "token_type_ids is called encoder_token_types"),
    ("tiny", {"labels": IDS}, "labels is called decoder_target_tokens"),
    ("tiny", {"input_ids": IDS}, "input_ids is called encoder_input_tokens"),
    ("tiny_gpt", {"input_ids": IDS}, r"input_ids is called decoder_input_tokens here. targets\[i\] is the token after"),
    ("tiny_gpt", {"position_ids": IDS}, "Leave position_ids out, because t2t derives position_ids"),
    ("tiny_bert", {"text": ["a"]}, "Batches contain token ids. Give texts with config.data.files"),
    ("tiny_bert", {"encoder_input_token": IDS}, "did you mean encoder_input_tokens"),
    ("tiny_bert", {"encoder_input_tokens": "abc"}, r"is str, not an array\. Give an array"),
    (
      "tiny_bert",
      {"encoder_input_tokens": IDS, "encoder_target_tokens": np.array([[5] * 4 + [-100] * 4] * 2)},
      r"has -100, which marks ignored labels .*\. Give encoder_loss_weights = \(labels != -100\), and 0",
    ),
  ],
)
def test_own_batches_with_the_names_of_hugging_face(name, rows, message):
  config = loading.records(t2t.config(name))
  with pytest.raises(t2t.UserError, match=message):
    batch_checks.completed(rows, config, where="batches, batch 1")
