"""Error of `t2t plan`: predicted step times of runs whose step time was published.

  python benchmarks/prediction.py --programs /tmp/programs --markdown docs/prediction.md

Each run is compiled as t2t would train it, which needs the [tpu] extra but no TPU. That takes one to ten minutes each,
longest with offloading; programs are kept. t2t's program is compared with MaxText's time, so the error includes both
the rule of t2t/planning/roofline.py and the differences between the programs. The rule's constants are older than this
table. Tune them on the runs called "fit" only, and report the effect on the runs called "test".
"""

import argparse
import dataclasses
import json
import os
import pathlib
import statistics

import jax

from t2t import UserError, accelerators
from t2t.commands.options import config_parser, parse
from t2t.configuration.loading import records
from t2t.models.flops import model_flops
from t2t.planning import aot_compile
from t2t.runtime import xla_flags
from t2t.training import mesh_selection, recipe

_TABLE = "AI-Hypercomputer/maxtext, README"


@dataclasses.dataclass(frozen=True)
class Run:
  """A published run.

  half: "fit", "test", or "loose". The source of a loose run gives neither batch nor remat policy; these are
    from related scripts.
  seconds: of a step.
  rows: global batch size.
  remat: closest policy with t2t's names; `others` has further flags.
  source: a folder of `training/` in AI-Hypercomputer/tpu-recipes, or a sentence.
  """

  half: str
  what: str
  topology: str
  seconds: float
  config: str
  rows: int
  length: int
  remat: str
  source: str
  mesh: str = "fsdp"
  others: tuple[str, ...] = ()


def _model(**fields: object) -> tuple[str, ...]:
  return tuple(f"--config.model.{name}={value}" for name, value in fields.items())


_WIDE = dict(embed_dim=8192, num_heads=64, num_kv_heads=8, mlp_dim=28_672, num_decoder_layers=80)
_70B = _model(**_WIDE)
_405B = _model(embed_dim=16_384, num_heads=128, num_kv_heads=8, mlp_dim=53_248, num_decoder_layers=126)
_16B = _model(embed_dim=4096, num_heads=32, mlp_dim=14_336, num_decoder_layers=64)
_32B = _model(embed_dim=8192, num_heads=32, mlp_dim=14_336, num_decoder_layers=64)
_GPT3 = _model(embed_dim=12_288, num_heads=96, head_dim=128, mlp_dim=49_152, num_decoder_layers=96, vocab_size=50_304)
_GPT3 += _model(max_length=2048)
_OFFLOADED = "input@host,query@host,key@host,value@host"

RUNS = (
  Run("fit", "Llama 3.1 8B", "v6e:2x4", 3.443, "llama3_8b", 24, 8192, f"{_OFFLOADED},attention_out@host",
      "trillium/Llama3.1-8B-MaxText/v6e-8"),
  Run("fit", "Llama 2 70B", "v6e:16x16", 17.373, "llama2_7b", 1024, 4096, "full",
      "trillium/Llama2-70B-MaxText", others=_70B),
  Run("fit", "Llama 3.1 70B", "v6e:8x8", 18.688, "llama3_8b", 128, 8192, _OFFLOADED,
      "trillium/Llama3.1-70B-MaxText/v6e-64", others=_70B),
  Run("fit", "Llama 3.1 70B", "tpu7x:4x4x4", 12.20, "llama3_8b", 256, 8192, "query,key,value,attention",
      "ironwood/llama3.1-70b/8k-bf16-tpu7x-4x4x4", others=_70B),
  Run("fit", "Llama 3.1 405B", "v5p:8x8x8", 131.474, "llama3_8b", 1024, 8192, "attention@host,mlp_out@host",
      "v5p/Llama3.1-405B-MaxText", others=_405B),
  Run("test", "Llama 3.1 8B", "v6e:16x16", 4.546, "llama3_8b", 1024, 8192, f"{_OFFLOADED},attention_out@host",
      "trillium/Llama3.1-8B-MaxText/v6e-256"),
  Run("test", "Mistral 7B", "v6e:2x4", 6.320, "llama3_8b", 48, 8192, f"{_OFFLOADED},attention_out@host",
      "trillium/Mistral-7B-MaxText", others=_model(vocab_size=32_000)),
  Run("test", "GPT-3 175B", "v6e:16x16", 17.182, "gpt2_xl", 768, 2048, "full",
      "trillium/GPT3-175B-MaxText/bf16", others=_GPT3),
  Run("test", "Llama 2 70B", "v6e:16x16", 9.052, "llama2_7b", 512, 4096, "query@host,key@host,value@host",
      "trillium/Llama2-70B-MaxText", others=_70B),
  Run("test", "Llama 3.1 405B", "tpu7x:4x8x8", 101.89, "llama3_8b", 1536, 8192, "input@host,mlp_out@host,key,value",
      "ironwood/llama3.1-405b/8k-bf16-tpu7x-4x8x8", others=_405B),
  Run("loose", "MaxText 16B", "v5e:16x16", 10.026, "llama2_7b", 1536, 2048, "full", _TABLE, others=_16B),
  Run("loose", "MaxText 32B", "v5e:16x16", 12.016, "llama2_7b", 1024, 2048, "full", _TABLE, others=_32B),
  Run("loose", "Llama 2 70B", "v5p:4x4x4", 23.611, "llama2_7b", 256, 4096, "query@host,key@host,value@host",
      "MaxText's announcement of Llama 2 70B at 65 % of v5p's peak", others=_70B),
)  # fmt: skip


# t2t's flags that the recipes do not set; they reduce waiting relative to the measured programs. Two are set to false,
# and a numeric one keeps libtpu's default.
_NOT_THEIRS = ("xla_enable_async_all_reduce", "xla_tpu_enable_async_collective_fusion_fuse_all_reduce")
_LEFT_OUT = "xla_jf_crs_combiner_threshold_in_bytes"


def _program(run: Run, folder: pathlib.Path) -> pathlib.Path:
  return folder / f"{run.what}_{run.topology}_{run.rows}.hlo".replace(" ", "_").replace(":", "_")


def _compiled(run: Run, folder: pathlib.Path):
  """Returns config, mesh, operation counts and bytes of a run; keeps its program in the folder."""
  parser = config_parser("prediction", "")
  devices = list(aot_compile.devices(run.topology))
  flags = ["--config", run.config, f"--config.mesh.{run.mesh}={len(devices)}", f"--config.train.batch_size={run.rows}"]
  flags += [f"--config.data.targets_length={run.length}", f"--config.model.remat={run.remat}", *run.others]
  _, config = parse(parser, flags)
  config = records(config)
  mesh, _ = mesh_selection.make(config, devices=devices)
  path = _program(run, folder)
  if not path.exists():
    compiled = aot_compile.compile_step(config, mesh)
    if compiled.text is None:
      raise UserError(f"{run.what}, {run.topology}: does not compile, needs {compiled.total / 1e9:.1f} GB a chip")
    path.with_suffix(".json").write_text(json.dumps({"total": compiled.total}))
    path.write_text(compiled.text)
  counted = aot_compile.counted(path.read_text(), config, mesh)
  return config, mesh, counted, json.loads(path.with_suffix(".json").read_text())["total"]


def predict(run: Run, folder: pathlib.Path) -> dict:
  """Returns the plan's prediction of a run, and the published values."""
  config, mesh, counted, total = _compiled(run, folder)
  kind = mesh.devices.flat[0].device_kind
  chip, peak = accelerators.CHIPS[kind], accelerators.peak_flops(kind)
  times = aot_compile.predicted(counted, config, mesh)
  flops = model_flops(config.model, batch_size=run.rows, lengths=recipe.lengths(config))
  return dataclasses.asdict(run) | {
    "chips": mesh.size // chip.per_chip,
    "gigabytes": total / 1e9,
    "fits": total <= chip.hbm_bytes,
    "predicted": times.predicted,
    "error": times.predicted / run.seconds - 1,
    "mfu": flops / run.seconds / (peak * mesh.size),
    "compute": times.compute,
    "memory": times.memory,
    "host": times.host,
    "exposed": times.exposed,
    "bound": times.bound,
  }


def table(rows: list[dict]) -> str:
  """Formats the predictions in Markdown."""
  lines = [
    "| half | model | chips | batch | `remat` | published | predicted | error | too large | source |",
    "|---|---|---|---|---|---|---|---|---|---|",
  ]
  for row in rows:
    too_large = "" if row["fits"] else f" {row['gigabytes']:.1f} GB"
    lines.append(
      f"| {row['half']} | {row['what']} | {row['topology']} | {row['rows']:,} x {row['length']:,} |"
      f" {row['remat'].replace(',', ', ')} | {row['seconds']:g} s | {row['predicted']:.2f} s |"
      f" {row['error']:+.0%} |{too_large} | {row['source']} |"
    )
  lines.append("")
  for half in ("fit", "test", "loose"):
    errors = [abs(row["error"]) for row in rows if row["half"] == half]
    if errors:
      lines.append(f"- {half}: mean error {statistics.mean(errors):.1%}, largest {max(errors):.1%}, {len(errors)} runs")
  bounds = sorted({row["bound"] for row in rows})
  lines += ["", f"What bounds the predicted steps: {', '.join(bounds)}."]
  return "\n".join(lines)


def _refused(too_large: list[str]) -> str:
  """Formats the runs that libtpu refuses to compile, in Markdown."""
  if not too_large:
    return ""
  return "\n".join(["", "", "Too large for libtpu, as t2t trains them:", "", *(f"- {line}" for line in too_large)])


_HEAD = """# Step times that `t2t plan` predicts, and published ones

This page shows how far the predicted step times of `t2t plan` are from measured ones. Compile the programs and make the
table with

    python benchmarks/prediction.py --programs DIR --markdown docs/prediction.md

libtpu compiled t2t's own program for each run. Others published the times, for MaxText's programs on real TPUs.

- "fit": runs to which the constants of `t2t/planning/roofline.py` may be fitted.
- "test": held-out runs.
- "loose": the source names neither batch nor remat policy. Both are from MaxText's scripts, so these rows test only the
  order of magnitude.

The constants were chosen before this table, and two rules after it. Communication overlaps only with computation at the
same time; this rule changed no row. Attention kernels take as many cycles as in libtpu's schedules, without a discount,
because this fits the runs "fit" best.

The column "too large" has the memory per chip of programs that libtpu compiles, but that do not fit a chip by the plan.
Folders in the column "source" are in `training/` of AI-Hypercomputer/tpu-recipes.

"""


def main() -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--programs", required=True, help="folder for compiled programs")
  parser.add_argument("--markdown", help="file that the table is also written to")
  parser.add_argument("--only", default="", help="select runs whose model and topology contain this text")
  parser.add_argument("--no_compiling", action="store_true", help="skip runs without a program in the folder")
  options = parser.parse_args()
  folder = pathlib.Path(options.programs)
  folder.mkdir(parents=True, exist_ok=True)
  jax.config.update("jax_platforms", "cpu")
  other_flags = os.environ.get("LIBTPU_INIT_ARGS", "")
  os.environ["LIBTPU_INIT_ARGS"] = " ".join([*(f"--{name}=false" for name in _NOT_THEIRS), other_flags])
  xla_flags.FLAGS = xla_flags.FLAGS | {"tpu": tuple(flag for flag in xla_flags.FLAGS["tpu"] if flag.name != _LEFT_OUT)}
  predictions, too_large = [], []
  for run in RUNS:
    wanted = options.only in f"{run.what} {run.topology}"
    if wanted and (_program(run, folder).exists() or not options.no_compiling):
      try:
        predictions.append(predict(run, folder))
      except UserError as error:
        too_large.append(str(error))
        print(error, flush=True)
      else:
        print(json.dumps(predictions[-1]), flush=True)
  page = table(predictions) + _refused(too_large)
  print(page)
  if options.markdown:
    pathlib.Path(options.markdown).write_text(_HEAD + page + "\n")


if __name__ == "__main__":
  main()
