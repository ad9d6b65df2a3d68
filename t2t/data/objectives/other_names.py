"""Names of `registry.OBJECTIVES` in other libraries and papers, for error messages."""

import re

# Other name, in lower case with _ between words -> name here.
_OTHER_NAMES = {
  "mlm": "masked_lm",
  "masked_language_modeling": "masked_lm",
  "masked_language_model": "masked_lm",
  "masked_token_prediction": "masked_lm",
  "fill_mask": "masked_lm",
  "bert": "masked_lm",
  "clm": "causal_lm",
  "lm": "causal_lm",
  "ar": "causal_lm",
  "autoregressive": "causal_lm",
  "causal": "causal_lm",
  "causal_language_modeling": "causal_lm",
  "language_modeling": "causal_lm",
  "language_model": "causal_lm",
  "next_token_prediction": "causal_lm",
  "ntp": "causal_lm",
  "gpt": "causal_lm",
  "prefix_language_modeling": "prefix_lm",
  "plm": "prefix_lm",
  "denoising": "span_corruption",
  "span_denoising": "span_corruption",
  "span_corrupt": "span_corruption",
  "span_mask": "span_corruption",
  "span_masking": "span_masked_lm",
  "t5": "span_corruption",
  "mixture_of_denoisers": "ul2",
  "mod": "ul2",
  "infilling": "text_infilling",
  "bart_denoising": "bart",
  "wwm": "whole_word_masked_lm",
  "whole_word_masking": "whole_word_masked_lm",
  "whole_word_mask": "whole_word_masked_lm",
  "ngram_masking": "ngram_masked_lm",
  "spanbert": "span_masked_lm_sbo",
  "sbo": "span_masked_lm_sbo",
  "nsp": "masked_lm_nsp",
  "next_sentence_prediction": "masked_lm_nsp",
  "sop": "masked_lm_sop",
  "sentence_order_prediction": "masked_lm_sop",
  "tlm": "translation_lm",
  "translation_language_modeling": "translation_lm",
  "fim": "fill_in_the_middle",
  "mntp": "masked_next_token",
  "seq2seq": "text_to_text",
  "sequence_to_sequence": "text_to_text",
  "sft": "text_to_text",
  "instruction": "text_to_text",
  "instruction_tuning": "text_to_text",
  "nmt": "translation",
  "machine_translation": "translation",
  "simcse": "same_text_twice",
  "shuffling": "deshuffling",
}


def name_here(name: str) -> str:
  """Returns the name of an objective for a foreign name in any spelling; "" for an unknown name."""
  return _OTHER_NAMES.get(re.sub(r"[\W_]+", "_", name.lower()).strip("_"), "")
