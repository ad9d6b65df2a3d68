"""Distillation against torch: a BERT teacher and a DistilBERT student of transformers, with the loss of DistilBERT."""

import dataclasses
import json
import types

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import parity
import torch
import toy

from t2t.losses import teacher_student
from t2t.losses.cross_entropy import CrossEntropy, CrossEntropyConfig
from t2t.losses.distillation import DistillationConfig
from t2t.models import presets
from t2t.models.config import TransformerConfig
from t2t.param_tree import flatten

SHAPE = dict(vocab_size=53, embed_dim=18, num_heads=3, head_dim=6, mlp_dim=28, dtype="float32", dropout_rate=0.0)
SHAPE |= dict(max_length=40)
TEACHER = TransformerConfig(**(presets.bert("base") | SHAPE | dict(num_encoder_layers=4)))
STUDENT = TransformerConfig(**(presets.bert("base") | SHAPE | dict(num_encoder_layers=2, segment_types=0)))
WEIGHTS = dict(soft_weight=5.0, hard_weight=2.0, cosine_weight=1.0, hidden_weight=3.0, attention_weight=0.5)


def their_loss(student, teacher, batch, real):
  """Returns the terms of DistilBERT (huggingface distillation/distiller.py) and of TinyBERT (its layers 1 and 3)."""
  features = {name: x for name, x in parity.inputs(batch).items() if name != "token_type_ids"}
  options = dict(output_hidden_states=True, output_attentions=True)
  ours = student(**features, **options)
  with torch.no_grad():
    theirs = teacher(**parity.inputs(batch), **options)
  at, temperature = torch.tensor(real), 2.0
  log_p = torch.log_softmax(ours.logits[at] / temperature, dim=-1)
  q = torch.softmax(theirs.logits[at] / temperature, dim=-1)
  soft = torch.nn.functional.kl_div(log_p, q, reduction="batchmean") * temperature**2
  masked = torch.tensor(np.asarray(batch["encoder_loss_weights"]) > 0)
  labels = parity.as_torch(batch["encoder_target_tokens"])
  hard = torch.nn.functional.cross_entropy(ours.logits[masked], labels[masked])
  last = ours.hidden_states[-1][at], theirs.hidden_states[-1][at]
  cosine = torch.nn.functional.cosine_embedding_loss(*last, torch.ones(len(last[0])))
  pairs = [(0, 1), (1, 3)]
  hidden = sum(
    torch.nn.functional.mse_loss(ours.hidden_states[a + 1][at], theirs.hidden_states[b + 1][at]) for a, b in pairs
  )
  attention = torch.zeros(())
  for row, number in enumerate(real.sum(axis=1)):
    for a, b in pairs:
      both = (ours.attentions[a], theirs.attentions[b])
      p, q = (x[row, :, :number, :number] for x in both)
      attention = attention + (q * (q.log() - p.log())).sum() / q.shape[0] / real.sum()
  return dict(soft_targets=soft, loss=hard, cosine=cosine, hidden_states=hidden, attention=attention)


def test_each_term_and_the_gradients_are_theirs(tmp_path):
  teacher = parity.pair(TEACHER, tmp_path / "teacher")
  student = parity.pair(STUDENT, tmp_path / "student", model_class="DistilBertForMaskedLM")
  batch = toy.batch((37, 23, 40), (1, 1, 1), padded_to=(40, 1), architecture="encoder_only")
  settings = DistillationConfig(
    teacher=("PATH",),
    dtype="float32",
    soft_positions="all",
    attention_loss="kl",
    models=(json.dumps(dataclasses.asdict(TEACHER)),),
    **WEIGHTS,
  )
  init = types.SimpleNamespace(parameters=True)
  train = types.SimpleNamespace(loss="cross_entropy")
  run = types.SimpleNamespace(distillation=settings, init=init, train=train, adapters={}, model=STUDENT, stages=())
  base = CrossEntropy(CrossEntropyConfig(0.0, 0.0, 16))
  loss = teacher_student.TeacherLoss.wrapping(base, run)
  built = jax.eval_shape(lambda: loss.build(STUDENT, nnx.Rngs(0)))
  graphdef, _ = nnx.split(built, graph=False)

  def total(params):
    module = nnx.merge(graphdef, {"student": params, "teacher": teacher.params})
    terms, metrics = loss(module, batch, loss.weights(batch), key=None, train=True)
    return sum(terms.values()), (terms, metrics)

  grads, (terms, _) = jax.grad(total, has_aux=True)(student.params)
  theirs = their_loss(student.theirs, teacher.theirs, batch, parity.real(batch))
  factors = {"soft_targets": 5.0, "loss": 2.0, "cosine": 1.0, "hidden_states": 3.0, "attention": 0.5}
  assert terms.keys() == factors.keys()
  for name, factor in factors.items():
    np.testing.assert_allclose(terms[name], factor * theirs[name].item(), rtol=2e-5, err_msg=name)
  sum(factors[name] * term for name, term in theirs.items()).backward()
  compared = 0
  for name, parameter in student.theirs.named_parameters():
    ours = student.as_theirs(name, {path: jnp.asarray(x) for path, x in flatten(grads).items()})
    np.testing.assert_allclose(ours, parameter.grad.numpy(), atol=2e-5, err_msg=name)
    compared += 1
  assert compared > 20
