"""Speed run: counts masked bytes, and times whole runs."""

import json
import pathlib
import sys

import folders
import numpy as np
import pytest
from scipy import stats
import sentencepiece

sys.path.insert(0, str(folders.ROOT / "benchmarks"))
import speedrun

from t2t import UserError
from t2t.configuration.loading import load_config, override, records
from t2t.data import pipeline, train_data, vocabularies
from t2t.training import mesh_selection

WORDS = ("one", "two", "three", "four", "seventeen", "naïve", "eleven", "twelve", "thirteen", "fourteen")


@pytest.fixture(scope="module")
def overrides(tmp_path_factory):
  """A vocabulary, and texts for training and evaluation."""
  folder = tmp_path_factory.mktemp("text")
  random = np.random.default_rng(0)
  text = [" ".join(random.choice(WORDS, 40)) for _ in range(200)]
  (folder / "train.txt").write_text("\n".join(text))
  (folder / "held_out.txt").write_text("\n".join(text[:50]))
  options = dict(vocab_size=90, hard_vocab_limit=False, character_coverage=1.0, byte_fallback=False, minloglevel=2)
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(text),
    model_prefix=str(folder / "spiece"),
    pad_id=0,
    eos_id=1,
    unk_id=2,
    bos_id=-1,
    **options,
  )
  return [
    f"--config.data.files={folder}/train.txt",
    f"--config.data.eval_files={folder}/held_out.txt",
    f"--config.data.vocabulary={folder}/spiece.model",
    "--config.data.inputs_length=32",
    "--config.data.targets_length=12",
    "--config.train.batch_size=8",
    "--config.model.vocab_size=256",
  ]


@pytest.mark.exhaustive
def test_masked_bytes_are_those_of_the_text(overrides):
  """Filling the blanks restores the text, so masked bytes are its bytes minus the shown ones."""
  per_target = speedrun.bytes_per_target("t5_1_1_small", overrides)
  config = override(load_config("t5_1_1_small"), [*overrides, "--config.eval.batches=1000"])
  run = train_data.resolved(records(config))
  mesh, _ = mesh_selection.make(run)
  vocabulary = pipeline.vocabulary(run.data)
  sentinels = vocabularies.sentinel_ids(vocabulary, 100)
  masked = targets = 0
  for batch in train_data.eval_batches(run, mesh):
    for inputs, row in zip(
      *(np.asarray(batch[f"{x}_tokens"]) for x in ("encoder_input", "decoder_target")), strict=True
    ):
      if not row.any():
        continue  # padding of the last batch
      targets += np.count_nonzero(row)
      spans = {}
      for token in row[row > 1].tolist():
        spans.setdefault(token, []) if token in sentinels else spans[[*spans][-1]].append(token)
      filled = [x for token in inputs[inputs > 1].tolist() for x in spans.get(token, [token])]
      shown = [token for token in inputs[inputs > 1].tolist() if token not in sentinels]
      masked += len(vocabulary.decode(filled).encode())
      # Tokens, not text: a part between blanks may begin inside a word.
      masked -= sum(len(vocabulary.tokenizer.id_to_piece(x).replace("\u2581", " ").encode()) for x in shown)
      masked += vocabulary.tokenizer.id_to_piece(filled[0]).startswith("\u2581")
  assert per_target == pytest.approx(masked / targets, rel=1e-9)


@pytest.mark.slow
def test_a_vocabulary_of_unknown_bytes_is_refused(overrides, tmp_path):
  """WordPiece drops spaces, so the bytes of a token are unknown."""
  (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
  with pytest.raises(UserError, match="bytes of its tokens"):
    speedrun.bytes_per_target("t5_1_1_small", [*overrides, f"--config.data.vocabulary={tmp_path}/vocab.txt"])


def test_a_run_is_timed_and_read(overrides, tmp_path, capsys, monkeypatch):
  """The row has the mean over seeds of the last held-out loss, divided by bytes."""
  commands = []

  def run(command, stdout, stderr):
    commands.append(command)
    workdir = pathlib.Path(command[command.index("--workdir") + 1])
    lines = [
      {"step": 1, "eval/loss": 9.0},
      {"step": 2, "train/loss": 7.0},
      {"step": 2, "eval/loss": len(commands) + 1.0},
    ]
    (workdir / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return type("Ended", (), {"returncode": 0})

  monkeypatch.setattr(speedrun.subprocess, "run", run)
  monkeypatch.setattr(speedrun, "bytes_per_target", lambda name, overrides: 2.0)
  monkeypatch.setattr(speedrun, "share_filled", lambda workdir: 10.0 * (int(workdir.name) + 1))
  monkeypatch.setattr(speedrun, "RECORDS", tmp_path / "records")
  monkeypatch.setattr(speedrun.versions, "commit", lambda: "abc")
  run_options = ["--seeds", "3", "--workdir", str(tmp_path), "--config.train.steps=2"]
  speedrun.main([*run_options, "--name", "a b", "--record", "2026-01-02_first"])
  row = capsys.readouterr().out.splitlines()[-2]
  assert row.startswith("| a b | 1.5000 ± 0.5000 | 20 | 0 | `--config.train.steps=2`")
  assert [command[-2] for command in commands] == [f"--config.train.seed={seed}" for seed in range(3)]
  record = speedrun.last_record()
  assert record["nats_per_byte"] == [1.0, 1.5, 2.0] and record["blanks_percent"] == [10.0, 20.0, 30.0]
  # The later runs have higher losses.
  with pytest.raises(UserError, match=r"no record: p = 0\.9\d+ is not below 0\.05"):
    speedrun.main([*run_options, "--record", "2026-01-03_second"])
  assert "+100.0 % against the record 2026-01-02_first" in capsys.readouterr().out
  assert [path.name for path in speedrun.RECORDS.iterdir()] == ["2026-01-02_first"]
  with pytest.raises(UserError, match="exists"):
    speedrun.main([*run_options, "--record", "2026-01-02_first"])
  with pytest.raises(UserError, match="2026-01-02_faster sorts before the last record, 2026-01-02_first"):
    speedrun.main([*run_options, "--record", "2026-01-02_faster"])
  with pytest.raises(UserError, match="runs of a record have 240 s"):
    speedrun.main([*run_options, "--record", "2026-01-04_slow", "--seconds", "300"])
  with pytest.raises(UserError, match="noise_density=0.1 changes the blanks"):
    speedrun.main([*run_options, "--config.data.noise_density=0.1"])


def test_the_difference_is_tested_by_welch():
  """Equal to the formula: t = difference / sqrt(sum of variance / n), degrees of freedom by Welch and Satterthwaite."""
  ours, theirs = [1.1, 1.15, 1.12], [1.25, 1.27, 1.22, 1.26]
  parts = [np.var(x, ddof=1) / len(x) for x in (ours, theirs)]
  statistic = (np.mean(ours) - np.mean(theirs)) / sum(parts) ** 0.5
  freedom = sum(parts) ** 2 / sum(part**2 / (len(x) - 1) for part, x in zip(parts, (ours, theirs), strict=True))
  assert speedrun.p_value(ours, theirs) == pytest.approx(stats.t.cdf(statistic, freedom), rel=1e-9)
  assert speedrun.p_value(theirs, ours) > 0.99


@pytest.mark.parametrize(
  ("prediction", "accepted"),
  [
    ("<extra_id_0> value<extra_id_1>", True),
    ("<extra_id_0>Value", True),
    ("<extra_id_0> value of<extra_id_1>", False),
    ("<extra_id_0><extra_id_1> value", False),
    ("value", False),
  ],
)
def test_a_filling_is_the_text_of_the_first_blank(prediction, accepted):
  assert speedrun.is_accepted(prediction, ["value", "type"]) is accepted


def test_the_blanks_and_records_are_complete():
  """60 different texts with one blank each; every record beats the one before, by its own figures."""
  rows = [json.loads(line) for line in (speedrun.BENCHMARKS / "blanks.jsonl").read_text().splitlines()]
  assert len({row["text"] for row in rows}) == len(rows) == 60
  for row in rows:
    assert row["text"].count("<extra_id_0>") == 1 and row["accepted"] and "" not in row["accepted"]
  found = [json.loads(path.read_text()) for path in sorted(speedrun.RECORDS.glob("*/record.json"))]
  for before, after in zip(found, found[1:], strict=False):
    assert speedrun.p_value(after["nats_per_byte"], before["nats_per_byte"]) < 0.05
    assert max(after["seconds"]) <= 240.0
