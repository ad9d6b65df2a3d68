"""Documentation: index, links, and pictures and tables that match the code."""

import fnmatch
import importlib
import importlib.util
import re

import commands
import folders
import keys
import masks
import meshes
import notebooks
import objectives
import pages
import pytest
import test_rooms

from t2t import __main__ as t2t_main
from t2t.commands import keys_help
from t2t.configuration.loading import config_names
from t2t.configuration.schema import SourceConfig
from t2t.convert.gin import param_map as gin_names
from t2t.data.objectives import registry

ROOT = folders.ROOT

PAGES, FILES = folders.PAGES, folders.DOCUMENTS
name_of = lambda path: path.name


# ---- Pages and links -------------------------------------------------------------------------------------------------


def test_every_page_is_in_the_index_once():
  """Each page has a line under a heading of the index."""
  listed = pages.in_order()
  assert len(listed) > 30
  assert sorted([*listed, "index"]) == [path.stem for path in PAGES]


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_links_lead_somewhere(path):
  """Each link leads to a file and a heading in it."""
  for target, anchor in pages.links(path.read_text()):
    there = (path.parent / target).resolve() if target else path
    assert there.exists(), target
    if anchor and there.suffix == ".md":
      assert anchor in pages.anchors(there.read_text()), f"{target}#{anchor}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_headings_are_in_order(path):
  """A first-level heading comes first, no level is skipped, and pictures have descriptions."""
  text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
  levels = [len(marks) for marks in re.findall(r"^(#+) ", text, re.MULTILINE)]
  assert levels[0] == 1 and levels.count(1) == 1 and text.startswith("# ")
  assert all(after <= before + 1 for before, after in zip(levels, levels[1:], strict=False))
  assert "![](" not in text and "<img" not in text


def test_the_readme_is_short():
  """The file has less than 120 lines, and the first screen of 20 lines at 80 columns has the first command."""
  lines = (ROOT / "README.md").read_text().splitlines()
  assert len(lines) < 120
  assert "make train" in lines[:20] and all(len(line) <= 80 for line in lines[:20])


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_a_page_begins_with_its_purpose_and_a_command(path):
  """The first paragraph is prose, and a command comes before the second heading."""
  beginning = path.read_text().partition("\n## ")[0].partition("\n")[2].strip()
  assert re.match(r"[\w`]", beginning), beginning[:80]
  command = r"^(?:```(?:sh|python)| {4}(?:t2t|python|make|pip|import|\.venv))"
  assert re.search(command, beginning, re.MULTILINE), path.name


def test_a_page_for_the_site():
  """Links outside of docs/ are rewritten or copied; broken links stay, so that Sphinx reports them."""
  text = (
    "[a](start.md) [b](../configs) [c](../configs/tiny.py) [d](../README.md#x) [e](../CONTRIBUTING.md) [f](none.md)"
  )
  assert pages.for_site(text) == "[a](start.md) b [c](../configs/tiny.py) [d](index.md#x) e [f](none.md)"


def test_the_list_for_programs():
  """A line for each page, with its title and first sentence."""
  listed = pages.listed({path.stem: path.read_text() for path in PAGES})
  assert "- [Start in five minutes](start.md): After this page you have trained a tiny T5" in listed
  assert listed.count("\n- [") == len(pages.in_order())


NOTEBOOK = f"""# A page
{notebooks.MARK}

```python
print(1)
```

```python alt="A line"
2
```
"""


def test_a_notebook_for_the_site():
  """Python blocks become MyST cells and pictures keep their captions; pages without the mark are not notebooks."""
  made = notebooks.as_myst(NOTEBOOK)
  assert made.startswith("---\nfile_format: mystnb\n") and made.count("```{code-cell}\n") == 2
  assert "```{code-cell}\n---\nmystnb:\n  image:\n    alt: A line\n---\n2\n```" in made
  assert notebooks.is_notebook(NOTEBOOK) and not notebooks.is_notebook("```python\n```\n")


def test_the_twin_of_a_notebook():
  """Each cell is followed by its output without standard error, with pictures as words."""
  printed = [{"output_type": "stream", "name": name, "text": [f"{name} 1\n"]} for name in ("stdout", "stderr")]
  value = [{"output_type": "execute_result", "data": {"text/plain": ["2"]}}]
  cells = [{"cell_type": "markdown"}, *({"cell_type": "code", "outputs": each} for each in (printed, value))]
  made = notebooks.with_outputs(NOTEBOOK, cells)
  assert "```python\nprint(1)\n```\n\n```\nstdout 1\n```\n" in made and "stderr" not in made
  assert made.endswith("```python\n2\n```\n\n(A picture: A line.)\n\n```\n2\n```\n")


def test_the_notebooks_are_python():
  """Each block is a cell with valid Python except magics; `make docs` runs them, `make readme` does not."""
  found = [path for path in PAGES if notebooks.is_notebook(path.read_text())]
  assert [path.stem for path in found] == ["notebook"]
  for path in found:
    cells = re.findall(r"^```python([^\n]*)\n(.*?)^```$", path.read_text(), re.DOTALL | re.MULTILINE)
    assert len(cells) > 8 and "```sh" not in path.read_text()
    for _, code in cells:
      compile(re.sub(r"^%.*$", "", code, flags=re.MULTILINE), path.name, "exec")
    assert path.read_text().count("```python") == notebooks.as_myst(path.read_text()).count("```{code-cell}")


def test_each_block_is_run_once(tmp_path):
  """Blocks run in order of the files, without indented ones."""
  reader = importlib.util.spec_from_file_location("reader", ROOT / ".ci" / "readme.py")
  module = importlib.util.module_from_spec(reader)
  reader.loader.exec_module(module)
  texts = {"a.md": "```sh\none\n```\n\n    no\n\n```sh\ntwo\n```\n", "b.md": "```sh\ntwo\n```\n```sh\nthree\n```\n"}
  for name, text in texts.items():
    (tmp_path / name).write_text(text)
  paths = [str(tmp_path / name) for name in texts]
  assert module.blocks_of(*paths) == {"one\n": paths[0], "two\n": paths[0], "three\n": paths[1]}
  assert next(iter(module.blocks_of(str(ROOT / "README.md")))) == "make train\n"


# ---- What pages say of the code --------------------------------------------------------------------------------------


def known_keys():
  found = {f"{section}.{key}" for section, values in keys_help.keys_by_section().items() for key in values}
  return found | {f"data.sources.NAME.{key}" for key in SourceConfig.__dataclass_fields__}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_config_keys_that_are_named_are_there(path):
  """In text, in tables and in commands."""
  known, sections = known_keys(), set(keys_help.keys_by_section())
  for section, key, rest in re.findall(r"config\.([a-z_0-9]+)\.([a-z_0-9]+)((?:\.\w+)*)", path.read_text()):
    if section == "data" and key == "sources" and rest.count(".") > 1:
      assert f"data.sources.NAME.{rest.split('.')[2]}" in known, rest
    elif section in sections:
      assert f"{section}.{key}" in known, f"{section}.{key}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_commands_that_are_named_are_there(path):
  """`t2t NAME`, in blocks and in text."""
  text = path.read_text()
  named = re.findall(r"(?:^(?: {4})?|`)t2t ([a-z_]+)(?![\w-])", text, re.MULTILINE)
  assert set(named) <= set(t2t_main.SUBCOMMANDS), set(named) - set(t2t_main.SUBCOMMANDS)


@pytest.mark.parametrize("path", commands.pages(), ids=lambda path: path.stem)
def test_commands_fit_the_column_of_a_page(path):
  """At most 80 characters; `python docs/site/commands.py` wraps them."""
  assert commands.too_wide(path.read_text()) == []


def test_a_command_is_wrapped_between_its_options():
  """In sh blocks and indented; text, tables and other code are unchanged."""
  option = "--config.data.files='a b/*.txt'"
  text = (
    f"text {'x' * 90}\n\n    t2t train {option} --workdir runs/one {option} {option}\n\n```text\nt2t {'y ' * 50}\n```\n"
  )
  assert commands.wrapped(text).splitlines()[2:5] == [
    f"    t2t train {option} --workdir runs/one \\",
    f"      {option} {option}",
    "",
  ]
  assert commands.wrapped(commands.wrapped(text)) == commands.wrapped(text)
  assert commands.too_wide(text) and not commands.too_wide(commands.wrapped(text))


def test_the_page_of_keys_is_made_of_the_code():
  """Every key, with its default and help, is generated."""
  assert keys.MARK in (ROOT / "docs" / "config_keys.md").read_text()
  assert "| `config" not in (ROOT / "docs" / "config_keys.md").read_text()
  made = keys.markdown()
  for section, values in keys_help.keys_by_section().items():
    assert f"\n## {section}\n" in f"\n{made}"
    for key in values:
      row = next(line for line in made.splitlines() if re.match(rf"\| `config\.{section}\.{key}[`.]", line))
      assert not row.endswith("|  |"), f"{row}: say what it is, beside the key"


def test_what_t5x_calls_it():
  """The page has exactly the names of the converter of gin files."""
  text = (ROOT / "docs" / "from_t5x.md").read_text()
  rows = re.findall(r"^\| `([^`]+)`[^|]*\| `config\.([\w.]+)", text, re.MULTILINE)
  known = gin_names.SAME | gin_names.ADAFACTOR
  assert {theirs: ours for theirs, ours in rows if theirs in known} == known
  mixtures = re.findall(r"^\| `(\w+)` \| `(\w+)` \| `(t2t\.[\w.]+)` \|$", text, re.MULTILINE)
  assert {theirs: (ours, module) for theirs, ours, module in mixtures} == gin_names.MIXTURES


def test_what_the_t5_packages_preprocessors_are_here():
  """Each row has an existing name or is marked as missing, and no preprocessor occurs twice."""
  text = (ROOT / "docs" / "from_t5x.md").read_text()
  section = text.partition("\n## Preprocessors of the t5 package\n")[2].partition("\n## ")[0]
  rows = re.findall(r"^\| (.*) \| (.*) \|$", section, re.MULTILINE)[1:]
  assert len(rows) > 40
  whole = [name for theirs, _ in rows if not theirs.startswith("...") for name in re.findall(r"`(\w+)`", theirs)]
  assert len(whole) == len(set(whole))
  for theirs, ours in rows:
    named = re.findall(r"objective `(\w+)`", ours)
    assert set(named) <= set(registry.OBJECTIVES), theirs
    functions = [name for name in re.findall(r"`([a-z_]+(?:\.\w+)+)`", ours) if not name.startswith(("config.", "tf."))]
    for name in functions:
      if not name.startswith("dataset."):
        module, _, function = name.rpartition(".")
        assert callable(getattr(importlib.import_module(f"t2t.data.{module}"), function)), name
    assert named or functions or ours.startswith(("none", "the objective", "an objective", "not needed")), theirs


def test_every_floor_is_on_the_page():
  """The rooms are named by the first part of their names."""
  text = (ROOT / "docs" / "building.md").read_text()
  rooms = {room.split(".")[0] for room in test_rooms.FLOORS} - {"__main__"}
  assert [room for room in rooms if f"`{room}`" not in text] == []


def test_every_config_of_a_model_has_a_status():
  """Each config except tiny ones and fine-tuning is named by a row of docs/recipes.md."""
  rows = re.findall(r"^\| (`[^|]*) \|", (ROOT / "docs" / "recipes.md").read_text(), re.MULTILINE)
  patterns = [pattern for row in rows for pattern in re.findall(r"`([\w*]+)`", row)]
  names = [name for name in config_names() if not name.startswith(("tiny", "finetune", "superglue"))]
  missing = [name for name in names if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]
  assert len(names) > 90 and missing == []


# ---- Pictures --------------------------------------------------------------------------------------------------------


def test_every_objective_has_a_picture():
  """In the order of the page, and no picture is of one that is gone."""
  text = "".join((ROOT / "docs" / f"{name}.md").read_text() for name in ("objectives", "encoder_objectives"))
  shown = re.findall(r"\]\(pictures/objectives/(\w+)\.svg\)", text)
  assert sorted(shown) == sorted(registry.OBJECTIVES) == sorted(path.stem for path in objectives.FOLDER.glob("*.svg"))


def test_a_picture_of_an_objective_is_as_the_code_is():
  """Checks one that is drawn fast; the test below checks all."""
  name = "causal_lm"
  assert objectives.draw(name) == (objectives.FOLDER / f"{name}.svg").read_text()


@pytest.mark.exhaustive
def test_all_pictures_of_objectives_are_as_the_code_is():
  """`python docs/site/objectives.py` redraws them."""
  old = [
    name for name in registry.OBJECTIVES if objectives.draw(name) != (objectives.FOLDER / f"{name}.svg").read_text()
  ]
  assert old == []


@pytest.mark.parametrize("drawn", [masks, meshes], ids=["masks", "meshes"])
def test_pictures_of_masks_and_meshes_are_as_the_code_is(drawn):
  """`python docs/site/masks.py` and `meshes.py` redraw them."""
  names = drawn.MASKS if drawn is masks else drawn.MESHES
  assert {path.stem for path in drawn.FOLDER.glob("*.svg")} == set(names)
  for name in names:
    assert drawn.draw(name) == (drawn.FOLDER / f"{name}.svg").read_text(), name
