"""`t2t infer` and `t2t embed` on Hugging Face folders against its pipelines and hidden states.

Needs torch and transformers (tests/parity-requirements.txt).
"""

import json
import pathlib

import numpy as np
import parity
from parity import torch, transformers
import pytest

from t2t import __main__ as command
from t2t.models import presets
from t2t.models.config import TransformerConfig
from t2t.models.head_config import HeadConfig

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz", "##s", "##ed", ".", "dog", "fox"]
SHAPE = dict(vocab_size=36, embed_dim=18, num_heads=3, head_dim=6, mlp_dim=28, num_encoder_layers=3, dtype="float32")
SHAPE |= dict(dropout_rate=0.0, max_length=40, segment_types=2)
PAIRS = [["a dog.", "foxs"], ["x y z", "a b c d e f g"], ["dog", "?"]]
TEXTS = ["a [MASK] dog.", "[MASK] foxs [MASK] b", "x y z a b c d e f g h i j [MASK]ed"]


def folder(path: pathlib.Path, **fields) -> pathlib.Path:
  """Writes a BERT with random parameters, and its vocabulary."""
  parity.exported(TransformerConfig(**(presets.bert("base") | SHAPE | fields)), path)
  (path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
  (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": True}))
  return path


def run(name: str, source: pathlib.Path, lines: list, *others: str, output: str) -> pathlib.Path:
  (source / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
  files = [f"--input={source / 'in.jsonl'}", f"--output={source / output}", "--batch_size=2"]
  assert command.main([name, f"--checkpoint={source}", *files, *others]) == 0
  return source / output


def rows(path: pathlib.Path) -> list[dict]:
  return [json.loads(line) for line in path.read_text().splitlines()]


def test_fillings_are_those_of_their_pipeline(tmp_path):
  """The same tokens with the same probabilities, in any context, also with several masks."""
  source = folder(tmp_path)
  found = rows(run("infer", source, [{"inputs": text} for text in TEXTS], "--top=5", output="out.jsonl"))
  tokenizer = transformers.BertTokenizer(str(source / "vocab.txt"))
  fill = transformers.pipeline("fill-mask", model=parity.load(source), tokenizer=tokenizer, top_k=5)
  for text, row in zip(TEXTS, found, strict=True):
    theirs = fill(text)
    theirs = theirs if isinstance(theirs[0], list) else [theirs]
    assert len(row["fillings"]) == text.count("[MASK]") == len(theirs)
    for ours, expected in zip(row["fillings"], theirs, strict=True):
      assert [each["id"] for each in ours] == [each["token"] for each in expected]
      np.testing.assert_allclose([x["probability"] for x in ours], [x["score"] for x in expected], rtol=1e-3)


def test_classes_of_pairs_are_those_of_their_model(tmp_path):
  """Texts framed as a pair by the transformers tokenizer, and the softmax of the logits."""
  head = HeadConfig("task", 3, labels=("no", "perhaps", "yes"))
  source = folder(tmp_path, heads=(head,), vocabulary_head=False)
  found = rows(run("infer", source, [{"parts": pair} for pair in PAIRS], output="out.jsonl"))
  tokenizer, model = transformers.BertTokenizer(str(source / "vocab.txt")), parity.load(source)
  for pair, row in zip(PAIRS, found, strict=True):
    with torch.no_grad():
      expected = torch.softmax(model(**tokenizer(*pair, return_tensors="pt")).logits[0], -1).numpy()
    assert list(row["probabilities"]) == list(head.labels) and row["prediction"] == head.labels[expected.argmax()]
    np.testing.assert_allclose(list(row["probabilities"].values()), expected, rtol=1e-3)


@pytest.mark.parametrize("pool", ["mean", "first", "last"])
def test_vectors_are_of_their_hidden_states(pool, tmp_path):
  """Every layer, including the embedding."""
  source = folder(tmp_path)
  path = run("embed", source, [{"parts": pair} for pair in PAIRS], f"--pool={pool}", "--layer=all", output="out.npy")
  tokenizer, model = transformers.BertTokenizer(str(source / "vocab.txt")), parity.load(source)
  for pair, found in zip(PAIRS, np.load(path), strict=True):
    with torch.no_grad():
      states = model(**tokenizer(*pair, return_tensors="pt"), output_hidden_states=True).hidden_states
    states = np.stack([each[0].numpy() for each in states])
    expected = {"mean": states.mean(axis=1), "first": states[:, 0], "last": states[:, -1]}[pool]
    np.testing.assert_allclose(found, expected, atol=1e-4)
