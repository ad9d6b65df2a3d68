"""MTEB and sentence-transformers on exported encoders: the vectors are those of t2t.

Needs torch, mteb and sentence-transformers (tests/parity-requirements.txt).
"""

import logging
import sys

import numpy as np
import parity
from parity import transformers
import pytest
from test_asking import SHAPE, folder
import test_convert_tokenizers

import t2t
from t2t import UserError
from t2t.convert import sentence_transformers as written
from t2t.models import presets
from t2t.models.config import TransformerConfig
from t2t.models.head_config import HeadConfig

mteb = pytest.importorskip("mteb", reason="needs mteb: pip install -r tests/parity-requirements.txt")
library = pytest.importorskip("sentence_transformers", reason="needs sentence-transformers: see above")
from mteb.abstasks import sts  # noqa: E402
from mteb.mocks import mock_tasks  # noqa: E402

from t2t.integrations import mteb as integration  # noqa: E402

TEXTS = ["a dog.", "foxs", "x y z a b c", "dog fox dog fox", "?"]
SCORED = {"sentence1": ["a dog.", "fox a", "x y z"], "sentence2": ["a fox.", "z", "x y"], "score": [4.0, 1.0, 3.0]}


class LocalSTS(sts.AbsTaskSTS):
  """Three pairs of texts with a similarity."""

  metadata = mock_tasks.MockSTSTask.metadata.model_copy(update={"name": "LocalSTS"})
  min_score, max_score = 0, 5

  def load_data(self, **others) -> None:
    import datasets

    self.dataset, self.data_loaded = {"test": datasets.Dataset.from_dict(SCORED)}, True


def reset_seed():
  """Takes back the global seed of TensorFlow that importing MTEB sets."""
  if "tensorflow" in sys.modules:
    sys.modules["tensorflow"].random.set_seed(None)


reset_seed()


@pytest.fixture(scope="module", autouse=True)
def seeds():
  yield
  reset_seed()


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
  return folder(tmp_path_factory.mktemp("bert"))


def cosine(left, right):
  return np.sum(left * right, -1) / np.linalg.norm(left, axis=-1) / np.linalg.norm(right, axis=-1)


def test_a_task_of_mteb_gets_the_vectors_of_t2t(encoder):
  """The score of the task is the rank correlation of our cosines, whatever the batch size."""
  from scipy import stats

  left, right = (t2t.load(encoder).embed(SCORED[name]) for name in ("sentence1", "sentence2"))
  expected = stats.spearmanr(cosine(left, right), SCORED["score"]).statistic
  for batch_size in (None, 2):
    model = integration.Encoder(encoder, batch_size=batch_size)
    (result,) = mteb.evaluate(model, [LocalSTS()], cache=None, show_progress_bar=False).task_results
    (scores,) = result.scores["test"]
    assert scores["cosine_spearman"] == pytest.approx(expected)
  assert model.mteb_model_meta.embed_dim == 18 and model.mteb_model_meta.max_tokens == 40


def encoded(model, texts, **others):
  batches = [{"text": texts[:2]}, {"text": texts[2:]}]
  return model.encode(batches, task_metadata=LocalSTS.metadata, hf_split="test", hf_subset="default", **others)


def test_prompts_come_before_texts(encoder):
  """A prompt of the prompt type, and of the task, which is more specific; without prompts the texts alone."""
  model = t2t.load(encoder)
  np.testing.assert_allclose(encoded(integration.Encoder(encoder), TEXTS), model.embed(TEXTS), atol=1e-6)
  by_type = integration.Encoder(encoder, prompts={"query": "dog "})
  expected = model.embed([f"dog {text}" for text in TEXTS])
  np.testing.assert_allclose(encoded(by_type, TEXTS, prompt_type=mteb.types.PromptType.query), expected, atol=1e-6)
  np.testing.assert_allclose(encoded(by_type, TEXTS), model.embed(TEXTS), atol=1e-6)


def test_long_texts_are_counted(encoder, caplog):
  with caplog.at_level(logging.WARNING):
    encoded(integration.Encoder(encoder), [*TEXTS, "a " * 50])
  assert "1 of 6 texts have more than 40 tokens" in caplog.text


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"pool": "men"}, "pool=men.*mean"),
    ({"layer": "all"}, "layer=all"),
    ({"layer": 9}, "no such layer"),
    ({"device": "cuda"}, "device=cuda"),
    ({"batch_size": 0}, "batch_size=0"),
  ],
)
def test_arguments_are_checked_without_parameters(options, message, encoder, monkeypatch):
  monkeypatch.setattr(integration.pretrained, "load", None)
  with pytest.raises(UserError, match=message):
    integration.Encoder(encoder, **options)


POOLED = {"": "first", "mean": "mean", "last": "last"}  # what a vector head reads -> pool


@pytest.mark.exhaustive_from(2)
@pytest.mark.parametrize("reads", [None, *POOLED])
def test_sentence_transformers_pools_as_in_training(reads, tmp_path):
  """Without a vector head as `t2t embed` does: the mean."""
  heads = () if reads is None else (HeadConfig("text", 0, kind="vector", reads=reads),)
  config = TransformerConfig(**(presets.bert("base") | SHAPE | {"heads": heads}))
  pool = written.trained_pool(config)
  assert pool == ("mean" if reads is None else POOLED[reads])
  source = folder(tmp_path, heads=heads)
  transformers.AutoTokenizer.from_pretrained(source)  # the tokenizer came after the export
  for name, content in written.files(config).items():
    (source / name).parent.mkdir(exist_ok=True)
    (source / name).write_bytes(content)
  model = library.SentenceTransformer(str(source), device="cpu")
  assert model[1].pooling_mode == {"mean": "mean", "first": "cls", "last": "lasttoken"}[pool]
  np.testing.assert_allclose(model.encode(TEXTS), t2t.load(source).embed(TEXTS, pool=pool), atol=1e-5)
  assert parity.load(source) is not None


def test_an_exported_folder_is_loaded_as_it_is(tmp_path):
  """The export writes the files beside the tokenizer, with the maximum length."""
  source, _ = test_convert_tokenizers.exported("bert", tmp_path)
  model = library.SentenceTransformer(str(source), device="cpu")
  assert len(model) == 2 and model.get_max_seq_length() == test_convert_tokenizers.POSITIONS
  texts = ["the words of a text", "more words"]
  np.testing.assert_allclose(model.encode(texts), t2t.load(source).embed(texts), atol=1e-5)
