"""`t2t exits`, and early exit in `t2t infer`, `t2t eval` and Python, on a small classifier of a table."""

import json
import os
import signal

from flax import nnx
import jax
import numpy as np
import pytest
import test_early_exit
import trained

import t2t
from t2t import __main__ as command
from t2t.checkpoints import tensor_writer
from t2t.inference import early_exit, row_batches
from t2t.runtime import exit_codes

_WORDS = ("great", "lovely", "superb", "fine", "awful", "dull", "boring", "poor")


@pytest.mark.exhaustive
def test_a_classifier_leaves_early(tmp_path, capsys):
  """Rows have the layers used, and the curve has every layer and both rules; patience for all layers is the last."""
  rows = [f"It was {_WORDS[i % 8]}, film {i}.\t{'yes' if i % 8 < 4 else 'no'}" for i in range(80)]
  (tmp_path / "all.tsv").write_text("\n".join(["review\tliked", *rows]) + "\n")
  train = ["train", "--config=tiny_bert", *trained.SMALL, "--config.model.max_length=80"]
  train += ["--config.model.num_encoder_layers=4", "--config.model.exits=True", "--config.data.labels=auto"]
  train += [f"--config.data.files={tmp_path / 'all.tsv'}"]
  assert command.main([*train, "--workdir", str(tmp_path / "whole"), "--config.train.steps=4"]) == 0
  metrics = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
  assert any("eval/table_exit_1_accuracy" in row for row in metrics)
  checkpoint = ["--checkpoint", str(tmp_path / "whole")]
  files = ["--input", str(tmp_path / "all.tsv"), "--output"]
  assert command.main(["infer", *checkpoint, *files, str(tmp_path / "a.jsonl"), "--exit_patience", "1"]) == 0
  found = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
  assert {row["layers"] for row in found} <= {2, 3, 4} and "of 4 on average" in capsys.readouterr().out
  rows = t2t.load(tmp_path / "whole").classify(["It was fine."], exit_entropy=0.6931)
  assert rows[0]["layers"] in (1, 2, 3, 4)
  table = [f"--config.data.eval_files={tmp_path / 'all.tsv'}", "--workdir", str(tmp_path / "out")]
  assert command.main(["exits", *checkpoint, *table, "--points", "3"]) == 0
  points = [json.loads(line) for line in (tmp_path / "out" / "exits.jsonl").read_text().splitlines()]
  assert [x["layers"] for x in points if x["rule"] == "layer"] == [1, 2, 3, 4]
  assert {x["rule"] for x in points} == {"layer", "patience", "entropy", "majority"}
  assert (tmp_path / "out" / "exits.png").read_bytes().startswith(b"\x89PNG")
  never = next(x for x in points if x["rule"] == "patience" and x["value"] == 3)
  assert np.isclose(never["score"], next(x["score"] for x in points if x["rule"] == "layer" and x["value"] == 4))
  both = ["--exit_patience", "1", "--exit_entropy", "0.1"]
  assert command.main(["infer", *checkpoint, *files, str(tmp_path / "b.jsonl"), *both]) == 2
  assert "exclude each other" in capsys.readouterr().err


def logits_by_plain_loop(answerer, params, head, examples):
  """Returns tokens -> logits of each layer, [layers, classes]; one text at a time, unpadded, without early exit."""
  module, of_tokens = nnx.merge(answerer.graphdef, params), {}
  states = jax.jit(lambda params, batch: nnx.merge(answerer.graphdef, params).states(batch, every_layer=True))
  last = module.heads[head.name]
  for example in examples:
    if (tokens := tuple(example["inputs"])) in of_tokens:
      continue
    batch = row_batches.features_of([example], len(tokens), side="encoder", pad_id=0)
    *inner, final = states(params, batch)[1:]
    exits = [jax.tree.map(lambda x, index=index: x[index], last.exits.layers) for index in range(len(inner))]
    position, logits = int(np.argmax(np.asarray(example["answer_heads"]) > 0)), []
    for layer, x in [*((layer, layer.normed(x)) for layer, x in zip(exits, inner, strict=True)), (last, final)]:
      assert layer.reads in ("mean", "first")
      logits.append(np.asarray(layer(x[0].mean(axis=0) if layer.reads == "mean" else x[0, position])))
    of_tokens[tokens] = np.array(logits)
  return of_tokens


def standardized(params, name, of_tokens):
  """Returns parameters and logits, of mean 0 and deviation 1 over the texts at each layer: rows leave at several."""
  logits = np.stack(list(of_tokens.values()))
  mean, scale = logits.mean(axis=0), 1 / logits.std(axis=0).mean(axis=-1, keepdims=True)

  def changed(layer, mean, scale):
    bias = (layer["projection_bias"] - mean) * scale
    return layer | {"projection": layer["projection"] * scale[..., None], "projection_bias": bias}

  head = params["heads"][name]
  exits = {"layers": changed(head["exits"]["layers"], mean[:-1], scale[:-1])}
  heads = params["heads"] | {name: changed(head, mean[-1], scale[-1]) | {"exits": exits}}
  return params | {"heads": heads}, {tokens: (x - mean) * scale for tokens, x in of_tokens.items()}


@pytest.mark.exhaustive
@pytest.mark.parametrize("config", ["tiny_bert", "tiny_modern_bert", "tiny_albert"])
def test_a_stopped_run_with_exits_resumes_and_infers_as_a_plain_loop(config, tmp_path, monkeypatch):
  """Bit for bit after SIGTERM, with dropout; entropy and patience leave where a loop over the layers leaves."""
  rows = [f"{_WORDS[i % 8] * (1 + i % 3)}\t{'yes' if i % 8 < 4 else 'no'}" for i in range(40)]
  (tmp_path / "all.tsv").write_text("\n".join(["review\tliked", *rows]) + "\n")
  train = ["train", f"--config={config}", *trained.SMALL, "--config.model.max_length=80", "--config.model.exits=True"]
  train += ["--config.model.num_encoder_layers=4", "--config.model.init_scale=0.3", "--config.data.labels=auto"]
  train += [f"--config.data.files={tmp_path / 'all.tsv'}", "--config.train.steps=4", "--config.model.dropout_rate=0.1"]
  assert command.main([*train, "--workdir", str(tmp_path / "whole")]) == 0
  with monkeypatch.context() as patch:
    trained.after_step(patch, 2, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert command.main([*train, "--workdir", str(tmp_path / "run")]) == exit_codes.TERMINATED
  assert command.main([*train, "--workdir", str(tmp_path / "run")]) == 0
  whole, run = (tensor_writer.open_foreign(str(tmp_path / name)).tensors for name in ("whole", "run"))
  assert any("/exits/" in path for path in whole)
  for path, tensor in whole.items():
    np.testing.assert_array_equal(run[path].read(), tensor.read(), err_msg=path)

  plain, of_tokens, examples_read, logits = {}, {}, [], early_exit.ExitAnswerer.logits

  def recorded(answerer, params, head, examples, **options):
    plain.update(plain or logits_by_plain_loop(answerer, params, head, examples))
    params, standard = standardized(params, head.name, plain)
    of_tokens.update(standard)
    examples_read.extend(examples)
    return logits(answerer, params, head, examples, **options)

  monkeypatch.setattr(early_exit.ExitAnswerer, "logits", recorded)
  infer = ["infer", "--checkpoint", str(tmp_path / "run"), "--input", str(tmp_path / "all.tsv"), "--batch_size", "8"]
  for rule, value, formula in (
    ("patience", 1, test_early_exit.pabee),
    ("patience", 2, test_early_exit.pabee),
    ("entropy", 0.4, test_early_exit.deebert),
    ("entropy", 0.6, test_early_exit.deebert),
  ):
    examples_read.clear()
    output = tmp_path / f"{rule}_{value}.jsonl"
    assert command.main([*infer, "--output", str(output), f"--exit_{rule}", str(value)]) == 0
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    of_rows = [of_tokens[tuple(example["inputs"])] for example in examples_read]
    layers = [formula(x, value) for x in of_rows]
    assert [row["layers"] for row in rows] == layers and len(rows) == 40 and len(set(layers)) > 1
    for row, number, x in zip(rows, layers, of_rows, strict=True):
      p = np.exp(x[number - 1]) / np.exp(x[number - 1]).sum()
      np.testing.assert_allclose(list(row["probabilities"].values()), p, atol=1e-4)
