"""Static word vectors, frozen contextual features, and fine-tuning, on the same tasks (Peters et al. 2018)."""

import dataclasses
from typing import Any

from etils import epath

from t2t.studies import claims, suite
from t2t.studies.definition import ActionStage, Arm, Column, Folders, Scale, Setting, Study, TrainStage

STATIC, CONTEXTUAL, FINE_TUNED = "frozen word vectors", "frozen language models", "fine-tuned language models"
MASKED = "fine-tuned masked LM"
_WORDS, _VECTORS, _MODELS = "words", "vectors", "bilm"  # stages


def words() -> ActionStage:
  """Returns the stage that lists the words of the documentation, with the counts that subsampling needs."""
  return ActionStage(_WORDS, _write_words, reads=(suite.TEXT,), seed=0)


def _write_words(workdir: epath.Path, workdirs: Folders, seed: int) -> None:
  del seed
  from t2t.commands import vocab

  size = ["--type", "word", "--size", "8000", "--min_count", "2"]
  vocab.main(["train", *size, "--input", str(workdirs[suite.TEXT] / "train.jsonl"), "--output", str(workdir)])


def _pretraining(setting: Setting, name: str, config: str, keys: dict[str, Any], toy: dict[str, Any]) -> TrainStage:
  """Returns a stage that all seeds share, of a model with words as tokens, as published."""
  if setting.scale == "toy":
    config = f"tiny_{config.removeprefix('word2vec_')}"
    size = {"model.embed_dim": 64, "data.inputs_length": 64, "data.targets_length": 64, "train.batch_size": 32}
    own = {"data.vocabulary": f"{{{_WORDS}}}", "model.vocab_size": 0, "data.extra_ids": 0}
    keys = {**suite.text_keys(setting), **keys, **size, **own, **suite.budget(3 * suite.TOY_STEPS), **toy}
  else:
    keys = {**keys, **suite.budget(setting.sized(toy=0, small=30_000, base=125_000))}
  return TrainStage(name, config, keys, seed=0)


def word_vectors(setting: Setting) -> TrainStage:
  """Returns the stage that trains skip-gram vectors."""
  toy = {"data.subsampling": 1e-3}
  return _pretraining(setting, _VECTORS, "word2vec_skip_gram", {"data.objective": "skip_gram"}, toy)


def language_models(setting: Setting) -> TrainStage:
  """Returns the stage that trains the two recurrent language models of ELMo."""
  toy: dict[str, Any] = {"model.embedding_dim": 32, "model.recurrent_hidden": 128, "model.num_encoder_layers": 2}
  toy["data.extra_ids"] = 1  # the mask that masked_lm needs; the loss ignores masks
  return _pretraining(setting, _MODELS, "elmo", {"data.objective": "masked_lm"}, toy)


def arms(setting: Setting) -> list[Arm]:
  """Returns an arm for each kind of features, all with the same heads' budget."""
  text = suite.text_stages(setting)
  of_words = [*text, *([words()] if text else [])]
  vectors, models = word_vectors(setting), language_models(setting)
  masked = dataclasses.replace(suite.encoder(setting), seed=0)
  # Word vectors have no layers.
  mixed, last = suite.heads(setting), suite.heads(setting, layers="last")
  tune = lambda start, keys: suite.finetunings(setting, suite.ENCODER, start=start, keys={**last, **keys})
  return [
    Arm("frozen random vectors", [*of_words, vectors, *tune(_VECTORS, {**suite.ONLY_HEADS, "init.parameters": False})]),
    Arm(STATIC, [*of_words, vectors, *tune(_VECTORS, suite.ONLY_HEADS)]),
    Arm("fine-tuned word vectors", [*of_words, vectors, *tune(_VECTORS, {})]),
    Arm(CONTEXTUAL, [*of_words, models, *tune(_MODELS, {**suite.ONLY_HEADS, **mixed})]),
    Arm(FINE_TUNED, [*of_words, models, *tune(_MODELS, mixed)]),
    Arm(MASKED, [*text, masked, *tune(masked.name, {})]),
  ]


def columns(setting: Setting) -> list[Column]:
  """Returns the columns of the suite at the arm's better rate, and this rate."""
  return suite.columns_at_best(setting, suite.ENCODER)


STUDY = Study(
  title="Static vectors, contextual features, fine-tuning",
  question="What do contextual features add to static word vectors, and fine-tuning to frozen features?",
  paper="Peters et al. 2018, Deep contextualized word representations, table 1; Devlin et al. 2019, BERT, table 7",
  claim=(
    "Features of ELMo beside static vectors raise the scores of task models: SNLI from 88.0 to 88.7, SST-5 from 51.4 "
    "to 54.7, NER from 90.15 to 92.22. Fine-tuned BERT scores slightly higher on NER than frozen features of its "
    "layers: 96.4 against 96.1 (development set)."
  ),
  rule=claims.all_of(
    claims.higher(CONTEXTUAL, than=STATIC, column="mean"),
    claims.higher(FINE_TUNED, than=CONTEXTUAL, column="mean"),
  ),
  arms=arms,
  columns=columns,
  scales={
    "toy": Scale(
      "two CPU cores",
      44,
      "Skip-gram vectors of 64 dimensions and two LSTM language models of 2 layers with 128 units: 3,000 steps of 32 x "
      "64 words of the documentation. A masked encoder of width 64: 1,000 steps of 32 x 64 pieces. All seeds share "
      "them. Then 300 steps on three tasks, at the better of two learning rates.",
    ),
    "small": Scale("one H200", 900, "word2vec, ELMo and BERT base, 30,000 steps; GLUE, 20,000 steps."),
    "base": Scale("eight H200", 2_500, "word2vec, ELMo and BERT base, 125,000 steps; GLUE, 60,000 steps."),
  },
  caveats=(
    "the task models here are a linear head on the mean of a text, or on each word; the paper's are recurrent "
    "networks with attention, which read the order of static vectors. A mean of static vectors does not depend on the "
    "order of words. Vectors and language models read three times as many tokens as the masked encoder, because they "
    "learn slower. Language models take the place of static vectors, and the paper adds them. The better rate is "
    "chosen on the held-out examples, for every arm. No masked encoder is frozen here; the study of feature "
    "extraction has one."
  ),
)
