"""Files of templates: parsing, rendering, and errors that name the file and the template."""

import pytest

from t2t import UserError
from t2t.data.templates import format as template_format


def template(text, **keys):
  return template_format.Template("t", text, where="F: [task.t]", **keys)


@pytest.mark.parametrize(
  ("text", "before", "after"),
  [
    ("{a}? {blank}, {b}", "One.? ", ", Two, three!"),
    ("{a|no_final_punctuation|lower_first}", "one", ""),
    ("{{{c[1]}}} {blank}", "{y} ", ""),
    ("{q|placeholder}", "who is ", "?"),
  ],
)
def test_a_text_is_split_at_its_blank(text, before, after):
  """Fields, items of lists, filters and doubled braces are replaced; without a blank the end is the blank."""
  fields = {"a": "One.", "b": "Two, three!", "c": ["x", "y"], "q": "who is @placeholder?"}
  assert template(text).render(fields)[:2] == (before, after)


def test_the_longest_field_is_cut():
  """The end of the longest field goes first, so the question and the blank stay; the size before is kept."""
  rendered = template("{passage} Question: {question}? {blank}").render(
    {"passage": "one two three four", "question": "is it"}, room=30
  )
  assert rendered.before == "one two Question: is it? "
  assert rendered.uncut == len("one two three four Question: is it? ")


def test_values_and_words_have_fields():
  copa = template("{premise} {question} {blank}", values={"question": {"cause": "because"}}, words={"1": ("{a}.",)})
  fields = {"premise": "P", "question": "cause", "a": "it rained"}
  assert copa.render(fields).before == "P because "
  assert copa.filled("{a}.", fields) == "it rained."
  assert [field.name for field in copa.fields] == ["premise", "question", "a"]


@pytest.mark.parametrize(
  ("text", "keys", "message"),
  [
    ("{blank} {blank}", {}, r"F: \[task.t\] text=.* has 2 blanks; keep one"),
    ("{a|lower_frst}", {}, r"unknown filter lower_frst.*did you mean lower_first"),
    ("{a b}", {}, r"\{a b\} is not a field"),
    ("{a} }", {}, "a brace without its pair"),
    ("{a}", {"words": {"x": ("Yes",), "y": ("Yes",)}}, "'Yes' stands for x and for y"),
  ],
)
def test_wrong_templates(text, keys, message):
  with pytest.raises(UserError, match=message):
    template(text, **keys)


@pytest.mark.parametrize(
  ("content", "message"),
  [
    ("x = 1", "x must be a table of templates"),
    ("[task.t]\ntxt = ''", "unknown key txt.*did you mean text"),
    ("[task.t]\nwords = {a = 'b'}", "text=None must be a text"),
    ("[task.t]\ntext = ''\nwords = {a = 3}", r"words.a=3 must be a word or a list"),
    ("[task.'a b']\ntext = ''", "a name has letters"),
    ("[", "not a TOML file"),
  ],
)
def test_wrong_files(content, message, tmp_path):
  path = tmp_path / "t.toml"
  path.write_text(content)
  with pytest.raises(UserError, match=f"config.data.templates={path}.*{message}"):
    template_format.load(str(path))


def test_unknown_names():
  with pytest.raises(UserError, match="config.data.templates=gpt3: no such file.*one of gpt3_superglue"):
    template_format.load("gpt3")
  with pytest.raises(UserError, match="config.data.template_names: p9 is not a template of .*known names: p0, p1"):
    template_format.load("pet_superglue", names=("p9",))


def test_shipped_files():
  """GPT-3 has one template of each task, and the figure of WiC in its paper is reproduced."""
  gpt3, pet = template_format.load("gpt3_superglue"), template_format.load("pet_superglue", names=("p0",))
  names = ["boolq", "cb", "copa", "multirc", "record", "rte", "wic", "wsc"]
  assert {name: len(gpt3[f"super_glue_{name}"]) for name in names} == dict.fromkeys(names, 1)
  assert set(pet) == {f"super_glue_{name}" for name in names}
  (wic,) = gpt3["super_glue_wic"]
  first = "An outfitter provided everything needed for the safari."
  second = "Before his first walking holiday, he went to a specialist outfitter to buy some boots."
  rendered = wic.render({"sentence1": first, "sentence2": second, "word": "outfitter"})
  assert rendered.before == (
    f"{first}\n{second}\nquestion: Is the word 'outfitter' used in the same way in the two sentences above?\nanswer: "
  )
  assert wic.words == {"False": ("no",), "True": ("yes",)}
