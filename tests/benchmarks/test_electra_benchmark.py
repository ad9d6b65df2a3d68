"""ELECTRA benchmark: equal compute for all arms, and the examples of the probes."""

import pathlib

from flax import nnx
import numpy as np
import pytest
import toy

from t2t.data import vocabularies
from t2t.models import presets, transformer
from t2t.models.config import TransformerConfig

_ARTICLE = """BERLIN
Berlin is the capital of Germany.
HISTORY
Section::::History.
In 1237 the town of Berlin was first written of by a bishop. Nearby Cologne is older. It grew.
Section::::Geography.
The river Spree runs through the whole of it, from the east to the west, where it meets the Havel.
"""


@pytest.fixture(scope="module")
def electra():
  return toy.benchmark("electra")


@pytest.fixture
def vocabulary(tmp_path):
  letters = "abcdefghijklmnopqrstuvwxyz0123456789.,"
  pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters), "town"]
  (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
  return vocabularies.load(str(tmp_path / "vocab.txt"), extra_ids=0)


@pytest.fixture
def articles(tmp_path):
  for name in ("train-0", "train-1", "train-2", "validation-0"):
    (tmp_path / f"{name}.jsonl.gz").write_bytes(b"")
  return tmp_path


def test_arms_cost_the_same(electra, articles):
  """Compute is equal up to half a step per checkpoint; ELECTRA has the fewest steps."""
  configs = {arm: electra.arm_config(arm, articles, "vocab.txt", seed=0) for arm in electra.ARMS}
  budget = 1_000 * electra.step_flops(configs["ELECTRA"])
  for config in configs.values():
    electra.with_budget(config, budget, points=5)
    assert config.train.steps % config.checkpoint.save_interval_steps == 0
    assert abs(config.train.steps * electra.step_flops(config) - budget) <= 2.5 * electra.step_flops(config)
  assert configs["BERT"].train.steps > configs["ELECTRA"].train.steps == 1_000


def test_probes_are_trained_on_other_files(electra, articles):
  pre_trained, probed, held_out = electra.shards(articles)
  assert [pathlib.Path(file).name for file in pre_trained] == ["train-0.jsonl.gz"]
  assert len({*pre_trained, *probed, *held_out}) == 4


def test_words_are_asked_about_where_they_stand(electra, vocabulary, monkeypatch):
  """Positions are those of first tokens; words at the start of sentences and in other sections are excluded."""
  monkeypatch.setattr(electra, "_LENGTH", 80)
  article = _ARTICLE.replace(
    "In 1237", "In it, the house of the Lord, of the Lord, of the Lord, in 1237" + 99 * " so it was"
  )
  found = electra.paragraphs(iter([article]), vocabulary, most=10, words=10)
  assert found.sections.tolist() == [electra.SECTIONS.index("History")]
  assert {word for *_, word, capital in found.words if capital} == {"lord"}
  texts = vocabularies.token_texts(vocabulary)
  for row, position, word, _ in found.words:
    assert texts[found.tokens[row, position]] == f" {word[0]}"
  assert not any(word == "in" and position == 1 for _, position, word, _ in found.words)
  assert len(found.words) % 2 == 0 and 2 * sum(capital for *_, capital in found.words) == len(found.words)


@pytest.mark.exhaustive
def test_states_of_all_layers_end_with_the_model_s(electra):
  """Running layers one by one equals the model."""
  fields = presets.bert("base") | dict(vocab_size=64, embed_dim=16, num_heads=2, head_dim=8, mlp_dim=32)
  config = TransformerConfig(**fields | dict(num_encoder_layers=3, dtype="float32", dropout_rate=0.0, max_length=16))
  model = transformer.build(config, nnx.Rngs(0))
  tokens = np.asarray([[2, 7, 9, 11, 3, 0, 0], [2, 8, 8, 12, 13, 14, 3]], np.int32)
  whole = model({"encoder_input_tokens": tokens})
  found = electra.Paragraphs(["", ""], tokens, np.asarray([0, 1]), [(0, 2, "a", True), (1, 5, "b", False)])
  read = electra.read(config, nnx.to_pure_dict(nnx.state(model)), found)
  width = config.embed_dim
  assert read["capitals"].shape == (2, 4 * width)
  np.testing.assert_allclose(read["capitals"][:, -width:], [whole[0, 2], whole[1, 5]], atol=1e-5)
  np.testing.assert_allclose(read["section"][0, -width:], whole[0, :5].mean(0), atol=1e-5)


def test_results_are_told(electra, tmp_path):
  """The table has a line for each arm, with the spread over seeds; a picture is written."""

  def run(right):
    probes = {"0": {"capitals": 0.5, "section": 0.2}, "100": {"capitals": right, "section": 0.4}}
    held_out = {"loss": {100: 3.0}, "accuracy": {100: 0.25}}
    return dict(steps=100, step_flops=1e9, held_out=held_out, baselines={"unigram": 6.0}, probes=probes)

  results = {
    "without_model": {"capitals": 0.7, "section": 0.6},
    "majority": {"capitals": 0.5, "section": 0.25},
    "arms": {"BERT": [run(0.6), run(0.7)], "ELECTRA": [run(0.8)]},
  }
  lines = electra.table(results).splitlines()[2:]
  assert lines[0].split() == [
    "BERT",
    "100",
    "1.00e+11",
    "65.0",
    "±",
    "7.1",
    "40.0",
    "±",
    "0.0",
    "0.500",
    "±",
    "0.000",
    "25.0%",
  ]
  assert lines[-1].split()[-2:] == ["50.0", "20.0"]
  electra.draw(results, tmp_path / "electra.png")
  assert (tmp_path / "electra.png").read_bytes().startswith(b"\x89PNG")
