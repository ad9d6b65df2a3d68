import jax
import numpy as np
import pytest
import toy

from t2t import UserError, sharding
from t2t.inference import decoding, predictor, prompt_features
from t2t.models import transformer

FRAMING = prompt_features.PromptFraming(bos_id=0, eos_id=toy.EOS, pad_id=0, cls_id=37, sep_id=38, mask_id=39)
PROMPTS = [[7, 8, 9, toy.EOS], [5, toy.EOS], list(range(2, 21)), [11], [12, 13, 14, 15]]
TARGETS = [[3, 4, toy.EOS], [9, toy.EOS], [2] * 17, [toy.EOS], [6]]


def predictor_of(kind: str, *, batch_size: int = 2, mesh=None, **decode):
  config = toy.KINDS[kind]
  graphdef, params = toy.split(toy.model(config, seed=3))
  mesh = mesh or sharding.make_mesh({"data": 1}, devices=jax.devices()[:1])
  decode = decoding.DecodeConfig(**({"max_length": 6} | decode))
  return predictor.Predictor(
    config, graphdef, mesh, FRAMING, decode=decode, batch_size=batch_size, max_inputs=20
  ), params


@pytest.mark.parametrize(
  ("length", "longest", "expected"), [(1, 512, 16), (16, 512, 16), (17, 512, 32), (300, 512, 512), (300, 400, 400)]
)
def test_buckets_are_powers_of_two(length, longest, expected):
  """From 16 up to the limit."""
  assert predictor.bucket(length, longest) == expected


def same(actual, expected):
  assert actual.keys() == expected.keys()
  for name, value in expected.items():
    np.testing.assert_array_equal(actual[name], value, err_msg=name)


def test_what_an_encoder_decoder_writes_from():
  """The docstring's example."""
  features = prompt_features.prompt_features([[7, 8, 1], [9, 1]], 4, architecture="encoder_decoder", framing=FRAMING)
  same(
    features,
    {
      "encoder_input_tokens": [[7, 8, 1, 0], [9, 1, 0, 0]],
      "encoder_segment_ids": [[1, 1, 1, 0], [1, 1, 0, 0]],
      "decoder_input_tokens": [[0], [0]],
    },
  )


def test_what_a_decoder_writes_from():
  """BOS and the prompt are marked as the bidirectional prefix."""
  features = prompt_features.prompt_features([[7, 8], [9]], 4, architecture="decoder_only", framing=FRAMING)
  same(
    features,
    {"decoder_input_tokens": [[0, 7, 8, 0], [0, 9, 0, 0]], "decoder_causal_attention": [[1, 1, 1, 0], [1, 1, 0, 0]]},
  )


def test_what_a_masked_language_model_scores():
  """Each target token is a mask between prompt and [SEP], with a loss weight."""
  features = predictor.scored_features(
    [predictor.ScoredRow([7, 8], [5, 6])], (8,), architecture="encoder_only", framing=FRAMING
  )
  same(
    features,
    {
      "encoder_input_tokens": [[37, 7, 8, 39, 39, 38, 0, 0]],
      "encoder_target_tokens": [[37, 7, 8, 5, 6, 38, 0, 0]],
      "encoder_segment_ids": [[1, 1, 1, 1, 1, 1, 0, 0]],
      "encoder_loss_weights": [[0, 0, 0, 1, 1, 0, 0, 0]],
    },
  )


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["t5_1_1", "llama", "learned_prefix_lm"])
def test_each_prompt_gets_what_it_would_get_alone(kind):
  """Generations do not depend on the batch or the order of lengths."""
  together, params = predictor_of(kind)
  alone, _ = predictor_of(kind, batch_size=1)
  found = together.generate(params, PROMPTS)
  assert len({tuple(each.tokens[0]) for each in found}) > 1
  for prompt, each in zip(PROMPTS, found, strict=True):
    (own,) = alone.generate(params, [prompt])
    assert own.tokens == each.tokens
    np.testing.assert_allclose(own.scores, each.scores, atol=1e-4)
    assert all(toy.EOS not in tokens for tokens in each.tokens)


@pytest.mark.exhaustive
def test_what_is_drawn_depends_on_the_number_of_the_prompt():
  """A resumed run samples the same as an uninterrupted one."""
  sampler, params = predictor_of("t5_1_1", temperature=1.0)
  all_at_once = [each.tokens for each in sampler.generate(params, PROMPTS, seed=5)]
  later = [each.tokens for each in sampler.generate(params, PROMPTS[2:], seed=5, numbers=range(2, len(PROMPTS)))]
  assert all_at_once[2:] == later
  assert all_at_once != [each.tokens for each in sampler.generate(params, PROMPTS, seed=6)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["t5_1_1", "llama", "learned_prefix_lm", "bert"])
def test_scores_are_log_probabilities(kind):
  """Scores equal the sums of the model's log-probabilities of each target."""
  scorer, params = predictor_of(kind)
  rows = [predictor.ScoredRow(*pair) for pair in zip(PROMPTS, TARGETS, strict=True)]
  scores, _ = scorer.likelihoods(params, rows)
  model, architecture = toy.model(toy.KINDS[kind], seed=3), toy.KINDS[kind].architecture
  side = "encoder" if architecture == "encoder_only" else "decoder"
  for row, score in zip(rows, scores, strict=True):
    widths = (20, 17) if architecture == "encoder_decoder" else (40,)
    batch = predictor.scored_features([row], widths, architecture=architecture, framing=FRAMING)
    log_probabilities = jax.nn.log_softmax(toy.logits(model, jax.tree.map(jax.numpy.asarray, batch))[0])
    chosen = np.take_along_axis(log_probabilities, batch[f"{side}_target_tokens"][0][:, None], 1)[:, 0]
    np.testing.assert_allclose(score, np.sum(chosen * batch[f"{side}_loss_weights"][0]), rtol=1e-4)


def test_two_streams_predict_a_mask_without_reading_it():
  """A model of orders of tokens was never trained on a mask: its vector changes no score, but the prompt does."""
  scorer, params = predictor_of("xlnet")
  rows = [predictor.ScoredRow([7, 8, 9], [3, 4]), predictor.ScoredRow([5, 8, 9], [3, 4])]
  scores = scorer.likelihoods(params, rows)[0]
  table = params["embed"]["table"]
  params["embed"]["table"] = table.at[FRAMING.mask_id].add(1.0)
  params["head"]["bias"] = params["head"]["bias"].at[FRAMING.mask_id].add(-1e9)  # its logit is tied to the vector
  changed = scorer.likelihoods(params, rows)[0]
  hidden_once = params | {"embed": params["embed"] | {"table": table}}
  np.testing.assert_allclose(changed, scorer.likelihoods(hidden_once, rows)[0], rtol=1e-5)
  assert abs(scores[0] - scores[1]) > 1e-3


@pytest.mark.exhaustive
def test_meshes_give_the_same():
  """Eight devices, and rows that do not fill a batch."""
  one, params = predictor_of("t5_1_1")
  expected = [each.tokens for each in one.generate(params, PROMPTS)]
  mesh = sharding.make_mesh({"fsdp": 4, "tensor": 2})
  many, _ = predictor_of("t5_1_1", mesh=mesh, batch_size=3)
  _, state = transformer.nnx.split(toy.model(toy.KINDS["t5_1_1"], seed=3), graph=False)
  placed = jax.device_put(params, sharding.param_shardings(state, mesh))
  assert [each.tokens for each in many.generate(placed, PROMPTS)] == expected


def test_learned_positions_end():
  """Prompt and answer together exceed the learned positions."""
  with pytest.raises(UserError, match="40"):
    predictor_of("learned_prefix_lm", max_length=30)
