"""Sphinx configuration of the documents: `make docs`.

Pages are Markdown that also reads well on GitHub. The build adds the order of the pages (from the index), the config
keys (from the code) and the output of notebook cells. It also writes a Markdown copy of each page, PAGE.md beside
PAGE.html, and llms.txt, which lists the copies.
"""

import functools
import json
import pathlib
import re
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import keys
import notebooks
import pages

project = "t2t"
author = "the authors of t2t"
copyright = "the authors of t2t; Apache-2.0"  # noqa: A001  Sphinx's name
extensions = ["myst_nb", "sphinx_copybutton"]
exclude_patterns = ["_build", "site"]
source_suffix = {".md": "myst-nb"}
root_doc = "index"
nitpicky = True
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
suppress_warnings = []
highlight_language = "none"  # for indented blocks; fenced blocks name their language

nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 600  # per cell, on a shared machine
nb_execution_in_temp = True
nb_output_stderr = "remove"  # progress and messages of libraries

copybutton_prompt_text = r"^\$ |^>>> |^\.\.\. "
copybutton_prompt_is_regexp = True

html_theme = "sphinx_book_theme"
html_title = "t2t documents"
html_favicon = "static/favicon.svg"
myst_html_meta = {"description lang=en": "t2t pre-trains text-to-text Transformers in JAX, from a laptop to a TPU pod."}
html_static_path = ["static"]
html_css_files = ["t2t.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
  "logo": {"text": "t2t"},
  "use_download_button": False,
  "use_fullscreen_button": False,
  "show_navbar_depth": 1,
  "show_toc_level": 2,
  "navigation_with_keys": False,
  # The sidebar has everything that a top bar would repeat.
  "navbar_start": [],
  "navbar_center": [],
  "navbar_end": [],
  "navbar_persistent": [],
  "pygments_light_style": "a11y-high-contrast-light",
  "pygments_dark_style": "a11y-high-contrast-dark",
}


@functools.cache
def _page(name: str) -> str:
  """Returns a page for the site, without the hidden toctree."""
  text = pages.for_site((pages.DOCS / f"{name}.md").read_text())
  return text.replace(keys.MARK, keys.markdown()) if keys.MARK in text else text


def _read(app, name: str, source: list[str]) -> None:
  del app
  source[0] = _page(name)
  if notebooks.is_notebook(source[0]):
    source[0] = notebooks.as_myst(source[0])
  if name == "index":
    for heading, names in pages.sections().items():
      source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {heading}\n\n" + "\n".join(names) + "\n```\n"
  if name == "studies" and pages.studies():
    source[0] += "\n```{toctree}\n:hidden:\n\n" + "\n".join(pages.studies()) + "\n```\n"


def _twin(text: str, folder: pathlib.Path) -> str:
  """Rewrites the paths of pictures and downloads to their location on the site."""

  def moved(found: re.Match) -> str:
    path = found.group(1)
    there = [] if path.endswith(".md") else sorted(folder.glob(f"_*/**/{pathlib.PurePosixPath(path).name}"))
    return f"]({there[0].relative_to(folder)})" if there else found.group(0)

  return re.sub(r"\]\(([^()\s#:]+)\)", moved, text)


def _write_twins(app, error: Exception | None) -> None:
  """Writes PAGE.md of every page, and llms.txt."""
  if error is not None or app.builder.name != "html":
    return
  folder = pathlib.Path(app.outdir)
  texts = {name: _page(name) for name in ["index", *pages.in_order()]}
  for name, text in texts.items():
    if notebooks.is_notebook(text):
      cells = json.loads((_cells(app) / f"{name}.ipynb").read_text())["cells"]
      texts[name] = notebooks.with_outputs(text, cells)
  for name, text in texts.items():
    (folder / f"{name}.md").write_text(_twin(text, folder))
  (folder / "llms.txt").write_text(pages.listed(texts))


def _cells(app) -> pathlib.Path:
  """Returns the folder of executed notebooks and their pictures."""
  return pathlib.Path(app.outdir) / "_cells"


def _keep_cells(app) -> None:
  """Stores executed notebooks in the site's folder, not among the pages (MyST-NB's default); removes older ones."""
  shutil.rmtree(_cells(app), ignore_errors=True)
  app.env.mystnb_config = app.env.mystnb_config.copy(output_folder=str(_cells(app)))


def setup(app) -> None:
  """Connects the handlers; called by Sphinx."""
  app.connect("builder-inited", _keep_cells, priority=900)  # after MyST-NB's handler
  app.connect("source-read", _read)
  app.connect("build-finished", _write_twins)
