import numpy as np
import pytest
import toy

from t2t.configuration.schema import DataConfig

shuffling = toy.benchmark("shuffling")


def test_figures_of_known_orders():
  still = shuffling.figures(np.arange(20_000))
  assert still == {"distance": pytest.approx(0.005), "near": 100.0, "tenths": 1}
  permuted = shuffling.figures(np.random.default_rng(0).permutation(20_000))
  assert permuted["distance"] == pytest.approx(100 / 3, abs=0.5)
  assert permuted["near"] == pytest.approx(100 * (1 - 0.95**2), abs=0.7) and permuted["tenths"] == 10


@pytest.mark.slow
def test_the_order_of_an_epoch(tmp_path):
  """Every record that is not held out comes once; lines of a small file are permuted."""
  path = shuffling._FILES["jsonl"](tmp_path, 600)
  data = DataConfig(files=path, vocabulary="bytes", objective="causal_lm", targets_length=512, pack=True)
  order = shuffling.epoch(data, 600)
  assert sorted(order) == list(range(len(order))) and 540 <= len(order) <= 600
  assert 25 < shuffling.figures(order)["distance"] < 42
