"""`t2t infer --logits` and a student of its files: the same run as with the teacher in memory."""

import json

from etils import epath
import foreign
import numpy as np
import pytest
import test_compression_commands
import test_hosts
import trained

from t2t import __main__ as command
from t2t.checkpoints import logit_files, tensor_writer, workdir_lock
from t2t.configuration.loading import load_config, override, records
from t2t.inference import teacher_logits
from t2t.losses.distillation import DistillationConfig
from t2t.losses.logits_student import LogitsManifest

# Of eight devices; fsdp by default.
_FLOAT32 = "--config.distillation.dtype=float32"
_PARTS = ("--config.train.microbatches=2", "--config.mesh.tensor=2", _FLOAT32)
MESHES = {
  "fsdp": (_FLOAT32,),
  "data_tensor": ("--config.mesh.data=4", "--config.mesh.fsdp=1", *_PARTS),
  "data_fsdp_tensor": ("--config.mesh.data=2", "--config.mesh.fsdp=2", *_PARTS),
}


def of_run(workdir, *options, architecture="encoder_only"):
  """Returns the options of a run that config and data determine, without the command and its workdir."""
  arguments = trained.arguments(architecture, workdir)
  return [*arguments[1 : arguments.index("--workdir")], "--config.train.log_every=1", *options]


def infer(folder, run, *, logits="all", teacher=None):
  teacher = teacher or trained.workdir("encoder_only")
  return command.main(["infer", "--logits", logits, "--checkpoint", str(teacher), "--output", str(folder), *run])


def train(workdir, run, *options):
  assert command.main(["train", *run, "--workdir", str(workdir), *options]) == 0
  return metrics_of(workdir)


def metrics_of(workdir):
  rows = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
  return [{name: x for name, x in row.items() if name.endswith(NAMES)} for row in rows if "train/loss" in row]


NAMES = ("step", "/loss", "soft_targets", "agreement", "/grad_norm", "/param_norm")


@pytest.mark.exhaustive
def test_a_student_learns_the_files_of_a_writer_that_resumed(tmp_path, monkeypatch, capsys):
  """The writer stops after the first step; its folder is refused until it is complete. A longer run lacks rows."""
  trained.workdir("encoder_only")
  run = of_run(
    tmp_path / "student", "--config.distillation.tail=bucket", "--config.mesh.data=8", "--config.mesh.fsdp=1"
  )
  stopped = RuntimeError("stopped")

  def stop(self, step, flush=logit_files.LogitsWriter.flush):
    flush(self, step)
    raise stopped

  with monkeypatch.context() as patched:
    patched.setattr(logit_files.LogitsWriter, "is_due", True)
    patched.setattr(logit_files.LogitsWriter, "flush", stop)
    with pytest.raises(RuntimeError, match="stopped"):
      infer(tmp_path / "logits", run, logits="8")
  logits = f"--config.distillation.logits={tmp_path / 'logits'}"
  assert command.main(["train", *run, logits, "--workdir", str(tmp_path / "student")]) == 2
  assert "is incomplete" in capsys.readouterr().err
  assert infer(tmp_path / "logits", run, logits="8") == 0
  told = capsys.readouterr()
  assert "resuming after step 1 of 2" in told.out + told.err and "8 of 384 logits" in told.out + told.err
  rows = train(tmp_path / "student", run, logits)
  assert len(rows) == 2 and all(np.isfinite(list(row.values())).all() and row["train/soft_targets"] > 0 for row in rows)
  capsys.readouterr()
  more = ["--config.train.steps=3", logits, "--workdir", str(tmp_path / "student")]
  assert command.main(["train", *run, *more]) == 2
  assert "has logits of 2 steps" in capsys.readouterr().err


@pytest.mark.exhaustive
@pytest.mark.parametrize("architecture", ["encoder_only", "encoder_decoder", "decoder_only"])
@pytest.mark.parametrize("mesh", MESHES)
def test_a_student_of_files_equals_that_of_the_teacher_to_the_bit(tmp_path, architecture, mesh):
  """With and without microbatches; also a resumed run."""
  teacher = trained.workdir(architecture)
  often = "--config.checkpoint.save_interval_steps=1"
  run = of_run(tmp_path / "run", *MESHES[mesh], often, architecture=architecture)
  assert infer(tmp_path / "logits", run, teacher=teacher) == 0
  check_bits(tmp_path, run, teacher)
  logits = f"--config.distillation.logits={tmp_path / 'logits'}"
  train(tmp_path / "resumed", run, logits, "--config.train.steps=1")
  assert train(tmp_path / "resumed", run, logits)[-1] == metrics_of(tmp_path / "offline")[-1]


@pytest.mark.exhaustive
def test_a_head_learns_files_as_from_its_teacher_to_the_bit(tmp_path):
  """Classes of a table, of a task that both have."""
  table = (f"--config.data.files={test_compression_commands.table(tmp_path)}", "--config.data.labels=auto")
  run = [x for x in of_run(tmp_path / "run") if "data.files" not in x and "data.objective" not in x] + [*table]
  assert command.main(["train", *run, "--config.model.init_scale=0.3", "--workdir", str(tmp_path / "teacher")]) == 0
  run += MESHES["data_tensor"]
  assert infer(tmp_path / "logits", run, teacher=tmp_path / "teacher") == 0
  check_bits(tmp_path, run, tmp_path / "teacher")


def check_bits(folder, run, teacher):
  """Compares the metrics of training of a student of folder/logits with those with the teacher in memory."""
  offline = train(folder / "offline", run, f"--config.distillation.logits={folder / 'logits'}")
  assert offline == train(folder / "online", run, f"--config.distillation.teacher={teacher}")
  assert len(offline) == 2 and all(any("soft_targets" in name and x > 0 for name, x in row.items()) for row in offline)


@pytest.mark.exhaustive
def test_logits_of_two_processes_equal_those_of_one(tmp_path):
  """Files and students, on meshes whose axes cross processes; also a student on two of the files of one."""
  meshes = {"encoder_only": test_hosts.TWO["data"], "encoder_decoder": test_hosts.TWO["tensor"]}
  common = ("--config.data.num_streams=2", "--config.distillation.tail=bucket", "--config.model.init_scale=0.3")
  streams = {name: of_run(tmp_path / "run", *mesh, *common, architecture=name) for name, mesh in meshes.items()}
  for number, names in ((1, {"one": "one"}), (2, {"two": "two", "crossed": "one"})):
    runs = []
    for architecture, run in streams.items():
      folder = lambda name, architecture=architecture: str(tmp_path / f"{architecture}_{name}")
      teacher = ["--checkpoint", str(trained.workdir(architecture)), "--output", folder(next(iter(names)))]
      runs.append(["infer", "--logits", "8", *teacher, *run])
      for name, written in names.items():
        logits = f"--config.distillation.logits={folder(written)}"
        runs.append(["train", *run, logits, "--workdir", folder(f"{name}_student")])
    codes, logs = test_hosts.Processes(number, 4 // number, runs, cache=tmp_path).wait()
    assert codes == [0] * number, "\n".join(logs)
  for architecture in meshes:
    one, two = (files_of(tmp_path / f"{architecture}_{name}") for name in ("one", "two"))
    assert one.keys() == two.keys() and len(one["digests"]) == 16
    for name, x in one.items():
      check = np.testing.assert_allclose if x.dtype == np.float32 else np.testing.assert_array_equal
      check(two[name], x, err_msg=name, **({"rtol": 1e-3, "atol": 1e-5} if x.dtype == np.float32 else {}))
    expected = metrics_of(tmp_path / f"{architecture}_one_student")
    assert len(expected) == 2 and expected[0]["train/soft_targets"] > 0
    for name in ("two", "crossed"):
      for row, wanted in zip(metrics_of(tmp_path / f"{architecture}_{name}_student"), expected, strict=True):
        assert row == pytest.approx(wanted, rel=1e-4)


def files_of(folder):
  """Returns the arrays of the only file of a folder."""
  (file,) = logit_files._opened(str(folder))
  return {name: np.asarray(file(name)) for name in file._entries}


def test_the_command_writes_files_that_are_read(tmp_path, monkeypatch, capsys):
  """The teacher has not been trained, and the output is a path from the home folder."""
  monkeypatch.setenv("HOME", str(tmp_path))
  lines = (json.dumps({"text": f"a quick brown fox {number} " * 4}) for number in range(40))
  (tmp_path / "text.jsonl").write_text("\n".join(lines))
  run = ["--config=tiny_gpt", "--config.data.objective=causal_lm", trained.ONE_DECODER, *trained.SMALL]
  run += [f"--config.data.files={tmp_path}/text.jsonl", "--config.model.max_length=80"]
  config = records(override(load_config("tiny_gpt"), [x for x in run[1:] if ".model." in x])).model
  tensor_writer.save(foreign.in_memory(config, foreign.random_params(config)), epath.Path(tmp_path / "teacher"))
  options = ["infer", "--logits", "4", *run, "--output=~/logits", "--checkpoint"]
  assert command.main([*options, f"{tmp_path}/teacher,{tmp_path}/other"]) == 2
  assert "logits are of one teacher" in capsys.readouterr().err
  with workdir_lock.held(epath.Path(tmp_path / "logits")):
    assert command.main([*options, str(tmp_path / "teacher")]) == 2
  assert f"--output {tmp_path}/logits: another run" in capsys.readouterr().err
  assert command.main([*options, str(tmp_path / "teacher")]) == 0
  settings = json.loads((tmp_path / "logits" / "logits.json").read_text())
  assert (settings["complete"], settings["steps"]) == (True, 2)
  manifest = LogitsManifest.from_json(json.dumps(settings["manifest"]))
  reader = logit_files.LogitsReader(DistillationConfig(logits=(str(tmp_path / "logits"),), written=manifest.to_json()))
  assert len(reader) == settings["rows"] > 0 and manifest.dtype == "bfloat16"


def test_wrong_options_are_refused(tmp_path, capsys):
  run = of_run(tmp_path / "run", "--config.data.files=none.txt")
  fixed = ["infer", "--logits", "4", *run]
  for options, message in (
    ([], "--checkpoint is missing"),
    (["--checkpoint", "x"], "--output is missing"),
    (["--checkpoint", "x", "--output", "y", "--config.distillation.teacher=z"], "exclude each other"),
    (["--checkpoint", str(tmp_path / "no"), "--output", str(tmp_path / "y")], "no"),
  ):
    assert command.main([*fixed, *options]) == 2
    assert message in capsys.readouterr().err
  both = ["--config.distillation.teacher=x", "--config.distillation.logits=y", "--workdir", str(tmp_path / "z")]
  assert command.main(["train", *run, *both]) == 2
  assert "Leave out one of the two keys" in capsys.readouterr().err
  assert set(teacher_logits.DTYPES) == {"float32", "bfloat16"}
