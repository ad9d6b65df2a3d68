"""Scores of texts with a served encoder: the part of `engine.Ready` that scoring and `echo` need."""

from collections.abc import Mapping, Sequence

import jax

from t2t.checkpoints import pretrained
from t2t.inference import adapter_routing, prompt_builder, text_scores, token_logprobs
from t2t.models.config import TransformerConfig
from t2t.param_tree import Params
from t2t.serving import engine, routes


class EncoderScores:
  """Pseudo-log-likelihoods of texts: each token is predicted from the tokens around it.

  Args:
    source: the checkpoint, of an encoder with a mask token that predicts tokens.
    params: of the model.
    mesh: on which they are loaded.
    device: lock of the model.
  """

  ends_prompts, reads_causally = False, True  # every token of a text has a log-probability

  def __init__(self, source: pretrained.Source, params: Params, mesh: jax.sharding.Mesh, device: routes.Turns):
    from t2t.data import vocabularies
    from t2t.data.vocabularies import continuation

    self._source, self._params, self.device = source, params, device
    scorer = text_scores.of_source(source, mesh, batch_size=1)
    framing = scorer.reader.framing
    self.vocabulary = pretrained.vocabulary(source)
    self.longest_text = self.max_inputs = scorer.max_tokens - len(framing.around)
    self.names = [adapter_routing.BASE]
    named = token_logprobs.token_names(self.vocabulary, source.model.vocab_size)
    self.token_texts, self.token_names, self.vocab_size = named
    self._tokens = token_logprobs.TokenScorer(scorer, vocab_size=self.vocab_size)
    self._starts = {framing.bos_id, framing.cls_id, framing.eos_id} - {None}
    special_tokens = prompt_builder.special_tokens(source, "")
    self.prompts: Mapping[str, prompt_builder.Prompts] = {
      adapter_routing.BASE: prompt_builder.Prompts(
        self.vocabulary, ends=False, longest=self.longest_text, special_tokens=special_tokens
      )
    }
    self._framing_ids = vocabularies.framing_ids(self.vocabulary)
    self._texts = lambda ids: continuation.continuation_texts(self.vocabulary, [], ids)

  @property
  def config(self) -> TransformerConfig:
    return self._source.asked

  def read(self, prompt: str | Sequence[int], adapter: str = "", *, as_given: bool = False) -> engine.Prompt:
    """Returns the tokens of a text; [CLS] and [SEP] around it are added later, and replace a start token."""
    del as_given
    if isinstance(prompt, str):
      return engine.Prompt((), self.prompts[adapter].encode(prompt))
    start = tuple(prompt[:1]) if prompt[0] in self._starts else ()
    return engine.Prompt(start, list(prompt[len(start) :]))

  def parts(self, prompt: engine.Prompt, tokens: Sequence[int], *, echo: bool) -> list[str]:
    """Returns the text of each token of the prompt, special tokens by name."""
    ids = [*(prompt.ids if echo else []), *tokens]
    named = [self.token_texts[token] if token in self._framing_ids else "" for token in ids]
    return [name or text for name, text in zip(named, self._texts(ids), strict=True)]

  def continued(self, prompt: engine.Prompt, tokens: Sequence[int]) -> str:
    """Returns the text after a prompt, which is empty: an encoder generates none."""
    del prompt, tokens
    return ""

  def tell(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], name: str) -> list[token_logprobs.Likelihoods]:
    """Returns the pseudo-log-likelihoods of the tokens of each target after its prompt."""
    del name
    items = [text_scores.ScoredText(prompt, target, 0) for prompt, target in pairs]
    return self._tokens(self._params, items)
