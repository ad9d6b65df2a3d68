"""The benchmark of architectures and objectives."""

import pytest
import toy

from t2t import UserError
from t2t.configuration.loading import records
from t2t.data import objectives, pipeline


@pytest.fixture(scope="module")
def matrix():
  return toy.benchmark("matrix")


def architecture(matrix, row):
  return matrix.ARCHITECTURES[row].get("architecture", "encoder_decoder")


def test_every_architecture_has_objectives_and_every_objective_an_architecture(matrix):
  names = {architecture(matrix, row) for row in matrix.ARCHITECTURES}
  assert names == {name for objective in matrix.OBJECTIVES.values() for name in objective.architectures}


@pytest.mark.parametrize(
  "objective", [name for name in objectives.OF_TEXT if "targets" in objectives.OBJECTIVES[name].features]
)
def test_cells_have_as_many_positions(matrix, objective):
  """Batches of an objective have the same number of positions for every architecture, up to one sequence."""
  for row in matrix.ARCHITECTURES:
    if architecture(matrix, row) not in matrix.OBJECTIVES[objective].architectures:
      continue
    config = matrix.cell(row, objective, steps=40, positions=2_592)
    model = records(config).model
    assert model.architecture == architecture(matrix, row)
    lengths = pipeline.model_lengths(records(config).data, model.architecture)
    if "inputs" not in matrix.OBJECTIVES[objective].features:
      lengths.pop("encoder", None)  # padding, except one token
    assert 0 <= 2_592 - config.train.batch_size * sum(lengths.values()) < sum(lengths.values())


def test_results_are_told_objective_by_objective(matrix, tmp_path):
  """Writes a line per cell in the order of the tables, and an image."""
  found = dict(held_out_loss=1.5, unigram_loss=3.25, steps_per_second=10.0, tokens=12_345, curve={1: 3.0, 2: 1.5})
  results = {"prefix_lm/prefix_lm": found, "prefix_lm/span_corruption": found, "encoder_decoder/span_corruption": found}
  lines = matrix.table(results).splitlines()[2:]
  assert [line.split()[:4] for line in lines] == [
    ["span_corruption", "encoder_decoder", "1.500", "3.250"],
    ["span_corruption", "prefix_lm", "1.500", "3.250"],
    ["prefix_lm", "prefix_lm", "1.500", "3.250"],
  ]
  matrix.draw(results, tmp_path / "matrix.png")
  assert (tmp_path / "matrix.png").read_bytes().startswith(b"\x89PNG")


def test_patterns_that_fit_nothing_are_an_error(matrix, tmp_path):
  with pytest.raises(UserError, match="--architectures encoder_only --objectives span_corruption: no cell matches"):
    matrix.main(["--architectures=encoder_only", "--objectives=span_corruption", f"--output={tmp_path}/out"])
  assert not (tmp_path / "out").exists()
