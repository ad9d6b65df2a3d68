"""Heads of Hugging Face's task classes: class selection, errors, and use of imported heads."""

import dataclasses
import json

from etils import epath
import foreign
import jax
import numpy as np
import pytest
import toy

from t2t import UserError, __main__, sharding
from t2t.checkpoints import pretrained, tensor_writer, warm_start
from t2t.commands import convert as command
from t2t.configuration.loading import load_config, records
from t2t.convert import encoders, hf_heads, huggingface
from t2t.data.objectives import nsp_sop
from t2t.evaluation import methods
from t2t.models import bert_variants, presets
from t2t.models.config import TransformerConfig
from t2t.models.head_config import HeadConfig
from t2t.training import recipe

# BERT of transformers with the settings of learned positions.
BERT = dataclasses.replace(
  toy.KINDS["bert"],
  head_dim=4,
  init_scale=0.02,
  relative_position_buckets=32,
  relative_position_max_distance=128,
)
GPT2 = dataclasses.replace(toy.KINDS["gpt2"], head_dim=4, init_scale=0.02, scale_attention=True)
NLI, TOPIC, NSP = HeadConfig("nli", 3), HeadConfig("topic", 5), HeadConfig("nsp", 2, labels=("next", "random"))


def with_heads(*heads, of=BERT, tokens=True):
  return dataclasses.replace(of, heads=heads, vocabulary_head=tokens)


def save(config, folder, **options):
  """Writes a folder; returns the notes and config.json."""
  made = foreign.in_memory(config, foreign.random_params(config))
  notes = huggingface.save(made, epath.Path(folder), **options)
  return notes, json.loads((folder / "config.json").read_text())


def edit(folder, **changes):
  """Changes keys of a config.json; None removes one."""
  content = json.loads((folder / "config.json").read_text()) | changes
  (folder / "config.json").write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


# ---- Class selection -------------------------------------------------------------------------------------------------

WRITTEN = {
  "nothing but tokens": (with_heads(), "", "BertForMaskedLM", ""),
  "nothing at all": (with_heads(tokens=False), "", "BertModel", ""),
  "NSP": (with_heads(NSP), "", "BertForPreTraining", ""),
  "NSP of a model without logits of tokens": (with_heads(NSP, tokens=False), "", "BertForSequenceClassification", ""),
  "a task beside them": (
    with_heads(NSP, NLI),
    "",
    "BertForSequenceClassification",
    "the head nsp, the head over",
  ),
  "a task": (with_heads(NLI, tokens=False), "", "BertForSequenceClassification", ""),
  "vectors": (
    with_heads(HeadConfig("text", 0, "vector"), tokens=False),
    "",
    "BertModel",
    "the head text",
  ),
  "one of two tasks": (with_heads(NLI, TOPIC), "topic", "BertForSequenceClassification", "the head nli, the head over"),
  "tokens alone": (with_heads(NLI, TOPIC), "vocabulary", "BertForMaskedLM", "the head nli, the head topic"),
}


@pytest.mark.parametrize("name", list(WRITTEN))
def test_the_heads_say_which_class_is_written(name, tmp_path):
  """Heads outside the class are reported and left out; the others are restored exactly."""
  config, chosen, expected, left = WRITTEN[name]
  notes, settings = save(config, tmp_path / "hf", head=chosen)
  assert settings["architectures"] == [expected] and f"written as a {expected}" in notes
  assert [note for note in notes if "left out" in note] == [note for note in notes if left and left in note]
  found = huggingface.open_foreign(str(tmp_path / "hf"))
  kept = tuple(head for head in config.heads if f"the head {head.name}" not in left)
  tokens = config.vocabulary_head and "head over" not in left
  assert found.model == dataclasses.replace(config, heads=kept, vocabulary_head=tokens)
  params = foreign.random_params(config)
  for path, value in foreign.read(found).items():
    np.testing.assert_array_equal(value, params[path], err_msg=path)


def test_labels_and_what_they_are_for_go_there_and_back(tmp_path):
  """Labels use config.json's format; a score is a regression."""
  head = dataclasses.replace(NLI, labels=("entailment", "neutral", "contradiction"), dropout_rate=0.25)
  _, settings = save(with_heads(head, tokens=False), tmp_path / "class")
  assert settings["id2label"] == {"0": "entailment", "1": "neutral", "2": "contradiction"}
  assert settings["label2id"] == {"entailment": 0, "neutral": 1, "contradiction": 2}
  assert (settings["problem_type"], settings["classifier_dropout"]) == ("single_label_classification", 0.25)
  assert huggingface.open_foreign(str(tmp_path / "class")).model.heads == (head,)
  # NSP's classes follow from the Hugging Face class.
  save(with_heads(dataclasses.replace(NSP, labels=())), tmp_path / "nsp")
  assert huggingface.open_foreign(str(tmp_path / "nsp")).model.heads == (NSP,)
  score = HeadConfig("stsb", 1, "score")
  _, settings = save(with_heads(score, tokens=False), tmp_path / "score")
  assert (settings["problem_type"], settings["id2label"]) == ("regression", {"0": "LABEL_0"})
  assert huggingface.open_foreign(str(tmp_path / "score")).model.heads == (score,)
  for span in (HeadConfig("squad", 2, "span"), HeadConfig("squad", 2, "span", no_answer=True)):
    save(with_heads(span, tokens=False), tmp_path / f"span_{span.no_answer}")
    assert huggingface.open_foreign(str(tmp_path / f"span_{span.no_answer}")).model.heads == (span,)
  # As written by other libraries: no head name, and transformers' rule for numbers.
  edit(tmp_path / "score", problem_type=None, t2t_head=None, label2id=None)
  assert huggingface.open_foreign(str(tmp_path / "score")).model.heads == (HeadConfig("score", 1, "score"),)


@pytest.mark.parametrize(
  ("task", "family", "name"),
  [
    (nsp_sop.NEXT, encoders.BERT, "BertForPreTraining"),
    (nsp_sop.ORDER, encoders.ALBERT, "AlbertForPreTraining"),
  ],
)
def test_what_is_trained_beside_masked_tokens_is_what_theirs_have(task, family, name):
  """The objectives' heads by name, with classes in the same order."""
  config = with_heads(task.head)
  assert hf_heads.class_of(family, hf_heads.reduced(family, config))[0] == name
  assert family.tasks[name].labels == task.head.labels
  hf_heads.write(family, config)


SHAPE = dict(vocab_size=53, embed_dim=12, num_heads=3, head_dim=4, mlp_dim=20)
ENCODER, DECODER = SHAPE | dict(num_encoder_layers=3), SHAPE | dict(num_decoder_layers=2)
BODIES = {
  "Bert": presets.bert("base") | ENCODER,
  "Roberta": presets.roberta("base") | ENCODER,
  "Longformer": presets.longformer("base") | ENCODER,
  "Albert": presets.albert("base") | ENCODER | dict(embedding_dim=7),
  "DistilBert": presets.bert("base") | ENCODER | dict(segment_types=0),
  "Electra": presets.electra("base") | ENCODER | dict(heads=()),
  "ModernBert": presets.modern_bert("base") | ENCODER,
  "DebertaV2": bert_variants.deberta_v3("base") | ENCODER | dict(vocabulary_head=False),
  "GPT2": presets.gpt2("small") | DECODER,
  "Llama": presets.llama2("7b") | DECODER,
}
CLASSES = {
  "class": "SequenceClassification",
  "score": "SequenceClassification",
  "choice": "MultipleChoice",
  "tag": "TokenClassification",
  "span": "QuestionAnswering",
}


@pytest.mark.slow
@pytest.mark.exhaustive_from(9)
@pytest.mark.parametrize(
  ("body", "kind"),  # decoders have no class for choices
  [(body, kind) for body in BODIES for kind in CLASSES if kind != "choice" or body not in ("GPT2", "Llama")],
)
def test_a_head_that_is_made_for_a_task_is_one_that_theirs_have(body, kind, tmp_path):
  """Restored exactly, including dropout, which does not affect logits."""
  config = TransformerConfig(**BODIES[body])
  reads = {} if kind in ("tag", "span") else {"reads": "last" if config.kind.is_decoder_only else "first"}
  number = {"score": 1, "choice": 1, "span": 2}.get(kind, 3)
  head = HeadConfig("asked", number, kind, **reads | config.published_head(kind))
  for name, made in {"made": head, "other": dataclasses.replace(head, dropout_rate=0.45, drops_inputs=True)}.items():
    _, settings = save(with_heads(made, of=config, tokens=False), tmp_path / name)
    assert settings["architectures"] == [f"{body}For{CLASSES[kind]}"]
    (found,) = huggingface.open_foreign(str(tmp_path / name)).model.heads
    assert found.spelled_out(config.kind) == made.spelled_out(config.kind)


REFUSED = {
  "classes in another order": (
    with_heads(dataclasses.replace(NSP, labels=("random", "next"))),
    "",
    r"nsp has labels=\('random', 'next'\) \(transformers \('next', 'random'\)\)",
  ),
  "several heads": (
    with_heads(NLI, TOPIC),
    "",
    "nli, topic, but a class of transformers has only one head. Select a head with --head",
  ),
  "no such head": (with_heads(NLI), "nil", "no head 'nil'. The model's heads: nli; did you mean nli?"),
  "another reading": (
    with_heads(dataclasses.replace(NLI, reads="mean")),
    "",
    r"nli has reads='mean' \(transformers 'first'\). Give --head vocabulary to write the "
    r"rest of the model\. .*t2t vocab train --type"
    " wordpiece",
  ),
  "vectors by name": (
    with_heads(HeadConfig("text", 5, "vector")),
    "text",
    "text is a vector head, and vectors come from the model without a head",
  ),
  "a mix of layers": (
    with_heads(dataclasses.replace(NLI, layers="mix"), tokens=False),
    "",
    r"nli has layers='mix' \(transformers 'last'\)$",
  ),
  "a bias": (with_heads(NLI, of=GPT2), "", r"nli has bias=True \(transformers False\)"),
  "a kind": (
    with_heads(HeadConfig("copa", 1, "choice"), of=GPT2),
    "",
    "t2t writes no transformers class with a choice head, such as copa",
  ),
  "no tokens": (with_heads(NLI, tokens=False), "vocabulary", "the model has no head over the vocabulary"),
  "a T5": (
    dataclasses.replace(toy.KINDS["t5_1_1"], heads=(NLI,)),
    "",
    "t5: config.model.heads: t2t writes no transformers class with a class head, such as nli. Give --head "
    "vocabulary to write the rest",
  ),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_transformers_cannot_express_is_refused(name, tmp_path):
  """The message contains the head's name and a remedy, and only the model's family."""
  config, chosen, reason = REFUSED[name]
  with pytest.raises(UserError, match=rf"(?m){reason}") as error:
    save(config, tmp_path / "hf", head=chosen)
  assert len(str(error.value).splitlines()) == 2
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  ("changes", "reason"),
  [
    ({"problem_type": "multi_label_classification"}, "problem_type='multi_label_classification' with 3 labels"),
    (
      {"problem_type": "regression"},
      "problem_type='regression' with 3 labels: t2t supports only single-label classification",
    ),
    ({"id2label": {"0": "yes"}, "problem_type": None}, r"classifier.weight: expected \[1, 16\], found \[3, 16\]"),
  ],
)
def test_a_head_that_t2t_has_not_is_refused(changes, reason, tmp_path):
  """Multi-label classes, several numbers, or inconsistent tensors."""
  save(with_heads(NLI, tokens=False), tmp_path / "hf")
  edit(tmp_path / "hf", **changes)
  with pytest.raises(UserError, match=reason):
    huggingface.open_foreign(str(tmp_path / "hf"))


def test_a_summary_that_t2t_has_not_is_refused(tmp_path):
  """ELECTRA's choices use the first position through a dense layer, with the configured activation."""
  head = HeadConfig("copa", 1, "choice", pooler="gelu", dropout_rate=0.3)
  save(with_heads(head, of=dataclasses.replace(BERT, logits_transform=False), tokens=False), tmp_path / "hf")
  edit(tmp_path / "hf", summary_activation="tanh")
  assert huggingface.open_foreign(str(tmp_path / "hf")).model.heads == (dataclasses.replace(head, pooler="tanh"),)
  edit(tmp_path / "hf", summary_type="mean")
  with pytest.raises(UserError, match="summary_type='mean': t2t supports only 'first'"):
    huggingface.open_foreign(str(tmp_path / "hf"))


def test_a_body_by_another_name(tmp_path):
  """Llama's question-answering class has another prefix; a decoder's tag dropout is read, or 0.1."""
  llama = dataclasses.replace(toy.KINDS["llama"], head_dim=4, init_scale=0.02)
  save(with_heads(HeadConfig("squad", 2, "span"), of=llama, tokens=False), tmp_path / "span")
  names = foreign.safetensors(tmp_path / "span").keys()
  assert {name.split(".")[0] for name in names} == {"transformer", "qa_outputs"}
  tag = HeadConfig("tag", 4, "tag", dropout_rate=0.2)
  save(with_heads(tag, of=llama, tokens=False), tmp_path / "tag")
  assert {name.split(".")[0] for name in foreign.safetensors(tmp_path / "tag")} == {"model", "score"}
  edit(tmp_path / "tag", classifier_dropout=None)
  assert huggingface.open_foreign(str(tmp_path / "tag")).model.heads == (dataclasses.replace(tag, dropout_rate=0.1),)


def test_a_pooler_that_the_head_does_not_read_is_left_behind(tmp_path):
  """The note says so; tags equal the projection of each token."""
  save(with_heads(NLI, tokens=False), tmp_path / "hf")
  edit(tmp_path / "hf", architectures=["BertForTokenClassification"])
  found = huggingface.open_foreign(str(tmp_path / "hf"))
  assert found.model.heads[0].kind == "tag"
  assert set(found.pooler) == {"pooler", "pooler_bias"} and any("left behind" in note for note in found.notes)


def test_pieces_whose_ids_are_shifted_are_no_vocabulary(tmp_path):
  """XLM-R's SentencePiece model alone would give other ids; the note contains the alternative."""
  save(with_heads(), tmp_path / "hf")
  (tmp_path / "hf" / "sentencepiece.bpe.model").write_bytes(b"pieces")
  found = huggingface.open_foreign(str(tmp_path / "hf"))
  assert not found.vocabulary
  assert any("the ids of sentencepiece.bpe.model differ from the model's" in note for note in found.notes)


# ---- Use of imported heads -------------------------------------------------------------------------------------------


def test_a_released_model_of_masked_tokens_has_its_next_sentence_head(tmp_path):
  """With any class in config.json; a new head takes its pooler, and before training tasks are ranked."""
  config = with_heads(NSP)
  save(config, tmp_path / "hf")
  edit(tmp_path / "hf", architectures=["BertForMaskedLM"])
  source = pretrained.read_source(str(tmp_path / "hf"))
  assert source.model.heads == (NSP,)
  by_heads = pretrained.answers_by_heads(source)
  assert not by_heads and methods.choose("", source.model, by_heads=by_heads) == "rank"
  wanted = pretrained.abstract(dataclasses.replace(source, model=with_heads(NLI)), sharding.make_mesh({"fsdp": 8}))
  taken = warm_start.warm_start(source, wanted.params).params["heads"]
  assert taken.keys() == {"nli"}
  expected = foreign.random_params(config)["heads/nsp/pooler"]
  np.testing.assert_array_equal(taken["nli"]["pooler"], expected)


@pytest.mark.slow
def test_a_classifier_of_theirs_is_fine_tuned_and_evaluated(tmp_path):
  """It has no head over the vocabulary, and token predictions are an error."""
  config = with_heads(NLI, tokens=False)
  save(config, tmp_path / "hf")
  tensor_writer.save(huggingface.open_foreign(str(tmp_path / "hf")), epath.Path(tmp_path / "run"))
  for path in ("hf", "run"):
    source = pretrained.read_source(str(tmp_path / path))
    assert source.model.heads == (NLI,) and not source.model.vocabulary_head
    by_heads = pretrained.answers_by_heads(source)
    assert by_heads and methods.choose("", source.model, by_heads=by_heads) == "head"
    found = pretrained.load(source, sharding.make_mesh({"fsdp": 8}))
    assert toy.flat(found.params).keys() == foreign.random_params(config).keys()
  run = load_config("tiny_bert")
  run.train.loss = "heads"
  pretrained.adopt(run, source)
  made = recipe.make(records(run))
  _, state, _ = made.state(sharding.make_mesh({"fsdp": 8}))
  assert not any("/head/" in f"/{path}" for path in (*toy.flat(state.params), *toy.flat(state.frozen_params)))
  assert "heads/nli/projection" in toy.flat(state.params)
  model, batch = toy.model(config), toy.batch(architecture="encoder_only")
  with pytest.raises(
    UserError,
    match=r"vocabulary_head=False: the model has no logits .* The model's "
    r"heads: nli\. Set --config.*=True\. If",
  ):
    jax.eval_shape(lambda batch: model.logits(model(batch)), batch)


def test_the_command_names_a_head_and_says_what_was_written(tmp_path, capsys):
  """From hf it is the head's name; to hf it selects the head."""
  save(with_heads(NLI, tokens=False), tmp_path / "hf")
  edit(tmp_path / "hf", t2t_head=None)
  command.main([str(tmp_path / "hf"), str(tmp_path / "run"), "--head", "glue_mnli"])
  said = capsys.readouterr().out
  assert "t2t infer" not in said and "t2t eval" not in said
  opened = tensor_writer.open_foreign(str(tmp_path / "run"))
  assert [head.name for head in opened.model.heads] == ["glue_mnli"]
  assert "heads/glue_mnli/projection" in opened.tensors
  command.main([str(tmp_path / "run"), str(tmp_path / "again")])
  said = capsys.readouterr().out
  assert "written as a BertForSequenceClassification" in said
  assert "t.BertForSequenceClassification.from_pretrained(" in said
  assert json.loads((tmp_path / "again" / "config.json").read_text())["t2t_head"] == "glue_mnli"
  first, again = (foreign.safetensors(tmp_path / name) for name in ("hf", "again"))
  assert first.keys() == again.keys()
  for name, value in first.items():
    np.testing.assert_array_equal(again[name], value)
  save(with_heads(), tmp_path / "plain")
  with pytest.raises(UserError, match="--head nli needs a checkpoint with one named head, but .* has none"):
    command.main([str(tmp_path / "plain"), str(tmp_path / "other"), "--head", "nli"])


def test_a_config_says_whether_tokens_have_logits():
  """The default is unchanged."""
  assert TransformerConfig(**{k: v for k, v in vars(BERT).items() if k != "vocabulary_head"}).vocabulary_head


# A task of two classes, registered as a user would.
TASKS = """
import functools
import seqio
import tensorflow as tf
from t2t.evaluation import task_metrics
from t2t.data import postprocessors, preprocessors

LABELS = ("no", "yes")

def records(split, shuffle_files, seed=None):
  found = {"a": ["dog " * i for i in range(5)], "label": [i % 2 for i in range(5)], "idx": list(range(5))}
  return tf.data.Dataset.from_tensor_slices(found)

seqio.TaskRegistry.add(
  "barks",
  source=seqio.FunctionDataSource(records, splits=("train", "validation"), num_input_examples={"train": 5}),
  preprocessors=preprocessors.text_to_text(
    functools.partial(preprocessors.labelled, prefix="barks", fields=("a",), labels=LABELS)
  ),
  output_features=preprocessors.t5_features(),
  postprocess_fn=postprocessors.label(LABELS),
  metric_fns=[task_metrics.accuracy],
)
"""


@pytest.mark.exhaustive
def test_the_commands_take_a_classifier_of_theirs(tmp_path):
  """It is evaluated without label names, fine-tuned, and exported with the same tensors."""
  config = dataclasses.replace(with_heads(HeadConfig("barks", 2), tokens=False), vocab_size=384)
  made = foreign.in_memory(config, foreign.random_params(config), vocabulary="bytes")
  huggingface.save(made, epath.Path(tmp_path / "hf"))
  (tmp_path / "tasks.py").write_text(TASKS)
  options = ["--config=finetune_superglue", "--config.data.mixture=barks", "--config.train.batch_size=8"]
  options += [f"--config.data.task_modules={tmp_path / 'tasks.py'}", "--config.data.inputs_length=32"]
  evaluated = ["eval", f"--checkpoint={tmp_path / 'hf'}", f"--workdir={tmp_path / 'eval'}", *options]
  assert __main__.main(evaluated) == 0
  rows = [json.loads(line) for path in (tmp_path / "eval").rglob("*.jsonl") for line in path.read_text().splitlines()]
  assert len(rows) == 5 and {row["prediction"] for row in rows} <= {"no", "yes"}
  start = f"--config.init.checkpoint={tmp_path / 'hf'}"
  assert __main__.main(["train", start, f"--workdir={tmp_path / 'run'}", *options, "--config.train.steps=1"]) == 0
  command.main([str(tmp_path / "run"), str(tmp_path / "again")])
  first, again = (foreign.safetensors(tmp_path / name) for name in ("hf", "again"))
  assert first.keys() == again.keys()
  assert np.any(first["classifier.weight"] != again["classifier.weight"])
  assert json.loads((tmp_path / "again" / "config.json").read_text())["id2label"] == {"0": "no", "1": "yes"}
