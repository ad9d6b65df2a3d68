"""Tasks with templates: the text that each architecture reads, variants, and errors before any step."""

import functools

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t2t import UserError
from t2t.configuration.schema import DataConfig
from t2t.data import postprocessors, preprocessors, run_sources, task_resolution, templates, vocabularies
from t2t.evaluation import few_shot
from t2t.inference import option_scores

LABELS = ("entailment", "contradiction")
BYTES = vocabularies.load("bytes", extra_ids=0)
MIDDLE = templates.Template(
  "middle", "{premise}? {blank}, {hypothesis}", words={"entailment": ("Yes", "Sure"), "contradiction": ("No",)}
)
END = templates.Template(
  "end", "{hypothesis} {blank}", words={"entailment": ("true",), "contradiction": ("false",)}, header="Exam", where="F"
)


def records(split, shuffle_files, seed=None):
  labels = [-1, -1] if split == "test" else [0, 1] * 4
  texts = [f"{split} {i}" for i in range(len(labels))]
  return tf.data.Dataset.from_tensor_slices(
    {"premise": texts, "hypothesis": [f"h{i}" for i in range(len(labels))], "label": labels}
  )


def task(*rows, vocabulary=BYTES, blank="auto", labels=LABELS):
  feature = seqio.Feature(vocabulary, add_eos=True)
  base = seqio.Task(
    "nli",
    source=seqio.FunctionDataSource(records, splits=("train", "validation", "test")),
    preprocessors=preprocessors.text_to_text(
      functools.partial(preprocessors.labelled, prefix="nli", fields=("premise", "hypothesis"), labels=labels)
    ),
    output_features={"inputs": feature, "targets": feature},
    postprocess_fn=postprocessors.label(labels),
    metric_fns=[],
  )
  return templates.apply(base, {"nli": rows}, where="config.data.templates=F", blank=blank)


def examples(provider, architecture, *, length=200, split="validation"):
  lengths = {"inputs": length, "targets": length}
  asked = task_resolution.for_architecture(provider, architecture)
  return list(asked.get_dataset(lengths, split, shuffle=False, seed=0).as_numpy_iterator())


def texts(example):
  options = [option.decode() for option in example["options"]]
  return example["inputs_pretokenized"].decode(), example["targets_pretokenized"].decode(), options


def test_each_architecture_reads_the_blank_in_its_own_way():
  """A decoder predicts the word and what follows, an encoder reads what follows as its suffix."""
  decoder = examples(task(MIDDLE), "decoder_only")[0]
  assert texts(decoder) == ("validation 0?", " Yes, h0", [" Yes, h0", " Sure, h0", " No, h0"])
  encoder = examples(task(MIDDLE), "encoder_only")[0]
  assert texts(encoder) == ("validation 0?", " Yes", [" Yes", " Sure", " No"])
  assert BYTES.decode(encoder["suffix"].tolist()) == ", h0"
  assert [label.decode() for label in encoder["option_labels"]] == ["entailment", "entailment", "contradiction"]
  both = examples(task(END), "encoder_decoder")[1]
  assert texts(both) == ("Exam\n\nh1", "false", ["true", "false"])
  assert both["inputs"][-1] == BYTES.eos_id and both["label"] == 1


def test_an_encoder_decoder_reads_a_sentinel_in_the_middle(monkeypatch):
  """The target is the span of T5's pre-training; a vocabulary without the sentinel is refused."""
  for provider in (task(MIDDLE), task(END, blank="sentinel")):
    with pytest.raises(UserError, match="reads the sentinel <extra_id_0> where the blank is"):
      examples(provider, "encoder_decoder")
  monkeypatch.setattr(vocabularies, "control_tokens_of", lambda vocabulary: {"<extra_id_0>": 3})
  inputs, targets, options = texts(examples(task(MIDDLE), "encoder_decoder")[1])
  assert (inputs, targets) == ("validation 1? <extra_id_0>, h1", "<extra_id_0> No <extra_id_1>")
  assert options[1] == "<extra_id_0> Sure <extra_id_1>"
  assert texts(examples(task(END, blank="sentinel"), "encoder_decoder")[0])[0] == "Exam\n\nh0 <extra_id_0>"


def test_words_are_read_as_labels():
  provider = task(MIDDLE)
  decoder = examples(provider, "decoder_only")[0]
  value = functools.partial(provider.postprocess_fn, example=decoder)
  assert [value(text, is_target=False) for text in (" Sure, h0", "No, h0", "Maybe")] == [0, 1, -1]
  assert value("", is_target=True) == 0


def test_scores_of_words_add_up():
  """A label has the probability of all its words, and is answered with the likeliest of them."""
  words, scores = option_scores.of_labels(np.log([0.2, 0.1, 0.25]), ["a", "a", "b"])
  assert words == [0, 2]
  np.testing.assert_allclose(np.exp(scores), [0.3, 0.25])


def test_several_templates():
  """Evaluation has a task for each, and training draws one for each example: the same one in every run."""
  provider = task(MIDDLE, END)
  assert [variant.name for variant in templates.variants(provider)] == ["nli.middle", "nli.end"]
  assert {templates.base_name(variant) for variant in templates.variants(provider)} == {"nli"}
  drawn = [example["inputs_pretokenized"] for example in examples(provider, "decoder_only")]
  assert {text.startswith(b"Exam") for text in drawn} == {True, False}
  assert drawn == [example["inputs_pretokenized"] for example in examples(provider, "decoder_only")]


def test_a_long_item_loses_the_end_of_its_longest_field():
  """The blank and the question stay, and the length before is kept for the report on cut texts."""
  (first, *_) = examples(task(MIDDLE), "encoder_only", length=18)
  assert first["inputs_pretokenized"] == b"val?" and first["inputs_uncut"] > 18
  (whole, *_) = examples(task(MIDDLE), "encoder_only")
  assert whole["inputs_uncut"] < 200


@pytest.mark.parametrize(
  ("row", "message"),
  [
    (
      templates.Template("t", "{premis} {blank}", where="F: [nli.t]"),
      r"F: \[nli.t\]: the records of nli have no field premis.*premise",
    ),
    (
      templates.Template("t", "{premise}", words={"entailment": ("Y",)}, where="F"),
      "F words: no words for contradiction",
    ),
    (
      templates.Template(
        "t", "{premise}", words={"entailment": ("Y",), "contradiction": ("N",), "x": ("X",)}, where="F"
      ),
      "F words: words for x, but the labels of nli are entailment, contradiction",
    ),
  ],
)
def test_templates_that_do_not_fit(row, message):
  with pytest.raises(Exception, match=message):
    examples(task(row), "decoder_only")


def test_an_encoder_needs_a_blank():
  row = templates.Template("t", "{premise}", words=MIDDLE.words, where="F: [nli.t]")
  with pytest.raises(UserError, match=r"F: \[nli.t\] text='\{premise\}' has no \{blank\}, but an encoder"):
    examples(task(row), "encoder_only")


def test_a_task_without_templates_is_named():
  with pytest.raises(UserError, match=r"config.data.templates=F: no template for nli; add \[nli.NAME\]"):
    templates.apply(
      task(MIDDLE).preprocessors[0].keywords["task"], {"other": ()}, where="config.data.templates=F", blank="auto"
    )
  with pytest.raises(UserError, match="config.data.template_names=p0 chooses among templates"):
    run_sources.templated(DataConfig(template_names=("p0",)), task(MIDDLE))


def test_shots_are_filled_templates_of_all_classes():
  """The header comes once, each shot is a filled template, and both classes are shown."""
  provider = task(END)
  train, asked = examples(provider, "decoder_only", split="train"), examples(provider, "decoder_only", split="test")
  (first, second) = few_shot.with_shots(asked, train, 2, vocabulary=BYTES, max_inputs=200)
  header, *shots, question = BYTES.decode(first["inputs"][:-1].tolist()).split("\n\n")
  assert (header, question) == ("Exam", "h0")
  assert sorted(shot.split()[1] for shot in shots) == ["false", "true"]
  (other, _) = few_shot.with_shots(asked, train, 2, vocabulary=BYTES, max_inputs=200, seed=1)
  assert other["inputs"].tolist() != first["inputs"].tolist() != second["inputs"].tolist()


def test_unlabelled_records_have_options():
  (first, *_) = examples(task(END), "decoder_only", split="test")
  assert first["label"] == -1 and len(first["options"]) == 2
