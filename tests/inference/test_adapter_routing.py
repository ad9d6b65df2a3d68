import dataclasses
import json

import pytest
import trained

from t2t import UserError
from t2t import __main__ as command
from t2t.checkpoints import multi_adapter, pretrained
from t2t.data import tables
from t2t.inference import decoding
from t2t.serving import engine, text_predictor

pytestmark = pytest.mark.slow

LORA = ("--config.lora.rank=2", "--config.lora.targets=attention/,mlp/")
NARROW = ("--config.lora.rank=1", "--config.lora.targets=attention/")
TEXTS = ("the quick brown fox", "jumps over", "seven wizards", "lazy dog box jugs", "dire", "over the box", "fox fox")
ASKED = ("a", None, "b", "c", "a", "b", "c")


def adapters(architecture="encoder_decoder"):
  """Two adapters with the same structure, and one with another."""
  make = lambda *options, seed=0: str(trained.adapter(architecture, *options, seed=seed))
  return {"a": make(*LORA), "b": make(*LORA, seed=1), "c": make(*NARROW)}


def in_front(architecture):
  """A LoRA adapter, a learned prompt (more positions) and a learned prefix (more keys)."""
  make = lambda *options: str(trained.adapter(architecture, *options))
  prefix = "--config.prefix.length=3", "--config.prefix.hidden=8"
  return {"a": make(*LORA), "b": make("--config.prompt.length=5"), "c": make(*prefix)}


def infer(tmp_path, checkpoint, lines, *options):
  """Returns the rows that the command writes."""
  (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
  out = tmp_path / "out.jsonl"
  files = ["--input", str(tmp_path / "in.jsonl"), "--output", str(out)]
  assert command.main(["infer", "--checkpoint", str(checkpoint), *files, *options]) == 0
  rows = [json.loads(line) for line in out.read_text().splitlines()]
  out.unlink()
  return rows


def named(found):
  return [f"{name}={path}" for name, path in found.items()]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  ("architecture", "adapters", "options"),
  [
    ("encoder_decoder", adapters, ("--max_length", "6", "--temperature", "0.7")),
    ("encoder_only", adapters, ("--top", "3")),
    ("decoder_only", in_front, ("--max_length", "6", "--beam", "2")),
    ("encoder_only", in_front, ("--top", "3")),
  ],
)
def test_each_line_is_answered_as_by_its_adapter_alone(architecture, adapters, options, tmp_path):
  """Samples depend on the number of the line; lines without an adapter use the base model."""
  texts = [f"{text} [MASK]" for text in TEXTS] if architecture == "encoder_only" else TEXTS
  lines = [{"inputs": text} | ({"adapter": name} if name else {}) for text, name in zip(texts, ASKED, strict=True)]
  base, found = trained.workdir(architecture), adapters(architecture)
  small = (*options, "--batch_size", "8")
  rows = infer(tmp_path, base, lines, "--adapter", *named(found), *small)
  alone = {
    name: infer(tmp_path, path, [{"inputs": text} for text in texts], *small)
    for name, path in ({None: base} | found).items()
  }
  for row, name, *of_all in zip(rows, ASKED, *alone.values(), strict=True):
    expected = dict(zip(alone, of_all, strict=True))[name]
    assert row.get("adapter") == name and row["inputs"] == expected["inputs"]
    assert row["prediction"] == expected["prediction"]
    assert row["score"] == pytest.approx(expected["score"], rel=1e-3)
  assert len({json.dumps([each["score"] for each in of_one]) for of_one in alone.values()}) == 4  # they differ


@pytest.mark.parametrize(
  ("arguments", "line", "message"),
  [
    ([], {"adapter": "law"}, "line 1 selects the adapter 'law', but no adapter is loaded; give --adapter law=RUN"),
    (["--adapter", "law"], {}, "--adapter law does not have the form NAME=RUN"),
    (["--adapter", "a=A", "a=B"], {}, "--adapter a=B: the name a belongs to A already"),
    (["--adapter", "a=A"], {"adapter": "b"}, "line 1: unknown adapter 'b'. Known adapters: a"),
    (["--adapter", "a=A"], {"adapter": 3}, "line 1: unknown adapter '3'. Known adapters: a"),
  ],
)
def test_what_names_no_adapter_is_refused(arguments, line, message, tmp_path, capsys):
  """The error comes before the model is loaded, and lists the known adapters."""
  own = str(trained.adapter("encoder_decoder", *LORA))
  (tmp_path / "in.jsonl").write_text(json.dumps({"inputs": "the quick"} | line) + "\n")
  files = ["--input", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "out.jsonl")]
  arguments = [each.replace("=A", f"={own}") for each in arguments]
  assert command.main(["infer", "--checkpoint", str(trained.workdir("encoder_decoder")), *files, *arguments]) == 2
  said = " ".join(capsys.readouterr().err.split()).replace(own, "A")
  assert message in said
  assert not (tmp_path / "out.jsonl").exists() or not (tmp_path / "out.jsonl").read_text()


def test_lines_of_text_can_name_none(tmp_path, capsys):
  """A .txt file is refused, because its lines cannot name an adapter."""
  base, own = trained.workdir("encoder_decoder"), trained.adapter("encoder_decoder", *LORA)
  (tmp_path / "in.txt").write_text("the quick\n")
  files = ["--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "out.jsonl")]
  assert command.main(["infer", "--checkpoint", str(base), "--adapter", f"a={own}", *files]) == 2
  assert "cannot select an adapter. Give a .jsonl file" in " ".join(capsys.readouterr().err.split())


@pytest.mark.exhaustive
def test_a_request_names_its_adapter():
  """Requests to the server work token by token and with beams; an unknown name gets the known ones."""
  source = pretrained.read_source(str(trained.workdir("encoder_decoder")))
  sources = multi_adapter.open_all(source, adapters())
  config = decoding.DecodeConfig(max_length=5)
  service = text_predictor.WritingService(engine.Ready(source, adapters=sources, ends_prompts=True), defaults=config)
  assert service.about()["adapters"] == ["a", "b", "c"]

  def answer(asked, **fields):
    request = asked.parse(json.dumps({"inputs": TEXTS[0], "max_length": 5} | fields).encode())
    return list(asked.generate(request))[-1]

  for options in ({}, {"beam": 2}):
    scores = []
    for name, each in ({"": source} | {name: pretrained.read_source(str(adapters()[name])) for name in "bc"}).items():
      alone = answer(text_predictor.WritingService(engine.Ready(each, ends_prompts=True), defaults=config), **options)
      found = answer(service, adapter=name, **options)
      assert found["prediction"] == alone["prediction"] and found["score"] == pytest.approx(alone["score"], rel=1e-3)
      scores.append(found["score"])
    assert len(set(scores)) == 3
  with pytest.raises(UserError, match="the request: unknown adapter 'd'. Known adapters: a, b, c"):
    service.parse(b'{"inputs": "x", "adapter": "d"}')


@pytest.mark.exhaustive
def test_an_adapter_reads_behind_the_prefix_of_its_own_table():
  """Texts, scores and completions get the adapter's prefix; the base model gets none."""
  source = pretrained.read_source(str(trained.workdir("encoder_decoder")))
  sources = multi_adapter.open_all(source, {"b": adapters()["b"]})
  spec = tables.TableSpec("class", ("sound",), "kind", classes=("bark", "yelp"), prefix="sound: ")
  tuned = {**sources["b"].run, "data": {**sources["b"].run["data"], "table": spec.to_dict()}}
  model = engine.Ready(
    source, adapters={"b": dataclasses.replace(sources["b"], run=tuned)}, ends_prompts=True, inputs_length=40
  )
  service = text_predictor.WritingService(model, defaults=decoding.DecodeConfig(max_length=3))
  assert model.read("dog", "b").tokens == model.read("sound: dog", "b").tokens == model.read("sound: dog").tokens
  assert model.read("dog").tokens != model.read("dog", "b").tokens

  def last(endpoint, **fields):
    asked = service.endpoints()[endpoint]
    return list(asked.answer(asked.parse(json.dumps(fields).encode())))[-1]

  for endpoint, text, more in (("/generate", "inputs", {"max_length": 3}), ("/score", "inputs", {"targets": ["bark"]})):
    whole = lambda given, is_list=endpoint == "/score": [given] if is_list else given
    bare, typed = (last(endpoint, adapter="b", **{text: whole(x)}, **more) for x in ("dog", "sound: dog"))
    drop = lambda reply: {key: x for key, x in reply.items() if key != "tokens_per_second"}
    assert drop(bare) == drop(typed)
  counts = [
    last("/v1/completions", model="b", prompt=prompt, max_tokens=1)["usage"]["prompt_tokens"]
    for prompt in ("dog", "sound: dog")
  ]
  assert counts[0] == counts[1]
