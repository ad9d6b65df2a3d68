"""Which languages sources are of, `config.data.sources.NAME.language`: one, or of texts with translations two."""

from collections.abc import Mapping
import string

from t2t import UserError, did_you_mean
from t2t.configuration.schema import DataConfig
from t2t.data import objectives


def said(data: DataConfig, *, where: str) -> tuple[str, ...]:
  """The languages of what is read, as its `language` names them: of pairs the text's and the translation's.

  In:  language "sw"; language "en,sw" with the objective translation_lm
  Out: ("sw",); ("en", "sw")

  Args:
    data: of one source.
    where: its keys are, for messages.

  Raises:
    UserError: not one name, or of pairs not two.
  """
  languages = tuple(name.strip() for name in data.language.split(",")) if data.language else ()
  setting = f"{where}.language={data.language}"
  if languages and not all(languages):
    raise UserError(f"{setting}: a name is missing beside the comma")
  pairs = data.is_text and objectives.is_parallel(data.objective)
  if pairs and languages and len(set(languages)) != 2:
    raise UserError(
      f"{setting}: config.data.objective={data.objective} reads texts and their translations; give two languages, the"
      f" text's and the translation's, language={languages[0]},fr"
    )
  if not pairs and len(languages) > 1:
    raise UserError(
      f"{setting}: is of one language, and two are of texts beside their translations, which"
      f" {'a registered mixture' if data.has_tasks else f'config.data.objective={data.objective}'} does not read; give"
      " a source for each language"
    )
  return languages


def of_all(sources: Mapping[str, DataConfig]) -> tuple[str, ...]:
  """Every language of these, sorted: its number is that of its token type.

  Args:
    sources: name -> one source, see `DataConfig.parts`.

  Raises:
    UserError: as there.
  """
  language_groups = (said(source, where=f"config.data.sources.{name}") for name, source in sources.items())
  return tuple(sorted({language for languages in language_groups for language in languages}))


def numbers(sources: Mapping[str, DataConfig]) -> dict[str, list[int]]:
  """The token types of each source's texts, if these say languages; {} if they do not.

  They do beside translation_lm, which tells a text from its translation by them: with a row of the model for each
  language they are the language embeddings of Lample & Conneau 2019 (XLM).

  Raises:
    UserError: some sources name their languages, and others do not.
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
        f"config.data.sources.{name}: names no language, and {named_source} does: beside translation_lm token types say"
        f" which language a text is of; give config.data.sources.{name}.language, or leave it out of all"
      )
  every = of_all(sources)
  return {name: [every.index(language) for language in languages] for name, languages in languages_by_source.items()}


def check_model(sources: Mapping[str, DataConfig], *, segment_types: int) -> None:
  """Whether a model has a vector for each language, if it has any.

  Args:
    sources: see `of_all`.
    segment_types: of the model.

  Raises:
    UserError: too few; says how many there must be.
  """
  every = of_all(sources)
  if numbers(sources) and 1 < segment_types < len(every):
    raise UserError(
      f"config.model.segment_types={segment_types}: beside translation_lm there is one for each language, and"
      f" config.data.sources have {len(every)} ({', '.join(every)}); set config.model.segment_types={len(every)}, or 0"
      " for a model that is not told the language"
    )


_TAGGED = "translation"  # the objective whose inputs have tags


def tags(data: DataConfig, *, where: str) -> tuple[str, str]:
  """What stands in front of a text that is to be translated, and in front of one of the other direction; "": nothing.

  In:  language_tags "<2{target}>", language "en,fr"
  Out: "<2fr>", "<2en>"

  Args:
    data: of one source.
    where: its keys are, for messages.

  Raises:
    UserError: a tag of what is no language, or of languages that are not named.
  """
  if not data.language_tags or data.objective != _TAGGED:
    return "", ""
  key = f"config.data.language_tags={data.language_tags}"
  try:
    names = [name for _, name, _, _ in string.Formatter().parse(data.language_tags) if name is not None]
  except ValueError as error:
    raise UserError(f"{key}: {error}; give for example '<2{{target}}>'") from error
  placeholders = ("source", "target")
  for name in names:
    if name not in placeholders:
      raise UserError(
        f"{key}: {{{name}}} is no language{did_you_mean(name, placeholders)}; there are {{source}} and {{target}}"
      )
  languages = said(data, where=where)
  if names and not languages:
    raise UserError(
      f"{key}: names languages, and {where}.language is empty; give the text's and the translation's, as en,fr"
    )
  first, second = languages or ("", "")
  write = lambda source, target: data.language_tags.format(source=source, target=target)
  try:
    return write(first, second), write(second, first)
  except ValueError as error:  # {target:d}
    raise UserError(f"{key}: {error}; give for example '<2{{target}}>'") from error


def check_tags(data: DataConfig, sources: Mapping[str, DataConfig]) -> None:
  """Whether anything that is read has the tags that are asked for.

  Args:
    data: what is read.
    sources: its sources, see `of_all`, or none.

  Raises:
    UserError: nothing has.
  """
  read = list(sources.values()) or [data]
  if data.language_tags and not any(source.is_text and source.objective == _TAGGED for source in read):
    raise UserError(
      f"config.data.language_tags={data.language_tags}: stand in front of what is to be translated, which nothing that"
      f" is read is; set the objective of texts and their translations to {_TAGGED}"
    )
