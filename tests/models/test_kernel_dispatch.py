"""Kernel of each attention of a model: the dispatch result, and the kernel in the program."""

import dataclasses

from flax import nnx
import jax
import pytest
import toy

from t2t import UserError, sharding
from t2t.models import transformer
from t2t.models.kernels import dispatch


def features(config, *, length):
  """Returns the shapes of model features of two rows."""
  batch = toy.batch(architecture=config.architecture, padded_to=(length, length if config.num_encoder_layers else 0))
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), batch)


def chosen(config, *, length):
  found = dispatch.attention_kernels(config, features(config, length=length))
  return {part: str(choice) for part, choice in found.items()}


def of_lanes(kind, **fields):
  """Returns a config with heads that fill the lanes of a TPU."""
  return dataclasses.replace(toy.KINDS[kind], num_heads=4, num_kv_heads=0, head_dim=64, **fields)


def test_a_cpu_has_no_kernels():
  """Each kind of attention of a model is listed."""
  assert chosen(toy.KINDS["t5_1_1"], length=256) == dict.fromkeys(("encoder", "decoder", "cross"), "plain (CPU)")
  assert chosen(toy.KINDS["llama"], length=256) == {"decoder": "plain (CPU)"}
  assert chosen(toy.KINDS["bert"], length=256) == {"encoder": "plain (CPU)"}


def test_kernels_are_chosen_by_what_attention_needs(monkeypatch):
  """ "distance" for a bias or dropout of single probabilities; plain for a sequence shorter than a block."""
  monkeypatch.setattr(sharding, "platform", lambda: "tpu")
  splash, biased = "splash (TPU, no bias)", "distance (TPU, bias by distance)"
  apart = "distance (TPU, row-specific masks)"
  assert chosen(toy.KINDS["llama"], length=128) == {"decoder": splash}
  assert chosen(toy.KINDS["bert"], length=128) == {"encoder": splash}
  assert chosen(of_lanes("prefix_lm"), length=128) == {"decoder": biased}
  assert chosen(of_lanes("t5_1_1"), length=128) == {"encoder": biased, "decoder": biased, "cross": apart}
  assert chosen(of_lanes("t5_1_1", dropout_rate=0.1), length=128)["cross"] == apart
  six = "plain (head_dim 6, TPU, bias by distance)"
  assert chosen(toy.KINDS["t5_1_1"], length=128) == {"encoder": six, "decoder": six, "cross": splash}
  assert chosen(toy.KINDS["modern_t5"], length=128) == dict.fromkeys(("encoder", "decoder", "cross"), splash)
  assert chosen(of_lanes("llama"), length=127) == {"decoder": "distance (TPU, length 127)"}
  assert chosen(toy.KINDS["llama"], length=63) == {"decoder": "plain (length 63, shorter than a block of 128)"}
  assert chosen(of_lanes("mpt"), length=2_048) == {"decoder": biased}
  far = "plain (bias with reach 4095, above 2048, TPU, bias by distance)"
  assert chosen(of_lanes("mpt"), length=4_096) == {"decoder": far}
  dropped = {"decoder": "distance (TPU, dropout of probabilities)"}
  assert chosen(of_lanes("llama", dropout_rate=0.1), length=128) == dropped


def test_a_kernel_that_is_asked_for_runs_or_says_why_not(monkeypatch):
  """Before anything is compiled."""
  asked = lambda name, **fields: chosen(of_lanes("t5_1_1", attention_kernel=name, **fields), length=128)
  assert set(asked("plain").values()) == {"plain (set by config.model.attention_kernel)"}
  with pytest.raises(
    UserError,
    match=r"attention_kernel=distance needs a TPU, but the device is a CPU. Set --config.model.attention_kernel=''",
  ):
    asked("distance")
  with pytest.raises(UserError, match="config.model.attention_kernel='flash'|attention_kernel=flash"):
    asked("flash")
  monkeypatch.setattr(sharding, "platform", lambda: "tpu")
  assert all(found.startswith("distance") for found in asked("distance").values())
  with pytest.raises(UserError, match=r"kernel=splash does not support .* use distance \(TPU, bias by distance"):
    asked("splash")


@pytest.mark.parametrize("kind", ["llama", "t5_1_1", "modern_t5", "bert"])
def test_the_kernel_that_is_told_is_the_one_that_runs(kind, monkeypatch):
  """A model's program has a kernel for each attention that is listed with one, and no other."""
  monkeypatch.setattr(sharding, "platform", lambda: "tpu")
  config = of_lanes(kind)
  if config.max_length:
    config = dataclasses.replace(config, max_length=128)
  batch = features(config, length=128)
  choices = dispatch.attention_kernels(config, batch)
  layers_of = dict(
    encoder=config.num_encoder_layers, decoder=config.num_decoder_layers, cross=config.num_decoder_layers
  )
  program = jax.make_jaxpr(lambda batch: transformer.build(config, nnx.Rngs(0))(batch))(batch)
  ran = sum(repeated for equation, repeated in toy.equations(program.jaxpr) if equation.primitive.name == "pallas_call")
  assert ran == sum(layers_of[part] for part, choice in choices.items() if choice.kernel != "plain")


def ran(config, batch, monkeypatch) -> set[str]:
  """Returns the results of `dispatch.choose` for the attentions in a model's traced program, except cross-attention."""
  found, own = set(), dispatch.choose

  def spy(query_shape, key_shape, *arguments, **options):
    choice = own(query_shape, key_shape, *arguments, **options)
    found.add(str(choice))
    return choice

  monkeypatch.setattr(dispatch, "choose", spy)
  jax.eval_shape(lambda batch: transformer.build(config, nnx.Rngs(0))(batch), batch)
  monkeypatch.setattr(dispatch, "choose", own)
  return found


WINDOW, TAKES_NONE = "distance (TPU, bias by distance)", "plain (window 2048, not below 2048, TPU, bias by distance)"


@pytest.mark.parametrize(
  ("kind", "length", "window", "layers"),
  [
    ("t5_1_1", 512, 100, {"encoder": WINDOW, "decoder": WINDOW}),
    # A window too large for the kernel, alternating with layers without one, which keep their kernel.
    ("t5_1_1", 4_096, 2_048, {"encoder": WINDOW, "encoder window": TAKES_NONE,
                              "decoder": WINDOW, "decoder window": TAKES_NONE}),
    ("llama", 512, 100, {"decoder": "splash (TPU, no bias)"}),
    ("prefix_lm_rotary", 512, 100, {"decoder": "distance (TPU, row-specific masks)",
                                    "decoder window": "distance (TPU, window and prefix)"}),
  ],
)  # fmt: skip
def test_layers_with_a_window_between_others_run_on_what_is_told(kind, length, window, layers, monkeypatch):
  """Each kind of layer has its own kernel, listed separately if they differ."""
  monkeypatch.setattr(sharding, "platform", lambda: "tpu")
  fields = {"attention_window": window, "global_attention_every": 2}
  if kind == "prefix_lm_rotary":
    kind, fields = "prefix_lm", fields | {"positions": "rotary"}
  config = of_lanes(kind, **fields)
  told = chosen(config, length=length)
  assert {part: choice for part, choice in told.items() if part != "cross"} == layers
  assert ran(config, features(config, length=length), monkeypatch) == set(told.values())


def test_a_kernel_that_some_layers_cannot_have_is_refused(monkeypatch):
  """Before tracing, as for a kernel that all layers lack."""
  monkeypatch.setattr(sharding, "platform", lambda: "tpu")
  fields = {"attention_window": 2_048, "global_attention_every": 2, "attention_kernel": "distance"}
  with pytest.raises(UserError, match=r"attention_kernel=distance does not support .* use plain \(window 2048"):
    chosen(of_lanes("t5_1_1", **fields), length=4_096)


@pytest.mark.parametrize("every", [0, 2])
def test_a_window_as_long_as_the_text_is_none(every, monkeypatch):
  """A window without effect does not prevent a kernel."""
  monkeypatch.setattr(sharding, "platform", lambda: "tpu")
  config = of_lanes("t5_1_1", attention_window=4_096, global_attention_every=every)
  batch = features(config, length=512)
  told = chosen(config, length=512)
  assert told == chosen(of_lanes("t5_1_1"), length=512)
  assert ran(config, batch, monkeypatch) == set(told.values())
  assert "plain" in chosen(config, length=4_098)[f"encoder{' window' if every else ''}"]
