"""The list of sources of a run, whichever config key names them."""

import pytest

from t2t.configuration.schema import DataConfig, SourceSpec

SPAN = "span_corruption"
SOURCES = {"a": {"files": "a.txt", "objective": "prefix_lm", "language": "sw"}, "b": {"mixture": "glue", "share": 0.5}}


@pytest.mark.parametrize(
  ("data", "specs", "has_tasks", "reads_only_tasks"),
  [
    (DataConfig(), (), False, False),
    (DataConfig(files="a.txt"), (SourceSpec(files="a.txt", objective=SPAN),), False, False),
    (DataConfig(mixture="glue"), (SourceSpec(mixture="glue", objective=SPAN),), True, True),
    (
      DataConfig(files="a.txt", mixture="glue"),  # refused where examples are made
      (SourceSpec(files="a.txt", objective=SPAN), SourceSpec(mixture="glue", objective=SPAN)),
      True,
      False,
    ),
    (
      DataConfig(sources=SOURCES),
      (
        SourceSpec(name="a", files="a.txt", objective="prefix_lm", language="sw"),
        SourceSpec(name="b", mixture="glue", objective=SPAN, share=0.5),
      ),
      True,
      True,
    ),
  ],
)
def test_source_list_does_not_depend_on_the_key(data, specs, has_tasks, reads_only_tasks):
  assert data.source_list == specs
  assert (data.has_tasks, data.reads_only_tasks, data.is_named) == (has_tasks, reads_only_tasks, bool(specs))


def test_source_key_names_the_sources_that_are_set():
  data = DataConfig(sources=SOURCES)
  assert (data.source_key("b"), data.source_key("c")) == ("config.data.sources.b", "")
