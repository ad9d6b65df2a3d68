"""Models with fewer layers, heads or neurons compute what the whole model does with those switched off."""

import json
import re

from flax import nnx
import foreign
import jax.numpy as jnp
import numpy as np
import pytest
import toy
import trained

from t2t import UserError, sharding
from t2t import __main__ as command
from t2t.checkpoints import pretrained, shrink
from t2t.convert import lazy_tensors
from t2t.param_tree import is_prunable
from t2t.training import unit_importance


def logits_of(config, flat):
  model = nnx.merge(foreign.graphdef(config), foreign.nested(flat))
  return np.asarray(toy.logits(model, toy.batch(architecture=config.architecture)))


def read(smaller):
  lazy_tensors.check(smaller)
  return foreign.read(smaller)


@pytest.mark.parametrize("kind", ["t5", pytest.param("grouped", marks=pytest.mark.exhaustive)])
def test_removed_units_equal_masked_units(kind):
  """Heads of self- and cross-attention, and neurons; in T5 the layers keep the same heads, with their position bias."""
  config = {"t5": toy.config(), "grouped": toy.decoder(num_kv_heads=2, positions="rotary", scale_attention=True)}[kind]
  flat = foreign.random_params(config)
  smaller, masked = foreign.in_memory(config, flat), dict(flat)
  random = np.random.default_rng(0)
  for what, change in (("heads", shrink.with_heads), ("neurons", shrink.with_neurons)):
    kept = {}
    for path in flat:
      if match := re.search(unit_importance.READERS[what], path):
        total = unit_importance.num_units(what, config, path)
        importance = {match[1]: random.random((flat[path].shape[0], total))}
        units = shrink.best_units(importance, total // 2, same=shrink.shared_bias(config))[match[1]]
        keep = np.zeros((len(units), total), bool)
        np.put_along_axis(keep, units, True, axis=1)
        rows = flat[path].shape[1] // total
        masked[path] = masked[path] * np.repeat(keep, rows, axis=1)[..., None]
        kept[match[1]] = units
    smaller = change(smaller, kept)
  assert smaller.model.num_heads == 2 and smaller.model.mlp_dim == 16
  np.testing.assert_allclose(logits_of(smaller.model, read(smaller)), logits_of(config, masked), atol=2e-4, rtol=1e-4)


def test_kept_layers_are_the_model_without_the_others():
  """A layer whose branches write zeros is as good as removed."""
  config = toy.config()
  flat = foreign.random_params(config)
  smaller = shrink.with_layers(foreign.in_memory(config, flat), "decoder", (0, 2))
  for name in ("self_attention/out", "cross_attention/out", "mlp/down"):
    flat[f"decoder/layers/{name}"] = np.array(
      [x * (layer != 1) for layer, x in enumerate(flat[f"decoder/layers/{name}"])]
    )
  assert smaller.model.num_decoder_layers == 2
  np.testing.assert_allclose(logits_of(smaller.model, read(smaller)), logits_of(config, flat), atol=1e-5)
  with pytest.raises(UserError, match="give increasing indices from 0 to 2"):
    shrink.with_layers(foreign.in_memory(config, flat), "decoder", (0, 3))
  with pytest.raises(UserError, match="of 4 heads in each layer 0 would be removed. Give a share from 0.12 to 0.88"):
    shrink.number_kept(4, 0.1, "heads")


def test_a_ticket_has_early_values_and_late_zeros():
  config = toy.config()
  flat = foreign.random_params(config)
  path = "encoder/layers/mlp/up"
  late = flat | {path: (flat[path] + 1.0) * (jnp.abs(flat[path]) > 0.1)}
  # Zeros in vectors and embeddings are not from pruning.
  late |= {name: jnp.zeros_like(x) for name, x in flat.items() if not is_prunable(name, x.shape)}
  ticket, share = shrink.rewound(foreign.in_memory(config, late), foreign.in_memory(config, flat))
  expected = np.where(np.asarray(late[path]) == 0, 0, flat[path])
  np.testing.assert_array_equal(ticket.tensors[path].read(), expected)
  assert share == np.mean(expected == 0)
  assert all(np.array_equal(tensor.read(), flat[name]) for name, tensor in ticket.tensors.items() if name != path)
  with pytest.raises(UserError, match="no matrix has zeros"):
    shrink.rewound(foreign.in_memory(config, flat), foreign.in_memory(config, flat))


@pytest.mark.slow
def test_the_command_ranks_and_removes_heads(tmp_path, capsys):
  """From a run to a smaller run, which t2t reads and transformers' format expresses; nothing is written on errors."""
  run, out = str(trained.workdir("encoder_decoder")), tmp_path / "half"
  assert command.main(["prune", "heads", run, "--share", "0.5", "--examples", "8", "--output", str(out)]) == 0
  printed = capsys.readouterr().out
  assert "encoder/layers/self_attention: 1 of 2 heads in each layer have" in printed
  # No config has these sizes.
  assert f"--config.init.checkpoint={out} --config.init.use_model_config=True --workdir" in printed
  assert json.loads((out / "config.json").read_text())["model"]["num_heads"] == 1
  model = pretrained.load(pretrained.read_source(str(out)), sharding.make_mesh({"data": -1}))
  assert toy.flat(model.params)["decoder/layers/cross_attention/out"].shape == (1, 8, 16)
  assert command.main(["convert", str(out), "--to", "hf", str(tmp_path / "hf")]) == 0
  assert json.loads((tmp_path / "hf" / "config.json").read_text())["num_heads"] == 1
  none = ["--output", str(tmp_path / "none")]
  assert command.main(["prune", "heads", run, "--share", "0.1", *none]) == 2
  assert "of 2 heads in each layer 0 would be removed" in capsys.readouterr().err
  with pytest.raises(SystemExit):
    command.main(["prune", "heads", run, "--share", "1.5", *none])
  assert "1.5 is not valid. Give a finite number, above 0 to 1" in capsys.readouterr().err
  assert not (tmp_path / "none").exists()
