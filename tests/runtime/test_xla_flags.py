"""XLA flags: the user's have precedence, and flags that the compiler does not know are not set."""

import os

import pytest

from t2t import UserError
from t2t.commands import eval as eval_command
from t2t.commands import superglue, train
from t2t.runtime import xla_flags


@pytest.fixture
def compiler(tmp_path, monkeypatch):
  """A compiler that knows all flags except the last of each platform."""
  path = tmp_path / "library.so"
  names = [flag.name for flags in xla_flags.FLAGS.values() for flag in flags[:-1]]
  path.write_bytes(b"\0\1" + b"\0".join(name.encode() for name in names))
  monkeypatch.setattr(xla_flags, "_compiler", lambda platform: path if platform == "gpu" else None)
  monkeypatch.delenv("LIBTPU_INIT_ARGS", raising=False)
  return path


def test_known_flags_are_set(compiler, monkeypatch):
  """Flags of the installed platform, without the one that its compiler does not know."""
  monkeypatch.setenv("XLA_FLAGS", "")
  applied = xla_flags.apply()
  assert applied == list(xla_flags.FLAGS["gpu"][:-1])
  assert os.environ["XLA_FLAGS"].split() == [str(flag) for flag in applied]
  assert "LIBTPU_INIT_ARGS" not in os.environ


def test_what_the_user_has_set_stays(compiler, monkeypatch):
  """With any value, and only once."""
  first = xla_flags.FLAGS["gpu"][0].name
  monkeypatch.setenv("XLA_FLAGS", f"--{first}=false --xla_dump_to=/tmp/x")
  assert first not in [flag.name for flag in xla_flags.apply()]
  flags = os.environ["XLA_FLAGS"].split()
  assert flags[-2:] == [f"--{first}=false", "--xla_dump_to=/tmp/x"]
  assert sum(first in flag for flag in flags) == 1
  assert xla_flags.apply() == []


def test_without_an_accelerator_nothing_is_set(monkeypatch):
  """Without the libraries of an accelerator."""
  monkeypatch.setattr(xla_flags, "_compiler", lambda platform: None)
  monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/tmp/x")
  assert xla_flags.apply() == []
  assert os.environ["XLA_FLAGS"] == "--xla_dump_to=/tmp/x"


@pytest.mark.parametrize("main", [eval_command.main, superglue.main, train.main])
@pytest.mark.parametrize("wanted", [True, False])
def test_commands_set_them(compiler, monkeypatch, tmp_path, main, wanted):
  """Before they read the checkpoint, which starts JAX, and unless the config disables them."""
  monkeypatch.setenv("XLA_FLAGS", "")
  arguments = ["--workdir", str(tmp_path / "work"), f"--config.train.xla_flags={wanted}"]
  checkpoint = ["--checkpoint", "nowhere"]
  if main is train.main:
    checkpoint = ["--config", "tiny", "--config.init.checkpoint=nowhere", "--config.init.use_model_config=True"]
  with pytest.raises(UserError, match="nowhere"):
    main([*arguments, *checkpoint])
  assert bool(os.environ["XLA_FLAGS"]) is wanted


def test_the_table_has_each_flag_once():
  """With a reason, and without characters that a shell or the compiler would interpret."""
  for flags in xla_flags.FLAGS.values():
    names = [flag.name for flag in flags]
    assert len(set(names)) == len(names)
    assert all(flag.name.startswith("xla_") and flag.why and " " not in str(flag) for flag in flags)


def test_deterministic_is_a_flag_where_there_is_a_gpu(compiler, monkeypatch):
  """Added once to the user's flags; a compiler without it is an error."""
  monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/tmp/x")
  with pytest.raises(UserError, match="does not know the XLA flag xla_gpu_deterministic_ops"):
    xla_flags.make_deterministic()
  compiler.write_bytes(b"\0xla_gpu_deterministic_ops\0")
  assert xla_flags.make_deterministic() == [xla_flags.DETERMINISTIC]
  assert os.environ["XLA_FLAGS"] == "--xla_gpu_deterministic_ops=true --xla_dump_to=/tmp/x"
  assert xla_flags.make_deterministic() == []
  monkeypatch.setattr(xla_flags, "_compiler", lambda platform: None)
  monkeypatch.setenv("XLA_FLAGS", "")
  assert xla_flags.make_deterministic() == [] and not os.environ["XLA_FLAGS"]


def test_the_opposite_of_deterministic_is_refused(monkeypatch):
  """On any machine; the same value is accepted."""
  monkeypatch.setattr(xla_flags, "_compiler", lambda platform: None)
  for same in ("--xla_gpu_deterministic_ops", "--xla_gpu_deterministic_ops=true --xla_dump_to=/tmp/x"):
    monkeypatch.setenv("XLA_FLAGS", same)
    assert xla_flags.make_deterministic() == []
  monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/tmp/x --xla_gpu_deterministic_ops=false")
  with pytest.raises(UserError, match="but XLA_FLAGS has --xla_gpu_deterministic_ops=false. Remove the flag"):
    xla_flags.make_deterministic()


@pytest.mark.parametrize("main", [eval_command.main, superglue.main, train.main])
def test_commands_heed_the_switch(main, monkeypatch, tmp_path):
  """They reject a contradicting XLA_FLAGS before any other check."""
  monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_deterministic_ops=0")
  arguments = ["--workdir", str(tmp_path), "--config.train.deterministic=True"]
  arguments += ["--config=tiny"] if main is train.main else ["--checkpoint=nowhere"]
  with pytest.raises(UserError, match="config.train.deterministic=True, but XLA_FLAGS has"):
    main(arguments)
