"""Forgetting: two questions for one model, and arms of the study that differ in one setting."""

import collections

import pytest

from t2t.data import registry, task_resolution
from t2t.studies import definition
from t2t.studies.definition import Setting

OLD, TASKS = "colour", str(definition.STUDIES.parent / "two_questions.py")


def examples(name, split):
  """Returns pairs of things and answer."""
  task = task_resolution.named(name, modules=(TASKS,))
  return [
    (each["inputs_pretokenized"].decode(), each["targets_pretokenized"].decode())
    for each in task.get_dataset({"inputs": 64, "targets": 16}, split, shuffle=False).as_numpy_iterator()
  ]


@pytest.mark.exhaustive
def test_the_questions_are_of_the_same_things():
  """Answers of the questions agree by chance only; held-out examples are disjoint from training examples."""
  old, new = (examples(name, "validation") for name in (OLD, "shape"))
  assert len(old) == len(new) == 256
  assert examples(f"{OLD}_held_out", "validation") == old
  trained = {things for things, _ in examples(OLD, "train")}
  assert len(trained & {things for things, _ in old}) < 5
  answers = collections.Counter(answer for _, answer in old)
  assert len(answers) == 4 and max(answers.values()) < 0.4 * len(old)
  assert "train" not in task_resolution.named(f"{OLD}_held_out", modules=()).splits
  for things, answer in old[:20]:
    assert answer in ("first", "second", "third", "fourth") and things.startswith(f"{OLD} things: ")
  registry.load(TASKS)  # again, like a second command in the same process


def test_arms_differ_in_one_thing():
  """Arms share the old run, its steps and sizes; they differ in the mixture, the penalty or the adapter."""
  arms = {arm.name: arm for arm in definition.load("forgetting").arms(Setting("toy"))}
  plain = dict(arms["no remedy"].stages[-1].keys)
  changed = {
    name: {key for key, value in arm.stages[-1].keys.items() if plain.get(key) != value} for name, arm in arms.items()
  }
  assert changed == {
    "no remedy": set(),
    "EWC": {"optimizer.fisher", "optimizer.param_groups"},
    "L2-SP": {"optimizer.param_groups"},
    "replay": {"data.mixture"},
    "LoRA": {"lora.rank", "lora.targets"},
  }
  assert all(arm.stages[0] == arms["EWC"].stages[0] and arm.stages[-1].start == "old" for arm in arms.values())
