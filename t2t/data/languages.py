"""Languages of sources, `config.data.sources.NAME.language`: one, or two for texts with translations."""

from collections.abc import Mapping
import string

from t2t import UserError, did_you_mean
from t2t.configuration.schema import DataConfig
from t2t.data import objectives


def said(data: DataConfig, *, where: str) -> tuple[str, ...]:
  """Returns the languages of a source from its `language`; for pairs those of the text and of the translation.

  In:  language "sw"; language "en,sw" with the objective translation_lm
  Out: ("sw",); ("en", "sw")

  Args:
    data: config of one source.
    where: prefix of its keys, for messages.

  Raises:
    UserError: not one name, or for pairs not two.
  """
  languages = tuple(name.strip() for name in data.language.split(",")) if data.language else ()
  setting = f"{where}.language={data.language}"
  if languages and not all(languages):
    raise UserError(f"{setting}: a language is missing beside the comma. Give one language, or two, for example en,sw.")
  pairs = data.is_text and objectives.is_parallel(data.objective)
  if pairs and languages and len(set(languages)) != 2:
    raise UserError(
      f"{setting}: config.data.objective={data.objective} reads texts with translations and needs two "
      f"languages. Give the languages of the text and of the translation: {where}.language={languages[0]},fr."
    )
  if not pairs and len(languages) > 1:
    raise UserError(
      f"{setting}: two languages are for texts with translations, but "
      f"{'a registered mixture' if data.has_tasks else f'config.data.objective={data.objective}'} reads no "
      "translations. Give a source for each language."
    )
  return languages


def of_all(sources: Mapping[str, DataConfig]) -> tuple[str, ...]:
  """Returns all languages, sorted; the index of a language is its token type.

  Args:
    sources: name -> config of one source, see `DataConfig.parts`.

  Raises:
    UserError: see `said`.
  """
  language_groups = (said(source, where=f"config.data.sources.{name}") for name, source in sources.items())
  return tuple(sorted({language for languages in language_groups for language in languages}))


def numbers(sources: Mapping[str, DataConfig]) -> dict[str, list[int]]:
  """Returns the token types of each source's texts, if they are language ids; otherwise {}.

  They are beside translation_lm, which separates text and translation by token types. With a model row per language
  they are the language embeddings of Lample & Conneau 2019 (XLM).

  Raises:
    UserError: only some sources name their languages.
  """
  languages_by_source = {name: said(source, where=f"config.data.sources.{name}") for name, source in sources.items()}
  translation_sources = [
    name for name, source in sources.items() if source.is_text and source.objective == "translation_lm"
  ]
  if not translation_sources or not any(languages_by_source.values()):
    return {}
  for name, languages in languages_by_source.items():
    if not languages:
      named_source = next(source_name for source_name in languages_by_source if languages_by_source[source_name])
      raise UserError(
        f"config.data.sources.{name} has no language, but config.data.sources.{named_source} has a language. With "
        f"translation_lm, token types are language ids. Give config.data.sources.{name}.language, or leave 'language' "
        "empty in all sources."
      )
  every = of_all(sources)
  return {name: [every.index(language) for language in languages] for name, languages in languages_by_source.items()}


def check_model(sources: Mapping[str, DataConfig], *, segment_types: int) -> None:
  """Checks that a model has a vector for each language, if it has token types.

  Args:
    sources: see `of_all`.
    segment_types: number of token types of the model.

  Raises:
    UserError: too few token types; says how many are needed.
  """
  every = of_all(sources)
  if numbers(sources) and 1 < segment_types < len(every):
    raise UserError(
      f"config.model.segment_types={segment_types}: with translation_lm each language needs a token type, but "
      f"config.data.sources have {len(every)} languages ({', '.join(every)}). Set "
      f"config.model.segment_types={len(every)}, or 0 for a model without language embeddings."
    )


_TAGGED = "translation"  # the objective with tagged inputs


def tags(data: DataConfig, *, where: str) -> tuple[str, str]:
  """Returns the prefixes of texts to translate, for both directions; "": none.

  In:  language_tags "<2{target}>", language "en,fr"
  Out: "<2fr>", "<2en>"

  Args:
    data: config of one source.
    where: prefix of its keys, for messages.

  Raises:
    UserError: the tag has an unknown name, or the languages are not named.
  """
  if not data.language_tags or data.objective != _TAGGED:
    return "", ""
  key = f"config.data.language_tags={data.language_tags}"
  try:
    names = [name for _, name, _, _ in string.Formatter().parse(data.language_tags) if name is not None]
  except ValueError as error:
    raise UserError(f"{key} is not valid ({error}). Give for example '<2{{target}}>'.") from error
  placeholders = ("source", "target")
  for name in names:
    if name not in placeholders:
      raise UserError(
        f"{key}: {{{name}}} is not a placeholder{did_you_mean(name, placeholders) or '.'} Use {{source}} and "
        "{target}."
      )
  languages = said(data, where=where)
  if names and not languages:
    raise UserError(
      f"{key} contains languages, but {where}.language is empty. Give the languages of the text and of the "
      f"translation, for example {where}.language=en,fr."
    )
  first, second = languages or ("", "")
  write = lambda source, target: data.language_tags.format(source=source, target=target)
  try:
    return write(first, second), write(second, first)
  except ValueError as error:  # {target:d}
    raise UserError(f"{key} is not valid ({error}). Give for example '<2{{target}}>'.") from error


def check_tags(data: DataConfig, sources: Mapping[str, DataConfig]) -> None:
  """Checks that at least one source uses the tags.

  Args:
    data: config of the data.
    sources: its sources, see `of_all`, or none.

  Raises:
    UserError: no source uses them.
  """
  read = list(sources.values()) or [data]
  if data.language_tags and not any(source.is_text and source.objective == _TAGGED for source in read):
    raise UserError(
      f"config.data.language_tags={data.language_tags} has no effect, because no source has the objective {_TAGGED}. "
      "Set this objective for texts with translations, or leave config.data.language_tags empty."
    )
