"""`/v1/completions`: results equal to those of `t2t.load`, and errors."""

import contextlib
import functools
import json
import shutil

import numpy as np
import pytest
import test_served_commands
import test_server
import trained

import t2t
from t2t import __main__ as command
from t2t.checkpoints import pretrained, tensor_writer
from t2t.data import tables
from t2t.data.vocabularies import training
from t2t.inference import decoding, prompt_builder, token_logprobs
from t2t.serving import engine, openai_api, server, text_predictor

pytestmark = pytest.mark.slow

ask = test_server.ask
KINDS = ["encoder_decoder", "decoder_only"]


@functools.cache
def loaded(architecture: str):
  return t2t.load(str(trained.workdir(architecture)))


@pytest.fixture(scope="module")
def ports():
  """Ports of servers by architecture."""
  with contextlib.ExitStack() as stack:
    start = lambda kind: server.make_server(test_server.service(kind), host="127.0.0.1", port=0)
    yield {kind: stack.enter_context(start(kind)).server_port for kind in KINDS}


def complete(port: int, **request) -> dict:
  status, headers, content = ask(port, "POST", "/v1/completions", request)
  assert status == 200 and headers["Content-Type"] == "application/json", content
  return json.loads(content)


def refused(port: int, request: dict | bytes) -> dict:
  status, _, content = ask(port, "POST", "/v1/completions", request)
  assert status == 400, content
  return json.loads(content)["error"]


# ---- Texts -----------------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_text_and_log_probabilities_are_those_of_python(kind, ports):
  """Greedy text equals `generate`; token log-probabilities equal `logits`, and their sum equals `score`."""
  model, prompt = loaded(kind), "quick dog"
  choice = complete(ports[kind], prompt=prompt, temperature=0, max_tokens=7)["choices"][0]
  assert [choice["text"]] == model.generate([prompt], max_length=7)
  # Selects a text that is tokenized as it was generated, because `logits` takes texts.
  for seed in range(300):
    asked = {"prompt": prompt, "seed": seed, "max_tokens": 3, "logprobs": 2}
    choice = complete(ports[kind], **asked)["choices"][0]
    ids, told = model.tokenize([choice["text"]])[0], choice["logprobs"]
    if len(ids) == len(told["tokens"]) and choice["text"].isascii() and "".join(told["tokens"]) == choice["text"]:
      break
  logits = model.logits([prompt], [choice["text"]])[0].astype(np.float64)
  log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  np.testing.assert_allclose(told["token_logprobs"], log_p[np.arange(len(ids)), ids], atol=2e-4)
  for row, likeliest, token in zip(log_p, told["top_logprobs"], told["tokens"], strict=False):
    np.testing.assert_allclose(sorted(likeliest.values())[-2:], np.sort(row[:359])[-2:], atol=2e-4)
    assert token in likeliest
  if kind == "decoder_only":
    np.testing.assert_allclose(sum(told["token_logprobs"]), model.score([prompt], [choice["text"]])[0], rtol=1e-4)
  assert all(
    choice["text"][offset:].startswith(token) for offset, token in zip(told["text_offset"], told["tokens"], strict=True)
  )


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("kind", KINDS)
def test_choices_are_drawn_as_the_rows_of_a_file(kind, ports):
  """Choices are grouped by prompt; the same seed gives the same texts."""
  prompts = ["dog", "lazy fox"]
  found = complete(ports[kind], prompt=prompts, n=3, temperature=0.9, top_p=0.95, seed=5, max_tokens=6)
  rows = [prompt for prompt in prompts for _ in range(3)]
  expected = loaded(kind).generate(rows, max_length=6, temperature=0.9, top_p=0.95, seed=5)
  assert [choice["text"] for choice in found["choices"]] == expected and len(set(expected)) > 3
  assert [choice["index"] for choice in found["choices"]] == list(range(6))
  usage = found["usage"]
  assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
  assert usage["completion_tokens"] <= 36 and found["model"] == kind


def test_a_text_ends_before_what_stops_it(ports):
  """The first stop string counts; tokens after it are omitted, and the finish reason is "stop"."""
  port, asked = ports["decoder_only"], {"prompt": "dog", "temperature": 1.2, "seed": 7, "max_tokens": 40}
  whole = complete(port, **asked)["choices"][0]["text"]
  stop = whole[2:4]
  found = complete(port, **asked, stop=["never there", stop], logprobs=0)
  choice = found["choices"][0]
  assert choice["text"] == whole[: whole.index(stop)] and choice["finish_reason"] == "stop"
  assert all(offset < len(choice["text"]) for offset in choice["logprobs"]["text_offset"])
  assert choice["logprobs"]["top_logprobs"] is None
  assert found["usage"]["completion_tokens"] < 40


def test_an_echo_is_told_as_it_is_read(ports):
  """For a causal decoder, every token of the prompt has a log-probability."""
  found = complete(ports["decoder_only"], prompt="quick dog", echo=True, max_tokens=0, logprobs=1)["choices"][0]
  logits = loaded("decoder_only").logits(["quick dog"])[0]
  ids = loaded("decoder_only").tokenize(["quick dog"])[0]
  log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  assert found["text"] == "quick dog" and found["finish_reason"] == "length"
  np.testing.assert_allclose(found["logprobs"]["token_logprobs"], log_p[np.arange(len(ids)), ids], atol=2e-4)
  longer = complete(ports["decoder_only"], prompt="quick dog", echo=True, max_tokens=3, temperature=0)["choices"][0]
  assert longer["text"].startswith("quick dog") and len(longer["text"]) > 9


def harness(choice: dict, context_tokens: int) -> tuple[float, bool]:
  """Returns what lm-evaluation-harness reads of a choice: tokens after the context, except the generated one.

  Source: lm_eval 0.4.13, models/openai_completions.py, `parse_logprobs`, which is also called if it is
  installed.
  """
  told = choice["logprobs"]
  log_p, likeliest = (told[name][context_tokens:-1] for name in ("token_logprobs", "top_logprobs"))
  found = sum(log_p), all(own == max(top.values()) for own, top in zip(log_p, likeliest, strict=True))
  with contextlib.suppress(ImportError):
    from lm_eval.models import openai_completions

    parse = openai_completions.LocalCompletionsAPI.parse_logprobs
    assert parse({"choices": [choice | {"index": 0}]}, ctxlens=[context_tokens]) == [found]
  return found


# Options of evaluation harnesses.
TOLD = {"temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}


def test_harnesses_get_the_scores(ports):
  """Scores after a context, of a text alone, and of batched texts equal `score`."""
  model = loaded("decoder_only")
  pairs = [("quick dog", " jumps over"), ("the lazy", " fox"), ("a", "b"), ("", "seven wizards"), ("", "box")]
  ids = [[model.tokenize([text])[0] for text in pair] for pair in pairs]
  expected = model.score(*(list(texts) for texts in zip(*pairs, strict=True)))
  for start in (model.vocabulary.eos_id, 0):
    # Like the harness, a text alone follows a start token: BOS, or else EOS.
    prompts = [[*(context or [start]), *continuation] for context, continuation in ids]
    found = complete(ports["decoder_only"], prompt=prompts, **TOLD)
    for choice, (context, _), score in zip(found["choices"], ids, expected, strict=True):
      log_p, _ = harness(choice, len(context or [start]))
      np.testing.assert_allclose(log_p, score, rtol=1e-4)
      assert choice["text"] == "".join(choice["logprobs"]["tokens"])
    assert found["usage"] == {"prompt_tokens": sum(map(len, prompts)), "completion_tokens": 5} | {
      "total_tokens": sum(map(len, prompts)) + 5
    }
  as_text = complete(ports["decoder_only"], prompt=["</s>seven wizards", "<pad>box"], **TOLD)["choices"]
  for choice, score in zip(as_text, expected[3:], strict=True):
    assert choice["logprobs"]["token_logprobs"][0] is choice["logprobs"]["top_logprobs"][0] is None
    np.testing.assert_allclose(harness(choice, 1)[0], score, rtol=1e-4)
  assert as_text[0]["logprobs"]["tokens"][:3] == ["</s>", "s", "e"]
  (single,) = complete(ports["decoder_only"], prompt=ids[0][0] + ids[0][1], **TOLD)["choices"]
  assert single["logprobs"]["tokens"][:9] == list("quick dog")


def test_the_end_of_a_text_has_an_entry(ports):
  """Every token in `usage` has an entry, including EOS, with and without the prompt, in one pass and in several."""
  port, ended = ports["decoder_only"], 0
  for seed in range(40):
    asked = {"prompt": "dog", "temperature": 1.6, "seed": seed, "max_tokens": 30, "logprobs": 1}
    for echo in (False, True):
      found = complete(port, **asked, echo=echo)
      (choice,) = found["choices"]
      told, before = choice["logprobs"], 3 * echo
      assert {len(told[name]) for name in told} == {before + found["usage"]["completion_tokens"]}
      assert "".join(told["tokens"]) == choice["text"]
      for offset, token in zip(told["text_offset"], told["tokens"], strict=True):
        assert choice["text"][offset : offset + len(token)] == token
      assert all(token in top for token, top in zip(told["tokens"], told["top_logprobs"], strict=True))
      ended += choice["finish_reason"] == "stop"
    if ended > 3:
      break
  assert ended > 3, "no text came to its end"


def test_greedy_is_told_exactly(ports):
  """Generated text counts as greedy in the harness; one pass gives the same next token as decoding."""
  port, prompt = ports["decoder_only"], "quick dog"
  whole = complete(port, prompt=prompt, temperature=0, max_tokens=5, echo=True, logprobs=1)["choices"][0]
  count = len(whole["logprobs"]["tokens"])
  assert harness({"logprobs": {k: [*x, 0] for k, x in whole["logprobs"].items()}}, len(prompt))[1]
  assert count > len(prompt)
  (one,) = complete(port, prompt=prompt, **TOLD)["choices"]
  assert one["logprobs"]["tokens"][-1] == whole["logprobs"]["tokens"][len(prompt)]
  np.testing.assert_allclose(
    one["logprobs"]["token_logprobs"], whole["logprobs"]["token_logprobs"][: len(prompt) + 1], atol=2e-4
  )


def test_long_texts_are_told_as_far_as_there_are_positions(ports):
  """All 80 learned positions are available for scoring, although 40 are reserved for output; then an error follows."""
  model, text = loaded("decoder_only"), "quick brown fox " * 5
  (choice,) = complete(ports["decoder_only"], prompt="</s>" + text[:79], **TOLD)["choices"]
  np.testing.assert_allclose(harness(choice, 1)[0], model.score([""], [text[:79]])[0], rtol=1e-4)
  found = refused(ports["decoder_only"], {"prompt": text, **TOLD})
  assert found["code"] == "context_length_exceeded"
  assert (
    "'prompt' has 80 tokens, more than 79, the maximum of this model with echo and max_tokens=1" in found["message"]
  )


@pytest.mark.parametrize("kind", KINDS)
def test_targets_are_scored(kind, ports):
  """Scores equal `score` for any model, by both paths."""
  inputs, targets = ["quick dog", "lazy fox", "quick dog"], ["box", "jumps over", "jugs"]
  status, _, content = ask(ports[kind], "POST", "/v1/score", {"inputs": inputs, "targets": targets})
  found = json.loads(content)
  assert status == 200, found
  assert json.loads(ask(ports[kind], "POST", "/score", {"inputs": inputs, "targets": targets})[2]) == found
  np.testing.assert_allclose(found["scores"], loaded(kind).score(inputs, targets), rtol=1e-4)
  ends = ["</s>"] * (kind == "encoder_decoder")
  assert found["tokens"] == [[*target, *ends] for target in targets] and len(found["is_greedy"]) == 3
  np.testing.assert_allclose([sum(each) for each in found["token_logprobs"]], found["scores"], rtol=1e-5)
  for wrong, message in (
    ({"inputs": inputs, "targets": ["a"]}, "there are 1 targets for 3 inputs"),
    ({"inputs": ["x" * 200], "targets": ["a"]}, "the maximum of this model; shorten the text"),
    ({"inputs": ["a"], "targets": [" "]}, "'targets' is \" \"; give a text that is not empty"),
    ({"inputs": ["a"], "targets": ["b\udc00"]}, "'targets' is not valid Unicode"),
  ):
    status, _, content = ask(ports[kind], "POST", "/score", wrong)
    assert status == 400 and message in json.loads(content)["error"], content


def test_an_encoder_decoder_reads_an_echo_up_to_eos(ports):
  """Tokens of the encoder have null; the others are scored as a target, by ids and by text, with and without EOS."""
  port, model = ports["encoder_decoder"], loaded("encoder_decoder")
  end = model.vocabulary.eos_id
  ids = lambda text: [int(i) for i in model.tokenize([text])[0]]
  expected = model.score(["quick dog", "quick dog"], ["box", "jugs"])
  prompts = [[*ids("quick dog"), end, *ids(target), end] for target in ("box", "jugs")]
  for asked in (prompts, ["quick dog</s>box", "quick dog</s>jugs"]):
    found = complete(port, prompt=asked, **(TOLD | {"logprobs": 2}))
    for choice, score in zip(found["choices"], expected, strict=True):
      told = choice["logprobs"]
      assert told["token_logprobs"][:10] == told["top_logprobs"][:10] == [None] * 10
      assert told["tokens"][:10] == [*"quick dog", "</s>"]
      log_p = told["token_logprobs"][10:-1]
      if asked is prompts:
        np.testing.assert_allclose(sum(log_p), score, rtol=1e-4)
        assert harness(choice, 10)[0] == sum(log_p)
  # The harness puts EOS before a text without a context; the encoder reads it alone.
  (start,), (alone,) = (complete(port, prompt=prompt, **TOLD)["choices"] for prompt in ([end, *ids("box")], "box"))
  assert harness(start, 1) == harness(alone, 0)
  long = refused(port, {"prompt": [*ids("x" * 60), end, *ids("a")], **TOLD})
  assert "'prompt' has 61 tokens up to EOS, more than 48" in long["message"]


def test_an_encoder_scores_but_does_not_write(tmp_path):
  """Each token of an echo given all others; scores of targets; and a clear error without echo."""
  workdir = trained.workdir("encoder_only")
  model = t2t.load(workdir)
  with server.make_server(test_served_commands.service(workdir), host="127.0.0.1", port=0) as running:
    port = running.server_port
    found = json.loads(ask(port, "POST", "/v1/score", {"inputs": ["quick ", ""], "targets": ["dog", "box"]})[2])
    np.testing.assert_allclose(found["scores"], model.score(["quick ", ""], ["dog", "box"]), rtol=1e-5)
    (choice,) = complete(port, prompt="quick dog", **TOLD)["choices"]
    (zero,) = complete(port, prompt="quick dog", **(TOLD | {"max_tokens": 0}))["choices"]
    assert choice["text"] == zero["text"] == "quick dog" and choice["logprobs"]["tokens"] == [*"quick dog", ""]
    np.testing.assert_allclose(harness(choice, 6)[0], found["scores"][0], rtol=1e-5)
    assert choice["logprobs"]["token_logprobs"][:-1] == zero["logprobs"]["token_logprobs"]
    assert choice["finish_reason"] == "stop" and choice["logprobs"]["token_logprobs"][-1] == 0
    (framed,) = complete(port, prompt=[model.vocabulary.eos_id, *model.tokenize(["box"])[0]], **TOLD)["choices"]
    np.testing.assert_allclose(harness(framed, 1)[0], found["scores"][1], rtol=1e-5)
    for request in ({"prompt": "a"}, {"prompt": "a", "echo": True, "max_tokens": 3}):
      message = refused(port, request)["message"]
      assert "generates no text; give echo=true" in message or "only scores the prompt" in message


def test_ids_are_what_text_is(ports):
  """A prompt of token ids gets the same text as its text, for each kind of model; a start token is not doubled."""
  for kind, model in ((kind, loaded(kind)) for kind in KINDS):
    asked = {"temperature": 0, "max_tokens": 5}
    text, ids = "quick dog", model.tokenize(["quick dog"])[0]
    end = [model.vocabulary.eos_id] if kind == "encoder_decoder" else []
    texts = [
      complete(ports[kind], prompt=each, **asked)["choices"][0]["text"] for each in (text, ids, [*ids, *end], [ids])
    ]
    assert texts == [texts[0]] * 4
  starts = [complete(ports["decoder_only"], prompt=each, **asked)["choices"][0]["text"] for each in ([1], "</s>", [0])]
  assert starts == [starts[0]] * 3


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
  """Workdir and port of the same model by architecture, fine-tuned on a table with the prefix "sum: "."""
  table = tables.TableSpec("text", ("text",), "answer", prefix="sum: ").to_dict()
  found = {}
  with contextlib.ExitStack() as stack:
    for kind in KINDS:
      workdir = tmp_path_factory.mktemp(kind) / "tuned"
      shutil.copytree(trained.workdir(kind), workdir)
      for manifest in workdir.glob("checkpoints/*/manifest.json"):
        manifest.unlink()  # like an older checkpoint without checksums
      for path in workdir.glob("checkpoints/*/config/metadata"):
        content = json.loads(path.read_text())
        path.write_text(json.dumps(content | {"data": content["data"] | {"table": table}}))
      source = pretrained.read_source(str(workdir))
      ends, defaults = prompt_builder.ends_prompts(source)[0], decoding.DecodeConfig(max_length=6)
      model = text_predictor.WritingService(engine.Ready(source, ends_prompts=ends), defaults=defaults)
      running = stack.enter_context(server.make_server(model, host="127.0.0.1", port=0))
      found[kind] = workdir, running.server_port
    yield found


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_a_text_is_read_behind_the_prefix_of_its_table(kind, ports, tuned):
  """The prefix is added once, in every endpoint and in Python; token ids get no prefix."""
  (workdir, port), plain = tuned[kind], ports[kind]
  told = {"temperature": 0, "max_tokens": 6, "logprobs": 0}
  told_of = lambda port, prompt: complete(port, prompt=prompt, **told)
  numbers = lambda reply: reply["choices"][0]["logprobs"]["token_logprobs"]
  alone, behind = (told_of(plain, text) for text in ("lazy dog", "sum: lazy dog"))
  assert not np.allclose(numbers(alone), numbers(behind), rtol=1e-4)
  (ids,) = loaded(kind).tokenize(["lazy dog"])
  for prompt, expected in (("lazy dog", behind), ("sum: lazy dog", behind), (list(map(int, ids)), alone)):
    reply = told_of(port, prompt)
    assert reply["usage"] == expected["usage"], prompt
    np.testing.assert_allclose(numbers(reply), numbers(expected), rtol=1e-5, err_msg=str(prompt))
  status, _, content = ask(port, "POST", "/generate", {"inputs": "lazy dog", "temperature": 0, "max_length": 6})
  last = json.loads(content.splitlines()[-1])
  assert status == 200 and last["prediction"] == loaded(kind).generate(["sum: lazy dog"], max_length=6)[0]
  status, _, content = ask(port, "POST", "/score", {"inputs": ["lazy dog"], "targets": ["box"]})
  (score,) = json.loads(content)["scores"]
  assert score == pytest.approx(t2t.load(workdir).score(["lazy dog"], ["box"])[0], rel=1e-5)
  assert score == pytest.approx(loaded(kind).score(["sum: lazy dog"], ["box"])[0], rel=1e-5)
  assert "trained with the prefix 'sum: ' before each input" in tensor_writer.open_foreign(str(workdir)).notes[0]


@pytest.mark.exhaustive
def test_the_command_passes_special_tokens_on(tmp_path, monkeypatch):
  """`t2t infer --server --special_tokens none` reads the name of a sentinel as text."""
  texts = [f"the number {number} of things in a text" for number in range(200)]
  model = training.train_sentencepiece(texts, size=48, output_dir=tmp_path / "vocabulary", character_coverage=1.0)
  (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
  own = [f"--config.data.vocabulary={model}", f"--config.data.files={tmp_path / 'text.jsonl'}"]
  more = ["--config.data.extra_ids=5", "--config.model.vocab_size=64"]
  assert command.main([*trained.arguments("decoder_only", tmp_path / "run"), *own, *more]) == 0
  read = []

  def serve(service, *, host, port):
    endpoint = service.endpoints()["/v1/completions"]
    body = json.dumps({"prompt": "the <extra_id_0>", "max_tokens": 1, "temperature": 0}).encode()
    read.append(list(endpoint.answer(endpoint.parse(body)))[-1]["usage"]["prompt_tokens"])

  monkeypatch.setattr(server, "serve", serve)
  for option in ([], ["--special_tokens", "blanks"], ["--special_tokens", "none"]):
    assert command.main(["infer", "--checkpoint", str(tmp_path / "run"), "--server", *option]) == 0
  assert read[0] == read[1] < read[2]


def test_an_echo_has_no_prefix_in_front(ports, tuned):
  """Tokens of a prefix would count among the tokens of the scored text."""
  for more in ({"max_tokens": 0}, {"max_tokens": 1}, {"max_tokens": 3}):
    asked = {"prompt": "lazy dog", "temperature": 0, "echo": True, "logprobs": 0} | more
    found, expected = (complete(port, **asked) for port in (tuned["decoder_only"][1], ports["decoder_only"]))
    assert found["usage"] == expected["usage"] and found["choices"][0]["text"].startswith("lazy dog")
    assert found["choices"][0]["logprobs"] == expected["choices"][0]["logprobs"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_comes_to_the_same(kind, ports):
  """Server-sent events join to the whole texts, before the stop strings; the last one is [DONE]."""
  asked = {"prompt": ["dog", "fox"], "n": 2, "temperature": 1.0, "seed": 3, "max_tokens": 20}
  # Starts with a token and ends with another, in two of the texts.
  asked["stop"] = [choice["text"][2:5] for choice in complete(ports[kind], **asked)["choices"][1:3]]
  whole = complete(ports[kind], **asked)["choices"]
  status, headers, content = ask(ports[kind], "POST", "/v1/completions", asked | {"stream": True})
  assert status == 200 and headers["Content-Type"] == "text/event-stream"
  lines = [line for line in content.decode().split("\n\n") if line and not line.startswith(":")]
  assert lines[-1] == "data: [DONE]"
  texts, reasons = [""] * 4, [None] * 4
  for line in lines[:-1]:
    choice = json.loads(line.removeprefix("data: "))["choices"][0]
    assert reasons[choice["index"]] is None, "nothing comes behind the end"
    texts[choice["index"]] += choice["text"]
    reasons[choice["index"]] = choice["finish_reason"]
  assert texts == [choice["text"] for choice in whole]
  assert reasons == [choice["finish_reason"] for choice in whole]


def test_a_stream_may_end_in_usage(ports):
  """The last event has the usage of the whole answer and no choices; other events have null."""
  asked = {"prompt": [[103, 114], [71, 112, 71]], "n": 2, "temperature": 1.0, "seed": 3, "max_tokens": 6}
  asked["stop"] = complete(ports["decoder_only"], **asked)["choices"][1]["text"][2:4]
  usage = complete(ports["decoder_only"], **asked)["usage"]
  asked |= {"stream": True, "stream_options": {"include_usage": True}}
  content = ask(ports["decoder_only"], "POST", "/v1/completions", asked)[2]
  *_, last, done = events = [x for x in content.decode().split("\n\n") if x.startswith("data: ")]
  assert done == "data: [DONE]"
  *others, last = (json.loads(x.removeprefix("data: ")) for x in events[:-1])
  assert last["choices"] == [] and last["usage"] == usage
  assert others and all(x["usage"] is None and x["choices"] for x in others)


def test_openais_own_client(ports):
  """The client reads a text, a stream, the models and an error, if it is installed."""
  openai = pytest.importorskip("openai", reason="OpenAI's client is not installed")
  with openai.OpenAI(base_url=f"http://127.0.0.1:{ports['decoder_only']}/v1", api_key="none", max_retries=0) as client:
    asked = {"model": client.models.list().data[0].id, "prompt": "quick", "max_tokens": 6, "temperature": 0}
    whole = client.completions.create(**asked)
    pieces = [piece.choices[0].text for piece in client.completions.create(**asked, stream=True)]
    assert whole.choices[0].text == "".join(pieces) and whole.usage.completion_tokens
    with pytest.raises(openai.NotFoundError, match="unknown 'other'"):
      client.completions.create(**asked | {"model": "other"})


def test_what_a_stream_holds_back():
  """Incomplete characters and possible beginnings of stop strings are held back."""
  assert openai_api._held_back("ab\ufffd", ()) == 1
  assert openai_api._held_back("the en", ("end", "x")) == 2
  assert openai_api._held_back("the", ("end",)) == 1 and openai_api._held_back("th", ("end",)) == 0


def test_long_texts_are_told_one_by_one(monkeypatch):
  """Results do not depend on the number of texts scored together."""
  asked = {"inputs": "dog", "temperature": 0.9, "seed": 2, "max_length": 8, "n": 3, "token_probabilities": True}
  ask_all = lambda: list(
    test_server.service("decoder_only").generate(text_predictor.parse(json.dumps(asked).encode()))
  )[-1]
  together = ask_all()
  monkeypatch.setattr(token_logprobs, "ROWS_TOKENS", 16)
  apart = ask_all()
  for one, other in zip([together, *together["alternatives"]], [apart, *apart["alternatives"]], strict=True):
    numbers = lambda text: [token["probability"] for token in text["token_probabilities"]]
    np.testing.assert_allclose(numbers(one), numbers(other), rtol=1e-4)


def test_pieces_make_the_text():
  """Parts join to the text for any decoding, and none is an incomplete character."""
  text = "naïve 校服"
  decode = lambda ids: bytes(ids).decode(errors="replace")
  found = token_logprobs.pieces(decode, list(text.encode()))
  assert "".join(found) == text and len(found) == len(text.encode())
  assert found[:4] == ["n", "a", "", "ï"] and token_logprobs.pieces(decode, []) == []


@pytest.mark.exhaustive
def test_pieces_of_words_join_to_the_text(tmp_path):
  """SentencePiece drops the first space of a text; prompt and continuation still join correctly."""
  texts = [f"the number {number} of things in a naïve text" for number in range(200)]
  model = training.train_sentencepiece(texts, size=48, output_dir=tmp_path / "vocabulary", character_coverage=1.0)
  (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
  own = [f"--config.data.vocabulary={model}", f"--config.data.files={tmp_path / 'text.jsonl'}"]
  assert command.main([*trained.arguments("decoder_only", tmp_path / "run"), *own]) == 0
  source = pretrained.read_source(str(tmp_path / "run"))
  written = text_predictor.WritingService(
    engine.Ready(source, ends_prompts=False), defaults=decoding.DecodeConfig(max_length=8)
  )
  loaded_model, endpoint = t2t.load(str(tmp_path / "run")), written.endpoints()["/v1/completions"]
  encode, decode = loaded_model.vocabulary.encode, loaded_model.vocabulary.decode

  def answer(**request) -> dict:
    return list(endpoint.answer(endpoint.parse(json.dumps(request).encode())))[-1]

  spaces = 0
  for seed, prompt in enumerate(["the number", "the number ", "the numb", "things in a"] * 3):
    asked = {"prompt": prompt, "seed": seed, "max_tokens": 6, "logprobs": 1}
    (apart,), (echoed,) = answer(**asked)["choices"], answer(**asked, echo=True)["choices"]
    for choice in (apart, echoed):
      told = choice["logprobs"]
      assert choice["text"] == "".join(told["tokens"])
      for offset, token in zip(told["text_offset"], told["tokens"], strict=True):
        assert choice["text"].startswith(token, offset)
    before, space = prompt.rstrip(), " " * prompt.endswith(" ")  # the vocabulary drops it, so the text has none
    assert echoed["text"].startswith(before)
    assert echoed["text"].removeprefix(before).removeprefix(space) == apart["text"]
    spaces += apart["text"].startswith(" ")
  assert spaces, "no word began behind a prompt"
  # A continuation that begins a word, read from left to right.
  ids = encode("the number of things")
  for prompt in (ids[:2], [1, *ids[:2]]):
    (choice,) = answer(prompt=prompt, echo=True, max_tokens=0, logprobs=1)["choices"]
    assert choice["text"] == "</s>" * (len(prompt) > 2) + decode(ids[:2])
  for prompt in ([1, *ids], "</s>the number of things"):
    (choice,) = answer(prompt=prompt, **TOLD)["choices"]
    np.testing.assert_allclose(harness(choice, 1)[0], loaded_model.score([""], ["the number of things"])[0], rtol=1e-4)


# ---- Errors ----------------------------------------------------------------------------------------------------------

REFUSED = {
  "prompt": ({}, "'prompt' is missing; give a text"),
  "prompt ": ({"prompt": " "}, "'prompt' is \" \"; give a text that is not empty"),
  "prompts": ({"prompt": [1, "a"]}, "'prompt' is [1, \"a\"]; give a string, a list of strings, or lists of token ids"),
  "ids": ({"prompt": [[5, 6], [True]]}, "give a string, a list of strings, or lists of token ids"),
  "unknown": ({"prompt": [5, 9_999]}, "'prompt' has the unknown token id 9999; give ids of this model, 0 to 358"),
  "none": ({"prompt": [[]]}, "'prompt' is [[]], with an empty list; give at least one token id"),
  "half": ({"prompt": "ab\ud800"}, "'prompt' is not valid Unicode: character 3, \\ud800, is an unpaired surrogate"),
  "many": ({"prompt": ["a"] * 17}, "'prompt' has 17 strings; give 1 to 16"),
  "long": ({"prompt": "x" * 60}, "'prompt' has 61 tokens, more than 48, the maximum of this model"),
  "twice": (b'{"prompt": "a", "prompt": "b"}', "'prompt' is given twice; give the field once"),
  "infinite": (b'{"prompt": "a", "temperature": 1e400}', "'temperature' is inf; give 0 to 2"),
  "digits": (b'{"prompt": "a", "seed": ' + b"9" * 5_000 + b"}", "'seed' is Infinity; give a whole number"),
  "deep": (b'{"prompt": ' + b"[" * 100_000 + b"}", "the request is nested too deeply"),
  "bytes": (b'{"prompt": "\xff"}', "the request is not valid JSON ('utf-8' codec can't decode byte 0xff"),
  "suffix": ({"prompt": "a", "suffix": "b"}, "'suffix' is \"b\"; leave the field out. Only empty"),
  "logit_bias": (
    {"prompt": "a", "logit_bias": {"5": -100}},
    "'logit_bias' is {\"5\": -100}; leave the field out. Only empty",
  ),
  "max_completion_tokens": ({"prompt": "a", "max_tokens": 3, "max_completion_tokens": 4}, "but 'max_tokens' is 3"),
  "stream_options": (
    {"prompt": "a", "stream_options": {"include_usage": True}},
    "'stream_options' needs stream=true",
  ),
  "stream_options.include_usage": (
    {"prompt": "a", "stream": True, "stream_options": {"include_usage": 1}},
    "'stream_options.include_usage' is 1; give true or false",
  ),
  "max_tokens": ({"prompt": "a", "max_tokens": 0}, "'max_tokens' is 0 without 'echo'; give 1 or more, or echo=true"),
  "temperature": ({"prompt": "a", "temperature": 2.5}, "'temperature' is 2.5; give 0 to 2"),
  "n": ({"prompt": "a", "n": 17}, "'n' is 17; give 1 to 16"),
  "best_of": ({"prompt": "a", "n": 2, "best_of": 3}, "'best_of' is 3, but 'n' is 2; leave out 'best_of'"),
  "logprobs": ({"prompt": "a", "logprobs": 6}, "'logprobs' is 6; give 0 to 5"),
  "logprobs ": ({"prompt": "a", "logprobs": 1, "stream": True}, "leave out 'stream' or 'logprobs'"),
  "stop": ({"prompt": "a", "stop": ["a"] * 5}, "'stop' has 5 strings; give 0 to 4"),
  "presence_penalty": (
    {"prompt": "a", "presence_penalty": 0.5},
    "'presence_penalty' is 0.5; give 0, or leave the field out",
  ),
  "max_tokens  ": (
    {"prompt": "a", "echo": True, "max_tokens": 2},
    "'max_tokens' is 2, but with 'echo' this model only scores the prompt; give max_tokens=0, or 1 with temperature=0",
  ),
  "max_tokens ": (
    {"prompt": ["a"] * 2, "n": 16, "max_tokens": 1024},
    "32,768 tokens, more than the limit of 16,384; split the request",
  ),
  "max_token": ({"prompt": "a", "max_token": 3}, "did you mean"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_request_is_an_error_of_openais_shape(name, ports):
  request, message = REFUSED[name]
  found = refused(ports["encoder_decoder"], request)
  assert set(found) == {"message", "type", "param", "code"} and found["type"] == "invalid_request_error"
  assert message in found["message"]
  fields = dict.fromkeys(("prompts", "many", "long", "ids", "unknown", "none", "half", "twice"), "prompt")
  fields |= {"infinite": "temperature", "digits": "seed", "deep": None, "bytes": None}
  assert found["param"] == fields.get(name, name.strip())
  assert found["code"] == ("context_length_exceeded" if name == "long" else None)


def test_other_errors_have_that_shape_too(ports):
  """An unknown model, invalid JSON, another path, another host."""
  port = ports["encoder_decoder"]
  for status, code, found in (
    (404, "model_not_found", ask(port, "POST", "/v1/completions", {"prompt": "a", "model": "gpt-4"})),
    (400, None, ask(port, "POST", "/v1/completions", b"{")),
    (404, None, ask(port, "POST", "/v1/chat/completions", {"messages": []})),
    (404, None, ask(port, "GET", "/v1/engines")),
    (403, None, ask(port, "GET", "/v1/models", Host="evil.example")),
    (413, None, ask(port, "POST", "/v1/completions", {"prompt": "a" * 100_001})),
  ):
    assert found[0] == status and json.loads(found[2])["error"]["code"] == code, found


def test_neutral_values_and_nulls_are_taken(ports):
  """Values without effect are accepted."""
  asked = {"prompt": "dog", "temperature": 0, "max_completion_tokens": 3}
  expected = complete(ports["decoder_only"], **asked)["choices"]
  neutral = {"n": 1, "best_of": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "user": "me"}
  neutral |= {"suffix": "", "echo": False, "stream": False, "stop": [], "top_p": 1, "max_tokens": 3}
  assert complete(ports["decoder_only"], **asked, **neutral)["choices"] == expected
  nulls = dict.fromkeys((*neutral, "stream_options", "logprobs", "seed", "model"))
  assert complete(ports["decoder_only"], **asked, **nulls)["choices"] == expected


def test_a_model_is_found_by_its_name(ports):
  """URL-encoded names work; an unknown name gets the known ones."""
  port = ports["decoder_only"]
  listed = json.loads(ask(port, "GET", "/v1/models")[2])["data"]
  for name in ("decoder_only", "decoder%5Fonly"):
    status, _, content = ask(port, "GET", f"/v1/models/{name}")
    assert status == 200 and json.loads(content) == listed[0]
  status, _, content = ask(port, "GET", "/v1/models/gpt-4")
  found = json.loads(content)["error"]
  assert status == 404 and found["code"] == "model_not_found" and "give one of decoder_only" in found["message"]


def test_models_are_listed(ports):
  """Names are those that a request may give; null values have no effect."""
  found = json.loads(ask(ports["decoder_only"], "GET", "/v1/models")[2])
  assert found["object"] == "list" and [each["id"] for each in found["data"]] == ["decoder_only"]
  asked = {"prompt": "dog", "model": "decoder_only", "stop": None, "logprobs": None, "seed": None, "max_tokens": 2}
  assert complete(ports["decoder_only"], **asked)["choices"][0]["logprobs"] is None


# ---- Other requests of the page --------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_texts_side_by_side_and_their_tokens(kind, ports):
  """`n` texts equal those of as many lines; token probabilities multiply to the score, EOS included."""
  asked = {"inputs": "dog", "temperature": 0.9, "seed": 2, "max_length": 8, "n": 3, "token_probabilities": True}
  last = test_server.events(ports[kind], **asked)[-1]
  texts = [last, *last["alternatives"]]
  expected = loaded(kind).generate(["dog"] * 3, temperature=0.9, seed=2, max_length=8)
  assert [each["prediction"] for each in texts] == expected
  for each in texts:
    tokens = each["token_probabilities"]
    assert "".join(token["text"] for token in tokens) == each["prediction"] and len(tokens) == each["tokens"]
    np.testing.assert_allclose(sum(np.log([token["probability"] for token in tokens])), each["score"], rtol=1e-3)
    assert all(len(token["likeliest"]) == token_logprobs.TOP for token in tokens)


def test_beams_have_probabilities_too(ports):
  last = test_server.events(ports["decoder_only"], inputs="dog", beam=2, max_length=5, token_probabilities=True)[-1]
  for each in (last, *last["alternatives"]):
    assert "".join(token["text"] for token in each["token_probabilities"]) == each["prediction"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_map_of_attention(kind, ports):
  """Rows and columns are the tokens, and rows sum to one; long texts and missing layers are refused with the limit."""
  look = lambda **fields: ask(ports[kind], "POST", "/attention", {"inputs": "dog", "targets": "fox"} | fields)
  for which in loaded(kind).config.kind.attentions:
    asked = {"which": which} | ({"targets": "fox"} if which != "encoder" else {})
    status, _, content = ask(ports[kind], "POST", "/attention", {"inputs": "dog"} | asked)
    found = json.loads(content)
    assert status == 200, found
    read, written = ["d", "o", "g", *(["</s>"] if kind == "encoder_decoder" else [])], ["f", "o", "x"]
    sides = {"encoder": read, "decoder": ["(start)", *(read if kind == "decoder_only" else []), *written]}
    rows, columns = ("decoder", "encoder") if which == "cross" else (which, which)
    assert (found["queries"], found["keys"]) == (sides[rows], sides[columns])
    np.testing.assert_allclose(np.sum(found["weights"], axis=1), 1.0, atol=0.01)
    assert np.shape(found["weights"]) == (len(found["queries"]), len(found["keys"]))
  for fields, message in (
    ({"which": "decoder", "targets": "x" * 200}, "more than the 128 of an attention map"),
    ({"which": "decoder", "layer": 2}, "'layer' is 2; give 1, or leave the field out"),
    ({"which": "decoder", "head": 0}, "'head' is 0; give 1 to 2"),
    ({"which": "decode"}, "'which' is \"decode\", an unknown value. Known values: "),
    ({}, "'which' is missing"),
    ({"which": "decoder", "adapter": "law"}, "no adapter is loaded"),
  ):
    status, _, content = look(**fields)
    assert status == 400 and message in json.loads(content)["error"], content


@pytest.mark.exhaustive
def test_no_more_is_offered_than_there_is_room_for():
  assert max(field.most for field in openai_api.FIELDS if field.name == "max_tokens") == engine.MAX_LENGTH
