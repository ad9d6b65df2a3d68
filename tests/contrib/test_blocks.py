"""Interface of the blocks of `config.model.block`."""

import pytest

from t2t.models import config, stack


@pytest.mark.parametrize("name", config.BLOCKS)
def test_a_block_has_what_the_stack_reads(name):
  """Every public attribute of the class of Transformer layers."""
  read = {attribute for attribute in vars(stack.Layer) if not attribute.startswith("_")}
  assert "is_recurrent" in read and read <= set(dir(config.BLOCKS[name]))
