"""`t2t doctor` and `t2t --version`: problems are reported with a remedy, and secrets are not printed."""

import json
import re

import pytest

from t2t import __main__ as command
from t2t.runtime import data_packages, environment, versions


def states(findings):
  return {each.name: each.state for each in findings}


@pytest.mark.exhaustive
def test_the_command(capsys, monkeypatch):
  """The report has 80 columns; --json prints the same findings."""
  monkeypatch.setattr(environment, "_LEAST_MEMORY", 0.0)
  monkeypatch.setattr(environment, "_LEAST_DISK", 0.0)
  assert command.main(["doctor"]) == 0
  said = capsys.readouterr().out
  assert max(map(len, said.splitlines())) <= 80
  assert re.search(r"^ok cpu +\d+ x cpu", said, re.MULTILINE) and said.endswith("no problem found\n")
  assert command.main(["doctor", "--json"]) == 0
  found = json.loads(capsys.readouterr().out)
  assert {each["name"] for each in found} > {"t2t", "packages", "cpu", "memory", "cache", "Google Cloud", "git"}
  assert all(each["remedy"] for each in found if each["state"] != environment.FINE)


def test_what_is_amiss_is_exit_code_1(capsys, monkeypatch):
  monkeypatch.setattr(environment, "_DEVICES", "raise SystemExit('libcudart.so: no such file')")
  monkeypatch.setattr(environment, "_LEAST_DISK", 1e30)
  assert command.main(["doctor"]) == 1
  said = capsys.readouterr().out
  assert "JAX cannot start: libcudart.so: no such file" in " ".join(said.split())
  assert "ok: works   -: absent, fine unless you need it   !: needs a fix" in said.splitlines()
  assert "to fix: devices, " in said and "disk, here" in said.splitlines()[-1]


def test_a_device_that_is_held_is_not_waited_for(monkeypatch):
  monkeypatch.setattr(environment, "_DEVICES", "import time; time.sleep(60)")
  monkeypatch.setattr(environment, "_SECONDS", 0.1)
  (found,) = environment._devices()
  assert found.state == environment.WRONG and "another process holds them" in found.remedy


def test_an_accelerator_that_jax_does_not_use_is_named(tmp_path, monkeypatch):
  """The driver exists, and JAX ignores it because of a variable or a missing package."""
  monkeypatch.delenv("JAX_PLATFORMS", raising=False)
  assert not list(environment._left_aside({"cpu"}, root=tmp_path))
  (tmp_path / "nvidia0").touch()
  (found,) = environment._left_aside({"cpu"}, root=tmp_path)
  assert found.name == "gpu" and "[gpu]" in found.remedy
  assert not list(environment._left_aside({"gpu"}, root=tmp_path))
  monkeypatch.setenv("JAX_PLATFORMS", "cpu")
  (found,) = environment._left_aside({"cpu"}, root=tmp_path)
  assert found.remedy == "unset JAX_PLATFORMS=cpu"


def test_no_credential_is_told(tmp_path, monkeypatch):
  """Only the existence of credentials in variables and files is printed."""
  monkeypatch.setenv("HOME", str(tmp_path))
  for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HOME", "GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_CONFIG"):
    monkeypatch.delenv(name, raising=False)
  assert set(states(environment._credentials()).values()) == {environment.MISSING}
  monkeypatch.setenv("HF_TOKEN", "hf_secret")
  key = tmp_path / ".config/gcloud/application_default_credentials.json"
  key.parent.mkdir(parents=True)
  key.write_text('{"private_key": "secret"}')
  found = list(environment._credentials())
  assert set(states(found).values()) == {environment.FINE} and "secret" not in str(found)
  monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
  assert states(environment._credentials())["Google Cloud"] == environment.WRONG


@pytest.mark.parametrize(("version", "said"), [("0.9.0", "0.9.0; t2t needs jax<0.13,>=0.10.2"), ("", "not installed")])
def test_a_package_of_another_version_is_named(version, said, monkeypatch):
  real = versions.of
  monkeypatch.setattr(versions, "of", lambda name: version if name == "jax" else real(name))
  wrong = [each for each in environment._packages() if each.state == environment.WRONG]
  assert [each.name for each in wrong] == ["jax"] and wrong[0].found.startswith(said)
  assert wrong[0].remedy == "pip install 'jax<0.13,>=0.10.2'"


@pytest.mark.parametrize(("is_checkout", "what"), [(True, "-e '.[data]'"), (False, "'t2t-jax[data]'")])
def test_the_command_that_installs_an_extra_fits_the_installation(is_checkout, what, monkeypatch):
  """Findings and errors have the same one: from a checkout, or from the package index."""
  monkeypatch.setattr(versions, "is_checkout", lambda: is_checkout)
  monkeypatch.setattr(environment, "_is_there", lambda module: False)
  assert environment._extra("data").remedy == f"pip install {what}"
  with (
    pytest.raises(data_packages.MissingPackage, match=re.escape(f"Run `pip install {what}`")),
    data_packages.says_what_is_missing(),
  ):
    raise ModuleNotFoundError(name="seqio")


def test_the_version(capsys):
  """The version line contains t2t, the commit if known, and the main dependencies."""
  assert command.main(["--version"]) == 0
  said = capsys.readouterr().out
  assert re.fullmatch(r"t2t \d+\.\d+\.\d+(, commit [0-9a-f]+\+?)?, Python 3[.\d]+, jax [.\d]+\n", said)
