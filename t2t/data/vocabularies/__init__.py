"""Vocabularies: loading, saving beside a model, special ids, and training."""

import os

from t2t.data.vocabularies.control_tokens import (
  CHOICES,
  as_formatted,
  as_published,
  as_text,
  encode_text,
  plain,
  protect,
)
from t2t.data.vocabularies.control_tokens import (
  control_tokens as control_tokens_of,
)
from t2t.data.vocabularies.control_tokens import (
  count as count_control_tokens,
)
from t2t.data.vocabularies.reserved_ids import (
  DOCS_SIZE,
  bos_id,
  check,
  cls_id,
  docs_vocabulary,
  ends_sentence,
  find_mask_id,
  framing_ids,
  load,
  mask_id,
  num_sentinels,
  ordinary_ids,
  pads_with_zero,
  sentinel_ids,
  sep_id,
  special_ids,
  starts_with_bos,
  starts_word,
  t5_vocabulary,
  token_bytes,
  token_texts,
)
from t2t.data.vocabularies.vocab_checkpoint import (
  check_run,
  check_same,
  check_saved,
  compare_start,
  digest,
  named,
  save,
  saved_extra_ids,
  unnamed,
)

# tf.data already encodes several texts in parallel. Threads of the library would compete with it, and the library warns
# if a process with such threads forks.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

__all__ = [
  "CHOICES",
  "DOCS_SIZE",
  "as_formatted",
  "as_published",
  "as_text",
  "bos_id",
  "check",
  "check_run",
  "check_same",
  "check_saved",
  "cls_id",
  "compare_start",
  "control_tokens_of",
  "count_control_tokens",
  "digest",
  "docs_vocabulary",
  "encode_text",
  "ends_sentence",
  "find_mask_id",
  "framing_ids",
  "load",
  "mask_id",
  "named",
  "num_sentinels",
  "ordinary_ids",
  "pads_with_zero",
  "plain",
  "protect",
  "save",
  "saved_extra_ids",
  "sentinel_ids",
  "sep_id",
  "special_ids",
  "starts_with_bos",
  "starts_word",
  "t5_vocabulary",
  "token_bytes",
  "token_texts",
  "unnamed",
]
