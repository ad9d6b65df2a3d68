import json
import shutil

from flax import nnx
import jax
import numpy as np
import pytest
import toy
import trained

from t2t import UserError, sharding
from t2t import __main__ as command
from t2t.checkpoints import multi_adapter, pretrained

pytestmark = pytest.mark.slow

LORA = ("--config.lora.rank=2", "--config.lora.targets=attention/,mlp/")


def adapters():
  return {name: str(trained.adapter("encoder_decoder", *LORA, seed=seed)) for name, seed in (("a", 0), ("b", 1))}


def base():
  return pretrained.read_source(str(trained.workdir("encoder_decoder")))


@pytest.mark.exhaustive
def test_the_base_is_in_memory_once_and_each_adapter_gives_what_it_gives_alone():
  """Models share the base's arrays without copies, and the logits equal the merged models'."""
  mesh, batch = sharding.make_mesh({"fsdp": 2}, devices=jax.devices()[:2]), toy.batch()
  sources = multi_adapter.open_all(base(), adapters())
  found = multi_adapter.load(base(), sources, mesh)
  assert found.keys() == {"", "a", "b"}
  below = {id(x) for x in jax.tree.leaves(found[""])}
  for name, path in adapters().items():
    own = [place for place, x in toy.flat(found[name]).items() if id(x) not in below]
    assert own and all("lora_" in place for place in own)
    model = pretrained.abstract(sources[name], mesh)
    merged = pretrained.load(pretrained.read_source(str(path)), mesh)
    with jax.set_mesh(mesh):
      logits = toy.logits(nnx.merge(model.graphdef, found[name]), batch)
      np.testing.assert_allclose(logits, toy.logits(nnx.merge(merged.graphdef, merged.params), batch), atol=1e-5)
      assert np.max(np.abs(logits - toy.logits(nnx.merge(merged.graphdef, found[""]), batch))) > 1e-2


def test_an_adapter_of_another_base_is_refused(tmp_path, monkeypatch):
  """By shapes and small arrays before loading, and by all arrays after it."""
  own = trained.adapter("encoder_decoder", *LORA)
  with pytest.raises(UserError, match=r"--adapter x=.*: the adapter's base is .*, not .*decoder_only"):
    multi_adapter.open_all(pretrained.read_source(str(trained.workdir("decoder_only"))), {"x": str(own)})
  assert command.main(["adapt", "merge", str(own), "--output", str(tmp_path / "merged")]) == 0
  other = pretrained.read_source(str(tmp_path / "merged"))
  with pytest.raises(UserError, match="--adapter x=.*has the digest .* instead of"):
    multi_adapter.open_all(other, {"x": str(own)})
  monkeypatch.setattr(multi_adapter, "_LOOKED_AT", 0)
  sources = multi_adapter.open_all(other, {"x": str(own)})
  with pytest.raises(UserError, match="--adapter x: .*merged.* is not the model that the adapter was trained on"):
    multi_adapter.load(other, sources, sharding.make_mesh({"data": 1}, devices=jax.devices()[:1]))


def test_what_is_no_adapter_is_refused(tmp_path):
  """A model without an adapter, and a checkpoint that includes its base."""
  with pytest.raises(UserError, match="--adapter x=.*: the model has no adapter"):
    multi_adapter.open_all(base(), {"x": str(trained.workdir("encoder_decoder"))})
  shutil.copytree(trained.adapter("encoder_decoder", *LORA), tmp_path / "old")
  shutil.rmtree(tmp_path / "old/checkpoints/2/base")
  (tmp_path / "old/checkpoints/2/manifest.json").unlink()
  metadata = tmp_path / "old/checkpoints/2/_CHECKPOINT_METADATA"
  content = json.loads(metadata.read_text())
  del content["item_handlers"]["base"]
  metadata.write_text(json.dumps(content))
  with pytest.raises(UserError, match="--adapter x=.*: an earlier version of t2t saved this adapter together with"):
    multi_adapter.open_all(base(), {"x": str(tmp_path / "old")})
