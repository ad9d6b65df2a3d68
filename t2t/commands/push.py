"""`t2t push`: exports a checkpoint to a Hugging Face folder with a model card, and uploads the folder to the hub."""

import argparse
from collections.abc import Mapping
import contextlib
import json
import os
import pathlib
import shutil
import tempfile

from etils import epath

from t2t import UserError, convert
from t2t.checkpoints import restore
from t2t.commands import convert as convert_command
from t2t.reports import hub_licenses, model_card
from t2t.reports import run as runs
from t2t.storage import gcs, hub_files

_DESCRIPTION = """\
Exports a checkpoint as `t2t convert --to hf` does, writes a model card from the
run (data, steps, results, command), and uploads the folder to the Hugging Face
hub as one commit or a few.  The token comes from HF_TOKEN or `hf auth login`.

A README.md on the hub that t2t has not written is kept."""
_EXAMPLES = """\
examples:
  t2t push runs/tiny hf://ORG/tiny --license apache-2.0 --dry_run
  t2t push runs/tiny/checkpoints/500 hf://ORG/tiny --license mit --private
  t2t push gs://BUCKET/base hf://ORG/base@candidate --license apache-2.0 \\
    --dtype bfloat16"""
_CARD, _CONFIG, _PICTURE = "README.md", "config.json", "loss.png"
# Files of an earlier upload that a new one may no longer have.
_REPLACED = ["*.safetensors", "*.safetensors.index.json"]


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog="t2t push",
    usage="t2t push CHECKPOINT hf://ORG/NAME --license LICENSE [options]",
    description=_DESCRIPTION,
    epilog=_EXAMPLES,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  add = parser.add_argument
  add("checkpoint", metavar="CHECKPOINT", help="a workdir that t2t trained in, or one of its checkpoints")
  add("target", metavar="hf://ORG/NAME", help="repository to create or update; @BRANCH: another branch than main")
  add("--license", default="", help="required: identifier of the hub, such as apache-2.0, mit, cc-by-4.0 or other")
  add("--license_name", default="", metavar="NAME", help="name of the license, with --license other")
  add(
    "--license_link",
    default="",
    metavar="URL|FILE",
    help="text of the license, with --license other; a file is uploaded as LICENSE",
  )
  add("--dry_run", action="store_true", help="write the folder, and upload nothing")
  add(
    "--output", default="", metavar="DIR", help="folder to create; default: NAME with --dry_run, else a temporary one"
  )
  add("--private", action="store_true", help="create a private repository")
  add("--message", default="", metavar="TEXT", help="commit message; default: the step of the run")
  add("--dtype", default="", metavar="DTYPE", help="float32, bfloat16 or float16; default: float32")
  add("--head", default="", metavar="NAME", help="head to export, or vocabulary; default: the only head")
  add("--max_shard_size", default="", metavar="SIZE", help="largest file size, for example 500MB")
  add("--debug", action="store_true", help="show the traceback of an error")
  return parser


def main(argv: list[str]) -> None:
  """Runs `t2t push`.

  Raises:
    UserError: an option is wrong, the checkpoint cannot be exported, or the hub refuses the upload.
    Away: the hub does not answer.
  """
  options = _parser().parse_intermixed_args(argv)
  target = _target(options.target)
  license = hub_licenses.front_matter(options.license, name=options.license_name, link=options.license_link)
  if not options.dry_run:
    user = hub_files.request(lambda: hub_files.api().whoami(), target, where="")
    print(f"uploading to {target.url} as {user['name']}")
  with contextlib.ExitStack() as stack:
    default = target.repository.rpartition("/")[2]
    if not options.output and not options.dry_run:
      default = os.path.join(stack.enter_context(tempfile.TemporaryDirectory()), default)
    out = pathlib.Path(options.output or default)
    if gcs.is_remote(options.output):
      raise UserError(f"--output {options.output} is not a local folder. Give a local folder, or leave out --output.")
    step = _export(options, target, out, license)
    if options.dry_run:
      print(f"written        {out}, which is not uploaded because of --dry_run")
      return
    message = options.message or f"Upload {f'step {step:,}' if step else 'a model'} by t2t push"
    _upload(out, target, private=options.private, message=message)


def _target(path: str) -> hub_files.HubPath:
  if not path.startswith("hf://"):
    raise UserError(f"{path} is not a path of the Hugging Face hub. Give hf://ORG/NAME or hf://ORG/NAME@BRANCH.")
  target = hub_files.parse(path)
  if target.kind != "model" or target.name:
    raise UserError(f"{path} is not a repository of a model. Give hf://ORG/NAME or hf://ORG/NAME@BRANCH.")
  return target


def _export(
  options: argparse.Namespace, target: hub_files.HubPath, out: pathlib.Path, license: Mapping[str, str]
) -> int:
  """Writes the folder with its card; returns the step of the checkpoint, 0 if it is no step of a run."""
  names = ("dtype", "head", "max_shard_size")
  passed = [argument for name in names if (value := getattr(options, name)) for argument in (f"--{name}", value)]
  convert_command.main([options.checkpoint, "--to", "hf", str(out), *passed, *(["--debug"] if options.debug else [])])
  run, step = _run(options.checkpoint)
  if run is not None and (run.path / _PICTURE).exists():
    (out / _PICTURE).write_bytes(gcs.read(run.path / _PICTURE))
  card = model_card.text(
    target.repository,
    license,
    config=json.loads((out / _CONFIG).read_text()),
    run=run,
    step=step,
    picture=_PICTURE if (out / _PICTURE).exists() else "",
  )
  (out / _CARD).write_text(card)
  if license.get("license_link") == hub_licenses.FILE:
    shutil.copyfile(options.license_link, out / hub_licenses.FILE)
  return step


def _run(checkpoint: str) -> tuple[runs.RecordedRun | None, int]:
  """Returns the run of WORKDIR or WORKDIR/checkpoints/STEP, and the step that is exported; (None, 0) without a run."""
  if convert.kind_of(checkpoint) != "t2t":
    return None, 0
  folder = restore.checkpoint_folder(checkpoint, where="")
  with contextlib.suppress(UserError):
    return runs.read(str(folder.parent.parent)), int(folder.name)
  return None, 0


def _upload(out: pathlib.Path, target: hub_files.HubPath, *, private: bool, message: str) -> None:
  api, branch = hub_files.api(), target.revision or "main"

  def upload() -> object:
    api.create_repo(target.repository, private=private, exist_ok=True)
    if target.revision:
      api.create_branch(target.repository, branch=branch, exist_ok=True)
    ignored = [_CARD] if _has_own_card(api, target.repository, branch) else []
    return api.upload_folder(
      repo_id=target.repository,
      folder_path=out,
      revision=branch,
      commit_message=message,
      delete_patterns=_REPLACED,
      ignore_patterns=ignored,
    )

  commit = hub_files.request(upload, target, where="")
  print(f"uploaded       {commit.commit_url}")
  print(f"next:\n  t2t infer --checkpoint hf://{target.repository}@{commit.oid} --input FILE --output FILE")


def _has_own_card(api, repository: str, branch: str) -> bool:
  """Returns whether the hub has a README.md of the user, which an upload keeps; says so."""
  if not api.file_exists(repository, _CARD, revision=branch):
    return False
  with tempfile.TemporaryDirectory() as folder:
    path = api.hf_hub_download(repository, _CARD, revision=branch, cache_dir=folder)
    is_own = model_card.MARK not in epath.Path(path).read_text()
  if is_own:
    print(f"note: {_CARD} of {repository} is kept, because t2t has not written it")
  return is_own
