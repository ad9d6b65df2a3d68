"""Scores of `t2t babylm` and `t2t suites`, item by item, against a scorer in PyTorch over exported checkpoints.

The scorer encodes with transformers' tokenizers, runs transformers' models on one text at a time, and sums the
log-softmax in a loop. Needs torch and transformers (tests/parity-requirements.txt).
"""

import json
import pathlib

import foreign
import numpy as np
import parity
from parity import torch, transformers
import pytest
import suite_files
import test_convert_tokenizers as tokenizers_lib

from t2t import __main__ as command
from t2t.checkpoints import pretrained
from t2t.convert import huggingface
from t2t.data import vocabularies
from t2t.evaluation.suites import registry, run
from t2t.models import presets
from t2t.models.config import TransformerConfig

SHAPE = dict(embed_dim=18, num_heads=3, head_dim=6, mlp_dim=28, dtype="float32", dropout_rate=0.0)
# name -> (family, tokenizer, sentinels, layers)
MODELS = {
  "gpt2": (presets.gpt2("small"), tokenizers_lib.gpt2, 0, dict(num_decoder_layers=2, max_length=128)),
  "t5": (presets.t5_1_1("small"), tokenizers_lib.unigram, 100, dict(num_encoder_layers=2, num_decoder_layers=2)),
  "bert": (presets.bert("base"), tokenizers_lib.wordpiece, 0, dict(num_encoder_layers=2, max_length=128)),
}


@pytest.fixture(scope="module", params=MODELS)
def exported(request, tmp_path_factory):
  """Exports a model with its tokenizer; returns the name and the folder."""
  family, made, extra_ids, layers = MODELS[request.param]
  folder = tmp_path_factory.mktemp(request.param)
  path = made(folder)
  size = vocabularies.load(str(path), extra_ids=extra_ids).vocab_size + 3
  config = TransformerConfig(**(family | SHAPE | layers | dict(vocab_size=size)))
  params = foreign.random_params(config)
  memory = foreign.in_memory(config, params, vocabulary=path, extra_ids=extra_ids)
  huggingface.save(memory, folder / "model", dtype="float32")
  return request.param, folder / "model"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
  return suite_files.babylm(tmp_path_factory.mktemp("data"))


class TorchScorer:
  """Scores one text after its prefix."""

  def __init__(self, name: str, folder: pathlib.Path):
    self.name, self.model = name, parity.load(folder)
    self.tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    self.sentinel = self.tokenizer.convert_tokens_to_ids("<extra_id_0>") if name == "t5" else None

  def encode(self, text: str) -> list[int]:
    return self.tokenizer(text, add_special_tokens=False)["input_ids"]

  def log_p(self, tokens: dict[int, int], **inputs: list[int]) -> float:
    """Returns the log-probability of tokens at positions of the output, position -> token."""
    with torch.no_grad():
      logits = self.model(**{name: torch.tensor([ids]) for name, ids in inputs.items()}).logits
    log_probs = torch.log_softmax(logits[0].double(), -1)
    return sum(float(log_probs[position, token]) for position, token in tokens.items())

  def split(self, prefix: str, text: str) -> tuple[list[int], list[int]]:
    before, whole = self.encode(prefix) if prefix else [], self.encode(prefix + text)
    return (before, whole[len(before) :]) if whole[: len(before)] == before else (before, self.encode(text))

  def __call__(self, prefix: str, text: str, form: str = "span") -> float:
    if self.name == "t5":
      return self.of_t5(prefix, text, form)
    before, after = self.split(prefix, text)
    if self.name == "gpt2":
      ids = [self.tokenizer.bos_token_id, *before, *after]
      return self.log_p({i - 1: ids[i] for i in range(len(ids) - len(after), len(ids))}, input_ids=ids)
    cls, sep, mask = (getattr(self.tokenizer, f"{name}_token_id") for name in ("cls", "sep", "mask"))
    ids, total = [cls, *before, *after, sep], 0.0
    for i in range(1 + len(before), len(ids) - 1):
      total += self.log_p({i: ids[i]}, input_ids=[mask if j == i else token for j, token in enumerate(ids)])
    return total

  def of_t5(self, prefix: str, text: str, form: str) -> float:
    eos, before, after = self.tokenizer.eos_token_id, self.encode(prefix) if prefix else [], self.encode(text)
    if form == "span":
      read, target, first = [*before, self.sentinel, eos], [self.sentinel, *after], 1
    else:
      read, target, first = [*before, eos], [*after, eos], 0
    shown = [0, *target[:-1]]
    return self.log_p({i: target[i] for i in range(first, len(target))}, input_ids=read, decoder_input_ids=shown)


def rows(workdir, suite):
  return [json.loads(line) for line in (workdir / "predictions" / f"{suite}.test.jsonl").read_text().splitlines()]


def test_every_option_of_babylm_has_their_score(exported, data, tmp_path):
  """All options of all seven suites; the figures are means of their choices."""
  name, folder = exported
  assert command.main(["babylm", f"--checkpoint={folder}", f"--data={data}", f"--workdir={tmp_path}"]) == 0
  score = TorchScorer(name, folder)
  records = json.loads((tmp_path / "results.json").read_text())
  for suite, path in run.babylm_paths(str(data), ()).items():
    items = registry.read(suite, path)
    expected = [[score(option.prefix, option.continuation) for option in item.options] for item in items]
    found = [row["option_scores"] for row in rows(tmp_path, suite)]
    for ours, theirs in zip(found, expected, strict=True):
      np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    if suite == "ewok":
      domains = {}
      for item, (same, other, moved, right) in zip(items, expected, strict=True):
        domains.setdefault(item.groups, []).append((same > other, np.mean([same > moved, right > other])))
      means = np.mean([np.mean(values, axis=0) for values in domains.values()], axis=0)
      metrics = records["ewok.test"]["metrics"]
      np.testing.assert_allclose([metrics["accuracy"], metrics["context_accuracy"]], 100 * means)


def test_forms_of_an_encoder_decoder(exported, data, tmp_path):
  """A sentence after an empty input, with EOS."""
  name, folder = exported
  if name != "t5":
    pytest.skip("models of one stack have one form")
  path = data / "supplement_filtered"
  arguments = ["suites", f"--checkpoint={folder}", f"--workdir={tmp_path}", f"supplement={path}", "--form=prefix"]
  assert command.main(arguments) == 0
  score = TorchScorer(name, folder)
  for item, row in zip(registry.read("supplement", str(path)), rows(tmp_path, "supplement"), strict=True):
    expected = [score("", option.continuation, "prefix") for option in item.options]
    np.testing.assert_allclose(row["option_scores"], expected, rtol=1e-4, atol=1e-4)


def test_perplexity_of_a_text_and_ranks_of_a_cloze(exported, tmp_path):
  """A text that fits the model, and the rank of the answer among all tokens of text."""
  name, folder = exported
  text = "The quick brown fox jumps over the lazy dog. Don't re-enter: 3.14"
  (tmp_path / "text.txt").write_text(text)
  score = TorchScorer(name, folder)
  starts = ("and then some", "the")
  answer = next(
    word for word in ("more", "and", "a", "I") if all(len(score.split(x, f" {word}")[1]) == 1 for x in starts)
  )
  cloze = [{"masked_sentences": [f"{start} [MASK] words."], "obj_label": answer} for start in starts]
  files = [f"text={tmp_path / 'text.txt'}", f"cloze={suite_files.lines(tmp_path / 'cloze.jsonl', cloze)}"]
  rule = ["--pseudo_likelihood=pll"] if name == "bert" else []
  assert command.main(["suites", f"--checkpoint={folder}", f"--workdir={tmp_path}", *files, *rule]) == 0
  metrics = json.loads((tmp_path / "results.json").read_text())
  prefix = "pseudo_" if name == "bert" else ""
  nats = -score("", text)
  found = metrics["text.test"]["metrics"]
  assert found[f"{prefix}bits_per_byte"] == pytest.approx(nats / np.log(2) / len(text), rel=1e-4)
  assert found[f"{prefix}word_perplexity"] == pytest.approx(np.exp(nats / len(text.split())), rel=2e-3)
  ids = vocabularies.ordinary_ids(pretrained.vocabulary(pretrained.read_source(str(folder))))
  for row, item in zip(rows(tmp_path, "cloze"), cloze, strict=True):
    before, after = item["masked_sentences"][0].split(" [MASK]")
    (token,) = score.split(before, f" {answer}")[1]
    every = [score_of_cloze(score, before, after, other) for other in ids.tolist()]
    gold = score_of_cloze(score, before, after, token)
    np.testing.assert_allclose(row["score"], gold, rtol=1e-4, atol=1e-4)
    assert abs(row["rank"] - 1 - sum(value > gold for value in every)) <= 1


def score_of_cloze(score: TorchScorer, before: str, after: str, token: int) -> float:
  """Returns the log-probability of a token in the gap."""
  left, right = score.encode(before), score.encode(after)
  if score.name == "gpt2":
    ids = [score.tokenizer.bos_token_id, *left]
    return score.log_p({len(ids) - 1: token}, input_ids=ids)
  if score.name == "t5":
    read = [*left, score.sentinel, *right, score.tokenizer.eos_token_id]
    return score.log_p({1: token}, input_ids=read, decoder_input_ids=[0, score.sentinel])
  tokenizer = score.tokenizer
  ids = [tokenizer.cls_token_id, *left, tokenizer.mask_token_id, *right, tokenizer.sep_token_id]
  return score.log_p({1 + len(left): token}, input_ids=ids)
