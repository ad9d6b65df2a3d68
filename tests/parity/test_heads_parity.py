"""t2t's heads against Hugging Face's task classes, with the same random weights: logits, loss, gradients.

Needs torch and transformers (tests/parity-requirements.txt).
"""

from collections.abc import Callable
import json
import pathlib
from typing import Any, NamedTuple

from etils import epath
from flax import nnx
import foreign
import jax
import jax.numpy as jnp
import numpy as np
import parity
from parity import torch
import pytest
import toy

from t2t.convert import huggingface
from t2t.losses import head_losses
from t2t.models import bert_variants, llama_encoders, presets, transformer
from t2t.models.config import TransformerConfig
from t2t.models.head_config import HeadConfig

# Sizes differ from each other, from powers of two, and from transformers' defaults.
SHAPE = dict(vocab_size=53, embed_dim=18, num_heads=3, head_dim=6, mlp_dim=28, dtype="float32", dropout_rate=0.0)
SHAPE |= dict(norm_epsilon=1e-3, max_length=40)
ENCODER = SHAPE | dict(num_encoder_layers=3)
BUCKETS = dict(relative_position_buckets=16, relative_position_max_distance=8, absolute_positions="")
GEMMA = dict(
  norm_offset=True, scale_embedding=True, tied_logits=True, mlp_activation="gated_gelu", num_decoder_layers=4
)
GEMMA2 = GEMMA | dict(branch_norm=True, attention_window=4, global_attention_every=2, global_attention_first=1)
MOBILE = dict(embedding_dim=7, bottleneck_dim=12, head_dim=4, output_embedding_dim=18)
BODIES = {
  "bert": presets.bert("base") | ENCODER | dict(segment_types=3),
  "roberta": presets.roberta("base") | ENCODER,
  "longformer": presets.longformer("base") | ENCODER | dict(attention_window=3),
  "distilbert": presets.bert("base") | ENCODER | dict(segment_types=0, norm_epsilon=1e-12),
  "albert": presets.albert("base") | ENCODER | dict(embedding_dim=11),
  "rembert": bert_variants.rembert("base") | ENCODER | dict(embedding_dim=7, output_embedding_dim=27),
  "mobilebert": bert_variants.mobilebert("base") | ENCODER | MOBILE,
  "mobilebert_tiny": bert_variants.mobilebert("tiny") | ENCODER | MOBILE,
  "electra": presets.electra("base") | ENCODER | dict(embedding_dim=11),
  "modern_bert": presets.modern_bert("base") | ENCODER | dict(attention_window=4, local_rotary_base=700.0),
  "eurobert": llama_encoders.eurobert("610m") | ENCODER | dict(num_kv_heads=1),
  "ettin": presets.ettin("decoder_150m")
  | SHAPE
  | dict(num_decoder_layers=4, attention_window=4, local_rotary_base=7.0),
  "deberta": bert_variants.deberta("base") | ENCODER | BUCKETS,
  "deberta_v2": bert_variants.deberta_v2("xlarge") | ENCODER | BUCKETS,
  "gpt2": presets.gpt2("small") | SHAPE | dict(num_decoder_layers=3),
  "mpt": presets.mpt("7b") | SHAPE | dict(num_decoder_layers=2, mlp_dim=4 * SHAPE["embed_dim"]),
  "llama": presets.llama2("7b") | SHAPE | dict(num_decoder_layers=3),
  "mistral": presets.llama2("7b") | SHAPE | dict(num_decoder_layers=2, num_kv_heads=1, attention_window=4),
  "gemma": presets.llama2("7b") | SHAPE | GEMMA,
  "gemma2": presets.llama2("7b") | SHAPE | GEMMA2 | dict(attention_softcap=2.0, logits_softcap=3.0),
  "gemma3": presets.llama2("7b") | SHAPE | GEMMA2 | dict(qk_norm=True, rotary_base=1e6, local_rotary_base=700.0),
  "qwen3": presets.llama3("8b") | SHAPE | dict(num_decoder_layers=2, num_kv_heads=1, qk_norm=True),
}
LABELS = ("no", "rather not", "perhaps", "yes", "what?")
# Settings of transformers' classes that differ from the defaults of a head.
ROBERTA, ELECTRA = dict(drops_inputs=True), dict(drops_inputs=True, pooler="gelu")
MODERN_BERT, SCORE, DEBERTA = dict(pooler="norm"), dict(bias=False), dict(pooler="gelu")


class Case(NamedTuple):
  """A transformers class, with t2t's model name and head."""

  body: str
  head: HeadConfig
  pretrains: bool = False


def named(name: str, number: int, kind: str, **fields: Any) -> HeadConfig:
  return HeadConfig(name, number, kind, LABELS[:number] if kind in ("class", "tag") else (), **fields)


CASES = {
  "BertForPreTraining": Case("bert", HeadConfig("nsp", 2, labels=("next", "random")), pretrains=True),
  "BertForSequenceClassification": Case("bert", named("nli", 3, "class", dropout_rate=0.3)),
  "BertForMultipleChoice": Case("bert", HeadConfig("choice", 1, "choice")),
  "BertForTokenClassification": Case("bert", named("names", 5, "tag")),
  "BertForQuestionAnswering": Case("bert", HeadConfig("span", 2, "span")),
  "RobertaForSequenceClassification": Case("roberta", named("nli", 3, "class", **ROBERTA)),
  "RobertaForMultipleChoice": Case("roberta", HeadConfig("copa", 1, "choice")),
  "RobertaForTokenClassification": Case("roberta", HeadConfig("tag", 4, "tag", dropout_rate=0.2)),
  "RobertaForQuestionAnswering": Case("roberta", HeadConfig("squad", 2, "span")),
  "LongformerForSequenceClassification": Case("longformer", named("nli", 3, "class", **ROBERTA)),
  "LongformerForMultipleChoice": Case("longformer", HeadConfig("copa", 1, "choice")),
  "LongformerForTokenClassification": Case("longformer", HeadConfig("tag", 4, "tag", dropout_rate=0.2)),
  "LongformerForQuestionAnswering": Case("longformer", HeadConfig("squad", 2, "span")),
  "AlbertForPreTraining": Case("albert", HeadConfig("sop", 2, labels=("in order", "swapped")), pretrains=True),
  "AlbertForSequenceClassification": Case("albert", HeadConfig("stsb", 1, "score", dropout_rate=0.15)),
  "AlbertForMultipleChoice": Case("albert", HeadConfig("choice", 1, "choice")),
  "AlbertForTokenClassification": Case("albert", named("names", 4, "tag")),
  "AlbertForQuestionAnswering": Case("albert", HeadConfig("span", 2, "span")),
  "RemBertForSequenceClassification": Case("rembert", named("nli", 3, "class", dropout_rate=0.15)),
  "RemBertForMultipleChoice": Case("rembert", HeadConfig("choice", 1, "choice", dropout_rate=0.1)),
  "RemBertForTokenClassification": Case("rembert", named("names", 5, "tag", dropout_rate=0.1)),
  "RemBertForQuestionAnswering": Case("rembert", HeadConfig("span", 2, "span")),
  "MobileBertForPreTraining": Case("mobilebert", HeadConfig("nsp", 2, labels=("next", "random")), pretrains=True),
  "MobileBertForSequenceClassification": Case("mobilebert", named("nli", 3, "class", dropout_rate=0.3)),
  "MobileBertForSequenceClassification-tiny": Case("mobilebert_tiny", named("nli", 3, "class", pooler="")),
  "MobileBertForMultipleChoice": Case("mobilebert", HeadConfig("choice", 1, "choice")),
  "MobileBertForTokenClassification": Case("mobilebert", named("names", 5, "tag")),
  "MobileBertForQuestionAnswering": Case("mobilebert", HeadConfig("span", 2, "span")),
  "DistilBertForSequenceClassification": Case("distilbert", named("nli", 3, "class", pooler="relu")),
  "DistilBertForMultipleChoice": Case("distilbert", HeadConfig("copa", 1, "choice", pooler="relu", dropout_rate=0.4)),
  "DistilBertForTokenClassification": Case("distilbert", named("names", 5, "tag")),
  "DistilBertForQuestionAnswering": Case("distilbert", HeadConfig("span", 2, "span", dropout_rate=0.35)),
  "ElectraForSequenceClassification": Case("electra", named("nli", 3, "class", **ELECTRA)),
  "ElectraForMultipleChoice": Case("electra", HeadConfig("copa", 1, "choice", pooler="gelu", dropout_rate=0.3)),
  "ElectraForTokenClassification": Case("electra", named("names", 5, "tag")),
  "ElectraForQuestionAnswering": Case("electra", HeadConfig("span", 2, "span")),
  "ModernBertForSequenceClassification": Case("modern_bert", named("nli", 4, "class", reads="first", **MODERN_BERT)),
  "ModernBertForSequenceClassification-mean": Case(
    "modern_bert", HeadConfig("score", 1, "score", reads="mean", dropout_rate=0.25, **MODERN_BERT)
  ),
  "ModernBertForMultipleChoice": Case("modern_bert", HeadConfig("choice", 1, "choice", reads="first", **MODERN_BERT)),
  "ModernBertForTokenClassification": Case("modern_bert", named("names", 5, "tag", **MODERN_BERT)),
  "ModernBertForQuestionAnswering": Case("modern_bert", HeadConfig("span", 2, "span", dropout_rate=0.2, **MODERN_BERT)),
  "EuroBertForTokenClassification": Case("eurobert", named("names", 5, "tag")),
  "ModernBertDecoderForSequenceClassification": Case("ettin", named("nli", 3, "class", **MODERN_BERT, **SCORE)),
  "DebertaForSequenceClassification": Case("deberta", named("nli", 3, "class", **DEBERTA, dropout_rate=0.3)),
  "DebertaForTokenClassification": Case("deberta", named("names", 5, "tag")),
  "DebertaForQuestionAnswering": Case("deberta", HeadConfig("span", 2, "span")),
  "DebertaV2ForSequenceClassification": Case("deberta_v2", HeadConfig("score", 1, "score", **DEBERTA)),
  "DebertaV2ForMultipleChoice": Case("deberta_v2", HeadConfig("copa", 1, "choice", **DEBERTA)),
  "DebertaV2ForTokenClassification": Case("deberta_v2", named("names", 5, "tag")),
  "DebertaV2ForQuestionAnswering": Case("deberta_v2", HeadConfig("span", 2, "span")),
  "GPT2ForSequenceClassification": Case("gpt2", named("nli", 3, "class", **SCORE)),
  "GPT2ForTokenClassification": Case("gpt2", named("names", 5, "tag", dropout_rate=0.1)),
  "GPT2ForQuestionAnswering": Case("gpt2", HeadConfig("span", 2, "span")),
  "MptForSequenceClassification": Case("mpt", named("nli", 3, "class", **SCORE)),
  "MptForTokenClassification": Case("mpt", named("names", 5, "tag", dropout_rate=0.1)),
  "MptForQuestionAnswering": Case("mpt", HeadConfig("span", 2, "span")),
  "LlamaForSequenceClassification": Case("llama", HeadConfig("score", 1, "score", **SCORE)),
  "LlamaForTokenClassification": Case("llama", named("names", 5, "tag", dropout_rate=0.2)),
  "LlamaForQuestionAnswering": Case("llama", HeadConfig("squad", 2, "span")),
  "MistralForSequenceClassification": Case("mistral", named("nli", 4, "class", **SCORE)),
  "MistralForTokenClassification": Case("mistral", HeadConfig("tag", 4, "tag", dropout_rate=0.1)),
  "MistralForQuestionAnswering": Case("mistral", HeadConfig("span", 2, "span")),
  "GemmaForSequenceClassification": Case("gemma", named("nli", 3, "class", **SCORE)),
  "GemmaForTokenClassification": Case("gemma", named("names", 5, "tag", dropout_rate=0.1)),
  "Gemma2ForSequenceClassification": Case("gemma2", named("nli", 3, "class", **SCORE)),
  "Gemma2ForTokenClassification": Case("gemma2", named("names", 5, "tag")),
  "Gemma3TextForSequenceClassification": Case("gemma3", HeadConfig("score", 1, "score", **SCORE)),
  "Qwen3ForSequenceClassification": Case("qwen3", named("nli", 2, "class", **SCORE)),
  "Qwen3ForTokenClassification": Case("qwen3", named("names", 5, "tag", dropout_rate=0.1)),
  "Qwen3ForQuestionAnswering": Case("qwen3", HeadConfig("span", 2, "span")),
}
# Heads of tokens and spans are one projection of hidden states, which test_encoders.py and test_decoders_parity.py
# compare; these bodies represent the others. The settings of Longformer's attention depend on the head.
PROJECTED = ("bert", "longformer", "modern_bert", "gpt2")
REPEATS = [name for name, case in CASES.items() if case.head.kind in ("tag", "span") and case.body not in PROJECTED]
LENGTHS = (17, 5, 11, 8)  # of rows in a batch of 19 positions; for choices two examples with two candidates


@pytest.fixture(scope="module", params=list(CASES))
def case(request):
  return request.param


@pytest.fixture(scope="module")
def pair(case, tmp_path_factory):
  found = CASES[case]
  config = TransformerConfig(**BODIES[found.body] | dict(heads=(found.head,), vocabulary_head=found.pretrains))
  made = parity.pair(config, tmp_path_factory.mktemp(case))
  assert type(made.theirs).__name__ == case.split("-")[0]
  return made


class Asked(NamedTuple):
  """A batch with labels for the head, and the same for transformers.

  batch: t2t's batch.
  inputs: transformers' arguments.
  logits: maps transformers' output to logits.
  loss: maps transformers' output to the loss.
  at: positions of t2t's answers, in the order of transformers' logits.
  """

  batch: transformer.Batch
  inputs: dict[str, torch.Tensor]
  logits: Callable[[Any], torch.Tensor]
  loss: Callable[[Any], torch.Tensor]
  at: tuple[np.ndarray, np.ndarray]


def features(batch: transformer.Batch, at, targets, groups=1) -> transformer.Batch:
  """Returns a batch with labels of head 1 at these positions."""
  answer = {name: np.zeros(parity.real(batch).shape, np.int32) for name in ("heads", "targets", "groups")}
  for name, values in (("heads", 1), ("targets", targets), ("groups", groups)):
    answer[name][at] = values
  side = parity.side(batch)
  return {**batch, **{f"{side}_answer_{name}": jnp.asarray(x) for name, x in answer.items()}}


def a_batch(body: str) -> transformer.Batch:
  if BODIES[body]["architecture"] == "decoder_only":
    return toy.batch(LENGTHS, (1,) * 4, padded_to=(17, 2), architecture="decoder_only")
  made = toy.batch(LENGTHS, (1,) * 4, padded_to=(19, 1), architecture="encoder_only")
  if body in ("roberta", "longformer"):
    made = parity.with_roberta_ids(made, 1)
  if body == "longformer":
    made |= {"encoder_global_tokens": jnp.asarray(np.isin(np.arange(19), (0, 2))[None] * np.ones((4, 1), np.int32))}
  if body in ("modern_bert", "eurobert", "distilbert"):
    del made["encoder_token_types"]
  return made


def asks_texts(case: Case, theirs: torch.nn.Module) -> Asked:
  """Labels texts with a class or a score: at the first position, or the last in a decoder."""
  batch, rows = a_batch(case.body), np.arange(4)
  is_decoder = parity.side(batch) == "decoder"
  at = (rows, parity.real(batch).sum(1) - 1 if is_decoder else np.zeros(4, int))
  if case.head.kind == "score":
    numbers = np.array([1.5, -0.25, 0.0, 3.75], np.float32)
    targets, labels = numbers.view(np.int32), torch.tensor(numbers)
  else:
    targets = np.array([1, 0, 1, case.head.num_classes - 1])
    labels = torch.tensor(targets)
  inputs, key = parity.inputs(batch), "next_sentence_label" if case.head.name == "nsp" else "labels"
  if case.pretrains:
    masked = torch.tensor(np.where(np.asarray(batch["encoder_loss_weights"]) > 0, batch["encoder_target_tokens"], -100))
    inputs |= {"labels": masked.long()}
    key = {"nsp": "next_sentence_label", "sop": "sentence_order_label"}[case.head.name]
    logits = lambda out: out[2]
  else:
    logits = lambda out: out.logits
  if is_decoder:
    # transformers finds the last position by id; the next input is the last target, which is not used.
    theirs.config.pad_token_id = 0
    inputs["input_ids"] = inputs["input_ids"] * inputs["attention_mask"]
  return Asked(features(batch, at, targets), inputs | {key: labels}, logits, lambda out: out.loss, at)


def asks_tokens(case: Case, theirs: torch.nn.Module) -> Asked:
  """Labels every second token with a class."""
  del theirs
  batch = a_batch(case.body)
  asked = parity.real(batch) & (np.arange(parity.real(batch).shape[1]) % 2 == 0)
  at = np.nonzero(asked)
  targets = np.arange(len(at[0])) % case.head.num_classes
  labels = torch.full(asked.shape, -100)
  labels[at] = torch.tensor(targets)
  inputs = parity.inputs(batch) | {"labels": labels}
  return Asked(features(batch, at, targets), inputs, lambda out: out.logits[at], lambda out: out.loss, at)


def asks_spans(case: Case, theirs: torch.nn.Module) -> Asked:
  """Labels start and end of an answer in each text; one is a single token."""
  del theirs
  batch = a_batch(case.body)
  real = parity.real(batch)
  at = np.nonzero(real)
  starts, ends = np.array([3, 1, 0, 7]), np.array([9, 1, 10, 7])
  position = np.arange(real.shape[1])
  targets = (position == starts[:, None]).astype(np.int32) + 2 * (position == ends[:, None])
  both = lambda out: torch.stack([out.start_logits, out.end_logits], -1)

  def loss(out):
    # transformers' scores include padding, which is masked here.
    scores = both(out).masked_fill(~torch.tensor(real)[..., None], -1e30)
    entropy = torch.nn.functional.cross_entropy
    return (entropy(scores[..., 0], torch.tensor(starts)) + entropy(scores[..., 1], torch.tensor(ends))) / 2

  return Asked(features(batch, at, targets[at]), parity.inputs(batch), lambda out: both(out)[at], loss, at)


def asks_choices(case: Case, theirs: torch.nn.Module) -> Asked:
  """Labels two examples with two candidates: a row each in transformers, one packed row per example in t2t."""
  del theirs
  batch = a_batch(case.body)
  inputs = {name: x.reshape(2, 2, -1) for name, x in parity.inputs(batch).items()} | {"labels": torch.tensor([1, 0])}
  lengths = parity.real(batch).sum(1)
  packed: dict[str, list[np.ndarray]] = {}
  for pair in ((0, 1), (2, 3)):
    rows = {name: [np.asarray(x)[row, : lengths[row]] for row in pair] for name, x in batch.items()}
    rows["encoder_segment_ids"] = [np.full(lengths[row], number + 1) for number, row in enumerate(pair)]
    rows["encoder_positions"] = [np.arange(lengths[row]) for row in pair]
    for name, parts in rows.items():
      row = np.concatenate(parts)
      packed.setdefault(name, []).append(np.pad(row, (0, 24 - len(row))))
  ours = {name: jnp.asarray(np.stack(rows)) for name, rows in packed.items()}
  at = np.array([0, 0, 1, 1]), np.array([0, lengths[0], 0, lengths[2]])
  flat = lambda out: out.logits.reshape(-1, 1)
  return Asked(features(ours, at, np.array([0, 1, 1, 0])), inputs, flat, lambda out: out.loss, at)


ASKS = {"class": asks_texts, "score": asks_texts, "tag": asks_tokens, "span": asks_spans, "choice": asks_choices}


@pytest.fixture
def asked(case, pair):
  found = CASES[case]
  return ASKS[found.head.kind](found, pair.theirs)


@pytest.mark.parametrize(
  "case",
  [pytest.param(name, marks=[pytest.mark.exhaustive] if name in REPEATS else []) for name in CASES],
  indirect=True,
)
def test_logits_loss_and_gradients_are_theirs(case, pair, asked):
  """Logits, loss (including tokens for a pre-training class), and the gradient of every parameter."""
  found = CASES[case]
  loss = head_losses.HeadLosses(
    pair.config, toy.loss_config(z_loss=0.0, logits_chunk_tokens=16) if found.pretrains else None
  )

  def summed(params):
    model = nnx.merge(pair.graphdef, params)
    terms, _ = loss(model, asked.batch, loss.weights(asked.batch), key=None, train=False)
    return sum(terms.values()), head_losses.all_answers(model, asked.batch, [found.head.name])[found.head.name]

  (value, answers), gradient = jax.jit(jax.value_and_grad(summed, has_aux=True))(pair.params)
  pair.theirs.zero_grad()
  out = pair.theirs(**asked.inputs)
  expected = asked.logits(out).detach().numpy()
  np.testing.assert_allclose(np.asarray(answers)[asked.at], expected, atol=1e-4)
  assert np.std(expected) > 0.1
  total = asked.loss(out)
  total.backward()
  np.testing.assert_allclose(value, total.item(), rtol=1e-5)
  parity.assert_same_gradients(pair, gradient)


def test_a_folder_comes_back_bit_for_bit(pair, tmp_path):
  """Exactly the same tensors, and the head's settings in config.json."""
  huggingface.save(huggingface.open_foreign(str(pair.folder)), epath.Path(tmp_path / "again"))
  expected, found = foreign.safetensors(pair.folder), foreign.safetensors(tmp_path / "again")
  assert found.keys() == expected.keys()
  for name, value in expected.items():
    np.testing.assert_array_equal(found[name], value, err_msg=name)
  read = lambda folder: json.loads((pathlib.Path(folder) / "config.json").read_text())
  keys = ("architectures", "id2label", "label2id", "problem_type", "classifier_dropout", "classifier_dropout_prob")
  theirs, ours = read(pair.folder), read(tmp_path / "again")
  for key in (*keys, "classifier_pooling", "t2t_head"):
    # Each omits some keys that the class ignores, or that equal its defaults.
    assert key not in ours or key not in theirs or ours[key] == theirs[key], key
