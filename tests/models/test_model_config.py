import math

from flax import nnx
import jax
import pytest
import toy

from t2t import UserError
from t2t.configuration.loading import load_config, override
from t2t.models import bert_variants, diffusion_presets, llama_encoders, presets, transformer
from t2t.models.config import TransformerConfig
from t2t.models.head_config import HeadConfig


@pytest.mark.exhaustive_from(15)
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
    # As released for pre-training, without the pooler and the two outputs of next-sentence prediction.
    ("bert", "base", 110_106_428 - 1_538 - 768 * 769),
    ("bert", "large", 336_226_108 - 2_050 - 1_024 * 1_025),
    ("albert", "base", 11_813_810 - 1_538 - 768 * 769),
    ("albert", "large", 17_847_474 - 2_050 - 1_024 * 1_025),
    # Released for fine-tuning, with the pooler and without the layers before the logits.
    ("albert", "xlarge", 58_724_864 - 2_048 * 2_049 + 2_048 * 128 + 128 + 2 * 128 + 30_000),
    ("albert", "xxlarge", 222_595_584 - 4_096 * 4_097 + 4_096 * 128 + 128 + 2 * 128 + 30_000),
    # transformers' MobileBertForMaskedLM.
    ("mobilebert", "base", 36_596_538),
    ("bart", "base", 139_420_416),
    ("bart", "large", 406_291_456),
    ("roberta", "base", 124_697_433),
    ("roberta", "large", 355_412_057),
    # RoBERTa with 3,584 more positions, and projections of global tokens.
    ("longformer", "base", 124_697_433 + 3_584 * 768 + 12 * 3 * 769 * 768),
    ("longformer", "large", 355_412_057 + 3_584 * 1_024 + 24 * 3 * 1_025 * 1_024),
    # BERT with the cased vocabulary and six segment types.
    ("unilm", "base", 109_514_298 - 1_526 * 769 + 4 * 768),
    ("xlm_r", "base", 278_295_186),
    ("xlm_r", "large", 560_142_482),
    # The released first layer has no norm before its attention; ours has an unused one.
    ("modern_bert", "base", 149_655_232 + 768),
    ("modern_bert", "large", 395_881_664 + 1_024),
    ("ettin", "encoder_150m", 149_655_232 + 768),
    ("ettin", "decoder_150m", 149_655_232 + 768),
    # Released with the bias of the logits apart.
    ("xlnet", "base", 116_718_336 + 32_000),
    ("xlnet", "large", 360_268_800 + 32_000),
    ("gpt1", "base", 116_534_784),
    # OPUS-MT's shape, without two tables of 512 sinusoids, and with the paper's vocabulary.
    ("transformer", "base", 74_410_496 - 2 * 512 * 512 - (58_101 - 37_000) * 512),
    ("gpt2", "small", 124_439_808),
    ("gpt2", "medium", 354_823_168),
    ("gpt2", "large", 774_030_080),
    ("gpt2", "xl", 1_557_611_200),
    ("llama2", "1b", 1_100_048_384),
    ("llama2", "7b", 6_738_415_616),
    ("llama2", "13b", 13_015_864_320),
    ("llama3", "8b", 8_030_261_248),
    ("llama3", "1_70b", 70_553_706_496),
    ("llama3", "1_405b", 405_853_388_800),
    ("llama3", "2_1b", 1_235_814_400),
    ("llama3", "2_3b", 3_212_749_824),
    ("llada", "8b", 8_015_581_184),
    ("mdlm", "small", 162_150_144),
    ("qwen2", "0_5b", 494_032_768),
    ("qwen2", "1_5b", 1_543_714_304),
    ("qwen2", "3b", 3_085_938_688),
    ("qwen2", "7b", 7_615_616_512),
    ("qwen2", "14b", 14_770_033_664),
    ("qwen2", "32b", 32_763_876_352),
    ("qwen2", "72b", 72_706_203_648),
    ("t5gemma", "s_s", 312_517_632),
    ("t5gemma", "b_b", 591_490_560),
    ("t5gemma", "ml_ml", 2_200_345_344),
    ("t5gemma", "xl_xl", 3_766_980_608),
    ("t5gemma", "9b_2b", 12_292_375_296),
    ("t5gemma", "9b_9b", 20_333_401_088),
  ],
)
def test_parameter_counts_are_the_published_ones(family, size, published):
  """Each named size has as many parameters as the checkpoint released under that name."""
  assert count(family, size) == published


@pytest.mark.parametrize(
  ("family", "size", "published"),
  [
    # Brown et al. 2020, table 2.1, which rounds 356 M to 350 M and 2.65 B to 2.7 B.
    ("gpt3", "small", 125e6),
    ("gpt3", "medium", 350e6),
    ("gpt3", "large", 760e6),
    ("gpt3", "xl", 1.3e9),
    ("gpt3", "2_7b", 2.7e9),
    ("gpt3", "6_7b", 6.7e9),
    ("gpt3", "13b", 13e9),
    ("gpt3", "175b", 175e9),
    # Shoeybi et al. 2020, tables 2 and 4; Rosset 2020.
    ("megatron_gpt", "355m", 355e6),
    ("megatron_gpt", "2_5b", 2.5e9),
    ("megatron_gpt", "8_3b", 8.3e9),
    ("megatron_bert", "336m", 336e6),
    ("megatron_bert", "1_3b", 1.3e9),
    ("megatron_bert", "3_9b", 3.9e9),
    ("turing_nlg", "17b", 17e9),
    # Vaswani et al. 2017, table 3.
    ("transformer", "big", 213e6),
    # Dai et al. 2019, tables 1 and 2; wt103_large has an adaptive softmax with smaller embeddings.
    ("transformer_xl", "wt103_base", 151e6),
    ("transformer_xl", "enwik8_base", 41e6),
    ("transformer_xl", "enwik8_large", 277e6),
    # Conneau et al. 2020, table 7; Ogueji et al. 2021: small would have 97 M with six layers, but has four.
    ("xlm", "15", 250e6),
    ("xlm", "100", 570e6),
    ("afriberta", "base", 111e6),
    ("afriberta", "large", 126e6),
    # Chung et al. 2021, table 8.
    ("rembert", "base", 995e6),
    # Fedus et al. 2022, table 9; Jiang et al. 2024, and Mistral AI's announcement of 8x22b.
    ("switch", "base_128", 7.4e9),
    ("switch", "large_128", 26.3e9),
    ("switch", "xxl_128", 395e9),
    ("switch", "c_2048", 1571e9),
    ("mixtral", "8x7b", 46.7e9),
    ("mixtral", "8x22b", 141e9),
    # Zoph et al. 2022, without the dense MLP of each of 12 layers with experts.
    ("st_moe", "large", 4.1e9 - 12 * 3 * 1_024 * 2_816),
    ("st_moe", "32b", 269e9 - 12 * 3 * 5_120 * 20_480),
    # experiments/glue/mnli.sh in microsoft/DeBERTa, and the model cards of version 3: layers, and 128,100 tokens.
    ("deberta", "base", 140e6),
    ("deberta_v2", "xlarge", 900e6),
    ("deberta_v3", "xsmall", 22e6 + 128_100 * 384),
    ("deberta_v3", "small", 44e6 + 128_100 * 768),
    ("deberta_v3", "base", 86e6 + 128_100 * 768),
    ("deberta_v3", "large", 304e6 + 128_100 * 1_024),
    # Charpentier & Samuel 2024, without each layer's attention gate, a matrix of the model's width squared.
    ("gpt_bert", "small", 30e6 - 12 * 384**2),
    ("gpt_bert", "base", 119e6 - 12 * 768**2),
    # Boizard et al. 2025, whose names count one of the two embeddings; Le Breton et al. 2025.
    ("eurobert", "210m", 210e6 + 128_256 * 768),
    ("eurobert", "610m", 610e6 + 128_256 * 1_152),
    ("eurobert", "2_1b", 2.1e9 + 128_256 * 2_304),
    ("neobert", "base", 250e6),
  ],
)
def test_parameter_counts_are_about_those_of_papers(family, size, published):
  """Models without a release: papers give two or three digits, to 2 %."""
  assert count(family, size) == pytest.approx(published, rel=0.02)


def of_family(family):
  """Returns the function of a family, from the module that has it."""
  modules = (presets, bert_variants, llama_encoders, diffusion_presets)
  return next(getattr(module, family) for module in modules if hasattr(module, family))


def count(family, size):
  config = TransformerConfig(**of_family(family)(size))
  shapes = jax.eval_shape(lambda: nnx.split(transformer.build(config, nnx.Rngs(0)), graph=False)[1])
  return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"dtype": "float16"}, "float16.*overflow"),
    ({"dtype": "float64"}, "config.model.dtype='float64'"),
    (
      {"gradient_dtype": "float16"},
      "config.model.gradient_dtype='float16': unknown value. Known values: bfloat16, float32",
    ),
    ({"quantization": "int4"}, "config.model.quantization='int4': unknown value. Known values: int8, fp8"),
    ({"mlp_activation": "gated_gleu"}, "did you mean gated_gelu?"),
    ({"architecture": "encoder_decodre"}, "did you mean encoder_decoder?"),
    ({"positions": "rotray"}, "did you mean rotary?"),
    ({"norm": "layers"}, "did you mean layer?"),
    ({"remat": "ful"}, "did you mean full?"),
    ({"remat": "query,keys@host"}, "unknown value 'keys'; did you mean key?"),
    ({"remat": "query,query@host"}, "query occurs twice"),
    (
      {"own_decoder_positions": True},
      "needs config.model.architecture=encoder_decoder and config.model.positions=learned, not encoder_decoder and",
    ),
    ({"embed_dim": 0}, "config.model.embed_dim=0: must be at least 1"),
    ({"num_decoder_layers": -1}, "config.model.num_decoder_layers=-1: must be at least 0"),
    ({"attention_window": -1}, "config.model.attention_window=-1: must be at least 0"),
    ({"dropout_rate": 1.0}, "config.model.dropout_rate=1.0"),
    ({"dropout_rate": -0.1}, "config.model.dropout_rate=-0.1"),
    ({"relative_position_buckets": 6}, "config.model.relative_position_buckets=6"),
    # Layers of the architecture
    (
      {"num_encoder_layers": 0},
      "num_encoder_layers=0: must be 1 or more with config.model.architecture=encoder_decoder",
    ),
    (
      {"num_decoder_layers": 0},
      "num_decoder_layers=0: must be 1 or more with config.model.architecture=encoder_decoder",
    ),
    ({"architecture": "encoder_only"}, "num_decoder_layers=3: must be 0 with config.model.architecture=encoder_only"),
    ({"architecture": "decoder_only"}, "num_encoder_layers=2: must be 0 with config.model.architecture=decoder_only"),
    # Fields of some architectures only
    ({"share_stacks": True}, "share_stacks=True.*with 2 encoder and 3 decoder layers"),
    (
      {"segment_types": 2, "architecture": "decoder_only", "num_encoder_layers": 0},
      "config.model.segment_types=2 needs an encoder, but the architecture is decoder_only",
    ),
    # Named heads
    ({"heads": ("nli",)}, "config.model.heads: 'nli' is not a valid head. Give for example {\"name\""),
    ({"heads": ({"name": "n/li", "num_classes": 3},)}, "config.model.heads: 'n/li' is not a valid name"),
    (
      {"heads": ({"name": "nli", "num_classes": 0},)},
      "config.model.heads: nli has the invalid num_classes=0. Give an integer of at least 1",
    ),
    (
      {"heads": ({"name": "nli", "num_classes": 3, "knd": "class"},)},
      "unknown key 'knd'. Known keys: .*; did you mean kind?",
    ),
    ({"heads": (HeadConfig("a", 2), HeadConfig("a", 3))}, "config.model.heads: the names a, a are not unique"),
    ({"heads": ({"name": "nli", "num_classes": 3, "kind": "clas"},)}, "kind='clas'.*did you mean class?"),
    (
      {"architecture": "decoder_only", "num_encoder_layers": 0, "heads": (HeadConfig("nli", 3, reads="first"),)},
      "config.model.heads: nli reads the first position, but in a decoder-only model "
      "this position attends to no other position",
    ),
    (
      {"bidirectional_prefix": True},
      "config.model.bidirectional_prefix=True needs config.model.architecture=decoder_only, not encoder_decoder",
    ),
    # Fields that depend on each other
    ({"positions": "learned"}, "config.model.max_length=0: learned positions need"),
    ({"positions": "rotary", "head_dim": 5}, "config.model.head_dim=5.*even"),
    ({"num_kv_heads": 3}, r"num_kv_heads=3 does not divide config.model.num_heads=4.*that work: \[1, 2, 4\]"),
    ({"num_kv_heads": 8}, r"num_kv_heads=8 does not divide config.model.num_heads=4.*that work: \[1, 2, 4\]"),
    ({"global_attention_every": 3}, "config.model.global_attention_every=3.*Set a window"),
    (
      {"attention_window": 4, "global_attention_every": 3, "global_attention_first": 3},
      "config.model.global_attention_first=3: must be below config.model.global_attention_every=3",
    ),
    ({"attention_scale_dim": 8}, "attention_scale_dim=8 needs config.model.scale_attention=True"),
    ({"attention_softcap": -1.0}, "config.model.attention_softcap=-1.0: must be at least 0"),
    ({"logits_softcap": -1.0}, "config.model.logits_softcap=-1.0: must be at least 0"),
    ({"branch_norm": True, "post_norm": True}, "branch_norm=True needs config.model.post_norm=False"),
  ],
)
def test_a_field_out_of_range_is_refused(fields, message):
  """The message has the config key, and the most similar known name."""
  with pytest.raises(UserError, match=message):
    toy.config(**fields)


@pytest.mark.parametrize("family", ["t5_1_1", "bert", "modern_bert", "gpt2", "llama2", "llama3"])
def test_an_unknown_size_is_refused(family):
  """The message has the known sizes."""
  with pytest.raises(UserError, match="unknown size 'giant'. Known values:"):
    of_family(family)("giant")


def test_a_misspelt_size_is_recognised():
  """The message has the most similar size."""
  with pytest.raises(UserError, match="did you mean large?"):
    presets.t5_1_1("lage")


@pytest.mark.parametrize(
  ("first", "second"), [("train.steps=4", "train.epochs=2"), ("optimizer.warmup_steps=9", "optimizer.warmup_ratio=0.1")]
)
def test_two_keys_of_which_one_has_no_effect_are_refused(first, second):
  """In either order; 0 leaves the choice to the other."""
  options = [f"--config.{first}", f"--config.{second}"]
  for given in (options, options[::-1]):
    with pytest.raises(
      UserError, match=f"{first} and --config.{second} are mutually exclusive; give only one of these keys"
    ):
      override(load_config("tiny_t5"), given)
  name = second.partition("=")[0]
  config = override(load_config("tiny_t5"), [options[0], f"--config.{name}=0.0"])
  assert config[name.split(".")[0]][name.split(".")[1]] == 0


@pytest.mark.parametrize("name", ["llama3_8b", "qwen2_7b", "ul2_20b", "prefix_lm_xxl", "deberta_v2_xxlarge"])
def test_a_config_built_on_another_keeps_its_recomputation(name):
  """Fields of a family replace the model of the other config, but not a choice of the run."""
  assert load_config(name).model.remat == "full"
