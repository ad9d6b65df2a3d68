"""Tables for the terminal: nearest words, analogies by section, and correlation with similarity judgements."""

from collections.abc import Sequence
import json
from typing import Any

import rich.box
import rich.console
import rich.table
import rich.text

from t2t import UserError
from t2t.contrib.static import evaluation, word_vectors
from t2t.inference import jsonl_io
from t2t.storage import gcs

_SIGNS = {"+": 1, "-": -1}


def expressions(items: Sequence[str]) -> list[list[tuple[int, str]]]:
  """Returns the queries of a command line: words, or one sum of words.

  In:  ["cat", "dog"]; ["king", "-", "man", "+", "woman"] or ["king - man + woman"]
  Out: [[(1, "cat")], [(1, "dog")]]; [[(1, "king"), (-1, "man"), (1, "woman")]]

  Raises:
    UserError: a sign has no word on both sides, or words of a sum have no sign between them.
  """
  words = [word for item in items for word in item.split()]
  if not _SIGNS.keys() & set(words):
    return [[(1, word)] for word in words]
  signs, names = words[1::2], words[::2]
  if len(words) % 2 == 0 or not set(signs) <= _SIGNS.keys() or _SIGNS.keys() & set(names):
    raise UserError(f"WORD {' '.join(words)}: words and signs do not alternate. Give a sum such as king - man + woman.")
  return [[(1, names[0]), *((_SIGNS[sign], word) for sign, word in zip(signs, names[1:], strict=True))]]


def _title(terms: Sequence[tuple[int, str]]) -> str:
  return terms[0][1] + "".join(f" {'+' if sign > 0 else '-'} {word}" for sign, word in terms[1:])


def show(path: str, items: Sequence[str], *, top: int, analogies: str, similarities: str, output: str) -> None:
  """Prints the tables of `t2t neighbours --vectors`.

  Args:
    path: a run, or a text file of vectors.
    items: words and signs.
    top: neighbours of each query.
    analogies, similarities: files; "": none.
    output: file for a JSON object per query, or "-" for standard output without tables; "": none.

  Raises:
    UserError: a file, a word or an expression cannot be used.
  """
  if output and output != jsonl_io.PIPE and not output.endswith(".jsonl"):
    raise UserError(f"--output {output}: unknown file type. Give a file that ends in .jsonl, or -.")
  queries = expressions(items)
  read = lambda file, option, reader: reader(gcs.absolute(gcs.fetched(file, where=option))) if file else None
  sections = read(analogies, "--analogies ", evaluation.read_analogies)
  pairs = read(similarities, "--similarities ", evaluation.read_similarities)
  table = word_vectors.read(path)
  records: list[dict[str, Any]] = []
  console = rich.console.Console(quiet=output == jsonl_io.PIPE)
  for terms in queries:
    vector = word_vectors.combination(table, terms)
    found = word_vectors.nearest(table, vector, top=top, left_out=[word for _, word in terms])
    records.append({"query": _title(terms), "neighbours": [{"word": w, "score": round(s, 6)} for w, s in found]})
    rows = _rows(_title(terms))
    for word, score in found:
      rows.add_row(f"{score:.4f}", rich.text.Text(word))
    console.print(rows)
  if sections:
    records.append({"analogies": _show_analogies(evaluation.analogies(table, sections), console)})
  if pairs:
    result = evaluation.similarities(table, pairs)
    records.append({"similarities": {"spearman": result.spearman, "pairs": result.pairs, "unknown": result.unknown}})
    console.print(
      f"similarities   Spearman {100 * result.spearman:.2f} % of {result.pairs:,} pairs "
      f"({result.unknown:,} with an unknown word left out)"
    )
  content = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
  if output == jsonl_io.PIPE:
    print(content, end="")
  elif output:
    gcs.write(gcs.absolute(output), content)
    print(f"neighbours     {output}")


def _rows(title: str) -> rich.table.Table:
  table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
  table.add_column("cosine", justify="right", no_wrap=True)
  table.add_column(rich.text.Text(title))
  return table


def _show_analogies(sections: Sequence[evaluation.Section], console: rich.console.Console) -> list[dict[str, Any]]:
  table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
  table.add_column("section")
  for name in ("accuracy", "right", "answered", "unknown"):
    table.add_column(name, justify="right", no_wrap=True)
  rows = [*sections, evaluation.total(list(sections))]
  for row in rows:
    share = f"{100 * row.accuracy:.2f} %" if row.answered else "-"
    counts = (f"{number:,}" for number in (row.right, row.answered, row.unknown))
    table.add_row(rich.text.Text(row.name or "-"), share, *counts)
  console.print(table)
  return [{"section": x.name, "right": x.right, "answered": x.answered, "unknown": x.unknown} for x in rows]
