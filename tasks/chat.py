"""Conversations in JSON lines, {"messages": [{"role": "user", "content": "Hi"}, ...]}; answers count in the loss.

config.data.benchmark_dirs.chat names the folder with train.jsonl and validation.jsonl. config.data.templates names a
file with the texts of the roles, see docs/prompts.md.
"""

import functools

import seqio

from t2t.data import postprocessors, preprocessors
from t2t.data.sources import benchmark_files
from t2t.data.templates import chat
from t2t.evaluation import task_metrics

seqio.TaskRegistry.add(
  "chat",
  source=benchmark_files.BenchmarkSource("chat", tfds="", splits=("train", "validation")),
  preprocessors=preprocessors.text_to_text(functools.partial(chat.answers, turns=chat.PLAIN)),
  output_features=preprocessors.t5_features(),
  postprocess_fn=postprocessors.text(),
  metric_fns=[task_metrics.rouge],
)
