"""Model configuration: one frozen dataclass for every architecture and family."""

import dataclasses
import importlib.util
import math
import numbers
import re
from typing import TYPE_CHECKING, Any

from t2t import UserError, did_you_mean
from t2t.models import remat
from t2t.models.architecture import ARCHITECTURES, Architecture
from t2t.models.head_config import HeadConfig, as_head
from t2t.runtime.lazy_table import LazyTable, load

if TYPE_CHECKING:
  import jax

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu", "gated_gelu", "gated_gelu_exact", "gated_silu")
# config.model.positions -> a `positions.Scheme`
POSITIONS: LazyTable[Any] = LazyTable(
  {
    "relative": "t2t.models.positions:Relative",
    "rotary": "t2t.models.positions:Rotary",
    "sinusoidal": "t2t.models.sinusoidal:Sinusoidal",
    "learned": "t2t.models.positions:Learned",
    "alibi": "t2t.models.positions:Alibi",
    "disentangled": "t2t.models.disentangled:Disentangled",
    "functional_relative": "t2t.models.functional_relative:FunctionalRelative",
    "none": "t2t.models.positions:Scheme",
    "relative_xl": "t2t.models.relative_xl:RelativeXL",
  }
)
DISENTANGLED_TERMS = ("both", "content_to_position", "position_to_content")
ABSOLUTE_POSITIONS = ("input", "mask_decoder")
# config.model.beside_first -> a module beside the first layer of an encoder, see `stack.BesideFirst`
BESIDE_FIRST: LazyTable[Any] = LazyTable({"convolution": "t2t.models.convolution:Convolution"})
# config.model.rotary_scaling -> a `rotary_scaling.RotaryScaling`
ROTARY_SCALINGS: LazyTable[Any] = LazyTable(
  {
    "linear": "t2t.models.rotary_scaling:RotaryScaling",
    "llama3": "t2t.models.rotary_scaling:Llama3",
    "yarn": "t2t.models.rotary_scaling:Yarn",
  }
)
# config.model.block -> a layer of a stack, with the interface of `stack.Layer`
BLOCKS: LazyTable[Any] = LazyTable(
  {
    "transformer": "t2t.models.stack:Layer",
    "bottleneck": "t2t.models.bottleneck_block:BottleneckBlock",
    "none": "t2t.contrib.static.no_layers:NoLayer",
    "recurrent": "t2t.contrib.recurrent.block:RecurrentBlock",
    "recurrent_attention": "t2t.contrib.recurrent.attentional:AttentionalBlock",
  }
)
# config.model.recurrence -> a `stack.Recurrence`
RECURRENCES: LazyTable[Any] = LazyTable(
  {"universal": "t2t.models.universal:Universal", "last_input": "t2t.models.multi_token:LastInput"}
)
# config.model.embedding -> a `layers.Embed`
EMBEDDINGS: LazyTable[Any] = LazyTable(
  {
    "tokens": "t2t.models.layers:Embed",
    "trigram": "t2t.models.trigram_embedding:TrigramEmbed",
    "subword": "t2t.contrib.static.subwords:SubwordEmbed",
    "both_directions": "t2t.contrib.recurrent.bilm:BothDirections",
    "characters": "t2t.contrib.recurrent.character_cnn:CharacterEmbed",
    "characters_both_directions": "t2t.contrib.recurrent.character_cnn:CharactersBothDirections",
  }
)
# Layers of recurrent blocks; the first, inner and last ones of a stack differ.
_RECURRENT = {
  f"{cell}_{level}".strip("_"): f"t2t.contrib.recurrent.layer:{cell.title()}{level.title()}"
  for cell in ("lstm", "gru", "qrnn")
  for level in ("", "first", "inner", "last")
}
_OF_RECURRENT = re.compile("recurrent_|embedding_dropout").match
# config.model.feed_forward -> a `feed_forward.FeedForward`
FEED_FORWARD: LazyTable[Any] = LazyTable(
  {"dense": "t2t.models.feed_forward:Mlp", "moe": "t2t.models.moe:Moe", **_RECURRENT}
)
# config.model.attention -> a subclass of `attention.Attention`, for self-attention
ATTENTIONS: LazyTable[Any] = LazyTable(
  {
    "full": "t2t.models.attention:Attention",
    "longformer": "t2t.models.longformer:LongformerAttention",
    "lsh": "t2t.models.lsh:LSHAttention",
  }
)
# config.model.decoder -> a `inference.decoders.Decoder`
DECODERS: LazyTable[Any] = LazyTable(
  {
    "autoregressive": "t2t.inference.decoders:Autoregressive",
    "speculative": "t2t.inference.speculative:Speculative",
    "unmask": "t2t.inference.unmasking:Unmask",
  }
)
NORMS = ("rms", "layer", "affine")
QUANTIZATIONS = ("int8", "fp8")  # see models/quantized_matmul.py
ATTENTION_KERNELS = ("splash", "distance", "cudnn", "triton", "plain")  # see models/kernels
DTYPES = ("bfloat16", "float32")

# Larger values are certainly errors of a config file and would compute for hours; other integers are int32.
_MOST = {"num_encoder_layers": 10_000, "num_decoder_layers": 10_000, "num_heads": 100_000, "num_kv_heads": 100_000}

# Fields that may be 0: off, or derived from another field.
_MAY_BE_ZERO = (
  "vocab_size",
  "num_encoder_layers",
  "num_decoder_layers",
  "num_kv_heads",
  "embedding_dim",
  "output_embedding_dim",
  "bottleneck_dim",
  "max_length",
  "position_offset",
  "rotary_scaling_original_length",
  "attention_window",
  "attention_block",
  "block_length",
  "attention_scale_dim",
  "global_attention_every",
  "global_attention_first",
  "segment_types",
  "future_tokens",
  "memory_length",
  "memory_reuse",
  "relative_clamp",
  "unroll",
  "moe_experts",
  "moe_first",
  "moe_capacity",
  "pipeline_microbatches",
  "lsh_buckets",
  "feed_forward_chunk",
  "subword_buckets",
  "recurrent_hidden",
)


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
  """Shape of a Transformer; every field is an integer count, a rate, a switch or a name.

  Defaults are T5 1.1's; presets.py has the fields of the published families.

  Raises:
    UserError: a field is out of range or has an unknown name; the message contains the config key.
  """

  architecture: str  # encoder_decoder, decoder_only, encoder_only
  #: rows of the embedding, preferably a multiple of 128; 0: the vocabulary's size, rounded up to a multiple of 128
  vocab_size: int
  embed_dim: int  # width of the residual stream
  num_heads: int  # heads of each attention
  head_dim: int  # head dimension; num_heads * head_dim may differ from embed_dim
  mlp_dim: int  # hidden width of the feed-forward layers
  num_encoder_layers: int = 0  # number of encoder layers; 0 in decoder_only
  num_decoder_layers: int = 0  # number of decoder layers; 0 in encoder_only
  # Positions
  #: relative (a learned bias, T5),
  #: sinusoidal (fixed sines and cosines, the original Transformer),
  #: alibi (a bias that falls with the distance),
  #: relative_xl (sinusoids of the distance, Transformer-XL and XLNet),
  #: rotary (RoFormer),
  #: disentangled (a vector for each distance bucket beside content, DeBERTa),
  #: functional_relative (a fixed vector for each distance, added to keys and values, NEZHA)
  #: none (no position information except masks and signals of steps) or learned (a table of max_length rows)
  positions: str = "relative"
  relative_position_buckets: int = 32  # number of distance buckets, each with a learned bias or vector
  relative_position_max_distance: int = 128  # distance in positions from which all share the last bucket
  disentangled_terms: str = "both"  # disentangled: content_to_position, position_to_content, or both, in the logits
  share_position_projections: bool = False  # disentangled: the same query and key matrices for positions (DeBERTa v2)
  relative_position_norm: bool = False  # disentangled: a norm of the vectors of distances (DeBERTa v2)
  #: disentangled: learned positions of max_length rows; input (added to embedded tokens),
  #: mask_decoder (added to queries before the vocabulary's logits, DeBERTa) or "": none
  absolute_positions: str = ""
  relative_clamp: int = 0  # relative_xl: distance from which all share one sinusoid; 0: no limit
  share_relative_biases: bool = False  # relative_xl: the layers share the biases of content and position
  relative_segments: bool = False  # relative_xl: a bias by whether query and key have the same segment type (XLNet)
  rotary_base: float = 10_000.0  # base of the rotary frequencies; larger for longer texts
  local_rotary_base: float = 0.0  # rotary base of the layers with a window; 0: rotary_base
  rotary_cross_attention: bool = False  # rotary positions in cross-attention, targets after the inputs (RedLLM)
  #: scaling of rotary positions for longer sequences, except with local_rotary_base: linear (interpolation),
  #: llama3 (Llama 3.1), yarn (YaRN); "": none
  rotary_scaling: str = ""
  rotary_scaling_factor: float = 1.0  # ratio of the longest sequence to the longest one before scaling
  rotary_scaling_original_length: int = 0  # llama3, yarn: longest sequence before scaling
  rotary_scaling_low_turns: float = 1.0  # llama3: turns in the original length below which a frequency is divided
  rotary_scaling_high_turns: float = 4.0  # llama3: turns in the original length above which a frequency stays
  rotary_scaling_beta_fast: float = 32.0  # yarn: turns in the original length at which the ramp begins
  rotary_scaling_beta_slow: float = 1.0  # yarn: turns in the original length at which the ramp ends
  rotary_scaling_attention_factor: float = 0.0  # yarn: factor of queries and keys; 0: 0.1 log(factor) + 1
  rotary_scaling_truncate: bool = True  # yarn: rounding of both ends of the ramp to feature pairs
  max_length: int = 0  # number of learned positions: the longest sequence
  position_offset: int = 0  # learned positions: unused rows of the table before the first position (RoBERTa 2)
  # Attention
  #: full (every position, or a window),
  #: longformer (a window, and global tokens that attend to all)
  #: or lsh (chunks of tokens that are sorted by hashes, Reformer)
  attention: str = "full"
  num_kv_heads: int = 0  # grouped-query attention: number of key and value heads; 0: num_heads
  scale_attention: bool = False  # division of logits by sqrt(head_dim); T5's initializer includes the factor instead
  attention_scale_dim: int = 0  # dimension for scale_attention (Gemma 2); 0: head_dim
  attention_softcap: float = 0.0  # cap in softcap * tanh(logits / softcap) (Gemma 2); 0: no capping
  qk_norm: bool = False  # norms of queries and keys, per head
  attention_window: int = 0  # positions that a query attends to on each side; 0: all
  global_attention_every: int = 0  # with a window, every n-th layer attends to all positions; 0: no layer
  global_attention_first: int = 0  # index of the first such layer, below n: 0, n, 2n, ... (Gemma 2: 1, 3, 5, ...)
  #: longformer, the tokens that attend to all and that all attend to: first (of each text), question (the tokens before
  #: the context, token type 0) or none; "": question with span heads, first with other heads of whole texts, else none
  global_tokens: str = ""
  most_global_tokens: int = 64  # longformer: largest number of global tokens in a row; further ones stay local
  attention_dilation: int = 1  # longformer: distance between neighbours in a window
  #: earlier positions whose states each layer keeps from step to step, for rows that continue (Transformer-XL); 0: none
  memory_length: int = 0
  memory_reuse: int = 0  # positions at the start of a row that enter the memory, if rows overlap (XLNet); 0: all
  two_streams: bool = False  # encoder_only: a second stream predicts tokens that it does not read (XLNet)
  block_length: int = 0  # encoder_only: tokens of a block that is denoised after the blocks before it (BD3-LM); 0: all
  lsh_chunk: int = 64  # lsh: tokens of a chunk, which attend to their chunk and the one before
  lsh_rounds: int = 4  # lsh: rounds of hashing
  lsh_buckets: int = 0  # lsh: buckets of a round, an even number; 0: a power of two near twice the number of chunks
  lsh_every: int = 2  # lsh: the last of n layers hashes, the others attend to neighbouring chunks; 1: all hash
  bidirectional_prefix: bool = False  # decoder_only: bidirectional attention among the inputs
  # Blocks
  #: transformer, bottleneck (narrow layers between two projections, MobileBERT), recurrent (layers with a state,
  #: AWD-LSTM), recurrent_attention (such layers, cross-attention, CoVe) or none (states are token vectors, word2vec)
  block: str = "transformer"
  bottleneck_dim: int = 0  # width of the narrow part of a bottleneck block, such as 128
  #: bottleneck block: attention reads only the narrow input (MobileBERT tiny); False: queries and keys share another
  #: bottleneck, and values read all features
  bottleneck_attention: bool = False
  num_feed_forwards: int = 1  # number of feed-forward layers of a bottleneck block (MobileBERT 4)
  norm: str = "rms"  # rms, layer, or affine (scale and bias without statistics, MobileBERT)
  norm_epsilon: float = 1e-6  # number added to the variance before the square root
  norm_offset: bool = False  # multiplication by 1 + scale in norms, with scale starting at 0 (Gemma)
  post_norm: bool = False  # norms after the residual sums (BERT) instead of at the start of each branch
  branch_norm: bool = False  # additional norms at the end of each branch, before the residual sum (Gemma 2)
  biases: bool = False  # biases in projections, feed-forward layers and layer norms
  key_bias: bool = True  # with biases: a bias of the keys (DeBERTa v1 has none)
  beside_first: str = ""  # branch beside an encoder's first layer: convolution (DeBERTa v2); "": none
  beside_first_activation: str = "gelu"  # activation of beside_first: tanh, relu, gelu or gelu_tanh
  qkv_biases: bool = False  # biases in the projections of queries, keys and values, without other biases (Qwen 2)
  attention_biases: bool = True  # with biases: also in the projections of attention
  #: the layers' second branch: dense (one MLP) or moe (mixture of experts); with block=recurrent the layer: lstm, gru,
  #: or qrnn (convolutions of two positions and a pooling)
  feed_forward: str = "dense"
  feed_forward_chunk: int = 0  # positions that the MLP computes at once, which saves memory; 0: all
  mlp_activation: str = "gated_gelu"  # gated_gelu (T5 1.1), gated_silu (SwiGLU), gated_gelu_exact, relu, gelu, silu ...
  moe_experts: int = 0  # number of experts of a layer
  moe_experts_per_token: int = 1  # experts that compute a token: 1 (Switch) or 2 (ST-MoE, Mixtral)
  moe_every: int = 1  # every n-th layer has experts, the others are dense (Switch 2, ST-MoE 4, Mixtral 1)
  moe_first: int = 0  # index of the first layer with experts, below n (Switch 1)
  moe_capacity_factor: float = 0.0  # slots of an expert per row, as a multiple of the mean; 0: no token is dropped
  moe_capacity: int = 0  # slots of an expert per row, as a number of tokens; 0: moe_capacity_factor
  moe_normalize_gates: bool = False  # gates of the selected experts sum to 1 (Mixtral)
  moe_balance_loss: float = 0.0  # coefficient of the loss for balanced experts (Switch 0.01)
  moe_z_loss: float = 0.0  # coefficient of the squared log-sum-exp of the router's logits (ST-MoE 0.001)
  moe_jitter: float = 0.0  # in training the router's input is multiplied by 1 - jitter to 1 + jitter (Switch 0.01)
  recurrent_hidden: int = 0  # block=recurrent: units of all layers except the last (AWD-LSTM 1150); 0: embed_dim
  recurrent_projection: bool = False  # lstm: a projection of each layer's output to embed_dim features (ELMo)
  recurrent_residual: bool = False  # block=recurrent: residual sums of all layers except the first (ELMo)
  recurrent_clip: float = 0.0  # lstm: largest absolute value of cells and projections (ELMo 3); 0: no limit
  #: block=recurrent: the state after a row enters the next, for rows that continue (truncated back-propagation)
  recurrent_carry: bool = False
  recurrent_dropout: float = 0.0  # block=recurrent: dropout rate between layers (AWD-LSTM 0.3)
  recurrent_weight_dropout: float = 0.0  # dropout rate of an LSTM's recurrent or a QRNN's input matrix (AWD-LSTM 0.5)
  recurrent_size_loss: float = 0.0  # coefficient of the last layer's mean square (AWD-LSTM 2)
  recurrent_change_loss: float = 0.0  # coefficient of the mean square of its change between positions (AWD-LSTM 1)
  share_layers: bool = False  # one layer's parameters for all layers of a stack (ALBERT)
  #: loop over the shared layer: universal (signals of positions and steps before each step, Universal Transformer); "":
  #: none
  recurrence: str = ""
  #: signals that recurrence adds before each step: sinusoidal (positions and steps as sines), learned (positions as
  #: sines, and a learned vector for each step) or none
  step_signal: str = "sinusoidal"
  #: recurrence: sum of halting probabilities from which a position halts (adaptive computation time), such as 0.99;
  #: 0.0: no halting
  halting_threshold: float = 0.0
  ponder_coefficient: float = 0.01  # factor in the loss of the mean number of steps, with halting_threshold
  #: encoder_decoder: the decoder shares the encoder's layers, except for its cross-attention
  share_stacks: bool = False
  # Sizes of an encoder that differ from the decoder's; 0: the field without encoder_
  encoder_embed_dim: int = 0  # encoder_decoder: width of the encoder, with own_encoder_embedding (T5Gemma 9B-2B)
  encoder_num_heads: int = 0  # encoder_decoder: heads of each attention of the encoder
  encoder_num_kv_heads: int = 0  # encoder_decoder: key and value heads of the encoder
  encoder_head_dim: int = 0  # encoder_decoder: head dimension of the encoder
  encoder_mlp_dim: int = 0  # encoder_decoder: hidden width of the encoder's feed-forward layers
  encoder_attention_window: int = 0  # encoder_decoder: attention_window of the encoder, if both stacks have one
  # Embedding and head
  embedding_dim: int = 0  # width of the embedding, projected to embed_dim (ALBERT); 0: embed_dim
  #: tokens, trigram (three neighbouring tokens, MobileBERT), subword (plus vectors of character n-grams, fastText),
  #: characters (their CNN, ELMo), both_directions (two halves with one vector) or characters_both_directions (both)
  embedding: str = "tokens"
  subword_buckets: int = 0  # subword embedding: rows that the n-grams of all words share (fastText 2,000,000)
  most_subwords: int = 64  # subword embedding: n-grams of a word; 64 are those of words of up to 17 characters
  character_cnn: str = "elmo"  # characters: sizes of the CNN, elmo, elmo_small (one highway layer less) or tiny
  #: width of the output embedding (RemBERT); with tied logits, features beyond the tied ones are separate
  #: (MobileBERT); 0: the embedding's width
  output_embedding_dim: int = 0
  embedding_dropout: float = 0.0  # decoder_only: rate of tokens whose embedding is zero in a whole step (AWD-LSTM)
  embedding_norm: bool = False  # a norm after the embedding (BERT)
  #: a trained difference, from 0, added to the token embedding, which then has no other gradient from this input: in
  #: ELECTRA only the generator trains the shared embedding (DeBERTa v3)
  embedding_difference: bool = False
  own_encoder_embedding: bool = False  # encoder_decoder: a separate token embedding of the encoder (T5Gemma)
  own_decoder_positions: bool = False  # separate learned positions and embedding norm of the decoder (BART)
  scale_embedding: bool = False  # multiplication of embedded tokens by sqrt(embed_dim) (Gemma)
  segment_types: int = 0  # rows of the encoder's segment-type embedding (BERT 2)
  tied_logits: bool = False  # output projection with the embedding table
  future_tokens: int = 0  # decoder_only: tokens after the next that extra last layers predict (Gloeckle et al. 2024)
  logits_softcap: float = 0.0  # cap in softcap * tanh(logits / softcap) (Gemma 2); 0: no capping
  logits_bias: bool = False  # a bias on the logits, without logits_transform (Marian, XLNet)
  logits_transform: bool = False  # a dense layer, activation and norm before the logits, and a bias on them (BERT)
  logits_norm: str = ""  # norm of logits_transform: rms, layer or affine; "": norm
  vocabulary_head: bool = True  # logits over the vocabulary; False: only `heads`
  heads: tuple[HeadConfig, ...] = ()  # other heads: ({"name": "nli", "num_classes": 3},)
  exits: bool = False  # encoder_only: class and score heads also after each inner layer, for early exit (PABEE)
  init_scale: float = 0.0  # standard deviation of all initial weights; 0: T5's, 1 of embeddings and by fan-in elsewhere
  #: initial attention logit of half of the heads, each for one neighbour; in cross-attention for the query's own token;
  #: 0: T5's initialization
  attention_init_bias: float = 0.0
  #: generation: autoregressive; speculative (drafts by future_tokens); "": autoregressive for decoders, no generation
  #: for encoder-only models
  decoder: str = ""
  # Computation
  dropout_rate: float = 0.0  # dropout rate; T5 1.1 pre-trains with 0, T5 1.0 and fine-tuning use 0.1
  #: one dropout mask for all positions; adds dropout after activations and after the last norm
  broadcast_dropout: bool = True
  dtype: str = "bfloat16"  # dtype of activations; parameters, norms and logits are float32
  gradient_dtype: str = ""  # dtype of gradient all-reduces of matrices; "": dtype, on more than 32 devices float32
  quantization: str = ""  # 8-bit matrix products of the layers, int8 or fp8, except for weight gradients; "": dtype
  fake_quantization: str = ""  # int8: rounds weights and inputs of products as an int8 export does (Q8BERT); "": none
  layer_drop: float = 0.0  # probability of skipping a layer in a training step (LayerDrop)
  #: splash, distance, cudnn, triton or plain; an unavailable kernel is an error; "": the fastest available kernel
  attention_kernel: str = ""
  attention_block: int = 0  # largest block of TPU kernels in positions, 128 to 2048, if memory allows; 0: default
  #: activations that the backward pass recomputes: none, minimal (all except matmul outputs), full; offload: minimal,
  #: kept on the host; or a list of activations to keep: query,key,value,attention,input@host (see remat.py)
  remat: str = "none"
  #: layers per iteration of the layer loop: more save copies and compile longer; 0: one, on CPUs all
  unroll: int = 0
  #: with config.mesh.stage: microbatches in the pipeline at a time, a divisor of a device's rows; 0: up to 4 per stage
  pipeline_microbatches: int = 0
  pipeline_rounds: int = 1  # with config.mesh.stage: times that a microbatch passes all stages; more: a smaller bubble

  @property
  def attention_dropout(self) -> str:
    """Returns the dropout mode of attention probabilities in training, see `dispatch.DROPOUTS`."""
    return "" if not self.dropout_rate else "rows" if self.broadcast_dropout else "each"

  @property
  def kind(self) -> Architecture:
    """Returns the properties of this config's architecture."""
    return ARCHITECTURES[self.architecture]

  def of_stack(self, side: str) -> "TransformerConfig":
    """Returns the config of one stack, in which the sizes of a different encoder replace the decoder's.

    Args:
      side: encoder or decoder.
    """
    changed = {name.removeprefix("encoder_"): getattr(self, name) for name in ENCODER_FIELDS if getattr(self, name)}
    if side == "decoder" or not changed:
      return self
    return dataclasses.replace(self, **dict.fromkeys(ENCODER_FIELDS, 0), **changed)

  @property
  def is_generative(self) -> bool:
    """Returns True if the model generates text."""
    return bool(self.decoder or self.kind.decoder)

  @property
  def text_decoder(self) -> Any:
    """Returns this config's `inference.decoders.Decoder` from `DECODERS`.

    Raises:
      UserError: the model generates no text.
    """
    if not self.is_generative:
      raise UserError(
        f"config.model.architecture={self.architecture}: an encoder-only model cannot generate text; it can only "
        "score given targets. Use encoder_decoder or decoder_only."
      )
    return DECODERS[self.decoder or self.kind.decoder]

  def for_inference(self, *, on_cpu: bool) -> "TransformerConfig":
    """Returns the config for inference: without dropout, 8-bit products and the kernel settings of training.

    Evaluation during training and all commands that read checkpoints use it, so that their results agree. Without an
    accelerator the dtype is float32, which is faster than bfloat16 on a CPU.
    """
    dtype = "float32" if on_cpu else self.dtype
    same = {"attention_kernel": "", "attention_block": 0, "quantization": "", "dropout_rate": 0.0}
    return dataclasses.replace(self, dtype=dtype, **same)

  def has_parameters(self, head: HeadConfig) -> bool:
    """Returns True if the head has parameters; a vector head without projection has none."""
    spelled_out = head.spelled_out(self.kind)
    return head.kind != "vector" or head.num_classes > 0 or spelled_out.pooler != "" or head.layers == "mix"

  def published_head(self, kind: str) -> dict[str, str | bool]:
    """Returns `HeadConfig` fields of a published head of this kind on a body like this one.

    Decoder-only classifiers have no bias (GPT-2, Llama), in Ettin after a dense layer and a norm. BERT's heads are the
    defaults of `HeadConfig`. RoBERTa, ELECTRA, DistilBERT, ModernBERT and DeBERTa have other heads, which `convert`
    writes.

    Args:
      kind: kind of the head.
    """
    is_one = kind in ("class", "score")
    if self.kind.is_decoder_only:
      return {"bias": False} | ({"pooler": "norm"} if self.embedding_norm else {}) if is_one else {}
    if self.kind.is_generative or self.share_layers:
      return {}
    if self.positions == "disentangled":
      return {"pooler": "gelu"} if is_one or kind == "choice" else {}
    if self.two_streams:
      return {"reads": "last", "pooler": "tanh"} if is_one or kind == "choice" else {}
    if not self.post_norm:
      return {"pooler": "norm"} if self.logits_transform else {}
    if not is_one and kind != "choice":
      return {}
    if not self.logits_transform:
      return {"pooler": "gelu", "drops_inputs": is_one}
    if self.segment_types == 0:
      return {"pooler": "relu"}
    return {"drops_inputs": True} if is_one and self.segment_types == 1 else {}

  @property
  def embedding_width(self) -> int:
    """Returns the number of features of a row of the embedding."""
    return self.embedding_dim or self.embed_dim

  @property
  def logits_width(self) -> int:
    """Returns the number of features that the vocabulary head multiplies with each row of the output embedding."""
    return self.output_embedding_dim or self.embedding_width

  @property
  def kv_heads(self) -> int:
    """Returns the number of key and value heads."""
    return self.num_kv_heads or self.num_heads

  @property
  def deepest_stack(self) -> int:
    """Returns the number of layers of the deepest stack; 0 if the layers of a stack share parameters."""
    return 0 if self.share_layers else max(self.num_encoder_layers, self.num_decoder_layers)

  @property
  def position_scheme(self) -> Any:
    """Returns this config's `positions.Scheme` from `POSITIONS`."""
    return POSITIONS[self.positions](self)

  @property
  def block_class(self) -> Any:
    """Returns the class of this config's layers, with the interface of `stack.Layer`, from `BLOCKS`."""
    return BLOCKS[self.block]

  @property
  def recurrence_row(self) -> str:
    """Returns the row of `RECURRENCES` of the stacks; "": layers run one after another."""
    return self.recurrence or ("last_input" if self.future_tokens else "")

  @property
  def reads_real(self) -> bool:
    """Returns True if layers or their recurrence read which positions hold a token."""
    return self.feed_forward_class.reads_real or bool(self.recurrence) or self.memory_length > 0

  @property
  def feed_forward_class(self) -> Any:
    """Returns this config's subclass of `feed_forward.FeedForward` from `FEED_FORWARD`."""
    return FEED_FORWARD[self.feed_forward]

  @property
  def attention_class(self) -> Any:
    """Returns this config's `attention.Attention` for self-attention from `ATTENTIONS`."""
    return ATTENTIONS[self.attention]

  @property
  def feed_forward_pattern(self) -> tuple[str, ...]:
    """Returns rows of `FEED_FORWARD` that the layers of a stack have in turn; one row: all layers are alike."""
    return self.feed_forward_class.pattern(self)

  @property
  def attention_scale(self) -> float:
    """Returns the factor of attention logits, without the terms of a position scheme."""
    return (self.attention_scale_dim or self.head_dim) ** -0.5 if self.scale_attention else 1.0

  @property
  def most_positions(self) -> int:
    """Returns the longest sequence that the model can read; 0: unlimited."""
    scheme = self.position_scheme
    return self.max_length if scheme.embedded or scheme.decodes_masks else 0

  @property
  def biased(self) -> bool:
    """Returns True if a bias is added to attention logits."""
    return bool(self.position_scheme.bias)

  def bias_reach(self, length: int) -> int:
    """Returns the distance from which the bias is constant, within a sequence of `length`."""
    return self.position_scheme.reach(length)

  def is_local(self, index: "jax.Array | int") -> "jax.Array | bool":
    """Returns whether the layer with this index, an integer or int [], attends to its neighbourhood only."""
    return self.attention_class.is_local(self, index)

  def windows(self, length: int) -> tuple[int, ...]:
    """Returns the distinct attention windows of the layers for sequences of `length`; 0: all positions."""
    window = self.attention_window if self.attention_window < length - 1 else 0
    return tuple(dict.fromkeys((0, window) if self.global_attention_every else (window,)))

  @property
  def gated(self) -> bool:
    return self.mlp_activation.startswith("gated_")

  def __post_init__(self):
    if self.dtype == "float16":
      raise UserError(
        "config.model.dtype=float16: T5's activations overflow float16's range (65,504), and t2t has no loss "
        "scaling. Set --config.model.dtype=bfloat16 or float32."
      )
    for field, known in (
      ("architecture", ARCHITECTURES),
      ("positions", POSITIONS),
      ("rotary_scaling", ("", *ROTARY_SCALINGS)),
      ("block", BLOCKS),
      ("recurrence", ("", *RECURRENCES)),
      ("embedding", EMBEDDINGS),
      ("feed_forward", FEED_FORWARD),
      ("attention", ATTENTIONS),
      ("decoder", ("", *DECODERS)),
      ("disentangled_terms", DISENTANGLED_TERMS),
      ("absolute_positions", ("", *ABSOLUTE_POSITIONS)),
      ("beside_first", ("", *BESIDE_FIRST)),
      ("beside_first_activation", ("tanh", "relu", "gelu", "gelu_tanh")),
      ("norm", NORMS),
      ("logits_norm", ("", *NORMS)),
      ("mlp_activation", ACTIVATIONS),
      ("attention_kernel", ("", *ATTENTION_KERNELS)),
      ("dtype", DTYPES),
      ("gradient_dtype", ("", *DTYPES)),
      ("quantization", ("", *QUANTIZATIONS)),
      ("fake_quantization", ("", "int8")),
    ):
      value = getattr(self, field)
      if value not in known:
        named = [choice for choice in known if choice]
        raise UserError(
          f"config.model.{field}={value!r}: unknown value. Known values: "
          f"{', '.join(named)}{did_you_mean(str(value), named)}"
        )
    if self.quantization and importlib.util.find_spec("qwix") is None:
      from t2t.runtime import versions

      raise UserError(
        f"config.model.quantization={self.quantization}: the package qwix is missing. Run: "
        f"{versions.install_command('quantization')}"
      )
    if self.remat not in remat.POLICIES:
      remat.parse(self.remat)
    for field in dataclasses.fields(self):
      self._check_number(field)
    if self.norm_epsilon < 0.0:
      raise UserError(f"config.model.norm_epsilon={self.norm_epsilon}: must be at least 0")
    if self.attention_block not in (0, 128, 256, 512, 1024, 2048):
      # Larger blocks do not fit in any TPU core's memory.
      raise UserError(f"config.model.attention_block={self.attention_block}: must be 128, 256, 512, 1024, 2048, or 0")
    for name in ("dropout_rate", "layer_drop", "embedding_dropout", "recurrent_dropout", "recurrent_weight_dropout"):
      if not 0.0 <= getattr(self, name) < 1.0:
        raise UserError(f"config.model.{name}={getattr(self, name)}: must be at least 0 and below 1")
    if self.relative_position_buckets % 4:
      raise UserError(
        f"config.model.relative_position_buckets={self.relative_position_buckets}: must be a multiple of 4 (two "
        "directions, each with as many exact as coarse distances)"
      )
    exact = self.relative_position_buckets // 2
    if self.positions == "relative" and self.relative_position_max_distance <= exact:
      raise UserError(
        f"config.model.relative_position_max_distance={self.relative_position_max_distance}: must be more than "
        f"{exact}, the number of exact distances (half of relative_position_buckets)"
      )
    self._check_layers()
    self._check_encoder()
    self._check_attention()
    if self.block_length:
      load("t2t.models.text_blocks:check")(self)
    self._check_feed_forward()
    self._check_recurrent()
    # Config files and config.json contain dicts.
    object.__setattr__(self, "heads", tuple(as_head(head) for head in self.heads))
    names = [head.name for head in self.heads]
    if len(set(names)) < len(names):
      raise UserError(f"config.model.heads: the names {', '.join(names)} are not unique. Rename a head.")
    for head in self.heads:
      if head.reads == "first" and self.kind.is_decoder_only:
        raise UserError(
          f"config.model.heads: {head.name} reads the first position, but in a decoder-only model this "
          'position attends to no other position. Give the head "reads": "last" or "mean".'
        )

  def _check_number(self, field: dataclasses.Field) -> None:
    """Checks that a field, which may come from an arbitrary config.json, is a number of its type."""
    value = getattr(self, field.name)
    if field.type is bool and not isinstance(value, bool):
      raise UserError(f"config.model.{field.name}={str(value)[:40]!r}: must be True or False")
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
    if field.type is float and not is_number:
      raise UserError(f"config.model.{field.name}={str(value)[:40]!r}: must be a number")
    if field.type is int:
      least = 0 if field.name in (*_MAY_BE_ZERO, *ENCODER_FIELDS) else 1
      most = _MOST.get(field.name.removeprefix("encoder_"), 2**31 - 1)
      if not is_number or not isinstance(value, numbers.Integral):
        raise UserError(f"config.model.{field.name}={str(value)[:40]!r}: must be a whole number")
      if not least <= int(value) <= most:
        end = f"at least {least}" if int(value) < least else f"at most {most:,}"
        raise UserError(f"config.model.{field.name}={str(value)[:40]}: must be {end}")

  def _check_layers(self) -> None:
    for stack in ("encoder", "decoder"):
      key, layers = f"num_{stack}_layers", getattr(self, f"num_{stack}_layers")
      if bool(layers) != (stack in self.kind.sides):
        wanted = "0" if layers else "1 or more"
        raise UserError(
          f"config.model.{key}={layers}: must be {wanted} with config.model.architecture={self.architecture}"
        )
    if self.share_stacks and (
      not self.kind.has_encoder_and_decoder or self.num_encoder_layers != self.num_decoder_layers
    ):
      raise UserError(
        "config.model.share_stacks=True needs config.model.architecture=encoder_decoder, with as many encoder as "
        f"decoder layers. This model is {self.architecture}, with {self.num_encoder_layers} encoder and "
        f"{self.num_decoder_layers} decoder layers."
      )
    if self.segment_types and self.kind.is_decoder_only:
      raise UserError(
        f"config.model.segment_types={self.segment_types} needs an encoder, but the architecture is decoder_only. "
        "Set config.model.segment_types=0."
      )
    if self.beside_first and self.kind.is_decoder_only:
      raise UserError(
        f"config.model.beside_first={self.beside_first} needs an encoder, but the architecture is decoder_only. Set "
        "config.model.beside_first=''."
      )
    if self.two_streams and self.kind.is_generative:
      raise UserError(
        f"config.model.two_streams=True needs config.model.architecture=encoder_only, not {self.architecture}"
      )
    if self.bidirectional_prefix and not self.kind.is_decoder_only:
      raise UserError(
        f"config.model.bidirectional_prefix=True needs config.model.architecture=decoder_only, not {self.architecture}"
      )
    if self.future_tokens and self.recurrence:
      raise UserError(
        f"config.model.future_tokens={self.future_tokens} and config.model.recurrence={self.recurrence} exclude each "
        "other. Set config.model.future_tokens=0 or config.model.recurrence=''."
      )
    if self.future_tokens and not self.kind.is_decoder_only:
      raise UserError(
        f"config.model.future_tokens={self.future_tokens} needs config.model.architecture=decoder_only, not "
        f"{self.architecture}. Set config.model.future_tokens=0."
      )
    for field, unset in (("bottleneck_dim", 0), ("bottleneck_attention", False), ("num_feed_forwards", 1)):
      if self.block != "bottleneck" and getattr(self, field) != unset:
        raise UserError(
          f"config.model.{field}={getattr(self, field)} needs config.model.block=bottleneck, not {self.block}. Set "
          f"config.model.{field}={unset}."
        )
    if self.halting_threshold and not self.recurrence:
      raise UserError(
        f"config.model.halting_threshold={self.halting_threshold} needs config.model.recurrence=universal. Set these "
        "keys, or config.model.halting_threshold=0.0."
      )
    if self.branch_norm and self.post_norm:
      raise UserError("config.model.branch_norm=True needs config.model.post_norm=False")
    if self.positions == "learned" and not self.max_length:
      raise UserError(
        "config.model.max_length=0: learned positions need a maximum length. Set --config.model.max_length to the "
        "longest sequence."
      )
    if self.own_decoder_positions and not (self.kind.has_encoder_and_decoder and self.positions == "learned"):
      raise UserError(
        "config.model.own_decoder_positions=True needs config.model.architecture=encoder_decoder and "
        f"config.model.positions=learned, not {self.architecture} and {self.positions}"
      )

  def _check_encoder(self) -> None:
    """Checks the fields of an encoder that differs from the decoder, and the config of this encoder."""
    changed = [name for name in ENCODER_FIELDS if getattr(self, name)]
    for name in (*changed, *(["own_encoder_embedding"] if self.own_encoder_embedding else [])):
      if not self.kind.has_encoder_and_decoder:
        raise UserError(
          f"config.model.{name}={getattr(self, name)} needs config.model.architecture=encoder_decoder, not "
          f"{self.architecture}"
        )
    if changed and self.share_stacks:
      raise UserError(
        f"config.model.{changed[0]}={getattr(self, changed[0])}: the stacks share their layers, which have one size. "
        f"Set config.model.{changed[0]}=0 or config.model.share_stacks=False."
      )
    if self.own_encoder_embedding and self.own_decoder_positions:
      raise UserError(
        "config.model.own_encoder_embedding=True includes separate positions. Set "
        "config.model.own_decoder_positions=False."
      )
    if self.encoder_attention_window and not self.attention_window:
      raise UserError(
        f"config.model.encoder_attention_window={self.encoder_attention_window} needs a window of the decoder, but "
        "config.model.attention_window=0. Set both, or neither."
      )
    if self.encoder_embed_dim not in (0, self.embed_dim):
      needed = {"own_encoder_embedding": True, "attention_init_bias": 0.0}  # the bias copies keys to queries
      for name, value in needed.items():
        if getattr(self, name) != value:
          raise UserError(
            f"config.model.encoder_embed_dim={self.encoder_embed_dim} and config.model.embed_dim={self.embed_dim} "
            f"differ, which needs config.model.{name}={value}, not {getattr(self, name)}"
          )
    try:
      self.of_stack("encoder")
    except UserError as error:
      raise UserError(
        f"{error} (in the encoder, with {', '.join(f'config.model.{name}' for name in changed)})"
      ) from error

  def _check_feed_forward(self) -> None:
    """Checks that settings of a feed-forward layer, which begin with the layer's name, have an effect."""
    for field in dataclasses.fields(self):
      layer = field.name.partition("_")[0]
      if layer in FEED_FORWARD and layer != self.feed_forward and getattr(self, field.name) != field.default:
        raise UserError(
          f"config.model.{field.name}={getattr(self, field.name)} needs config.model.feed_forward={layer}, not "
          f"{self.feed_forward}. Set --config.model.feed_forward={layer}, or config.model.{field.name}={field.default}."
        )

  def _check_recurrent(self) -> None:
    changed = [field.name for field in dataclasses.fields(self) if getattr(self, field.name) != field.default]
    if "recurrent" in self.block or self.feed_forward in _RECURRENT or any(map(_OF_RECURRENT, changed)):
      load("t2t.contrib.recurrent.checks:check")(self, changed)

  def _check_attention(self) -> None:
    if self.num_heads % self.kv_heads:
      works = [n for n in range(1, self.num_heads + 1) if self.num_heads % n == 0]
      raise UserError(
        f"config.model.num_kv_heads={self.num_kv_heads} does not divide config.model.num_heads={self.num_heads}. "
        f"Values that work: {works}."
      )
    if self.positions == "rotary" and self.head_dim % 2:
      raise UserError(
        f"config.model.head_dim={self.head_dim}: must be even, because rotary positions rotate pairs of features"
      )
    if self.attention_init_bias < 0.0:
      raise UserError(
        f"config.model.attention_init_bias={self.attention_init_bias}: must be at least 0 (0: T5's initialization)"
      )
    if self.attention_init_bias and (self.positions != "relative" or self.qk_norm):
      raise UserError(
        f"config.model.attention_init_bias={self.attention_init_bias} needs config.model.positions=relative and "
        "config.model.qk_norm=False. Set these keys, or config.model.attention_init_bias=0."
      )
    if self.attention_scale_dim and not self.scale_attention:
      raise UserError(
        f"config.model.attention_scale_dim={self.attention_scale_dim} needs config.model.scale_attention=True"
      )
    if self.global_tokens and self.attention != "longformer":
      raise UserError(
        f"config.model.global_tokens={self.global_tokens} needs config.model.attention=longformer, which encoder_only "
        f"models have, but this model has config.model.architecture={self.architecture} and config.model.attention="
        f"{self.attention}. Set config.model.global_tokens=''."
      )
    if self.global_attention_first and self.global_attention_first >= self.global_attention_every:
      raise UserError(
        f"config.model.global_attention_first={self.global_attention_first}: must be below"
        f" config.model.global_attention_every={self.global_attention_every}"
      )
    for field in ("attention_softcap", "logits_softcap"):
      if getattr(self, field) < 0.0:
        raise UserError(f"config.model.{field}={getattr(self, field)}: must be at least 0 (0: no capping)")
    if self.global_attention_every and not self.attention_window:
      raise UserError(
        f"config.model.global_attention_every={self.global_attention_every} has no effect, because without "
        "config.model.attention_window every layer attends to all positions. Set a window, or "
        "config.model.global_attention_every=0."
      )


ENCODER_FIELDS = tuple(
  field.name for field in dataclasses.fields(TransformerConfig) if field.name.startswith("encoder_")
)
