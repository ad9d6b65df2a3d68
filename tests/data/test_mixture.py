"""Mixtures of sources: sampling rates, resuming and rejected settings."""

import dataclasses
import json
import math
import pathlib

import hypothesis
from hypothesis import strategies
import numpy as np
import pytest
import scipy.stats
import seqio
import tensorflow as tf
import test_example_windows
import test_train

from t2t import UserError
from t2t import __main__ as command
from t2t.configuration.loading import load_config, override, records
from t2t.configuration.schema import DataConfig
from t2t.data import example_windows, mixture, pipeline, task_resolution, validation, vocabularies
from t2t.data.sources import file_validation
from t2t.training import recipe

small, register = test_example_windows.small, test_example_windows.register  # the fixtures


def sources(**named):
  return {name: {"files": f"{name}.txt", **own} for name, own in named.items()}


def rates(named, sizes=None, **data):
  return mixture.rates(DataConfig(sources=sources(**named), **data), lambda name: (sizes or {})[name])


# ---- Sampling rates --------------------------------------------------------------------------------------------------

SIZES = {"en": 300_000.0, "fi": 20_000.0, "sw": 1_000.0}
NONE = {name: {} for name in SIZES}


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 0.7, 1.0])
def test_sizes_count_to_the_power_of_alpha(alpha):
  """XLM's formula (Conneau & Lample 2019, section 3.1): p ~ n**alpha; T5's temperature is 1 / alpha."""
  found = rates(NONE, SIZES, alpha=alpha)
  expected = np.array(list(SIZES.values())) ** alpha
  np.testing.assert_allclose(list(found.values()), expected / expected.sum())
  if alpha:
    tempered = [seqio.mixing_rate_num_examples(Counted(n), temperature=1 / alpha) for n in SIZES.values()]
    np.testing.assert_allclose(list(found.values()), np.array(tempered) / sum(tempered))


@pytest.mark.parametrize(
  ("name", "alpha"),
  [("mbert_base", 0.7), ("xlm_15", 0.5), ("xlm_r_base", 0.3), ("afriberta_small", 0.3), ("mt5_small", 0.3)],
)
def test_configs_of_many_languages_draw_them_as_published(name, alpha):
  """Configs set alpha; the user names the languages."""
  languages = [f"--config.data.sources.{language}.files={language}.txt" for language in SIZES]
  data = records(override(load_config(name), [*languages, "--config.data.vocabulary=bytes"])).data
  expected = np.array(list(SIZES.values())) ** alpha
  np.testing.assert_allclose(list(mixture.rates(data, SIZES.get).values()), expected / expected.sum())
  assert not data.mixture


@dataclasses.dataclass
class Counted:
  """Interface that seqio needs to compute a rate."""

  number: float
  splits = ("train",)
  name, cache_dir = "counted", None

  def num_input_examples(self, split):
    return self.number


def test_rates_are_relative():
  assert rates({"a": {"rate": 3.0}, "b": {"rate": 1.0}}) == {"a": 0.75, "b": 0.25}


def test_a_share_is_of_all_examples():
  """Shares do not depend on other sources' rates; replay (Sun et al. 2020; Scialom et al. 2022) is a share."""
  assert rates({"new": {}, "old": {"share": 0.1}}, {"new": 5.0}) == {"new": 0.9, "old": 0.1}
  found = rates({"a": {"rate": 1.0}, "b": {"rate": 3.0}, "old": {"share": 0.2}})
  np.testing.assert_allclose(list(found.values()), [0.2, 0.6, 0.2])
  assert rates({"a": {"share": 0.25}, "b": {"share": 0.75}}) == {"a": 0.25, "b": 0.75}


DRAWN = {
  "rates": ({"a": {"rate": 1.0}, "b": {"rate": 2.0}, "c": {"rate": 5.0}}, {}),
  "sizes": (NONE, {"alpha": 1.0}),
  "alpha": (NONE, {"alpha": 0.3}),
  "share": ({"a": {}, "b": {}, "old": {"share": 0.1}}, {}),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", DRAWN)
def test_100000_draws_are_as_the_formula_says(kind):
  """Chi-square test at p = 0.001 for each stream, on draws of the pipeline."""
  named, data = DRAWN[kind]
  expected = np.array(list(rates(named, SIZES | {"a": 3.0, "b": 1.0}, **data).values()))
  streams = []
  for stream in range(2):
    found = example_windows.drawn_tasks(
      list(expected), seed=7, stream=tf.constant(stream, tf.int64), first=tf.constant(0, tf.int64)
    )
    drawn = next(iter(found.batch(50_000))).numpy()
    counts = np.bincount(drawn, minlength=len(expected))
    assert scipy.stats.chisquare(counts, expected * len(drawn)).pvalue > 1e-3
    streams.append(drawn)
  assert np.mean(streams[0] != streams[1]) > 0.05  # each draws for itself


@pytest.mark.slow
@hypothesis.given(strategies.lists(strategies.integers(0, 2), min_size=1, max_size=70))
def test_where_tasks_stand_behind_each_example(drawn):
  """Positions equal a loop that advances the task of each example."""
  stands = np.arange(6).reshape(3, 2)
  positions = 100 + np.arange(2 * len(drawn)).reshape(-1, 2)
  found = example_windows.places_behind(*(tf.constant(x, tf.int64) for x in (stands, drawn, positions))).numpy()
  for number, task in enumerate(drawn):
    stands[task] = positions[number]
    np.testing.assert_array_equal(found[number], stands)


# ---- Reading ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path):
  """Two files of different lengths with distinct first letters."""
  for name, number in (("a", 60), ("b", 20)):
    texts = [f"{name} {text}" for text in test_example_windows.TEXTS[:number]]
    (tmp_path / f"{name}.txt").write_text("\n\n".join(texts))
  named = {name: {"files": f"{tmp_path}/{name}.txt"} for name in "ab"}
  return DataConfig(
    sources=named,
    objective="prefix_lm",
    vocabulary="bytes",
    inputs_length=64,
    targets_length=64,
    shuffle_buffer=5,
    num_streams=2,
  )


def with_source(data, name, **changes):
  own = {key: value for key, value in dataclasses.asdict(data.sources[name]).items()}
  return dataclasses.replace(data, sources={**data.sources, name: own | changes})


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("pack", [True, False])
def test_stopped_after_every_step(small, data, register, pack):
  """Files with two objectives and a registered task resume bit for bit."""
  data = with_source(data, "b", objective="span_corruption", rate=1.0)
  data = with_source(data, "a", rate=3.0)
  qa = {"mixture": register("mixed_questions"), "share": 0.25}
  data = dataclasses.replace(data, pack=pack, sources={**data.sources, "qa": qa})
  iterator = test_example_windows.batches(data, num_streams=2)
  assert [task.name for task in iterator._plan.tasks] == ["a", "b", "mixed_questions"]
  np.testing.assert_allclose(example_windows.mixing_rates(iterator._plan), [0.5625, 0.1875, 0.25])
  test_example_windows.assert_stopping_changes_nothing(iterator, every=2)


def test_sizes_are_counted_by_documents_or_by_text(data):
  task = pipeline.load_task(data)
  number = {name: len(text.read_text().split("\n\n")) for name, text in files_of(data).items()}
  assert [task.get_rate(each) for each in task.tasks] == pytest.approx([number["a"] / 80, number["b"] / 80])
  task = pipeline.load_task(dataclasses.replace(data, mixing_unit="tokens"))
  texts = {name: len(text.read_text()) for name, text in files_of(data).items()}
  expected = texts["a"] / sum(texts.values())
  assert task.get_rate(task.tasks[0]) == pytest.approx(expected, rel=0.01)  # without separators of documents


def test_sizes_of_what_is_too_large_to_be_counted(small, data, tmp_path, monkeypatch):
  """Sizes are estimated from a sample, independent of other fields and of bytes per character."""
  monkeypatch.setattr(file_validation, "READ_WHOLE_BYTES", 1_000)
  texts = {"a": [f"word {number:04}" for number in range(2_000)], "b": [f"слов {number:04}" for number in range(1_000)]}
  (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": text, "url": "x" * 99}) for text in texts["a"]))
  (tmp_path / "b.txt").write_text("\n".join(texts["b"]))
  data = with_source(data, "a", files=f"{tmp_path}/a.jsonl")
  for size in mixture.SIZES:
    task = pipeline.load_task(dataclasses.replace(data, mixing_unit=size))
    assert [task.get_rate(each) for each in task.tasks] == pytest.approx([2 / 3, 1 / 3], rel=0.02)


def files_of(data):
  return {name: pathlib.Path(source.files) for name, source in data.sources.items()}


def test_tasks_of_a_mixture_keep_their_rates_among_themselves(data, register):
  names = [register(f"mixed_{number}", number=number) for number in range(2)]
  seqio.MixtureRegistry.add("mixed_both", list(zip(names, (1, 3), strict=True)))
  try:
    named = {"a": dict(dataclasses.asdict(data.sources["a"]), share=0.6), "qa": {"mixture": "mixed_both", "share": 0.4}}
    task = pipeline.load_task(dataclasses.replace(data, sources=named))
  finally:
    seqio.MixtureRegistry.remove("mixed_both")
  assert {each.name: task.get_rate(each) for each in task.tasks} == pytest.approx(
    {"a": 0.6, "mixed_0": 0.1, "mixed_1": 0.3}
  )


@pytest.mark.exhaustive
def test_passes_over_each_source_are_counted(small, data):
  """The smaller source has more epochs."""
  data = with_source(with_source(data, "a", rate=1.0), "b", rate=1.0)
  iterator = test_example_windows.batches(data)
  test_example_windows.take(iterator, 30)
  assert iterator.epochs["b"] > iterator.epochs["a"] >= 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("pack", [False, True])
def test_passes_are_counted_within_a_window_of_mixed_examples(small, data, tmp_path, monkeypatch, pack):
  """Epochs are counted within a window, because a window may span many passes over a small source."""
  for name, size in {"_MIXED_ALONE": 4_096, "_MIXED_PACKED": 4_096, "_EXAMPLES_OF_WINDOW": 1}.items():
    monkeypatch.setattr(example_windows, name, size)
  for name in "ab":
    (tmp_path / f"{name}.txt").write_text("\n".join(f"{name} {number:058}" for number in range(20)))
    data = with_source(data, name, rate=1.0, objective="drop_tokens")
  iterator = test_example_windows.batches(dataclasses.replace(data, targets_length=128, inputs_length=128, pack=pack))
  found = test_example_windows.take(iterator, 10 if pack else 20)
  tokens = sum((batch[f"{side}_tokens"] > 1).sum() for batch in found for side in ("encoder_input", "decoder_target"))
  passes = tokens / 2 / (19 * 60)  # of 20 texts one is held out
  assert passes > 4 and set(iterator.epochs) == {"a", "b"}
  assert all(passes - 2 < each < passes + 2 for each in iterator.epochs.values()), (passes, iterator.epochs)


@pytest.mark.exhaustive
@pytest.mark.parametrize("pack", [False, True])
def test_held_out_text_of_all_comes_once(small, data, tmp_path, pack):
  """Held-out text is read once even if a source has fewer documents than streams and a high rate."""
  held_out = {"a": test_example_windows.TEXTS, "b": ["short but there."] * 3}
  for name, texts in held_out.items():
    (tmp_path / f"{name}.eval.txt").write_text("\n".join(f"{name} {text}"[:60] for text in texts))
    data = with_source(data, name, eval_files=f"{tmp_path}/{name}.eval.txt", rate={"a": 1.0, "b": 9.0}[name])
  data = dataclasses.replace(data, objective="causal_lm", pack=pack)
  found = pipeline.eval_rows(data, "decoder_only", batch_size=16, max_batches=9)
  assert sum((batch["decoder_target_tokens"] == 1).sum() for batch in found) == 63  # an EOS behind each


def test_malformed_records_of_all_are_counted_together(data, tmp_path):
  (tmp_path / "c.jsonl").write_text("".join(f'{{"text": "c is whole {i}"}}\n' for i in range(3)) + "not json\n")
  sources_of = {**data.sources, "c": {"files": f"{tmp_path}/c.jsonl"}}
  task = pipeline.load_task(dataclasses.replace(data, sources=sources_of, max_bad_record_fraction=0.3))
  tallies = {id(each.source.tally("train")) for each in task.tasks}
  assert len(tallies) == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  ("change", "message"),
  [
    (dict(rate=2.0), "data.sources.a.rate is 2.0"),
    (dict(objective="span_corruption"), "data.sources.a.objective"),
  ],
)
def test_other_sources_are_refused_when_a_run_goes_on(small, data, change, message):
  """The error names the key; moved files are accepted, files with other text are not."""
  data = with_source(with_source(data, "a", rate=1.0), "b", rate=1.0)
  iterator = test_example_windows.batches(data)
  test_example_windows.take(iterator, 2)
  saved = iterator.state(2)
  with pytest.raises(UserError, match=message):
    test_example_windows.batches(with_source(data, "a", **change)).restore(saved, step=2)
  with pytest.raises(UserError, match="data.objective is 'span_corruption'"):  # objective of all sources
    test_example_windows.batches(dataclasses.replace(data, objective="span_corruption")).restore(saved, step=2)


@pytest.mark.exhaustive
def test_what_marks_phrases_is_part_of_a_position(small, data, tmp_path):
  """Annotations are checked per source, as they are for a single source."""
  for name in "ab":
    record = lambda text: json.dumps({"text": text, "entities": [[0, 4]], "nouns": [[0, 3]]})
    (tmp_path / f"{name}.jsonl").write_text("\n".join(record(f"{name} {x}"[:50]) for x in test_example_windows.TEXTS))
    data = with_source(data, name, files=f"{tmp_path}/{name}.jsonl", objective="annotated_masked_lm")
  iterator = test_example_windows.batches(data, "encoder_only")
  test_example_windows.take(iterator, 2)
  with pytest.raises(UserError, match=r"config.data.sources.a.annotations is 'nouns', but .* 'entities'"):
    other = test_example_windows.batches(dataclasses.replace(data, annotations="nouns"), "encoder_only")
    other.restore(iterator.state(2), step=2)


@pytest.mark.exhaustive
def test_files_that_moved_are_the_same_and_others_are_not(small, data, tmp_path):
  iterator = test_example_windows.batches(data)
  test_example_windows.take(iterator, 2)
  saved = iterator.state(2)
  (tmp_path / "elsewhere").mkdir()
  moved = (tmp_path / "b.txt").rename(tmp_path / "elsewhere/b.txt")
  data = with_source(data, "b", files=str(moved))
  test_example_windows.batches(data).restore(saved, step=2)
  moved.write_text(moved.read_text().replace("word3", "word4"))
  with pytest.raises(UserError, match=r"config.data.sources.b.files differ from the files of the checkpoint"):
    test_example_windows.batches(data).restore(saved, step=2)


# ---- Errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  ("named", "changes", "message"),
  [
    ({"a": {"rate": -1.0}}, {}, "config.data.sources.a.rate=-1.0: the value must be at least 0"),
    ({"a": {"share": 1.5}}, {}, "config.data.sources.a.share=1.5: the value must be from 0 to 1"),
    ({"a": {"rate": 1.0, "share": 0.5}}, {}, "config.data.sources.a has both rate=1.0 and share=0.5. Leave out"),
    (
      {"a": {"rate": 1.0}, "b": {}},
      {},
      "config.data.sources.b has no rate, but config.data.sources.a has a rate. Give every",
    ),
    ({"a": {"share": 1.0}, "b": {}}, {}, "shares of a add up to 1, but the sum must be below 1, because some sources"),
    ({"a": {"share": 0.3}, "b": {"share": 0.3}}, {}, "shares of a, b add up to 0.6, but the sum must be 1"),
    ({"a": {}}, {"alpha": 1.5}, "config.data.alpha=1.5: the value must be from 0"),
    (
      {"a": {}},
      {"repeat_warning_epochs": -1.0},
      "config.data.repeat_warning_epochs=-1.0: the value must be a number of passes",
    ),
    ({"a": {}}, {"mixing_unit": "bytes"}, "config.data.mixing_unit='bytes': unknown unit. Give examples or tokens"),
    ({"a": {"files": ""}}, {}, "config.data.sources.a.files='' and .*: exactly one of these keys must be set"),
    ({"a": {"mixture": "x"}}, {}, "config.data.sources.a.files='a.txt' and .*: exactly one of these keys must be set"),
    ({"a": {"files": "", "mixture": "x", "field": "y"}}, {}, "config.data.sources.a.field=y applies only to files"),
    (
      {"a": {}},
      {"files": "x.txt"},
      "config.data.files=x.txt has no effect beside config.data.sources. Give config.data.sources.NAME",
    ),
    ({"a": {}}, {"train_split": "all"}, "config.data.train_split=all: config.data.sources.a reads files"),
    (
      {"a": {}},
      {"cache_dir": "c"},
      "config.data.cache_dir=c contains cached tasks, but config.data.sources.a reads files",
    ),
  ],
)
def test_what_cannot_be_mixed_is_refused(named, changes, message):
  data = DataConfig(sources=sources(**named), **changes)
  with pytest.raises(UserError, match=message):
    data.parts()
    mixture.rates(data, lambda name: 1.0)


def test_sources_that_do_not_go_together_are_refused(data, register):
  with pytest.raises(UserError, match=r"sources must yield the same features to be mixed \(.*a: .*; b: .*\)"):
    pipeline.load_task(with_source(data, "a", objective="causal_lm"))
  with pytest.raises(UserError, match="^config.data.sources.b: config.data.objective=prefx: no such objective"):
    pipeline.load_task(with_source(data, "b", objective="prefx"))
  with pytest.raises(UserError, match="^config.data.sources.b: config.data.mixture=nothing: no task or mixture"):
    pipeline.load_task(with_source(data, "b", files="", mixture="nothing"))
  with pytest.raises(UserError, match="^config.data.sources.b.files: no file matches"):
    pipeline.load_task(with_source(data, "b", files="none.txt"))
  name = register("mixed_twice")
  twice = {"x": {"mixture": name, "rate": 1.0}, "y": {"mixture": name, "rate": 1.0}}
  with pytest.raises(
    UserError, match="config.data.sources.y reads mixed_twice, but config.data.sources.x already reads this task"
  ):
    pipeline.load_task(dataclasses.replace(data, sources=twice))
  uncounted = {"a": dataclasses.asdict(data.sources["a"]), "x": {"mixture": name}}
  with pytest.raises(
    UserError, match="config.data.sources.x: the number of tokens is unknown, but config.data.mixing_unit"
  ):
    pipeline.load_task(dataclasses.replace(data, sources=uncounted, mixing_unit="tokens"))


@pytest.mark.exhaustive
def test_what_has_no_held_out_example_is_named(small, data, tmp_path):
  for name in "ab":
    (tmp_path / f"{name}.txt").write_text("\n".join(f"one sentence of {number}" for number in range(9)))
  data = dataclasses.replace(data, objective="neighbouring_sentences")
  with pytest.raises(UserError, match=r"split 'validation' of config.data.sources \(a, b\): no held-out example"):
    pipeline.eval_rows(data, "encoder_only", batch_size=8, max_batches=1)


@pytest.mark.exhaustive
def test_text_that_makes_no_example_is_refused(small, data, tmp_path):
  """A single sentence makes no pair, so the source would block training."""
  (tmp_path / "a.txt").write_text("\n".join(f"sentence {i}. and another." for i in range(9)))
  (tmp_path / "b.txt").write_text("\n".join("xyz"))
  data = dataclasses.replace(data, objective="neighbouring_sentences")
  with pytest.raises(UserError, match=r"sources.b.files: config.data.objective=.* makes no example"):
    validation.check(data, batch_size=8, model_vocab_size=384, architecture="encoder_only")


@pytest.mark.parametrize("name", ["en-us", "a b", ""])
def test_a_source_is_named_as_tasks_are(name):
  with pytest.raises(UserError, match=f"'{name}' is not a valid name; use only letters, digits and _"):
    DataConfig(sources={name: {"files": "x.txt"}})
  with pytest.raises(UserError, match="with letters, digits and _ in NAME"):
    override(load_config("tiny_t5"), [f"--config.data.sources.{name}.files=x.txt"])


def test_keys_that_there_are_not_are_refused():
  """The error names the nearest key, on the command line and in a file."""
  with pytest.raises(UserError, match=r"NAME.KEY=VALUE, with .* in NAME. Known keys: files, .*; nearest: files"):
    override(load_config("tiny_t5"), ["--config.data.sources.en.fils=x"])
  with pytest.raises(UserError, match="invalid key. Give --config.data.sources.NAME.KEY=VALUE"):
    override(load_config("tiny_t5"), ["--config.data.sources.en=x"])
  with pytest.raises(
    UserError, match="config.data.sources.en.fils: no such key. Accepted keys: .*; did you mean files"
  ):
    DataConfig(sources={"en": {"fils": "x"}})


def test_a_config_is_typed_and_saved():
  """Typed sources replace the mixture of a config; a JSON round trip preserves them."""
  typed = ["--config.data.sources.en.files=en.txt", "--config.data.sources.en.rate=2", "--config.data.alpha=0.3"]
  config = records(override(load_config("tiny_t5"), typed))
  assert config.data.mixture == "" and config.data.sources["en"].rate == 2.0
  assert recipe.task_features(config) == ("inputs", "targets")
  saved = json.loads(json.dumps(config.to_dict()))
  assert DataConfig(**saved["data"]) == dataclasses.replace(
    config.data, **{key: saved["data"][key] for key in ("task_modules", "template_names", "hub_revisions")}
  )


# ---- The command -----------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_the_commands_take_sources(small, data, tmp_path, capsys):
  """Training, resuming, `tasks show` and `infer` work with sources; epochs are logged per source."""
  typed = [f"--config.data.sources.{name}.files={source.files}" for name, source in data.sources.items()]
  typed += ["--config.data.sources.b.objective=prefix_lm", "--config.data.repeat_warning_epochs=1"]
  typed += ["--config.data.sources.a.rate=1", "--config.data.sources.b.rate=3"]
  arguments = [*test_train.T5, "--config.train.log_every=1", "--config.eval.num_logged_samples=1", *typed]
  run = ["--workdir", str(tmp_path / "run")]
  assert command.main(["train", *arguments, *run, "--config.train.steps=3"]) == 0
  assert command.main(["train", *arguments, *run, "--config.train.steps=30", "--config.eval.every=30"]) == 0
  found = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
  epochs = [row["train/epoch/b"] for row in found if "train/epoch/b" in row]
  assert len(epochs) == 30 and epochs == sorted(epochs) and epochs[-1] >= 1.0
  assert all(math.isfinite(row["train/loss"]) for row in found if "train/loss" in row)
  out = capsys.readouterr()
  assert "(config.data.repeat_warning_epochs=1). Add text to it" in out.out + out.err
  assert command.main(["tasks", "show", "--config=t5_1_1_small", "--config.data.vocabulary=bytes", *typed]) == 0
  assert "a, b" in (said := capsys.readouterr().out) and "a 0.25, b 0.75" in said
  assert task_resolution.tasks_of(pipeline.load_task(data))[0].name == "a"
  (tmp_path / "in.txt").write_text("a word0 <extra_id_0>\n")
  options = ["--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "out.jsonl"), "--max_length=8"]
  assert command.main(["infer", "--checkpoint", str(tmp_path / "run"), *options]) == 0


# ---- One corruption for each document --------------------------------------------------------------------------------

# Effect by which an example shows each corruption of BART.
SHOWS = {
  "token_masking": "masks",
  "text_infilling": "masks",
  "token_deletion": "fewer",
  "sentence_permutation": "moved",
  "document_rotation": "moved",
}


@pytest.mark.exhaustive
def test_one_corruption_is_drawn_for_each_document(small, tmp_path):
  """Sources on the same files with different objectives share the held-out documents."""
  texts = [f"{i}. The fox runs. The dog sleeps. Nobody knows why {i * i}. It rains." for i in range(400)]
  (tmp_path / "a.txt").write_text("\n".join(texts) + "\n")
  named = {each: {"files": f"{tmp_path}/a.txt", "objective": each, "rate": 1.0} for each in SHOWS}
  lengths = {"inputs_length": 256, "targets_length": 256}
  data = DataConfig(sources=named, vocabulary="bytes", pack=True, num_streams=1, shuffle_buffer=5, **lengths)
  held_out = [
    {record["text"].decode() for record in part.source.get_dataset("validation", shuffle=False).as_numpy_iterator()}
    for part in pipeline.load_task(data).tasks
  ]
  assert held_out[0] and all(each == held_out[0] for each in held_out)

  vocabulary = pipeline.vocabulary(data)
  mask = vocabularies.mask_id(vocabulary)
  found, read = dict.fromkeys(SHOWS.values(), 0), set()
  for batch in test_example_windows.take(test_example_windows.batches(data), 20):
    for row in range(len(batch["encoder_input_tokens"])):
      for number in range(1, batch["decoder_segment_ids"][row].max() + 1):
        inputs = batch["encoder_input_tokens"][row][batch["encoder_segment_ids"][row] == number].tolist()
        targets = batch["decoder_target_tokens"][row][batch["decoder_segment_ids"][row] == number].tolist()
        found["masks" if mask in inputs else "fewer" if len(inputs) < len(targets) else "moved"] += 1
        assert mask in inputs or len(inputs) < len(targets) or sorted(inputs) == sorted(targets)
        read.add(vocabulary.decode(targets))
  assert read <= set(texts) and not read & held_out[0]
  expected = np.array([list(SHOWS.values()).count(each) / len(SHOWS) for each in found]) * sum(found.values())
  assert sum(found.values()) > 400 and scipy.stats.chisquare(list(found.values()), expected).pvalue > 1e-3
