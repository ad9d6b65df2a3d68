"""Prefixes of task inputs, checked against the examples of shipped tasks."""

import dataclasses
import functools

import pytest
import trained

from t2t import UserError
from t2t.checkpoints import pretrained, select_task
from t2t.data import objectives, preprocessors, registry, task_prefixes, task_resolution
from t2t.inference import prompt_builder


@functools.cache
def loaded():
  return registry.load_shipped()


@pytest.mark.parametrize(
  ("name", "expected"),
  [
    ("glue_mnli", ("mnli hypothesis: ",)),
    ("glue_stsb,docs_summary", ("summarize: ", "stsb sentence1: ")),
    ("docs_match", ("docs match summary: ",)),
    ("squad", ("question: ",)),
    ("docs_ul2", ("[NLU] ", "[S2S] ", "[NLG] ")),
    ("docs_span_corruption", ()),
  ],
)
def test_prefixes_of_shipped_tasks(name, expected):
  loaded()
  assert task_prefixes.of(task_resolution.named(name, modules=())) == expected


def test_a_prefix_is_what_an_example_begins_with():
  """Each function that writes a prefix reports it."""
  from t2t.data import tf

  options = {"prefix": "nli", "fields": ("first", "second"), "labels": ("no", "yes")}
  records = tf.data.Dataset.from_tensors({"first": "a", "second": "b", "label": 1})
  example = next(iter(preprocessors.labelled(records, **options)))
  step = functools.partial(preprocessors.labelled, **options)
  assert example["inputs"].numpy().decode().startswith(task_prefixes._WRITES[step.func](step.keywords))
  options = {"source": "en", "target": "de"}
  records = tf.data.Dataset.from_tensors({"en": "a", "de": "b"})
  example = next(iter(preprocessors.translate(records, **options)))
  assert example["inputs"].numpy().decode().startswith(task_prefixes._WRITES[preprocessors.translate](options))
  assert set(task_prefixes._DENOISERS) <= set(objectives.OBJECTIVES)


def test_a_run_says_what_it_was_trained_on():
  """Known prefixes come from the sources; no further module is imported."""
  source = pretrained.read_source(str(trained.workdir("encoder_decoder")))
  assert prompt_builder.known_prefixes(source) == ()
  data = source.run["data"]
  data.update(files="", mixture="docs_summary", task_modules=("t2t.tasks.docs",))
  assert prompt_builder.known_prefixes(source) == ("summarize: ",)
  data.update(sources={"a": {"mixture": "docs_match"}, "b": {"files": "x.txt", "objective": "ul2"}})
  assert prompt_builder.known_prefixes(source) == ("docs match summary: ", "[NLU] ", "[S2S] ", "[NLG] ")
  data.update(mixture="theirs", task_modules=("somebody.tasks",), sources={})
  assert prompt_builder.known_prefixes(source) == ()


def source(architecture: str, **data) -> pretrained.Source:
  modules = ("t2t.tasks.docs", "t2t.tasks.glue")
  run = {"data": {"mixture": "", "task_modules": modules, **data}, "train": {"loss": "cross_entropy"}}
  found = pretrained.read_source(str(trained.workdir(architecture)))
  return dataclasses.replace(found, run=found.run | run)


@pytest.mark.parametrize(
  ("mixture", "text", "expected"),
  [
    ("docs_summary", "A text.", "summarize: A text."),
    ("docs_summary", "summarize: A text.", "summarize: A text."),
    ("glue_mnli", "It is wet.", "mnli hypothesis: It is wet."),
    ("glue_mnli", "mnli premise: It rained. hypothesis: It is wet.", "mnli premise: It rained. hypothesis: It is wet."),
    ("docs_match", "docs match text: a summary: b", "docs match text: a summary: b"),
    ("glue_mnli,docs_summary", "It is wet.", "It is wet."),
    ("docs_span_corruption", "It is <extra_id_0>.", "It is <extra_id_0>."),
    ("docs_summary", "", ""),
  ],
)
def test_inputs_get_the_prefix_of_the_only_task(mixture, text, expected):
  loaded()
  assert prompt_builder.prefix(source("encoder_decoder", mixture=mixture)).before(text) == expected


def test_of_several_tasks_one_is_named():
  loaded()
  several = source("encoder_decoder", mixture="glue_mnli,docs_summary")
  assert prompt_builder.tasks_with_prefixes(several) == ("docs_summary", "glue_mnli")
  assert prompt_builder.prefix(select_task.choose(several, "mnli", where="--task")).text == "mnli hypothesis: "
  with pytest.raises(UserError, match="was not trained on this task. Give one of: docs_summary, glue_mnli"):
    select_task.choose(several, "cola", where="--task")


@pytest.mark.slow
def test_a_table_says_its_prefix():
  table = {"kind": "class", "texts": ("review",), "label": "stars", "classes": ("1", "2"), "prefix": "review: "}
  found = prompt_builder.prefix(source("decoder_only", mixture="table", table=table))
  assert found.before("Good.") == found.before("review: Good.") == "review: Good."
  assert found.before("review of it") == "review: review of it"
