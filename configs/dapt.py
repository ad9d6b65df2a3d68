"""Continued pre-training on text of a domain or a task, before fine-tuning (Gururangan et al. 2020).

  t2t train --config dapt_domain --config.init.checkpoint=roberta-base --workdir gs://BUCKET/biomed \
    --config.data.files='gs://BUCKET/papers/*.jsonl.gz'
  t2t train --config dapt_task --config.init.checkpoint=gs://BUCKET/biomed --workdir gs://BUCKET/chemprot \
    --config.data.files=chemprot.txt

Model and vocabulary come from the checkpoint, and the objective is that of the model's kind; --config.data.objective
changes it. Batches, steps and rates are those of the paper's RoBERTa: 12,500 steps of 2,048 sequences for a domain
(DAPT), and a hundred passes in batches of 256 over a task's own text (TAPT). Set the steps of these passes; the run
warns when they are complete. Published, F1 of RoBERTa base: ChemProt 81.9, with its domain 84.2, with its task 82.6,
with both 84.4; ACL-ARC 63.0, 75.4, 67.4, 75.6. BioBERT, FinBERT, ClinicalBERT and LegalBERT (FP) started from BERT in
the same way. SciBERT started from random parameters with its own vocabulary: bert_base with config.data.files and
config.data.vocabulary.

A domain's words get their own tokens, which start as the mean of their former tokens:

  t2t vocab train --extend VOCABULARY --input 'papers/*.txt' --size 34000 --output runs/biomed_pieces
  t2t train --config dapt_domain --config.init.checkpoint=bert-base-uncased --workdir gs://BUCKET/biomed \
    --config.data.files='gs://BUCKET/papers/*.jsonl.gz' --config.data.vocabulary=runs/biomed_pieces/vocab.txt \
    --config.model.vocab_size=34048 --config.init.transfer_vocab=True
"""

from ml_collections import ConfigDict

from t2t.configs import roberta

SIZES = ("domain", "task")


def get_config(size: str = "domain") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = roberta.get_config("base")
  config.data.mixture = ""  # given by the user
  config.data.task_modules = ()
  config.init.use_model_config = True
  config.optimizer.warmup_steps, config.optimizer.warmup_ratio = 0, 0.06
  config.train.steps = {"domain": 12_500, "task": 2_000}[size]
  config.train.batch_size, config.optimizer.learning_rate = {"domain": (2_048, 5e-4), "task": (256, 1e-4)}[size]
  config.data.repeat_warning_epochs = {"domain": 0.0, "task": 100.0}[size]
  return config


def for_architecture(config: ConfigDict) -> None:
  """Sets the objective of the checkpoint's kind of model."""
  if config.model.architecture == "decoder_only":
    config.data.objective = "causal_lm"
    config.data.targets_length = min(1_024, config.model.max_length or 1_024)
  if config.model.architecture == "encoder_decoder":
    config.data.objective = "span_corruption"
    config.data.targets_length = 114
