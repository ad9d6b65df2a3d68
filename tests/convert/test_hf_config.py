"""Families of transformers that represent a model of t2t."""

import pytest

from t2t import UserError
from t2t.configs import tiny
from t2t.configuration.loading import load_config
from t2t.convert import hf_config
from t2t.models.config import TransformerConfig


@pytest.mark.parametrize("size", tiny.SIZES)
def test_a_tiny_model_has_a_family_or_a_refusal_with_reasons(size):
  """A refusal compares with each family; it does not ask for keys of t2t."""
  model = TransformerConfig(**load_config(f"tiny_{size}" if size else "tiny").model)
  try:
    assert hf_config.family_of(model, "runs/tiny").fields["architecture"] == model.architecture
  except UserError as error:
    assert str(error).startswith("runs/tiny: no model of transformers that t2t writes matches this model:\n  ")
