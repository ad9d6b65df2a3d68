"""The shape of a Transformer: one frozen record for every architecture and family."""

from collections.abc import Mapping
import dataclasses
import importlib.util
import math
import numbers
import re
from typing import TYPE_CHECKING, Any

from t2t import UserError, did_you_mean
from t2t.models import remat
from t2t.models.architecture import ARCHITECTURES, Architecture
from t2t.runtime.lazy_table import LazyTable

if TYPE_CHECKING:
  import jax

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "gated_gelu", "gated_gelu_exact", "gated_silu")
# config.model.positions -> a `positions.Scheme`
POSITIONS: LazyTable[Any] = LazyTable(
  {
    "relative": "t2t.models.positions:Relative",
    "rotary": "t2t.models.positions:Rotary",
    "learned": "t2t.models.positions:Learned",
    "alibi": "t2t.models.positions:Alibi",
  }
)
# config.model.feed_forward -> a `feed_forward.FeedForward`
FEED_FORWARD: LazyTable[Any] = LazyTable({"dense": "t2t.models.feed_forward:Mlp"})
# config.model.decoder -> a `inference.decoders.Decoder`
DECODERS: LazyTable[Any] = LazyTable({"autoregressive": "t2t.inference.decoders:Autoregressive"})
NORMS = ("rms", "layer")
QUANTIZATIONS = ("int8", "fp8")  # see models/quantized_matmul.py
ATTENTION_KERNELS = ("splash", "distance", "cudnn", "triton", "plain")  # see models/kernels
DTYPES = ("bfloat16", "float32")
HEADS = ("class", "score", "choice", "tag", "span", "vector", "detector", "boundary")
ANSWERED_HEADS = ("class", "score", "choice", "tag", "span")  # kinds that answer tasks
ASKED_HEADS = (*ANSWERED_HEADS, "boundary")  # kinds that are asked by a batch's features
READS = ("first", "last", "mean", "each")
LAYERS = ("last", "mix")
_POOLERS = ("published", "", "tanh", "relu", "gelu", "norm")

# Beyond these nothing was ever built, and a file that says so would be computed with for hours; others are int32.
_MOST = {"num_encoder_layers": 10_000, "num_decoder_layers": 10_000, "num_heads": 100_000, "num_kv_heads": 100_000}

# May be 0: that means without, or the number that another field implies.
_MAY_BE_ZERO = (
  "vocab_size",
  "num_encoder_layers",
  "num_decoder_layers",
  "num_kv_heads",
  "embedding_dim",
  "max_length",
  "position_offset",
  "attention_window",
  "attention_block",
  "attention_scale_dim",
  "global_attention_every",
  "global_attention_first",
  "segment_types",
  "unroll",
)


@dataclasses.dataclass(frozen=True)
class HeadConfig:
  """A head besides that over the vocabulary; heads.py has the kinds.

  name: any number of them may be told apart by it; it is in the paths of their parameters, heads/NAME.
  num_classes: how many logits there are for what the head reads; of a score and a choice 1, of a span 2; of a vector
    its width, 0: the model's, without a projection; of a boundary head how many tokens of a span it predicts.
  kind: what the logits are: of the classes of a text (class) or of each word (tag), of each candidate (choice), of
    where an answer starts and ends (span), a number (score), of whether each token was replaced (detector), a vector
    that is compared with those of other texts (vector), or the vocabulary's, of what stood in a masked span (boundary).
  labels: texts of the classes, which go into whatever the model is saved as.
  reads: "first" or "last" token of each text, the "mean" of all, or "each" for itself; "": as the kind is published.
  layers: "last", or "mix": the weighted sum of all layers' states, with a scale (ELMo, Peters et al. 2018).
  pooler: a dense layer before the logits, by its activation; "norm": with the model's activation and a norm behind it
    (ModernBERT); "": none; "published": as the kind has it.
  dropout_rate: of what the logits are computed from; below 0: the model's.
  drops_inputs: whether dropout stands before the pooler as well (RoBERTa).
  bias: whether logits have one.
  no_answer: of a span, whether it was trained to say that there is none.

  Raises:
    UserError: a name that cannot be in a path, no classes, or an unknown kind.
  """

  name: str
  num_classes: int
  kind: str = "class"
  labels: tuple[str, ...] = ()
  reads: str = ""
  layers: str = "last"
  pooler: str = "published"
  dropout_rate: float = -1.0
  drops_inputs: bool = False
  bias: bool = True
  no_answer: bool = False

  def __post_init__(self):
    if not re.fullmatch(r"[A-Za-z]\w*", self.name):
      raise UserError(f"config.model.heads: {self.name!r} is no name; give letters, digits and underscores")
    for field, known in (("kind", HEADS), ("reads", ("", *READS)), ("layers", LAYERS), ("pooler", _POOLERS)):
      value = getattr(self, field)
      if value not in known:
        raise UserError(
          f"config.model.heads: {self.name} has {field}={value!r}: known are {', '.join(filter(None, known))}"
          f"{did_you_mean(str(value), known)}"
        )
    least = 0 if self.kind == "vector" else 1
    if not isinstance(self.num_classes, int) or self.num_classes < least:
      raise UserError(f"config.model.heads: {self.name} has num_classes={self.num_classes}: must be at least {least}")
    if self.kind == "vector" and self.reads == "each":
      raise UserError(
        f'config.model.heads: {self.name} is a vector, of a whole text: give it "reads": "first", "last" or "mean"'
      )
    number = {"score": 1, "choice": 1, "span": 2}.get(self.kind, self.num_classes)
    if self.num_classes != number:
      raise UserError(f"config.model.heads: {self.name} has num_classes={self.num_classes}: a {self.kind} has {number}")
    if self.no_answer and self.kind != "span":
      raise UserError(f"config.model.heads: {self.name} has no_answer=True: only a span has, not a {self.kind}")
    object.__setattr__(self, "labels", tuple(self.labels))
    if self.labels and len(self.labels) != self.num_classes:
      raise UserError(
        f"config.model.heads: {self.name} has {len(self.labels)} labels and num_classes={self.num_classes}"
      )

  def spelled_out(self, kind: Architecture) -> "HeadConfig":
    """The same head on a model of this architecture, with what it reads and its pooler said, if its kind implies them.

    As published for BERT, RoBERTa and ALBERT (Devlin et al. 2019; Liu et al. 2019; Lan et al. 2020): of a text or a
    candidate, a dense layer with tanh on the first position; of tokens and spans the projection alone.  On a decoder
    the projection reads the last position (Radford et al. 2018).
    """
    reads_whole = self.kind not in ("tag", "span")
    reads = self.reads or ("each" if not reads_whole else "last" if kind.is_decoder_only else "first")
    published = "tanh" if reads_whole and not kind.is_decoder_only else ""
    pooler = published if self.pooler == "published" else self.pooler
    return dataclasses.replace(self, reads=reads, pooler=pooler)


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
  """Shape of a Transformer; every field is an integer count, a rate, a switch or a name.

  The defaults are T5 1.1's; presets.py has the fields of the published families.

  Raises:
    UserError: a field that is out of range or an unknown name; names the config key.
  """

  architecture: str  # encoder_decoder, decoder_only, encoder_only
  vocab_size: int  # rows of the embedding, best a multiple of 128; 0: the vocabulary's size, up to a multiple of 128
  embed_dim: int  # width of the residual stream
  num_heads: int  # of each attention
  head_dim: int  # num_heads * head_dim need not be embed_dim
  mlp_dim: int  # width inside the feed-forward layers
  num_encoder_layers: int = 0  # 0 in decoder_only
  num_decoder_layers: int = 0  # 0 in encoder_only
  # What is known of positions
  #: relative (a learned bias, T5),
  #: alibi (a bias that falls with the distance),
  #: rotary (RoFormer)
  #: or learned (a table of max_length rows)
  positions: str = "relative"
  relative_position_buckets: int = 32  # of distances, which have a learned bias each
  relative_position_max_distance: int = 128  # positions; all that lie further share the last bucket
  rotary_base: float = 10_000.0  # of rotary positions: a larger one for longer texts
  local_rotary_base: float = 0.0  # of the layers with a window; 0: rotary_base
  max_length: int = 0  # learned positions: the longest sequence
  position_offset: int = 0  # learned positions: rows of the table before that of the first position (RoBERTa 2)
  # Attention
  num_kv_heads: int = 0  # grouped-query attention: heads of keys and values; 0: num_heads
  scale_attention: bool = False  # logits / sqrt(head_dim); T5's initializer carries that instead
  attention_scale_dim: int = 0  # with scale_attention: by which they are scaled instead (Gemma 2); 0: head_dim
  attention_softcap: float = 0.0  # logits become softcap * tanh(logits / softcap) (Gemma 2); 0: they stay
  qk_norm: bool = False  # queries and keys are normed, each head by itself
  attention_window: int = 0  # positions that a query sees to each side; 0: all
  global_attention_every: int = 0  # with a window, every n-th layer sees all positions; 0: none does
  global_attention_first: int = 0  # the number of the first that does, below n: 0, n, 2n, ... (Gemma 2: 1, 3, 5, ...)
  bidirectional_prefix: bool = False  # decoder_only: the inputs see each other in both directions
  # Blocks
  norm: str = "rms"  # rms or layer
  norm_epsilon: float = 1e-6  # added to what a norm divides by
  norm_offset: bool = False  # norms multiply with 1 + scale, which starts as 0 (Gemma)
  post_norm: bool = False  # norms behind the residual sums (BERT) instead of at the start of each branch
  branch_norm: bool = False  # norms at the end of each branch as well, in front of the residual sum (Gemma 2)
  biases: bool = False  # in projections, feed-forward layers and layer norms
  feed_forward: str = "dense"  # the layers' second branch: dense (one MLP)
  mlp_activation: str = "gated_gelu"  # gated_gelu (T5 1.1), gated_silu (SwiGLU), gated_gelu_exact, relu, gelu, ...
  share_layers: bool = False  # the layers of a stack are one and the same (ALBERT)
  share_stacks: bool = False  # encoder_decoder: the decoder's layers are the encoder's, with cross-attention of its own
  # Embedding and head
  embedding_dim: int = 0  # width of the embedding, projected up to embed_dim (ALBERT); 0: embed_dim
  embedding_norm: bool = False  # the embedded tokens are normed (BERT)
  own_decoder_positions: bool = False  # the decoder's learned positions and norm of the embedding are its own (BART)
  scale_embedding: bool = False  # the embedded tokens are multiplied with sqrt(embed_dim) (Gemma)
  segment_types: int = 0  # of an encoder: rows of the table that tells a sequence's parts from each other (BERT 2)
  tied_logits: bool = False  # logits from the embedding
  logits_softcap: float = 0.0  # logits become softcap * tanh(logits / softcap) (Gemma 2); 0: they stay
  logits_transform: bool = False  # a dense layer, activation and norm before the logits, and a bias on them (BERT)
  vocabulary_head: bool = True  # there are logits over the vocabulary; False: only what `heads` answer
  heads: tuple[HeadConfig, ...] = ()  # others besides that over the vocabulary: ({"name": "nli", "num_classes": 3},)
  init_scale: float = 0.0  # standard deviation of all initial weights; 0: T5's, 1 of embeddings and by fan-in elsewhere
  #: logits that attention begins with, of half of the heads for one neighbour each, of cross-attention for the token
  #: that asks; 0: none, as T5
  attention_init_bias: float = 0.0
  decoder: str = ""  # how text is generated: autoregressive; "": so by a decoder, and not at all by an encoder alone
  # How it is computed
  dropout_rate: float = 0.0  # T5 1.1 pre-trains without; T5 1.0, and who fine-tunes, with 0.1
  broadcast_dropout: bool = True  # one draw for all positions, also behind activations and the last norm
  dtype: str = "bfloat16"  # of activations; parameters, norms and logits are float32
  gradient_dtype: str = ""  # in which devices sum the gradients of matrices; "": dtype, over more than 32 float32
  quantization: str = ""  # layers' products in 8 bits, int8 or fp8, but for the gradients of matrices; "": in dtype
  #: splash, distance, cudnn, triton or plain, an error where it cannot be had; "": the best there is
  attention_kernel: str = ""
  attention_block: int = 0  # positions of the largest blocks of TPUs' kernels, 128 to 2048, if there is room; 0: t2t's
  #: what the backward pass computes again: none, minimal (all but matmuls), full; offload: minimal, kept by the host;
  #: or all but what is named: query,key,value,attention,input@host (see remat.py)
  remat: str = "none"
  #: layers in one turn of the loop over them: more save copies and take longer to compile; 0: one, and on CPUs all
  unroll: int = 0

  @property
  def attention_dropout(self) -> str:
    """Returns the dropout of probabilities in training, of `dispatch.DROPOUTS`."""
    return "" if not self.dropout_rate else "rows" if self.broadcast_dropout else "each"

  @property
  def kind(self) -> Architecture:
    """What holds for every model of this architecture."""
    return ARCHITECTURES[self.architecture]

  @property
  def is_generative(self) -> bool:
    """Returns True if the model generates text, whether it reads in one direction or in both."""
    return bool(self.decoder or self.kind.decoder)

  @property
  def text_decoder(self) -> Any:
    """The `inference.decoders.Decoder` of this config, a row of `DECODERS`.

    Raises:
      UserError: the model generates no text.
    """
    if not self.is_generative:
      raise UserError(
        f"config.model.architecture={self.architecture}: an encoder alone writes no text; its targets have scores"
      )
    return DECODERS[self.decoder or self.kind.decoder]

  def for_inference(self, *, on_cpu: bool) -> "TransformerConfig":
    """The model as evaluation and generation compute it: without dropout, 8-bit products and the kernel of training.

    Training's evaluation of tasks and every command that reads the checkpoint compute this one, so that a figure does
    not depend on which of them computed it.  Without an accelerator the dtype is float32, which a CPU computes faster
    than bfloat16.
    """
    dtype = "float32" if on_cpu else self.dtype
    same = {"attention_kernel": "", "attention_block": 0, "quantization": "", "dropout_rate": 0.0}
    return dataclasses.replace(self, dtype=dtype, **same)

  def has_parameters(self, head: HeadConfig) -> bool:
    """Whether one of this model's heads does: a vector may be what is read, as it is."""
    spelled_out = head.spelled_out(self.kind)
    return head.kind != "vector" or head.num_classes > 0 or spelled_out.pooler != "" or head.layers == "mix"

  def published_head(self, kind: str) -> dict[str, str | bool]:
    """Fields of `HeadConfig`: those of a published head of this kind on a body like this one.

    Of decoders the class has no bias (GPT-2, Llama); of encoders BERT's heads are what `HeadConfig` is by itself, and
    RoBERTa, ELECTRA, DistilBERT and ModernBERT have others, which `convert` writes.

    Args:
      kind: of the head.
    """
    is_one = kind in ("class", "score")
    if self.kind.is_decoder_only:
      return {"bias": False} if is_one else {}
    if self.kind.is_generative or self.share_layers:
      return {}
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
  def kv_heads(self) -> int:
    """Heads of keys and values."""
    return self.num_kv_heads or self.num_heads

  @property
  def deepest_stack(self) -> int:
    """Layers of the deepest stack that has parameters for each; 0: the layers of a stack are one."""
    return 0 if self.share_layers else max(self.num_encoder_layers, self.num_decoder_layers)

  @property
  def position_scheme(self) -> Any:
    """The `positions.Scheme` of this config, a row of `POSITIONS`."""
    return POSITIONS[self.positions](self)

  @property
  def feed_forward_class(self) -> Any:
    """The subclass of `feed_forward.FeedForward` of this config, a row of `FEED_FORWARD`."""
    return FEED_FORWARD[self.feed_forward]

  @property
  def most_positions(self) -> int:
    """The longest sequence that the model can read; 0: any."""
    return self.max_length if self.position_scheme.embedded else 0

  @property
  def biased(self) -> bool:
    """Returns True if a bias is added to attention logits."""
    return bool(self.position_scheme.bias)

  def bias_reach(self, length: int) -> int:
    """The distance within a sequence of `length` from which on what is added stays the same."""
    return self.position_scheme.reach(length)

  def is_local(self, index: "jax.Array | int") -> "jax.Array | bool":
    """Whether the layer of this number, an integer or int [], has the attention window."""
    if not self.attention_window or not self.global_attention_every:
      return bool(self.attention_window)
    return index % self.global_attention_every != self.global_attention_first

  def windows(self, length: int) -> tuple[int, ...]:
    """Of each kind of layer, how far it sees to either side of `length` positions; 0: all of them."""
    window = self.attention_window if self.attention_window < length - 1 else 0
    return tuple(dict.fromkeys((0, window) if self.global_attention_every else (window,)))

  @property
  def gated(self) -> bool:
    """Whether the feed-forward layers have a gate."""
    return self.mlp_activation.startswith("gated_")

  def __post_init__(self):
    if self.dtype == "float16":
      raise UserError(
        "config.model.dtype=float16: T5's activations overflow float16's range (65,504), and there is no loss scaling;"
        " use bfloat16, which has float32's range, or float32"
      )
    for field, known in (
      ("architecture", ARCHITECTURES),
      ("positions", POSITIONS),
      ("feed_forward", FEED_FORWARD),
      ("decoder", ("", *DECODERS)),
      ("norm", NORMS),
      ("mlp_activation", ACTIVATIONS),
      ("attention_kernel", ("", *ATTENTION_KERNELS)),
      ("dtype", DTYPES),
      ("gradient_dtype", ("", *DTYPES)),
      ("quantization", ("", *QUANTIZATIONS)),
    ):
      value = getattr(self, field)
      if value not in known:
        named = [choice for choice in known if choice]
        raise UserError(
          f"config.model.{field}={value!r}: known are {', '.join(named)}{did_you_mean(str(value), named)}"
        )
    if self.quantization and importlib.util.find_spec("qwix") is None:
      raise UserError(f"config.model.quantization={self.quantization}: needs qwix; pip install 't2t-jax[quantization]'")
    if self.remat not in remat.POLICIES:
      remat.parse(self.remat)
    for field in dataclasses.fields(self):
      self._check_number(field)
    if self.norm_epsilon < 0.0:
      raise UserError(f"config.model.norm_epsilon={self.norm_epsilon}: must be at least 0")
    if self.attention_block not in (0, 128, 256, 512, 1024, 2048):
      # Of larger ones no TPU's core has room.
      raise UserError(f"config.model.attention_block={self.attention_block}: must be 128, 256, 512, 1024, 2048, or 0")
    if not 0.0 <= self.dropout_rate < 1.0:
      raise UserError(f"config.model.dropout_rate={self.dropout_rate}: must be at least 0 and below 1")
    if self.relative_position_buckets % 4:
      raise UserError(
        f"config.model.relative_position_buckets={self.relative_position_buckets}: must be a multiple of 4"
        " (half for each direction, half of those for exact distances)"
      )
    exact = self.relative_position_buckets // 2
    if self.positions == "relative" and self.relative_position_max_distance <= exact:
      raise UserError(
        f"config.model.relative_position_max_distance={self.relative_position_max_distance}: must be more than {exact},"
        f" the distances that have a bucket of their own (half of relative_position_buckets)"
      )
    self._check_layers()
    self._check_attention()
    # As a config or a config.json has them, they are dicts.
    object.__setattr__(self, "heads", tuple(_head(head) for head in self.heads))
    names = [head.name for head in self.heads]
    if len(set(names)) < len(names):
      raise UserError(f"config.model.heads: {', '.join(names)}: each must have a name of its own")
    for head in self.heads:
      if head.reads == "first" and self.kind.is_decoder_only:
        raise UserError(
          f"config.model.heads: {head.name} reads the first position, which in a decoder alone sees no other;"
          ' give it "reads": "last" or "mean"'
        )

  def _check_number(self, field: dataclasses.Field) -> None:
    """Whether a field of a config.json, which may say anything, is a number of its kind."""
    value = getattr(self, field.name)
    if field.type is bool and not isinstance(value, bool):
      raise UserError(f"config.model.{field.name}={str(value)[:40]!r}: must be True or False")
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
    if field.type is float and not is_number:
      raise UserError(f"config.model.{field.name}={str(value)[:40]!r}: must be a number")
    if field.type is int:
      least, most = 0 if field.name in _MAY_BE_ZERO else 1, _MOST.get(field.name, 2**31 - 1)
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
        raise UserError(f"config.model.{key}={layers}: must be {wanted} with architecture={self.architecture}")
    if self.share_stacks and (
      not self.kind.has_encoder_and_decoder or self.num_encoder_layers != self.num_decoder_layers
    ):
      raise UserError(
        "config.model.share_stacks=True: needs architecture=encoder_decoder and as many encoder as decoder layers,"
        f" not {self.num_encoder_layers} and {self.num_decoder_layers}"
      )
    if self.segment_types and self.kind.is_decoder_only:
      raise UserError(f"config.model.segment_types={self.segment_types}: only with an encoder, not with decoder_only")
    if self.bidirectional_prefix and not self.kind.is_decoder_only:
      raise UserError("config.model.bidirectional_prefix=True: only with architecture=decoder_only")
    if self.branch_norm and self.post_norm:
      raise UserError("config.model.branch_norm=True: only with config.model.post_norm=False")
    if self.positions == "learned" and not self.max_length:
      raise UserError("config.model.max_length=0: learned positions need the length of the longest sequence")
    if self.own_decoder_positions and not (self.kind.has_encoder_and_decoder and self.positions == "learned"):
      raise UserError(
        "config.model.own_decoder_positions=True: needs architecture=encoder_decoder and positions=learned, not"
        f" {self.architecture} and {self.positions}"
      )

  def _check_attention(self) -> None:
    if self.num_heads % self.kv_heads:
      works = [n for n in range(1, self.num_heads + 1) if self.num_heads % n == 0]
      raise UserError(
        f"config.model.num_kv_heads={self.num_kv_heads} does not divide num_heads={self.num_heads};"
        f" numbers that would do: {works}"
      )
    if self.positions == "rotary" and self.head_dim % 2:
      raise UserError(f"config.model.head_dim={self.head_dim}: rotary positions turn pairs, so it must be even")
    if self.attention_init_bias < 0.0:
      raise UserError(
        f"config.model.attention_init_bias={self.attention_init_bias}: must be at least 0, which is T5's start"
      )
    if self.attention_init_bias and (self.positions != "relative" or self.qk_norm):
      raise UserError(
        f"config.model.attention_init_bias={self.attention_init_bias}: only with config.model.positions=relative,"
        " whose bias says"
        " which neighbour a head looks at, and config.model.qk_norm=False, because norms undo how large a query begins;"
        " with others give config.model.attention_init_bias=0"
      )
    if self.attention_scale_dim and not self.scale_attention:
      raise UserError(
        f"config.model.attention_scale_dim={self.attention_scale_dim}: only with config.model.scale_attention=True"
      )
    if self.global_attention_first and self.global_attention_first >= self.global_attention_every:
      raise UserError(
        f"config.model.global_attention_first={self.global_attention_first}: must be below"
        f" config.model.global_attention_every={self.global_attention_every}"
      )
    for field in ("attention_softcap", "logits_softcap"):
      if getattr(self, field) < 0.0:
        raise UserError(f"config.model.{field}={getattr(self, field)}: must be at least 0, which leaves logits alone")
    if self.global_attention_every and not self.attention_window:
      raise UserError(
        f"config.model.global_attention_every={self.global_attention_every}: without config.model.attention_window"
        " every layer sees all positions; set a window, or global_attention_every=0"
      )


def _head(head: HeadConfig | Mapping) -> HeadConfig:
  if isinstance(head, HeadConfig):
    return head
  known = [field.name for field in dataclasses.fields(HeadConfig)]
  if not isinstance(head, Mapping) or not {"name", "num_classes"} <= set(head):
    raise UserError(f'config.model.heads: {head!r} is no head; give {{"name": "nli", "num_classes": 3}}')
  unknown = sorted(set(head) - set(known))
  if unknown:
    raise UserError(f"config.model.heads: {unknown[0]!r}: no such key{did_you_mean(unknown[0], known)}")
  return HeadConfig(**head)
