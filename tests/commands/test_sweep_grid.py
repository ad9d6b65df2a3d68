"""Points of a sweep: parsing of --set, the grid, names of folders."""

import functools
import itertools
import json
import re
import string

import numpy as np
import pytest

from t2t import UserError
from t2t.commands import sweep_grid
from t2t.commands.sweep import _value as value_of
from t2t.configs import default
from t2t.configuration.loading import override


@functools.cache
def config_value(key, text):
  return value_of(override(default.get_config(), [f"--config.{key}={text}"]), key)


def points_of(*options):
  return sweep_grid.grid(sweep_grid.parse_axes(options, ()), config_value)


def test_the_grid_has_each_combination_once():
  points = points_of("train.batch_size=32,8", "optimizer.learning_rate=3e-4,0.01,1e-3")
  expected = {*itertools.product((3e-4, 1e-3, 0.01), (8, 32))}
  assert [tuple(value for _, value in point.values) for point in points] == sorted(expected)
  assert points[0].name == "optimizer.learning_rate=0.0003__train.batch_size=8"
  assert points[0].described == "learning_rate=0.0003, batch_size=8"
  assert points[0].overrides == ["--config.optimizer.learning_rate=3e-4", "--config.train.batch_size=8"]


def test_names_do_not_depend_on_order_and_spelling():
  first = points_of("train.batch_size=8,16", "optimizer.learning_rate=1e-3,0.01")
  second = points_of("optimizer.learning_rate=0.010,0.001", "config.train.batch_size=16,8")
  assert first == second and [x.name for x in first] == [x.name for x in second]


def test_names_of_any_values_are_unique_names_of_folders():
  """Also of texts with separators, dots, slashes and spaces, and of long texts."""
  random, letters = np.random.default_rng(0), [*"ab/=_ .,'\"é", *string.digits]
  texts = {"".join(random.choice(letters, random.integers(1, 8))) for _ in range(300)}
  texts |= {"a" * 100 + end for end in "bc"} | {"..", ".", "a__b", "1", "1.0"}
  values = [*itertools.product(texts, (1, 2))]
  points = [sweep_grid.GridPoint((("data.files", text), ("train.seed", number))) for text, number in values]
  names = {point.name for point in points}
  assert len(names) == len(points) == len(set(points))
  assert all(re.fullmatch(r"[A-Za-z0-9_.+=-]{1,255}", name) and name.startswith("data.files=") for name in names)
  # The rows of sweep.jsonl give the same names.
  for point in points:
    assert sweep_grid.GridPoint.of_row(json.loads(json.dumps(dict(point.values)))) == point


def test_values_with_commas_are_separated_by_semicolons():
  """Elements of a list are part of a value; a semicolon at the end makes a single value."""
  points = points_of("optimizer.no_decay=norm,bias;norm")
  assert {point.values[0][1] for point in points} == {("norm", "bias"), ("norm",)}
  (point,) = points_of("optimizer.no_decay=norm,bias;")
  assert point.values[0][1] == ("norm", "bias") and point.name.startswith("optimizer.no_decay=norm-bias-")
  assert sweep_grid.GridPoint.of_row(json.loads(json.dumps(dict(point.values)))) == point
  assert {x.values[0][1] for x in points_of("optimizer.no_decay=norm,bias")} == {("norm",), ("bias",)}


@pytest.mark.parametrize(
  ("options", "message"),
  [
    (["train.batch_size"], "--set train.batch_size: must be a key and its values, such as --set optimizer"),
    (["train.batch_size=8,"], "--set train.batch_size=8,: a value is empty. Give values with commas, such as --set tr"),
    (["train.batch_size=8,x"], "--set train.batch_size=8,x: .*train.batch_size.* must be an integer"),
    (
      ["train.batch_siz=8"],
      "--set train.batch_siz=8: --config.train.batch_siz: no such key; nearest: train.batch_size",
    ),
    (["optimizer.learning_rate=1e-3,0.001"], "learning_rate=1e-3,0.001: 0.001 and 1e-3 are the same value. Leave out"),
    (
      ["train.steps=1,2", "train.steps=3"],
      "--set train.steps=3: --set train.steps=1,2 already sets this key. Give all",
    ),
    (["train.seed=1,2"], "--set train.seed=1,2: --seeds sets this key. Give --seeds N."),
    (["workdir=a,b"], "--set workdir=a,b: the folder of a run follows from its values. Give --workdir FOLDER"),
    (["train.xla_flags=True,False"], "every run of a process has the same value. Give --config.train.xla_flags=VALUE"),
    (
      ['optimizer.no_decay=("a","b"),("c",)'],
      "a comma or an open bracket. Separate such values by semicolons: --set '",
    ),
  ],
)
def test_errors_name_the_option(options, message):
  with pytest.raises(UserError, match=message):
    points_of(*options)


def test_a_key_has_one_option():
  with pytest.raises(UserError, match=r"--set train.steps=1,2: --config.train.steps sets the same key. Leave out one"):
    sweep_grid.parse_axes(["train.steps=1,2"], ["--config.train.batch_size=4", "--config.train.steps=9"])
