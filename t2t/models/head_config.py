"""Config of the heads besides the vocabulary head."""

from collections.abc import Mapping
import dataclasses
import re
from typing import Any

from t2t import UserError, did_you_mean
from t2t.models.architecture import Architecture

HEADS = ("class", "score", "choice", "tag", "crf", "span", "span_pair", "cloze", "vector", "detector", "boundary")
ANSWERED_HEADS = ("class", "score", "choice", "tag", "crf", "span", "span_pair", "cloze")  # kinds with labels in tasks
ASKED_HEADS = (*ANSWERED_HEADS, "boundary")  # kinds that read features of a batch
READS = ("first", "last", "mean", "concat", "each", "spans")
TAG_SCHEMES = ("", "bio")
_ANSWERS_AS = {"crf": "tag"}  # kind of head -> the kind that a task asks for, where they differ
LAYERS = ("last", "mix")
_POOLERS = ("published", "", "tanh", "relu", "gelu", "norm")


@dataclasses.dataclass(frozen=True)
class HeadConfig:
  """A head besides the vocabulary head; heads.py implements the kinds.

  name: unique name; the head's parameters are under heads/NAME.
  num_classes: number of logits; 1 for score and choice, 2 for span. For a vector its width; 0: the model's width and
    no projection. For a boundary head the number of tokens of a span that it predicts.
  kind: type of the logits: class (classes of a text), tag (classes of each word), crf (tags by a linear-chain CRF),
    choice (one logit per candidate), span (start and end of an answer), span_pair (classes of two spans of a text),
    cloze (classes of a masked token, by the logits of their words), score (a number), detector (whether each token was
    replaced), vector (an embedding to compare texts by), boundary (vocabulary logits of the tokens in a masked span).
  labels: names of the classes, which are stored in exported checkpoints.
  reads: "first" or "last" token of each text, the "mean" of all tokens, "concat" for last, maximum and mean joined
    (ULMFiT, Howard & Ruder 2018), "each" token, or the "spans" of a pair; "": the default of the kind.
  layers: "last", or "mix": a learned, scaled weighted sum of all layers' states (ELMo, Peters et al. 2018).
  pooler: activation of a dense layer before the logits; "norm": the model's activation, then a norm (ModernBERT); "":
    no pooler; "published": the default of the kind.
  dropout_rate: dropout before the logits; below 0: the model's.
  drops_inputs: applies dropout before the pooler, too (RoBERTa).
  bias: adds a bias to the logits.
  no_answer: for spans, whether training included examples without an answer.
  words: for cloze, the token ids of the words of each class, one token a word.
  scheme: for crf, "bio": tags that the BIO scheme does not allow after the tag before have probability 0; "": all tags
    may follow each other.

  Raises:
    UserError: a name that is not valid in a path, no classes, or an unknown kind.
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
  scheme: str = ""
  words: tuple[tuple[int, ...], ...] = ()

  def __post_init__(self):
    if not re.fullmatch(r"[A-Za-z]\w*", self.name):
      raise UserError(
        f"config.model.heads: {self.name!r} is not a valid name. Use letters, digits and underscores, starting "
        "with a letter."
      )
    choices = {"kind": HEADS, "reads": ("", *READS), "layers": LAYERS, "pooler": _POOLERS, "scheme": TAG_SCHEMES}
    for field, known in choices.items():
      value = getattr(self, field)
      if value not in known:
        raise UserError(
          f"config.model.heads: {self.name} has the unknown {field}={value!r}. Known values: "
          f"{', '.join(filter(None, known))}{did_you_mean(str(value), known)}"
        )
    least = 0 if self.kind == "vector" else 1
    if not isinstance(self.num_classes, int) or self.num_classes < least:
      raise UserError(
        f"config.model.heads: {self.name} has the invalid num_classes={self.num_classes}. Give an integer of at least "
        f"{least}."
      )
    if self.kind == "vector" and self.reads == "each":
      raise UserError(
        f'config.model.heads: {self.name} has kind="vector" and reads="each", but a vector is of a whole text. '
        'Give the head "reads": "first", "last" or "mean".'
      )
    number = {"score": 1, "choice": 1, "span": 2}.get(self.kind, self.num_classes)
    if self.num_classes != number:
      raise UserError(
        f"config.model.heads: {self.name} has num_classes={self.num_classes}, but a {self.kind} head has {number}. "
        f"Set num_classes={number}."
      )
    if self.no_answer and self.kind != "span":
      raise UserError(
        f"config.model.heads: {self.name} has no_answer=True and kind={self.kind!r}. Only kind='span' supports "
        "no_answer. Remove no_answer."
      )
    if self.scheme and self.kind != "crf":
      raise UserError(
        f"config.model.heads: {self.name} has scheme={self.scheme!r} and kind={self.kind!r}. Only kind='crf' supports "
        "scheme. Set kind='crf', or remove scheme."
      )
    is_pair = self.kind == "span_pair"
    if (
      self.reads and is_pair != (self.reads == "spans") or self.reads == "concat" and self.answers_as in ("tag", "span")
    ):
      what = "two spans" if is_pair else "each token" if self.answers_as in ("tag", "span") else "a text"
      raise UserError(
        f"config.model.heads: {self.name} has reads={self.reads!r}, but a {self.kind} head reads {what}. Remove reads."
      )
    if self.layers == "mix" and (is_pair or self.reads == "concat"):
      raise UserError(
        f"config.model.heads: {self.name} has layers='mix', but "
        f"{'a span_pair head' if is_pair else 'reads=concat'} reads the last layer. Remove layers."
      )
    object.__setattr__(self, "labels", tuple(self.labels))
    object.__setattr__(self, "words", tuple(tuple(ids) for ids in self.words))
    if len(self.words) != (self.num_classes if self.kind == "cloze" else 0) or not all(self.words):
      raise UserError(
        f"config.model.heads: {self.name} has kind={self.kind!r}, num_classes={self.num_classes} and words of "
        f"{len(self.words)} classes. A cloze head has words for each class, and other heads have none."
      )
    if self.labels and len(self.labels) != self.num_classes:
      raise UserError(
        f"config.model.heads: {self.name} has {len(self.labels)} labels, but num_classes={self.num_classes}. Set "
        f"num_classes={len(self.labels)} or change the labels."
      )

  @property
  def answers_as(self) -> str:
    """Returns the kind of head that the head's tasks ask for: a crf head answers tasks of tag heads."""
    return _ANSWERS_AS.get(self.kind, self.kind)

  def spelled_out(self, kind: Architecture) -> "HeadConfig":
    """Returns the head with `reads` and `pooler` resolved for this architecture.

    Defaults as published for BERT, RoBERTa and ALBERT (Devlin et al. 2019; Liu et al. 2019; Lan et al. 2020): a dense
    layer with tanh on the first position for texts and candidates, and a projection only for tokens and spans. In
    decoder-only models the projection reads the last position (Radford et al. 2018). Pairs of spans are scored by a
    layer with ReLU (Lee et al. 2017, section 5).
    """
    reads_whole = self.answers_as not in ("tag", "span", "span_pair", "cloze")
    reads = self.reads or ("each" if not reads_whole else "last" if kind.is_decoder_only else "first")
    published = "tanh" if reads_whole and not kind.is_decoder_only else ""
    if self.kind == "span_pair":
      reads, published = "spans", "relu"
    pooler = published if self.pooler == "published" else self.pooler
    return dataclasses.replace(self, reads=reads, pooler=pooler)


def as_head(head: HeadConfig | Mapping[str, object]) -> HeadConfig:
  """Returns a head, which config files have as a dict."""
  if isinstance(head, HeadConfig):
    return head
  known = [field.name for field in dataclasses.fields(HeadConfig)]
  if not isinstance(head, Mapping) or not {"name", "num_classes"} <= set(head):
    raise UserError(
      f'config.model.heads: {head!r} is not a valid head. Give for example {{"name": "nli", "num_classes": 3}}.'
    )
  if unknown := sorted(set(head) - set(known)):
    raise UserError(
      f"config.model.heads: unknown key {unknown[0]!r}. Known keys: {', '.join(known)}{did_you_mean(unknown[0], known)}"
    )
  settings: dict[str, Any] = dict(head)
  return HeadConfig(**settings)
