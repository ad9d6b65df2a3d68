"""Files of a teacher's logits: rows are found by their features, whatever their order, and damage is named."""

import dataclasses
import json

from etils import epath
import numpy as np
import pytest

from t2t import UserError
from t2t.checkpoints import logit_files
from t2t.configs import default
from t2t.configuration import stages
from t2t.configuration.loading import records
from t2t.convert import safetensors
from t2t.losses.distillation import DistillationConfig
from t2t.losses.logits_student import LogitsManifest, TeacherOutput

TOKENS = TeacherOutput("tokens", "encoder", 300, 3)
CLASSES = TeacherOutput("heads/label", "encoder", 2, 2, {"kind": "class", "num_classes": 2, "labels": []})
MANIFEST = LogitsManifest("teacher", "vocabulary", 2.0, "predicted", 4, (TOKENS, CLASSES))


def rows(seed, number=4):
  """Returns features of rows, and the arrays of a teacher."""
  random = np.random.default_rng(seed)
  features = {
    "encoder_input_tokens": random.integers(3, 300, (number, 6)).astype(np.int32),
    "encoder_loss_weights": random.integers(0, 2, (number, 6)).astype(np.float32),
  }
  at = features["encoder_loss_weights"] > 0
  first = np.zeros((number, 6), bool)
  first[:, 0] = True
  tokens = {
    "at": at,
    "values": random.normal(size=(number, 6, 3)).astype(np.float32),
    "ids": random.integers(0, 300, (number, 6, 3)).astype(np.int32),
    "normalizer": random.normal(size=(number, 6)).astype(np.float32),
  }
  label = {"at": first, "values": random.normal(size=(number, 6, 2)).astype(np.float32)}
  return features, {"tokens": tokens, "heads/label": label}


def writer(folder, manifest=MANIFEST, *, dtype="F32", about=None):
  return logit_files.LogitsWriter(epath.Path(folder), manifest, about or {"seed": 0}, dtype=dtype)


def add(to, features, outputs):
  digests = logit_files.row_digests(features)
  new = to.new(digests)
  packed = {}
  for name, output in outputs.items():
    at = output["at"][new]
    packed[name] = {"at": at} | {key: x[new][at] for key, x in output.items() if key != "at"}
  to.add(digests[new], packed)
  return len(new)


def write(folder, *seeds, **options):
  """Writes a file for each seed."""
  to = writer(folder, **options)
  for step, seed in enumerate(seeds, start=1):
    if step > to.step:
      add(to, *rows(seed))
      to.flush(step)
  to.finish(len(seeds))
  return to


def reader(*folders):
  settings = DistillationConfig(logits=tuple(map(str, folders)), written=MANIFEST.to_json())
  return logit_files.LogitsReader(settings)


def expected(outputs):
  return {
    f"teacher/{name}/{key}": np.where(output["at"].reshape(output["at"].shape + (1,) * (x.ndim - 2)), x, 0)
    for name, output in outputs.items()
    for key, x in output.items()
    if key != "at"
  }


def check(found, outputs):
  wanted = expected(outputs)
  assert found.keys() == wanted.keys()
  for name, x in wanted.items():
    np.testing.assert_array_equal(found[name], x, err_msg=name)


def test_rows_are_found_in_any_order_and_batch(tmp_path):
  """Also over several files; positions without logits have 0."""
  write(tmp_path / "a", 0, 1)
  write(tmp_path / "b", 2)
  read = reader(tmp_path / "a", tmp_path / "b")
  assert len(read) == 12
  parts = [rows(seed) for seed in range(3)]
  order = np.random.default_rng(0).permutation(12)
  mixed = {name: np.concatenate([features[name] for features, _ in parts])[order] for name in parts[0][0]}
  outputs = {
    name: {key: np.concatenate([part[name][key] for _, part in parts])[order] for key in output}
    for name, output in parts[0][1].items()
  }
  check(read.read(mixed), outputs)


def test_a_row_that_occurs_again_is_written_once(tmp_path):
  to = writer(tmp_path / "a")
  features, outputs = rows(0)
  twice = {name: np.concatenate([x, x]) for name, x in features.items()}
  doubled = {name: {key: np.concatenate([x, x]) for key, x in output.items()} for name, output in outputs.items()}
  assert (add(to, twice, doubled), add(to, features, outputs), to.rows) == (4, 0, 4)
  to.finish(2)
  check(reader(tmp_path / "a").read(features), outputs)


def test_an_interrupted_writer_goes_on_to_the_same_bytes(tmp_path):
  """A file that was not finished is written again."""
  write(tmp_path / "whole", 0, 1, 2)
  to = writer(tmp_path / "parts")
  add(to, *rows(0))
  to.flush(1)
  add(to, *rows(1))
  (tmp_path / "parts" / "steps-00000001-00000002.safetensors.part").write_bytes(b"half")
  assert write(tmp_path / "parts", 0, 1, 2).rows == 12
  files = sorted(path.name for path in (tmp_path / "whole").iterdir())
  for name in files:
    assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
  assert files == ["logits.json", *(f"steps-{i:08d}-{i + 1:08d}.safetensors" for i in range(3))]


def test_bfloat16_halves_the_values(tmp_path):
  write(tmp_path / "a", 0, dtype="BF16")
  features, outputs = rows(0)
  found = reader(tmp_path / "a").read(features)["teacher/tokens/values"]
  np.testing.assert_allclose(found, expected(outputs)["teacher/tokens/values"], rtol=2**-8)
  whole = logit_files.nbytes_of((TOKENS,), {"tokens": 10.0}, dtype="F32")
  assert whole - logit_files.nbytes_of((TOKENS,), {"tokens": 10.0}, dtype="BF16") == 10 * 3 * 2


def test_a_row_without_logits_is_named(tmp_path):
  """Every feature counts: a row with other weights is another row."""
  write(tmp_path / "a", 0)
  features, _ = rows(0)
  features["encoder_loss_weights"][2, 3] += 1.0
  first = ", ".join(map(str, features["encoder_input_tokens"][2]))
  with pytest.raises(UserError, match=rf"{tmp_path}/a: no logits of row 10 of the batch \(tokens {first}, \.\.\.\)"):
    reader(tmp_path / "a").read(features, first_row=8)


def test_a_damaged_folder_is_refused(tmp_path):
  """A file cut in the middle, and a missing first or last file."""
  for name in ("cut", "first", "last"):
    write(tmp_path / name, 0, 1)
  paths = {name: sorted((tmp_path / name).glob("*.safetensors")) for name in ("cut", "first", "last")}
  content = paths["cut"][0].read_bytes()
  paths["cut"][0].write_bytes(content[: len(content) // 2])
  with pytest.raises(UserError, match=rf"{paths['cut'][0]} is truncated"):
    reader(tmp_path / "cut")
  paths["first"][0].unlink()
  with pytest.raises(UserError, match=rf"{paths['first'][0]} is missing"):
    reader(tmp_path / "first")
  paths["last"][1].unlink()
  for open_folder in (reader, writer):
    with pytest.raises(UserError, match=rf"{paths['last'][1]} is missing"):
      open_folder(tmp_path / "last")


def test_a_folder_has_logits_of_one_kind(tmp_path):
  write(tmp_path / "a", 0)
  with pytest.raises(UserError, match=r"other settings \(about\.seed differs\)"):
    writer(tmp_path / "a", about={"seed": 1})
  with pytest.raises(UserError, match=r"\(manifest\.teacher differs\)"):
    writer(tmp_path / "a", dataclasses.replace(MANIFEST, teacher="other"))
  (tmp_path / "b").mkdir()
  (tmp_path / "b" / "x").touch()
  with pytest.raises(UserError, match=r"has files, but no logits\.json"):
    writer(tmp_path / "b")


def run(*folders):
  config = default.get_config()
  with config.unlocked():
    config.distillation = {"logits": tuple(map(str, folders))}
  config.model.vocab_size = 384
  return records(config)


def test_a_run_takes_the_settings_of_its_files(tmp_path):
  """Folders must be whole and agree with each other, and with what the run has learned."""
  write(tmp_path / "a", 0)
  resolved = logit_files.resolved(run(tmp_path / "a"), {})
  assert (resolved.distillation.written, resolved.data.num_streams) == (MANIFEST.to_json(), 4)
  assert logit_files.resolved(run(tmp_path / "a"), {"written": MANIFEST.to_json()}) == resolved
  with pytest.raises(UserError, match=r"there is no logits\.json"):
    logit_files.resolved(run(tmp_path), {})
  writer(tmp_path / "begun")
  with pytest.raises(UserError, match="begun is incomplete"):
    logit_files.resolved(run(tmp_path / "begun"), {})
  other = dataclasses.replace(MANIFEST, temperature=3.0)
  write(tmp_path / "other", 0, manifest=other)
  with pytest.raises(UserError, match="differ in temperature"):
    logit_files.resolved(run(tmp_path / "a", tmp_path / "other"), {})
  with pytest.raises(UserError, match="has learned logits that differ in temperature"):
    logit_files.resolved(run(tmp_path / "a"), {"written": other.to_json()})
  with pytest.raises(UserError, match="the run has the teacher runs/x"):
    logit_files.resolved(run(tmp_path / "a"), {"teacher": ("runs/x",)})
  assert json.loads((tmp_path / "a" / "logits.json").read_text())["complete"]


def test_altered_bytes_and_files_of_another_teacher_are_refused(tmp_path):
  """Another teacher on opening, an altered array when it is read."""
  write(tmp_path / "a", 0, 1)
  write(tmp_path / "other", 0, 1, manifest=dataclasses.replace(MANIFEST, teacher="other"))
  path = sorted((tmp_path / "a").glob("*.safetensors"))[1]
  whole = path.read_bytes()
  entry = safetensors.read_header(epath.Path(path))["tokens/values"]
  path.write_bytes(whole[: entry.begin] + bytes([whole[entry.begin] ^ 1]) + whole[entry.begin + 1 :])
  read = reader(tmp_path / "a")
  check(read.read(rows(0)[0]), rows(0)[1])
  with pytest.raises(UserError, match=rf"{path} is damaged: the checksum of tokens/values"):
    read.read(rows(1)[0])
  path.write_bytes((tmp_path / "other" / path.name).read_bytes())
  with pytest.raises(UserError, match=rf"{path} has the logits of another teacher \(digest other\)"):
    reader(tmp_path / "a")


def test_a_writer_that_goes_on_leaves_the_complete_steps_readable(tmp_path):
  """Before its first file, after it, and after a kill that left files beside those of the settings."""
  write(tmp_path / "a", 0)
  to = writer(tmp_path / "a")
  assert (to.step, to.rows) == (1, 4)
  check(reader(tmp_path / "a").read(rows(0)[0]), rows(0)[1])
  add(to, *rows(1))
  to.flush(2)
  left = tmp_path / "a" / "steps-00000002-00000009.safetensors"
  left.write_bytes(b"of a writer that was killed before it named the file")
  logit_files.resolved(run(tmp_path / "a"), {})
  assert len(reader(tmp_path / "a")) == 8
  assert writer(tmp_path / "a").step == 2 and not left.exists()


def test_a_folder_begins_after_a_kill_before_its_settings(tmp_path):
  """A lock and half of the settings are no other files."""
  for name in (".lock", "logits.json.part"):
    (tmp_path / name).touch()
  write(tmp_path, 0)
  assert len(reader(tmp_path)) == 4


def test_a_run_longer_than_its_files_is_refused_before_it_trains(tmp_path):
  """Unless rows repeat; smaller batches have the same rows in more steps."""
  about = {"0": {"train": {"batch_size": 8}}}
  write(tmp_path / "a", 0, 1, about=about)
  of = lambda steps, size=8: stages.of(run(tmp_path / "a").with_(train={"steps": steps, "batch_size": size}))
  logit_files.check_steps(of(2))
  logit_files.check_steps(of(4, size=4))
  with pytest.raises(UserError, match=r"steps=3: .* has logits of 2 steps\. .*train\.steps=3, .*train\.steps=2"):
    logit_files.check_steps(of(3))
  writer(tmp_path / "a", about=about).finish(2, repeats=True)
  logit_files.check_steps(of(1000))


def test_few_files_are_in_memory(tmp_path):
  """A reader keeps the arrays of `_CACHED_FILES` files, because those of a bucket are downloaded whole."""
  write(tmp_path / "a", *range(logit_files._CACHED_FILES + 3))
  read = reader(tmp_path / "a")
  for seed in range(logit_files._CACHED_FILES + 3):
    check(read.read(rows(seed)[0]), rows(seed)[1])
  in_memory = [bool(file._arrays) for file in read._files]
  assert in_memory == [False] * 3 + [True] * logit_files._CACHED_FILES


def test_a_writer_is_asked_for_the_number_of_streams_of_its_folder(tmp_path):
  assert logit_files.saved_streams(epath.Path(tmp_path)) is None
  write(tmp_path, 0)
  assert logit_files.saved_streams(epath.Path(tmp_path)) == 4
  with pytest.raises(UserError, match=r"\(manifest\.dtype differs\)"):
    writer(tmp_path, dataclasses.replace(MANIFEST, dtype="float32"))
