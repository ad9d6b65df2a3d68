"""Translation data: translation memories, both directions of a pair, and language tags."""

import gzip
import io
import json

import numpy as np
import pytest
import tensorflow as tf
import test_example_windows

from t2t import UserError
from t2t import __main__ as command
from t2t.configuration.schema import DataConfig
from t2t.data import languages, objectives, pipeline, validation
from t2t.data.objectives import sentence_pairs
from t2t.data.sources import text_files, tmx

pytestmark = pytest.mark.slow

PAIRS = [(f"word {i} of it", f"mot {i} de la") for i in range(300)]


def tmx_text(units, *, head=""):
  """Returns a file as translation memories export it."""
  inside = lambda unit: "".join(f'<tuv xml:lang="{name}"><seg>{text}</seg></tuv>' for name, text in unit.items())
  body = "\n".join(f'<tu tuid="{i}"><note>seg</note>{inside(unit)}</tu>' for i, unit in enumerate(units))
  header = '<header creationtool="x" segtype="sentence" srclang="en" o-tmf="x" datatype="plaintext" adminlang="en"/>'
  return f'<?xml version="1.0"?>\n{head}<tmx version="1.4">{header}<body>{body}</body></tmx>\n'


def data_of(**fields):
  options = {"vocabulary": "bytes", "objective": "translation", "inputs_length": 48, "targets_length": 48}
  return DataConfig(**(options | fields))


def examples(data, split="train"):
  """Returns inputs and targets of the examples as text."""
  task = pipeline.load_task(data)
  text = lambda ids: bytes((ids[:-1] - 3).astype(np.uint8)).decode()  # without EOS at the end
  found = pipeline.task_examples(data, "encoder_decoder", task, split=split).as_numpy_iterator()
  return [(text(example["inputs"]), text(example["targets"])) for example in found]


# ---- Translation memories --------------------------------------------------------------------------------------------


def units(text):
  return list(tmx.units(io.BytesIO(text if isinstance(text, bytes) else text.encode())))


def test_units_of_a_file():
  """The example of the docstring: codes are removed and their text stays; notes are not text; XML entities are read."""
  red = 'A <bpt i="1">&lt;b></bpt>red<ept i="1">&lt;/b></ept> <hi>house</hi> &amp;\n more.<ph>{1}<sub>alt</sub></ph>'
  assert units(tmx_text([{"en": red, "fr": "Une maison."}, {}, {"de": "Ü"}])) == [
    {"en": "A red house & more.", "fr": "Une maison."},
    {},
    {"de": "Ü"},
  ]
  assert units(tmx_text([{"en": "Ü"}]).replace('"1.0"', '"1.0" encoding="UTF-16"').encode("utf-16")) == [{"en": "Ü"}]


@pytest.mark.parametrize(
  ("head", "text", "message"),
  [
    ('<!DOCTYPE tmx [<!ENTITY a "b">]>', "&a;", r"line 2: the declared entity 'a' is not supported"),
    ('<!DOCTYPE tmx [<!ENTITY a SYSTEM "file:///etc/hostname">]>', "&a;", "line 2: the declared entity 'a'"),
    ('<!DOCTYPE tmx [<!ENTITY % a SYSTEM "file:///etc/hostname"> %a;]>', "b", "line 2: the declared entity 'a'"),
    ('<!DOCTYPE tmx SYSTEM "tmx14.dtd">', "&a;", "line 2: the entity 'a' is not declared"),
    ("", "&a;", "line 2: undefined entity"),
    ("", "a</tuv>", "line 2: mismatched tag"),
  ],
)
def test_what_a_file_declares_is_not_read(tmp_path, head, text, message):
  """Declared entities are refused, whether they name files or expand to a billion characters."""
  (tmp_path / "a.tmx").write_text(tmx_text([{"en": "b", "fr": text}], head=head))
  with pytest.raises(
    UserError, match=rf"config.data.files: .*a.tmx: truncated or invalid TMX after unit \d \(XML, {message}"
  ):
    pipeline.load_task(data_of(files=f"{tmp_path}/a.tmx", field="en", translation="fr"))


def test_a_dtd_that_is_named_is_not_looked_for():
  assert units(tmx_text([{"en": "a"}], head='<!DOCTYPE tmx SYSTEM "http://nowhere.invalid/tmx14.dtd">')) == [
    {"en": "a"}
  ]


def test_units_are_read_as_they_come(tmp_path, monkeypatch):
  """The file is parsed in blocks; a unit that never ends is refused."""
  (tmp_path / "a.tmx.gz").write_bytes(gzip.compress(tmx_text([{"en": "a" * 9}] * 50_000).encode())[:-2_000])
  found = text_files.units(f"{tmp_path}/a.tmx.gz", where="x")
  assert next(found) == (1, b'{"en": "aaaaaaaaa"}')
  with pytest.raises(UserError, match=r"a.tmx.gz: truncated or invalid TMX after unit \d+ \("):
    list(found)
  monkeypatch.setattr(tmx, "_LARGEST_UNIT", 20)
  assert len(units(tmx_text([{"en": "a" * 9, "fr": "b" * 9}] * 3))) == 3
  with pytest.raises(ValueError, match="XML, line 2: a unit has more than 20 characters"):
    units(tmx_text([{"en": "a" * 9, "fr": "b" * 12}]))


def test_a_language_is_found_by_its_name_or_its_only_kind():
  unit = {"EN-GB": "Red.", "fr": "Rouge.", "fr-CA": "R.", "pt_BR": "V", "pt-PT": "W"}
  assert [tmx.text(unit, name) for name in ("en", "fr", "FR_ca", "pt", "pt-br", "de")] == [
    *("Red.", "Rouge.", "R.", "", "V", "")
  ]


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("ending", ["tmx", "tmx.gz"])
def test_pairs_of_a_memory(tmp_path, ending):
  """Two languages of a memory give pairs, without incomplete units; a single language gives text."""
  found = [{"en-US": first, "fr": second, "de": "x"} for first, second in PAIRS] + [{"en-US": "alone"}, {"fr": "seul"}]
  text = tmx_text(found).encode()
  (tmp_path / f"a.{ending}").write_bytes(gzip.compress(text) if ending.endswith("gz") else text)
  data = data_of(files=f"{tmp_path}/a.{ending}", field="en", translation="fr")
  held_out = examples(data, "validation")
  assert 1 <= len(held_out) < 20 and sorted(examples(data) + held_out) == sorted(PAIRS)
  alone = data_of(files=data.files, field="fr", objective="prefix_lm", inputs_length=9_999, targets_length=9_999)
  (joined, *_) = ["".join(pair) for pair in examples(alone)]
  assert joined.startswith("mot") and "word" not in joined


def test_a_language_that_a_memory_has_not(tmp_path):
  (tmp_path / "a.tmx").write_text(tmx_text([{"en": "a", "swa": "b"}, {"de": "c"}]))
  with pytest.raises(
    UserError, match=r"config.data.translation=swh: .*; did you mean swa\? Give a language of the file: en, swa, de"
  ):
    pipeline.load_task(data_of(files=f"{tmp_path}/a.tmx", field="en", translation="swh"))
  source = {"files": f"{tmp_path}/a.tmx", "translation": "swa"}
  with pytest.raises(
    UserError, match=r"config.data.sources.x.field=text: .*a.tmx has no text in this language. Give a language"
  ):
    pipeline.load_task(data_of(sources={"x": source}))


# ---- Both directions, and tags ---------------------------------------------------------------------------------------


def test_the_docstrings_example():
  plain = tf.data.Dataset.from_tensor_slices({"first": ["Red.", " "], "second": ["Rouge.", "x"]})
  found = sentence_pairs.directed(plain, tags=("<2fr>", "<2en>"), both_directions=True)
  assert [
    {k: x if isinstance(x, bytes) else int(x) for k, x in each.items()} for each in found.as_numpy_iterator()
  ] == [
    {"first": b"<2fr> Red.", "second": b"Rouge.", "swapped": 0},
    {"first": b"<2en> Rouge.", "second": b"Red.", "swapped": 1},
  ]


def written(tmp_path):
  (tmp_path / "a.tsv").write_text("".join(f"{first}\t{second}\n" for first, second in PAIRS))
  return f"{tmp_path}/a.tsv"


def test_both_directions_with_tags(tmp_path):
  """Each pair occurs in both directions, and held-out pairs are held out in both."""
  options = {"language": "en,fr", "language_tags": "<2{target}>"}
  data = data_of(files=written(tmp_path), both_directions=True, **options)
  train, held_out = examples(data), examples(data, "validation")
  expected = [(f"<2fr> {first}", second) for first, second in PAIRS]
  expected += [(f"<2en> {second}", first) for first, second in PAIRS]
  assert sorted(train + held_out) == sorted(expected)
  numbers = lambda found: {next(word for word in pair[0].split() if word.isdigit()) for pair in found}
  assert held_out and not numbers(train) & numbers(held_out)
  data = data_of(files=data.files, **options | {"language_tags": "translate {source} to {target}: "})
  assert ("translate en to fr: word 1 of it", "mot 1 de la") in examples(data)


def test_token_types_stay_with_their_language(tmp_path):
  """In a swapped pair the first text has the token type of the second language."""
  data = data_of(files=written(tmp_path), both_directions=True, objective="translation_lm")
  task = pipeline.load_task(data)
  found = list(pipeline.task_examples(data, "encoder_only", task, split="train").as_numpy_iterator())
  assert {(int(x["token_types"][0]), int(x["token_types"][-1])) for x in found} == {(0, 1), (1, 0)}
  for example in found:
    first = bytes((example["targets"][:3] - 3).astype(np.uint8))
    assert first == (b"mot" if example["token_types"][0] else b"wor")


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    (
      {"both_directions": True, "objective": "masked_lm"},
      "=True needs texts .* translation_lm, translation",
    ),
    ({"language_tags": "<2{target}>"}, "=<2{target}> contains languages, but config.data.language is empty"),
    ({"language_tags": "<2{targt}>", "language": "en,fr"}, "{targt} is not a placeholder; did you mean target"),
    ({"language_tags": "<2{target>", "language": "en,fr"}, "language_tags=<2{target> is not valid .expected '}'"),
    (
      {"language_tags": "<2{target:d}>", "language": "en,fr"},
      r"language_tags=<2{target:d}> is not valid \(Unknown format code 'd'",
    ),
    ({"language": "en"}, "language=en: .* needs two languages"),
  ],
)
def test_what_cannot_be_tagged_or_turned(fields, message):
  data = data_of(files="a.txt", **fields)
  with pytest.raises(UserError, match=message):
    languages.tags(data, where="config.data")
    objectives.preprocessors(data.objective, both_directions=data.both_directions)
    validation.check(data, architecture="encoder_decoder", batch_size=8, model_vocab_size=384)


def test_tags_that_nothing_reads():
  with pytest.raises(UserError, match="language_tags=x has no effect, because no source has the objective"):
    languages.check_tags(data_of(files="a.txt", language_tags="x", objective="span_corruption"), {})
  languages.check_tags(data_of(files="a.txt", language_tags="x"), {})


def test_a_position_is_kept_in_both_directions(tmp_path, monkeypatch):
  """A run stopped after any step resumes with the same examples."""
  for name, size in (("_EXAMPLES_OF_WINDOW", 8), ("_MIXED_ALONE", 12)):
    monkeypatch.setattr(f"t2t.data.example_windows.{name}", size)
  data = data_of(files=written(tmp_path), both_directions=True, shuffle_buffer=5)
  iterator = test_example_windows.batches(data, num_streams=2)
  test_example_windows.assert_stopping_changes_nothing(iterator, every=7)
  with pytest.raises(UserError, match="config.data.both_directions has no value"):
    saved = iterator.state(2)
    test_example_windows.batches(data_of(files=data.files, shuffle_buffer=5), num_streams=2).restore(saved, step=2)


def test_two_texts_are_compared(tmp_path):
  """LaBSE encodes each text of a row separately, as in tasks of pairs."""
  data = data_of(files=written(tmp_path), objective="translation_ranking")
  task = pipeline.load_task(data)
  assert set(task.output_features) == set(sentence_pairs.FEATURES)
  example = next(pipeline.task_examples(data, "encoder_only", task, split="train").as_numpy_iterator())
  assert sorted(set(example["texts"].tolist())) == [0, 1]


@pytest.mark.exhaustive
def test_a_model_learns_to_translate_from_files(tmp_path):
  """The command trains on a memory in both directions with tags, and the model translates."""
  (tmp_path / "a.tmx").write_text(tmx_text([{"en": first, "fr": second} for first, second in PAIRS]))
  model = "--config=t5_1_1_small --config.model.vocab_size=384 --config.model.embed_dim=16 --config.model.num_heads=2"
  model += " --config.model.head_dim=8 --config.model.mlp_dim=32 --config.model.num_encoder_layers=1"
  model += " --config.model.num_decoder_layers=1 --config.train.batch_size=8 --config.train.steps=2"
  typed = [*model.split(), f"--config.data.files={tmp_path}/a.tmx", "--config.data.vocabulary=bytes"]
  typed += ["--config.data.field=en", "--config.data.translation=fr", "--config.data.objective=translation"]
  typed += ["--config.data.language=en,fr", "--config.data.language_tags=<2{target}>"]
  typed += ["--config.data.both_directions=True", "--config.data.inputs_length=32", "--config.data.targets_length=32"]
  assert command.main(["train", "--workdir", str(tmp_path / "run"), *typed, "--config.eval.num_logged_samples=0"]) == 0
  (tmp_path / "in.txt").write_text("<2fr> word 7 of it\n")
  options = ["--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "out.jsonl"), "--max_length=8"]
  assert command.main(["infer", "--checkpoint", str(tmp_path / "run"), *options]) == 0
  assert len([json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]) == 1
