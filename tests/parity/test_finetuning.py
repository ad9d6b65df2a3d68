"""Fine-tuning against transformers: the same checkpoint, batches and AdamW give the same losses."""

import json
import pathlib
import shutil

import numpy as np
import parity
from parity import torch, transformers
import pytest

from t2t import sharding
from t2t.__main__ import main
from t2t.checkpoints import pretrained
from t2t.configuration import stages
from t2t.configuration.loading import for_architecture, load_config, override, records
from t2t.data import train_data

SHARED = pathlib.Path(__file__).resolve().parents[3] / "shared" / "data"
STEPS, ROWS, RATE, DECAY = 30, 8, 1e-3, 0.05
LABELS = ("entailment", "contradiction", "neutral")

pytestmark = pytest.mark.skipif(
  not (SHARED / "superglue").is_dir(), reason=f"SuperGLUE's released files are not at {SHARED / 'superglue'}"
)


def save_theirs(folder: pathlib.Path, labels: tuple[str, ...]) -> None:
  """Writes a transformers classifier with random weights of odd shapes, and BERT's vocabulary."""
  config = transformers.BertConfig(
    vocab_size=30_522,
    hidden_size=18,
    num_hidden_layers=3,
    num_attention_heads=3,
    intermediate_size=28,
    max_position_embeddings=80,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    id2label=dict(enumerate(labels)),
    label2id={label: number for number, label in enumerate(labels)},
    initializer_range=0.2,
  )
  torch.manual_seed(0)
  transformers.BertForSequenceClassification(config).save_pretrained(folder)
  shutil.copy(SHARED / "tokenizers" / "bert_uncased" / "vocab.txt", folder)


def arguments(folder: pathlib.Path, task: str) -> list[str]:
  """Returns the arguments after --config finetune_superglue, with rates and steps for a short run."""
  return [
    f"--config.init.checkpoint={folder}",
    f"--config.data.mixture=super_glue_{task}",
    f"--config.data.benchmark_dirs.superglue={SHARED / 'superglue'}",
    "--config.data.inputs_length=80",
    "--config.model.dropout_rate=0.0",
    "--config.model.dtype=float32",
    f"--config.train.steps={STEPS}",
    f"--config.train.batch_size={ROWS}",
    f"--config.optimizer.learning_rate={RATE}",
    f"--config.optimizer.weight_decay={DECAY}",
    "--config.optimizer.warmup_steps=3",
    f"--config.eval.every={STEPS}",
    "--config.eval.batches=1",
    "--config.eval.max_examples=4",
    "--config.eval.num_logged_samples=0",
    f"--config.checkpoint.save_interval_steps={STEPS}",
  ]


def batches(typed: list[str], folder: pathlib.Path):
  """Returns the command's batches; the order of data depends only on the config."""
  config = load_config("finetune_superglue")
  pretrained.adopt(config, pretrained.read_source(str(folder)))
  for_architecture("finetune_superglue", config)
  config = train_data.resolved(records(override(config, typed)))
  return train_data.batches(stages.of(config), sharding.make_mesh({"data": -1}), num_streams=None)


def their_losses(folder: pathlib.Path, found) -> list[float]:
  """Returns the losses with torch's AdamW: no decay of norms and biases, 3 warmup steps, linear decay to 0."""
  model = parity.load(folder).train()
  plain = lambda name: not any(part in name for part in ("bias", "LayerNorm"))
  groups = [
    {"params": [x for n, x in model.named_parameters() if plain(n) == decays], "weight_decay": DECAY * decays}
    for decays in (True, False)
  ]
  optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.999), eps=1e-6)
  losses = []
  for step in range(STEPS):
    rate = RATE * min((step + 1) / 3, (STEPS - step) / (STEPS - 3))
    batch = {name: np.asarray(x) for name, x in next(found).items()}
    labels = batch["encoder_answer_targets"][batch["encoder_answer_heads"] > 0]
    as_long = lambda x: torch.tensor(np.array(x), dtype=torch.long)
    loss = model(
      input_ids=as_long(batch["encoder_input_tokens"]),
      attention_mask=as_long(batch["encoder_segment_ids"] > 0),
      token_type_ids=as_long(batch["encoder_token_types"]),
      labels=as_long(labels),
    ).loss
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for group in optimizer.param_groups:
      group["lr"] = rate
    optimizer.step()
    losses.append(loss.item())
  return losses


def test_the_curve_of_the_loss_is_theirs(tmp_path):
  """Within 1e-3 at each of 30 steps, while the loss changes by far more."""
  theirs, workdir = tmp_path / "theirs", tmp_path / "run"
  save_theirs(theirs, LABELS)
  typed = arguments(theirs, "cb")
  assert main(["train", "--config", "finetune_superglue", "--workdir", str(workdir), *typed]) == 0
  lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
  ours = [line["train/loss"] for line in lines if "train/loss" in line]
  expected = their_losses(theirs, batches(typed, theirs))
  assert len(ours) == STEPS and np.ptp(expected) > 0.1
  np.testing.assert_allclose(ours, expected, atol=1e-3)
