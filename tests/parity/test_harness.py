"""lm-evaluation-harness with t2t's model and with its own Hugging Face model, item by item, on three local tasks.

Needs torch, transformers and lm-eval (tests/parity-requirements.txt).
"""

import json
import logging
import os
import subprocess
import sys
import types

import folders
import numpy as np
import parity
from parity import torch, transformers
import pytest
import test_convert_tokenizers as cases

import t2t
from t2t import UserError
from t2t.api import loaded_model
from t2t.inference import decoding, fill_mask
from t2t.serving import engine, model_service, server, text_predictor

os.environ["HF_HUB_OFFLINE"] = "1"
harness = pytest.importorskip("lm_eval", reason="needs lm-eval: pip install -r tests/parity-requirements.txt")
import datasets  # noqa: E402

from t2t.integrations import lm_eval as integration  # noqa: E402

CONTEXTS = ["How many words", "The sentence of", "Numbers", "What is it?", "More words:"]
OPTIONS = [[" many", " words", " some more"], [" it", " a b", " then"], [" the", " of", " and then some"]]
TEXTS = ["Words.", "The number of the words, and then some more words than the model reads at once.", "a"]
ITEMS = [(text, OPTIONS[number % 3]) for number, text in enumerate(CONTEXTS)]
WIDTH = 24  # tokens read at once; the second text has more


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
    yield


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
  """Writes a multiple-choice task, a task of perplexity and a task of generation."""
  folder = tmp_path_factory.mktemp("tasks")
  choices = [{"text": text, "options": options, "answer": i % 2} for i, (text, options) in enumerate(ITEMS)]
  rows = {
    "choice": (choices, {"output_type": "multiple_choice", "doc_to_text": "text", "doc_to_choice": "options"}),
    "divided": (choices, {"output_type": "multiple_choice", "doc_to_text": "{{text}}</s>", "doc_to_choice": "options"}),
    "whole": ([{"text": text} for text in TEXTS], {"output_type": "loglikelihood_rolling", "doc_to_text": ""}),
    "writing": (choices, {"output_type": "generate_until", "doc_to_text": "text"}),
  }
  of_choice = {"doc_to_target": "answer", "target_delimiter": "", "metric_list": [{"metric": "acc"}]}
  more = {
    "choice": of_choice,
    "divided": of_choice,
    "whole": {"doc_to_target": "text", "metric_list": [{"metric": "bits_per_byte"}]},
    "writing": {
      "doc_to_target": "text",
      "generation_kwargs": {"until": ["e", "\n"], "max_gen_toks": 8},
      "metric_list": [{"metric": "exact_match"}],
    },
  }
  for name, (lines, settings) in rows.items():
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    files = {"data_files": {"test": str(folder / f"{name}.jsonl")}}
    source = {"task": f"local_{name}", "dataset_path": "json", "dataset_kwargs": files, "test_split": "test"}
    (folder / f"{name}.yaml").write_text(json.dumps(source | settings | more[name]))  # JSON is YAML
  return folder


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
  """Returns a function that exports a small model of a family with its tokenizer."""
  folders_of = {}

  def export(name):
    if name not in folders_of:
      with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cases, "POSITIONS", 48)
        # The harness ties the embeddings of T5 1.1, because transformers 5 reads its config as tied.
        patch.setitem(cases.CASES, "t5", (cases.T5 | {"tied_logits": True}, cases.unigram, 100))
        folders_of[name] = cases.exported(name, tmp_path_factory.mktemp(name))[0]
    return folders_of[name]

  return export


def command(tasks, out, model, arguments, names, *others):
  options = ["--model", model, "--model_args", ",".join(f"{key}={value}" for key, value in arguments.items())]
  options += ["--tasks", ",".join(f"local_{name}" for name in names), "--include_path", str(tasks), "--log_samples"]
  return ["lm_eval", "run", *options, "--output_path", str(out), *others]


def samples(out, name):
  """Returns the answer of the model to each request of each item."""
  (path,) = out.glob(f"*/samples_local_{name}_*.jsonl")
  rows = sorted(map(json.loads, path.read_text().splitlines()), key=lambda row: row["doc_id"])
  return [[answer for (answer,) in row["resps"]] for row in rows]


def run(tasks, out, model, arguments, names, *others):
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(sys, "argv", command(tasks, out, model, arguments, names, *others))
    assert integration.main() == 0
  return {name: samples(out, name) for name in names}


def assert_same(ours, theirs, *, longer):
  assert ours.keys() == theirs.keys()
  for name, items in ours.items():
    assert len(items) == len(theirs[name]) >= len(TEXTS)
    if name == "writing":
      # The harness lets an encoder-decoder write max_gen_toks and as many tokens as the context has.
      assert all(expected[0].startswith(own[0]) for own, expected in zip(items, theirs[name], strict=True))
      assert longer or items == theirs[name]
      continue
    for own, expected in zip(items, theirs[name], strict=True):
      numbers = lambda answers: [float(each[0] if isinstance(each, list) else each) for each in answers]
      np.testing.assert_allclose(numbers(own), numbers(expected), rtol=1e-5, atol=1e-5)
      greedy = lambda answers: [str(each[1]) for each in answers if isinstance(each, list)]
      assert greedy(own) == greedy(expected)


# The harness' model frames the texts of a decoder as in training with BOS before a context, and in perplexities with
# its prefix token alone; otherwise it would score BOS after BOS.
FAMILIES = {
  "t5": [({}, ("choice", "whole", "writing"))],
  "llama3": [
    ({"add_bos_token": "true"}, ("choice", "writing")),
    ({"add_bos_token": "false"}, ("whole",)),
  ],
}


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("name", FAMILIES)
def test_each_item_has_the_answer_of_the_hugging_face_model(name, tasks, exported, tmp_path, caplog):
  """Log-likelihoods, perplexities of texts longer than the model, and generated texts with stop strings."""
  folder = exported(name)
  with caplog.at_level(logging.WARNING):
    ours = run(
      tasks,
      tmp_path / "ours",
      "t2t",
      {"checkpoint": folder, "max_length": WIDTH},
      ("choice", "whole", "writing"),
      "--batch_size=2",
    )
  assert f"1 of 3 texts are scored in windows: the model reads {WIDTH} tokens at once" in caplog.text
  for number, (framing, names) in enumerate(FAMILIES[name]):
    arguments = {"pretrained": folder, "dtype": "float32", "max_length": WIDTH} | framing
    theirs = run(tasks, tmp_path / f"theirs{number}", "hf", arguments, names, "--device=cpu")
    assert_same({each: ours[each] for each in names}, theirs, longer=name == "t5")


def requests(pairs):
  return [types.SimpleNamespace(args=pair, task_name="local") for pair in pairs]


PAIRS = [(text, option) for text, options in zip(["", *CONTEXTS], OPTIONS * 2, strict=True) for option in options]


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("name", ["t5", "llama3", "bert"])
def test_answers_depend_on_neither_batch_size_nor_order(name, exported):
  """Equal to `score` of the checkpoint in Python, EOS included for an encoder-decoder."""
  folder = exported(name)
  expected = t2t.load(folder).score(*map(list, zip(*PAIRS, strict=True)))
  for batch_size, order in ((3, 1), (32, -1)):
    model = integration.Harness(str(folder), batch_size=batch_size, target_eos=True)
    found = model.loglikelihood(requests(PAIRS[::order]), disable_tqdm=True)
    np.testing.assert_allclose([log_p for log_p, _ in found][::order], expected, rtol=1e-5)


def test_an_encoder_has_the_pseudo_likelihoods_of_its_masked_language_model(exported):
  """Masks each token alone, with transformers."""
  folder = exported("bert")
  tokenizer, model = transformers.AutoTokenizer.from_pretrained(folder), parity.load(folder)
  ours = integration.Harness(str(folder), pseudo_likelihood="pll").loglikelihood(requests(PAIRS), disable_tqdm=True)
  for (context, continuation), (log_p, is_greedy) in zip(PAIRS, ours, strict=True):
    ids = tokenizer.encode(context + continuation, return_tensors="pt")
    first, total, ranks = len(tokenizer.encode(context)) - 1, 0.0, []
    for position in range(first, ids.shape[1] - 1):
      masked = ids.clone()
      masked[0, position] = tokenizer.mask_token_id
      with torch.no_grad():
        logits = torch.log_softmax(model(input_ids=masked).logits[0, position], -1)
      total += float(logits[ids[0, position]])
      ranks.append(bool(logits.max() == logits[ids[0, position]]))
    assert log_p == pytest.approx(total, rel=1e-4) and is_greedy == all(ranks), (context, continuation)


def test_bad_requests_fail_before_parameters_are_loaded(exported, monkeypatch):
  """An encoder that should generate, an unknown decoding option, and no positions for a context."""
  monkeypatch.setattr(integration.pretrained, "load", None)
  writing = requests([("Words", {"until": ["\n"]})])
  with pytest.raises(UserError, match=r"bert.* is an encoder and generates no text, which the tasks local need"):
    integration.Harness(str(exported("bert"))).generate_until(writing)
  decoder = integration.Harness(str(exported("gpt2")), max_length=8)
  with pytest.raises(UserError, match="repetition_penalty"):
    decoder.generate_until(requests([("Words", {"repetition_penalty": 2.0})]))
  with pytest.raises(UserError, match="max_gen_toks=256 leaves no room"):
    decoder.generate_until(writing)
  for arguments, message in (
    ({"chekpoint": "x"}, "chekpoint.*checkpoint"),
    ({"checkpoint": str(exported("gpt2")), "device": "mps"}, "--device mps"),
    ({"checkpoint": str(exported("gpt2")), "batch_size": "auto"}, "--batch_size auto"),
    ({"checkpoint": str(exported("gpt2")), "max_length": 4_000}, "max_tokens=4000"),
    ({"checkpoint": str(exported("gpt2")), "pseudo_likelihood": "pll"}, "only encoders"),
  ):
    with pytest.raises(UserError, match=message):
      integration.Harness(**arguments)


def test_long_contexts_are_counted_before_parameters_are_loaded(exported, monkeypatch, caplog):
  """Both in a task of log-likelihoods, which are scored in windows, and in a task of generation."""
  monkeypatch.setattr(integration.pretrained, "load", lambda *_: pytest.fail("loads"))
  model = integration.Harness(str(exported("gpt2")), max_length=16)
  for ask, items in (
    (model.loglikelihood, [("word " * 40, " a"), ("a", " b")]),
    (model.generate_until, [("word " * 40, {"max_gen_toks": 4}), ("a", {"max_gen_toks": 4})]),
  ):
    caplog.clear()
    with caplog.at_level(logging.WARNING), pytest.raises(pytest.fail.Exception, match="loads"):
      ask(requests(items), disable_tqdm=True)
    assert "first tokens of 1 of 2 contexts are not read: the model reads 16 tokens at once" in caplog.text


@pytest.mark.exhaustive
def test_the_command_ends_with_the_message_of_an_error(tasks, exported, tmp_path):
  """Runs as a process, so that the model is registered by the command itself."""
  words = command(tasks, tmp_path, "t2t", {"checkpoint": exported("bert")}, ("writing",))[1:]
  done = subprocess.run(
    [sys.executable, "-m", "t2t.integrations.lm_eval", *words],
    env=os.environ | {"PYTHONPATH": str(folders.ROOT), "JAX_PLATFORMS": "cpu", "HF_HOME": str(tmp_path)},
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 2 and "is an encoder and generates no text" in done.stderr, done.stderr
  assert "Traceback" not in done.stderr


def service(folder):
  source = loaded_model.read_source(folder)
  if source.model.kind.is_generative:
    model = engine.Ready(source, ends_prompts=source.model.kind.has_encoder_and_decoder)
    return text_predictor.WritingService(model, defaults=decoding.DecodeConfig(max_length=8))
  way = lambda mesh: fill_mask.Filling(source, mesh, longest=48, batch_size=1, top=1, special_tokens="blanks")
  return model_service.Asker(source, way)


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("name", ["t5", "llama3", "bert"])
def test_local_completions_of_the_server_are_the_answers_of_t2t(name, tasks, exported, tmp_path):
  """The context of an encoder-decoder ends in EOS, which its encoder reads."""
  folder = exported(name)
  choice = "divided" if name == "t5" else "choice"
  names = (choice, "whole") if name == "bert" else (choice, "whole", "writing")
  served = service(folder)
  with server.make_server(served, host="127.0.0.1", port=0) as running:
    address = f"http://127.0.0.1:{running.server_port}/v1/completions"
    arguments = {"base_url": address, "model": served.models[0], "tokenizer": folder, "max_length": 49}
    found = run(tasks, tmp_path, "local-completions", arguments | {"tokenizer_backend": "huggingface"}, names)
  model = integration.Harness(str(folder))
  expected = model.loglikelihood(requests([(text, option) for text, options in ITEMS for option in options]))
  answers = [(float(log_p), greedy == "True") for answers in found[choice] for log_p, greedy in answers]
  np.testing.assert_allclose([log_p for log_p, _ in answers], [log_p for log_p, _ in expected], rtol=1e-4)
  assert [greedy for _, greedy in answers] == [greedy for _, greedy in expected]
  whole = model.loglikelihood(requests([("", text) for text in TEXTS]))
  np.testing.assert_allclose([float(x) for (x,) in found["whole"]], [log_p for log_p, _ in whole], rtol=1e-4)
  if "writing" in names:
    written = model.generate_until(requests([(text, {"until": ["e", "\n"], "max_gen_toks": 8}) for text in CONTEXTS]))
    assert [text.strip() for (text,) in found["writing"]] == [text.strip() for text in written]
