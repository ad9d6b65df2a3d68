"""Conversations: examples of answers, turns that are dropped, chat templates, and wrong files."""

import json

import pytest
import seqio

from t2t import UserError
from t2t.data import task_resolution, templates, vocabularies
from t2t.data.sources import benchmark_parsers
from t2t.data.templates import chat

BYTES = vocabularies.load("bytes", extra_ids=0)
MESSAGES = [("system", "Be kind."), ("user", "Hi"), ("assistant", "Hello"), ("user", "Bye"), ("assistant", "See you")]


def line(messages):
  return json.dumps({"messages": [{"role": role, "content": content} for role, content in messages]})


def examples(folder, *, length=200, turns=None, architecture="decoder_only"):
  """Returns inputs and targets of the registered task as its model reads them."""
  from t2t.tasks import chat as registered  # noqa: F401

  (folder / "train.jsonl").write_text(line(MESSAGES) + "\n")
  task = task_resolution.adapt(seqio.TaskRegistry.get("chat"), vocabulary=BYTES, folders={"chat": str(folder)})
  if turns:
    row = templates.Template("t", "", turns=turns, where="F: [chat.t]")
    task = templates.apply(task, {"chat": (row,)}, where="F", blank="auto")
  task = task_resolution.for_architecture(task, architecture)
  lengths = {"inputs": length, "targets": 50}
  return list(task.get_dataset(lengths, "train", shuffle=False, seed=0).as_numpy_iterator())


def test_each_answer_is_an_example(tmp_path):
  """Inputs are the turns before an answer and what asks for it; the answer and EOS are the targets, and the loss."""
  first, second = examples(tmp_path)
  assert first["inputs_pretokenized"] == b"Be kind.\nUser: Hi\nAssistant: "
  assert second["inputs_pretokenized"] == b"Be kind.\nUser: Hi\nAssistant: Hello\nUser: Bye\nAssistant: "
  assert [BYTES.decode(x["targets"][:-1].tolist()) for x in (first, second)] == ["Hello", "See you"]
  assert first["targets"][-1] == BYTES.eos_id != first["inputs"][-1]
  assert examples(tmp_path, architecture="encoder_decoder")[0]["inputs"][-1] == BYTES.eos_id


def test_the_oldest_turns_are_dropped(tmp_path):
  """The system's message and the last turn stay; the length before is kept for the report on cut texts."""
  _, second = examples(tmp_path, length=45)
  assert second["inputs_pretokenized"].startswith(b"Be kind.\n") and b"User: Hi" not in second["inputs_pretokenized"]
  assert second["inputs_pretokenized"].endswith(b"User: Bye\nAssistant: ") and second["inputs_uncut"] > 45


def test_a_chat_template(tmp_path):
  turns = {"system": "<s>{content}</s>", "user": "[{content}]", "assistant": "({content})"}
  first, second = examples(tmp_path, turns=turns)
  assert second["inputs_pretokenized"] == b"<s>Be kind.</s>[Hi](Hello)[Bye]("
  with pytest.raises(Exception, match="a message has the role system.*Known roles: user, assistant"):
    examples(tmp_path, turns={name: turns[name] for name in ("user", "assistant")})
  assert first["targets_pretokenized"] == b"Hello"


@pytest.mark.parametrize(
  ("turns", "message"),
  [
    ({"user": "{content}"}, "no text for the role assistant"),
    ({"assistant": "x"}, "turns.assistant='x' must be a text"),
  ],
)
def test_wrong_turns(turns, message):
  with pytest.raises(UserError, match=message):
    chat.check(turns, where="F: [chat.t]")


@pytest.mark.parametrize("text", ['{"messages": [{"role": "user"}]}', '{"messages": ["Hi"]}'])
def test_wrong_messages(text, tmp_path):
  (tmp_path / "a.jsonl").write_text(text)
  with pytest.raises(UserError, match="a.jsonl, line 1: message 0 of 'messages' is .*not an object with the texts"):
    list(benchmark_parsers.messages(str(tmp_path / "a.jsonl"), "config.data.benchmark_dirs.chat=F", ()))
