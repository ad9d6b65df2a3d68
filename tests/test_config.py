import math

from flax import nnx
import jax
import pytest
import toy

from t2t import UserError
from t2t.models import config as model_config
from t2t.models import transformer


@pytest.mark.parametrize(
  ("family", "size", "published"),
  [
    ("t5_1_1", "small", 76_961_152),
    ("t5_1_1", "base", 247_577_856),
    ("t5_1_1", "large", 783_150_080),
    ("t5_1_1", "xl", 2_849_757_184),
    ("t5_1_1", "xxl", 11_135_332_352),
    ("t5_1_0", "small", 60_506_624),
    ("t5_1_0", "base", 222_903_552),
    ("t5_1_0", "large", 737_668_096),
    ("t5_1_0", "xl", 2_851_598_336),
    ("t5_1_0", "xxl", 11_307_321_344),
    ("mt5", "small", 300_176_768),
    ("mt5", "base", 582_401_280),
    ("mt5", "large", 1_229_581_312),
    ("mt5", "xl", 3_742_619_648),
    ("mt5", "xxl", 12_921_057_280),
    ("byt5", "small", 299_637_760),
    ("byt5", "base", 581_653_248),
  ],
)
def test_parameter_counts_are_the_published_ones(family, size, published):
  """Each named size has as many parameters as the checkpoint released under that name."""
  config = model_config.TransformerConfig(**getattr(model_config, family)(size))
  shapes = jax.eval_shape(lambda: nnx.split(transformer.build(config, nnx.Rngs(0)), graph=False)[1])
  assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) == published


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"dtype": "float16"}, "float16.*overflow"),
    ({"dtype": "float64"}, "config.model.dtype='float64'"),
    ({"mlp_activation": "gated_gleu"}, "did you mean gated_gelu?"),
    ({"architecture": "encoder_decodre"}, "did you mean encoder_decoder?"),
    ({"remat": "ful"}, "did you mean full?"),
    ({"embed_dim": 0}, "config.model.embed_dim=0: must be at least 1"),
    ({"num_decoder_layers": -1}, "config.model.num_decoder_layers=-1"),
    ({"dropout_rate": 1.0}, "config.model.dropout_rate=1.0"),
    ({"dropout_rate": -0.1}, "config.model.dropout_rate=-0.1"),
    ({"relative_position_buckets": 6}, "config.model.relative_position_buckets=6"),
  ],
)
def test_a_field_out_of_range_is_refused(fields, message):
  """The message names the config key, and the nearest known name."""
  with pytest.raises(UserError, match=message):
    toy.config(**fields)


def test_an_unknown_size_is_refused():
  """The message names the nearest."""
  with pytest.raises(UserError, match="did you mean large?"):
    model_config.t5_1_1("lage")
