"""t2t's encoders, BERT to DeBERTa version 3, against Hugging Face's, with the same random weights.

Needs torch and transformers (tests/parity-requirements.txt).
"""

import numpy as np
import parity
from parity import torch
import pytest
import toy
from transformers.models.deberta_v2 import modeling_deberta_v2

from t2t.models import bert_variants, disentangled, llama_encoders, presets
from t2t.models.config import TransformerConfig

# Sizes differ from each other, from powers of two, and from transformers' defaults.
SHAPE = dict(vocab_size=53, embed_dim=18, num_heads=3, head_dim=6, mlp_dim=28, num_encoder_layers=3)
SHAPE |= dict(dtype="float32", dropout_rate=0.0, norm_epsilon=1e-3)
NSP = {"name": "nsp", "num_classes": 2, "labels": ("next", "random")}
SOP = {"name": "sop", "num_classes": 2, "labels": ("in order", "swapped")}
# DeBERTa: shorter than the sequences, so that far distances share a vector.
EXACT = dict(relative_position_buckets=20, relative_position_max_distance=10)
MOBILE = dict(embedding_dim=7, bottleneck_dim=12, head_dim=4, output_embedding_dim=18)
FAMILIES = {
  "bert": presets.bert("base") | SHAPE | dict(max_length=40, segment_types=3, heads=(NSP,)),
  "bert-untied": presets.bert("base") | SHAPE | dict(max_length=40, tied_logits=False),
  "roberta": presets.roberta("base") | SHAPE | dict(max_length=40),
  "xlm-roberta": presets.roberta("base") | SHAPE | dict(max_length=40),
  "distilbert": presets.bert("base") | SHAPE | dict(max_length=40, segment_types=0, norm_epsilon=1e-12),
  "albert": presets.albert("base") | SHAPE | dict(max_length=40, embedding_dim=11, heads=(SOP,)),
  "rembert": bert_variants.rembert("base") | SHAPE | dict(max_length=40, embedding_dim=11, output_embedding_dim=25),
  "mobilebert": bert_variants.mobilebert("base") | SHAPE | MOBILE | dict(max_length=40, heads=(NSP,)),
  "mobilebert-tiny": bert_variants.mobilebert("tiny") | SHAPE | MOBILE | dict(max_length=40),
  # Global, local, local, global, local: sequences are longer than three windows.
  "modern_bert": presets.modern_bert("base")
  | SHAPE
  | dict(num_encoder_layers=5, attention_window=4, rotary_base=9_000.0, local_rotary_base=700.0, max_length=50),
  "eurobert": llama_encoders.eurobert("610m")
  | SHAPE
  | dict(num_heads=6, num_kv_heads=2, max_length=50, rotary_base=900.0),
  "deberta": bert_variants.deberta("base") | SHAPE | EXACT | dict(max_length=40, absolute_positions=""),
  "deberta-biased": bert_variants.deberta("base")
  | SHAPE
  | EXACT
  | dict(max_length=44, segment_types=3, absolute_positions="input", disentangled_terms="content_to_position"),
  "deberta-v2": bert_variants.deberta_v2("xlarge")
  | SHAPE
  | dict(max_length=40, relative_position_buckets=16, relative_position_max_distance=13, absolute_positions=""),
  "deberta-v2-separate": bert_variants.deberta_v2("xxlarge")
  | SHAPE
  | EXACT
  | dict(max_length=40, share_position_projections=False, beside_first_activation="tanh", absolute_positions=""),
  "deberta-v3": bert_variants.deberta_v3("base")
  | SHAPE
  | dict(max_length=40, relative_position_buckets=24, relative_position_max_distance=40, absolute_positions=""),
}
# family -> padding id
PADDING = {"roberta": 1, "xlm-roberta": 1}
# Class in transformers, if it differs from that of the exported folder.
CLASSES = {"xlm-roberta": "XLMRobertaForMaskedLM"}


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request):
  return request.param


@pytest.fixture(scope="module")
def pair(family, tmp_path_factory):
  config = TransformerConfig(**FAMILIES[family])
  return parity.pair(config, tmp_path_factory.mktemp(family), model_class=CLASSES.get(family, ""))


BATCHES = {"long": ((37, 23, 40), 40), "short": ((5, 9, 1), 11)}


@pytest.fixture(scope="module", params=list(BATCHES))
def batch(request, family):
  lengths, length = BATCHES[request.param]
  made = toy.batch(lengths, (1,) * len(lengths), padded_to=(length, 1), architecture="encoder_only")
  if family in PADDING:
    return parity.with_roberta_ids(made, PADDING[family])
  untyped = ("modern_bert", "eurobert", "distilbert")
  if family in untyped or (family.startswith("deberta") and family != "deberta-biased"):
    del made["encoder_token_types"]
  assert np.any(np.asarray(made["encoder_loss_weights"]))
  return made


def test_hidden_states_and_logits_are_theirs(family, pair, batch):
  """Also the pooled output for a class head, if the model has a pooler."""
  parity.assert_same_hidden_states(pair, batch, pooled=bool(pair.config.heads))
  parity.assert_same_logits(pair, batch)


def test_buckets_of_deberta_are_theirs():
  """Every distance of the released models, with a rounding logarithm."""
  theirs = modeling_deberta_v2.make_log_bucket_position(torch.arange(-600, 601), 256, 512)
  expected = torch.clamp(theirs.long() + 256, 0, 511).numpy()
  found = disentangled.log_bucket(np.arange(-600, 601), num_buckets=512, max_distance=512)
  np.testing.assert_array_equal(found, expected)


@parity.GRADIENT_BATCHES
def test_loss_and_gradients_are_theirs(pair, batch):
  """The mean loss over masked tokens, and the gradient of every parameter."""
  parity.assert_same_loss_and_gradients(pair, batch)
