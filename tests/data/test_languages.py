"""Languages of data sources: token types per language and held-out loss per source."""

import dataclasses
import json

import numpy as np
import pytest
import test_example_windows
import test_train

from t2t import UserError
from t2t import __main__ as command
from t2t.configuration.loading import load_config, override, records
from t2t.configuration.schema import DataConfig
from t2t.data import languages, pipeline, train_data


def sources(**named):
  return DataConfig(sources={name: {"files": f"{name}.txt", **own} for name, own in named.items()})


PAIR = {"files": "both.tsv", "objective": "translation_lm"}


# ---- Language numbers ------------------------------------------------------------------------------------------------


def test_numbers_of_languages():
  """Languages are sorted by name; a pair has the language of the text and of the translation."""
  each = sources(x={"language": "sw"}, y={"language": "en"}, both=PAIR | {"language": "sw,fr"}).parts()
  assert languages.of_all(each) == ("en", "fr", "sw")
  assert languages.numbers(each) == {"both": [2, 1], "x": [2], "y": [0]}
  assert languages.numbers(sources(x={"language": "sw"}, y={}).parts()) == {}
  assert languages.numbers(sources(x={}, both=PAIR).parts()) == {}


@pytest.mark.parametrize(
  ("named", "message"),
  [
    ({"a": {"language": "en,"}}, "config.data.sources.a.language=en,: a language is missing beside the comma"),
    ({"a": {"language": "en,fr"}}, "config.data.sources.a.language=en,fr: two languages are for texts"),
    (
      {"a": PAIR | {"language": "en"}},
      "language=en: config.data.objective=translation_lm reads .* needs two languages",
    ),
    ({"a": PAIR | {"language": "en,en"}}, "language=en,en: .* needs two languages"),
    (
      {"a": PAIR | {"language": "en,fr"}, "b": {}},
      "sources.b has no language, but config.data.sources.a has a language. .* Give config.data.so",
    ),
  ],
)
def test_languages_that_say_nothing_are_refused(named, message):
  with pytest.raises(UserError, match=message):
    languages.numbers(sources(**named).parts())


def test_a_language_is_said_of_each_source():
  with pytest.raises(
    UserError, match="config.data.language=en has no effect beside config.data.sources. Give .*NAME.language"
  ):
    dataclasses.replace(sources(a={}), language="en").parts()


def test_a_model_has_a_vector_for_each_language():
  each = sources(a={"language": "sw"}, both=PAIR | {"language": "en,fr"}).parts()
  for enough in (0, 1, 3):
    languages.check_model(each, segment_types=enough)
  with pytest.raises(
    UserError, match=r"segment_types=2: .* have 3 languages \(en, fr, sw\)\. Set config.model.segment_types=3"
  ):
    languages.check_model(each, segment_types=2)


# ---- Effects ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def typed(tmp_path):
  """Arguments for text of two languages and pairs of both, with distinct letters per language."""
  (tmp_path / "en.txt").write_text("\n".join("abcde"[i % 5] * (5 + i % 17) for i in range(120)))
  (tmp_path / "sw.txt").write_text("\n".join("uvwxy"[i % 5] * (5 + i % 17) for i in range(40)))
  (tmp_path / "both.tsv").write_text("".join(f"{'vwx'[i % 3] * 9}\t{'abc'[i % 3] * (7 + i % 9)}\n" for i in range(60)))
  found = [f"--config.data.sources.{name}.files={tmp_path}/{name}.txt" for name in ("en", "sw")]
  return [*found, *(f"--config.data.sources.{name}.language={name}" for name in ("en", "sw"))]


def with_pairs(typed):
  folder = typed[0].partition("=")[2].rpartition("/")[0]
  pairs = {"files": f"{folder}/both.tsv", "objective": "translation_lm", "language": "sw,en"}
  return [*typed, *(f"--config.data.sources.both.{key}={value}" for key, value in pairs.items())]


def data_of(typed, **changes):
  data = records(override(load_config("tiny_bert"), typed)).data
  options = {"vocabulary": "bytes", "objective": "masked_lm", "inputs_length": 32, "targets_length": 32}
  return dataclasses.replace(data, **(options | changes))


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("pack", [False, True])
def test_token_types_are_those_of_languages(typed, pack):
  """Each token has the type of its language, in single texts and in pairs (XLM's language embeddings)."""
  found = pipeline.eval_rows(data_of(with_pairs(typed), pack=pack), "encoder_only", batch_size=16, max_batches=4)
  tokens, types, segments = (
    np.concatenate([batch[f"encoder_{name}"] for batch in found])
    for name in ("target_tokens", "token_types", "segment_ids")
  )
  letters = np.isin(tokens - 3, list(b"abcdeuvwxy")) & (segments > 0)
  expected = np.isin(tokens - 3, list(b"uvwxy")).astype(int)  # sw comes behind en
  assert set(types[letters]) == {0, 1} and ((types == 0) & letters).any(axis=1).sum() > 3
  np.testing.assert_array_equal(types[letters], expected[letters])


@pytest.mark.exhaustive
def test_held_out_text_of_each_source(typed):
  """Each source has batches of its own text only, with the shapes that are compiled already."""
  config = records(override(load_config("tiny_bert"), with_pairs(typed)[:-1]))  # pairs without a language
  config = config.with_(data=vars(data_of(with_pairs(typed), pack=True)), train={"batch_size": 8}, eval={"batches": 4})
  of_all = train_data.eval_batches(config, test_example_windows.mesh())
  found = train_data.eval_batches_by_source(config, test_example_windows.mesh())
  assert list(found) == ["both", "en", "sw"]
  own = {"both": b"abcvwx", "en": b"abcde", "sw": b"uvwxy"}
  for name, batches in found.items():
    assert 1 <= len(batches) <= 2
    for batch in batches:
      assert {k: (x.shape, x.dtype) for k, x in batch.items()} == {k: (x.shape, x.dtype) for k, x in of_all[0].items()}
    there = {int(x) - 3 for batch in batches for x in np.unique(batch["encoder_target_tokens"])}
    assert there & set(b"abcdeuvwxy") and there & set(b"abcdeuvwxy") <= set(own[name])


@pytest.mark.slow
def test_little_held_out_text_ends_no_others(tmp_path):
  """A small language leaves most streams empty; all held-out text of both languages is still read."""
  texts = {"en": [f"{'ab'[i % 2] * 9} {i}" for i in range(60)], "sw": ["u one", "v two"]}
  named = {}
  for name, own in texts.items():
    (tmp_path / f"{name}.txt").write_text("\n".join(own))
    named[name] = {"files": f"{tmp_path}/{name}.txt", "eval_files": f"{tmp_path}/{name}.txt", "rate": 1.0}
  data = data_of([], sources=named, mixture="", objective="causal_lm", pack=True)
  rows = pipeline.eval_rows(data, "decoder_only", batch_size=16, max_batches=20)
  tokens = np.concatenate([batch["decoder_target_tokens"].ravel() for batch in rows]) - 3
  assert [np.isin(tokens, list(letter.encode())).sum() for letter in ("ab", "uv")] == [60 * 9, 2]


@pytest.mark.exhaustive
def test_a_run_measures_each_language(typed, tmp_path, capsys):
  """Metrics and the log contain the loss of each language beside the total loss."""
  arguments = [*test_train.T5, "--workdir", str(tmp_path / "run"), *typed, "--config.train.steps=2"]
  arguments += ["--config.data.alpha=0.3", "--config.eval.every=1", "--config.eval.num_logged_samples=0"]
  arguments += [argument.replace(".files=", ".eval_files=") for argument in typed[:2]]
  assert command.main(["train", *arguments]) == 0
  rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
  measured = [row for row in rows if "eval/loss" in row]
  assert len(measured) == 2 and all({"eval/loss/en", "eval/loss/sw"} < set(row) for row in measured)
  low, high = sorted(measured[-1][f"eval/loss/{name}"] for name in ("en", "sw"))
  assert low < measured[-1]["eval/loss"] < high
  assert f"(en {measured[-1]['eval/loss/en']:.4f}, sw {measured[-1]['eval/loss/sw']:.4f})" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_a_run_goes_on_with_a_name_for_its_language(typed):
  """A language name changes no example unless token types use it."""
  options = {"num_streams": 2, "shuffle_buffer": 5}
  named, unnamed = data_of(typed, **options), data_of(typed[:2], **options)
  first = test_example_windows.batches(unnamed, "encoder_only")
  test_example_windows.take(first, 1)
  test_example_windows.batches(named, "encoder_only").restore(first.state(1), step=1)
  told = data_of(with_pairs(typed), **options)
  first = test_example_windows.batches(told, "encoder_only")
  test_example_windows.take(first, 1)
  other = dataclasses.replace(
    told, sources=told.sources | {"en": dataclasses.replace(told.sources["en"], language="e")}
  )
  with pytest.raises(UserError, match="config.data.sources.en.language is 'e'"):
    test_example_windows.batches(other, "encoder_only").restore(first.state(1), step=1)
