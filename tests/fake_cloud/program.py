"""Stand-in for gcloud, kubectl, sbatch and others: records its command line, and answers by a test's rules.

Answers are in rules.json: the first rule with a pattern in the command line gives its next answer, or its last again.
`live`: a command for workers runs on this machine, with a home folder for each worker.
"""

import json
import os
import re
import shutil
import subprocess
import sys

FOLDER = os.environ["FAKE_CLOUD"]


def answer(words):
  """Returns exit code, output and errors of the rules for this command line."""
  line = " ".join(words)
  with open(os.path.join(FOLDER, "rules.json")) as file:
    rules = json.load(file)
  for number, (pattern, answers) in enumerate(rules):
    if re.search(pattern, line, re.DOTALL):
      count = os.path.join(FOLDER, f"count_{number}")
      with open(count, "a+") as file:
        file.write(".")
        file.seek(0)
        turn = len(file.read())
      return answers[min(turn, len(answers)) - 1]
  return [0, "", ""]


def on_workers(words):
  """Runs scripts for workers, or copies files to them; returns the highest exit code."""
  asked = next(word.partition("=")[2] for word in words if word.startswith("--worker="))
  node = next(word.split(":")[0] for word in words[5:] if not word.startswith("-") and (":" in word or "ssh" in words))
  homes = sorted(name for name in os.listdir(os.path.join(FOLDER, "homes")) if name.startswith(f"{node}-w-"))
  code = 0
  for home in homes:
    if asked not in ("all", home.rpartition("-")[2]):
      continue
    folder = os.path.join(FOLDER, "homes", home)
    if "scp" in words:
      sources = [word for word in words[5:] if not word.startswith("-") and ":" not in word]
      for source in sources:
        shutil.copy(source, os.path.join(folder, "t2t", os.path.basename(source)))
      continue
    command = next(word for word in words if word.startswith("--command=")).partition("=")[2]
    path = f"{os.path.join(FOLDER, 'worker_bin')}:/usr/local/bin:/usr/bin:/bin"
    done = subprocess.run(["bash", "-c", command], env={"HOME": folder, "PATH": path, "WORKER": home}, cwd=folder)
    code = max(code, done.returncode)
  return code


def main():
  words = [os.path.basename(sys.argv[0]), *sys.argv[1:]]
  given = sys.stdin.read() if "-" in words or "--filename=-" in words else None
  with open(os.path.join(FOLDER, "calls.jsonl"), "a") as file:
    file.write(json.dumps([words, given]) + "\n")
  if os.path.isdir(os.path.join(FOLDER, "homes")) and "tpu-vm" in words and words[4] in ("ssh", "scp"):
    return on_workers(words)
  code, out, err = answer(words)
  sys.stdout.write(out)
  sys.stderr.write(err)
  return code


sys.exit(main())
