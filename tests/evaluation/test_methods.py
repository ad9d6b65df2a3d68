"""Methods of evaluation: the choice of a method, its scoring rule, and independence of the batch size."""

import dataclasses

import numpy as np
import pytest
import test_evaluate
import toy

from t2t import UserError
from t2t import __main__ as command
from t2t.configuration.schema import EvalConfig
from t2t.evaluation import methods, results
from t2t.inference import option_scores, text_scores
from t2t.models.head_config import HeadConfig
from t2t.training import stage_program

module = test_evaluate.module  # the fixture
T5, BERT = toy.KINDS["t5_1_1"], toy.KINDS["bert"]
HEADED = dataclasses.replace(BERT, heads=(HeadConfig("label", 2, "class"),))


def test_an_encoder_does_not_generate():
  with pytest.raises(UserError, match="config.eval.method=generate: an encoder generates no text"):
    methods.choose("generate", BERT, by_heads=False)
  assert methods.choose("", BERT, by_heads=False) == "rank"
  assert methods.choose("", HEADED, by_heads=True) == "head"


@pytest.mark.parametrize(
  ("settings", "config", "message"),
  [
    ({"normalize": "mean"}, HEADED, r"normalize=mean: only ranked options.*method 'head'.*method=rank"),
    ({"normalize": "sum"}, T5, r"normalize=sum: only ranked options.*method 'generate'"),
    ({"neutral_context": "Answer:"}, T5, r"neutral_context=Answer:: only ranked options"),
    (
      {"neutral_context": "A:", "method": "rank"},
      T5,
      r"neutral_context='A:': the normalization 'sum' reads no",
    ),
    ({"normalize": "byte", "method": "rank"}, T5, r"normalize=byte: unknown value.*did you mean bytes"),
    ({"pseudo_likelihood": "pl"}, BERT, r"pseudo_likelihood=pl: unknown value.*did you mean pll"),
    ({"pseudo_likelihood": "pll"}, HEADED, r"pseudo_likelihood=pll: a head predicts without"),
    ({"pseudo_likelihood": "pll", "method": "rank"}, T5, r"pseudo_likelihood=pll: only encoders"),
  ],
)
def test_rules_that_do_not_fit(settings, config, message):
  with pytest.raises(UserError, match=message):
    methods.check(EvalConfig(**settings), config, by_heads=True)
  methods.check(EvalConfig(), config, by_heads=True)


def test_training_refuses_a_rule_before_it_compiles(module, tmp_path, capsys, monkeypatch):
  """The error comes before programs are compiled and parameters loaded."""
  monkeypatch.setattr(stage_program.StagePrograms, "prepare", lambda *args: pytest.fail("a program was compiled"))
  arguments = ["train", "--config=tiny", f"--workdir={tmp_path}", *test_evaluate.options(module)]
  arguments += ["--config.eval.normalize=mean", "--config.data.vocabulary=bytes"]
  assert command.main(arguments) == 2
  assert "config.eval.normalize=mean: only ranked options" in capsys.readouterr().err


def test_a_rule_in_words():
  assert results.rule_text({"normalize": "sum"}) == "score of an option: log p(option | input) (normalize=sum)"
  text = results.rule_text({"normalize": "unconditional", "pseudo_likelihood": "pll", "neutral_context": ""})
  assert "log p(option | neutral)" in text and text.endswith("pseudo_likelihood=pll, neutral_context='')")


@pytest.mark.exhaustive
@pytest.mark.parametrize("architecture", test_evaluate.ARCHITECTURES)
def test_answers_do_not_depend_on_the_batch_size(architecture, module):
  """Batches of 1, 4 and 16 rows give the same answer, tied answers and metrics for every example."""
  outcomes = []
  for batch_size in (1, 4, 16):
    asked, params = test_evaluate.evaluation(module, architecture, method="rank", batch_size=batch_size)
    (result,) = asked.run(params)
    outcomes.append([(answer.text, tuple(answer.tied)) for answer in result.answers] + [result.metrics])
  assert outcomes[0] == outcomes[1] == outcomes[2]


@pytest.mark.exhaustive
@pytest.mark.parametrize("architecture", test_evaluate.ARCHITECTURES)
@pytest.mark.parametrize("normalize", option_scores.NORMALIZATIONS)
def test_answers_have_the_normalized_score(architecture, normalize, module):
  """The score of each answer, from scores of the texts by themselves; the rule is part of the result."""
  asked, params = test_evaluate.evaluation(module, architecture, method="rank", normalize=normalize)
  (result,) = asked.run(params)
  method, end = asked._method, [1] if architecture == "encoder_decoder" else []
  scorer = text_scores.Scorer(method._predictor, asked._vocabulary)
  empty = [1] if architecture == "encoder_decoder" else []
  for answer in result.answers:
    ids = [*asked._vocabulary.encode(answer.text), *end]
    pairs = [(answer.example["inputs"], ids), (empty, ids)]
    conditional, neutral = (score.log_p for score in scorer(params, pairs))
    expected = {
      "sum": conditional,
      "mean": conditional / len(ids),
      "bytes": conditional / len(answer.text),
      "unconditional": conditional - neutral,
    }[normalize]
    assert answer.score == pytest.approx(expected, rel=1e-4, abs=1e-5)
  assert result.rule["normalize"] == normalize
  assert ("pseudo_likelihood" in result.rule) == (architecture == "encoder_only")
  assert np.isfinite(result.score)
