"""`t2t plan` on eight CPU devices; tests/planning/test_plan_tpu.py compiles for TPUs."""

import json
import math
import re
import subprocess
import sys

import jax
import numpy as np
import pytest
import test_evaluate
import trained

from t2t import UserError, feature_spec, sharding
from t2t import __main__ as command
from t2t.checkpoints import pretrained
from t2t.configuration.loading import load_config, override, records
from t2t.models.flops import model_flops
from t2t.planning import aot_compile, plan, roofline
from t2t.training import mesh_selection, recipe

SMALL = (
  "--config.model.vocab_size=384",
  "--config.model.embed_dim=16",
  "--config.model.num_heads=4",
  "--config.model.head_dim=8",
  "--config.model.mlp_dim=32",
  "--config.model.dtype=float32",
  "--config.data.inputs_length=32",
  "--config.data.targets_length=16",
  "--config.train.batch_size=16",
)
T5 = ("--config.model.num_encoder_layers=3", "--config.model.num_decoder_layers=2")
module = test_evaluate.module  # the fixture


def config(*overrides: str, name: str = "t5_1_1_small"):
  return records(override(load_config(name), [*SMALL, *overrides]))


@pytest.fixture(scope="module")
def small() -> plan.Plan:
  """Returns the plan of a small T5 on fsdp 4 x tensor 2."""
  return plan.make_plan(config(*T5, "--config.mesh.fsdp=4", "--config.mesh.tensor=2"), jax.devices())


# ---- The step --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize(
  ("name", "objective", "pack"),
  [
    ("t5_1_1_small", "span_corruption", False),
    ("t5_1_1_small", "span_corruption", True),
    ("tiny_gpt", "causal_lm", True),
    ("tiny_prefix_lm", "prefix_lm", False),
    ("tiny_bert", "masked_lm", False),
    ("tiny_bert", "masked_lm", True),
  ],
)
def test_a_plan_has_the_features_that_training_reads(tmp_path, name, objective, pack):
  """Names and shapes of the pipeline's batches are known without reading data."""
  from t2t.data import pipeline

  (tmp_path / "a.txt").write_text("\n\n".join(f"a line of text with the number {i} in it" for i in range(20_000)))
  files = (f"--config.data.files={tmp_path}/a.txt", f"--config.data.objective={objective}", "--config.data.mixture=")
  options = ("--config.data.vocabulary=bytes", "--config.data.num_streams=1", f"--config.data.pack={pack}")
  changed = config(*files, *options, name=name)
  mesh = sharding.make_mesh({"fsdp": 8})
  batch = next(pipeline.train_batches(changed.data, changed.model.architecture, mesh, batch_size=16, seed=0))
  if not pack and objective in ("causal_lm", "prefix_lm"):
    batch.pop("decoder_segment_ids", None)  # for vocabularies with a token 0, such as bytes
  assert {name: (x.shape, x.dtype) for name, x in batch.items()} == {
    name: (x.shape, x.dtype) for name, x in recipe.batch(changed).items()
  }


@pytest.mark.exhaustive
def test_a_plan_knows_which_tasks_have_inputs(tmp_path):
  """For every objective, shipped tasks, and registered tasks of users with any name."""
  import seqio

  from t2t.data import feature_converters, objectives, registry

  def planned(mixture, modules, **data):
    changed = config(name="tiny_gpt").with_(data={"mixture": mixture, "task_modules": modules} | data)
    return recipe.task_features(changed)

  def expected(yielded):
    if "both_ways" in yielded:
      return (*feature_spec.NEXT_TOKENS, *(name for name in yielded if name == "noise_levels"))
    return ("inputs", "targets") if "inputs" in yielded else ("targets",)

  for objective, made in objectives.OBJECTIVES.items():
    assert planned("", (), objective=objective) == expected(made.features), objective
  for module in registry.shipped():
    for task in registry.load(module):
      assert planned(task, (module,)) == expected(seqio.get_mixture_or_task(task).output_features), task
  assert planned("c4_causal_lm,c4_fill_in_the_middle", ("t2t.tasks.c4",)) == ("targets",)
  source = """
import seqio
from t2t.data import objectives
for name, objective in (("my_corpus", "causal_lm"), ("causal_lm_in_name_alone", "prefix_lm")):
  seqio.TaskRegistry.add(name, source=seqio.FunctionDataSource(lambda split, shuffle_files: None, splits=("train",)),
    preprocessors=objectives.preprocessors(objective), output_features=objectives.t5_features(objective))
"""
  (tmp_path / "own.py").write_text(source)
  assert planned("my_corpus", (f"{tmp_path}/own.py",)) == ("targets",)
  assert planned("causal_lm_in_name_alone", (f"{tmp_path}/own.py",)) == ("inputs", "targets")
  assert set(feature_spec.ARCHITECTURES) == set(feature_converters.FEATURE_CONVERTERS)


def test_flops_of_a_plan_are_those_of_the_program(small):
  """Without recomputation the program's multiplications equal the formula's."""
  assert small["executed_flops_per_step"] == pytest.approx(small["flops_per_step"], rel=0.02)
  assert small["tokens_per_step"] == 16 * (32 + 16)
  assert small["flops_per_token"] == small["flops_per_step"] / small["tokens_per_step"]


def test_what_has_a_loss_is_what_the_objective_hides():
  """For an encoder-only model the masked positions, for a decoder-only model those after its inputs."""
  share = lambda *keys, name: recipe.share_predicted(config(*keys, name=name))
  assert share(name="tiny_bert") == 0.15
  files = ("--config.data.files=a.txt", "--config.data.mixture=", "--config.data.vocabulary=bytes")
  assert share("--config.data.noise_density=0.4", *files, name="tiny_bert") == 0.4
  lengths = ("--config.data.inputs_length=96", "--config.data.targets_length=32")
  assert share(*lengths, name="tiny_prefix_lm") == 0.25
  assert share(*lengths, name="tiny_gpt") == share(*lengths, name="tiny") == 1.0


@pytest.mark.exhaustive
def test_flops_where_little_has_a_loss():
  """A data-dependent loop over chunks is assumed to run by the objective's masked fraction."""
  chunks = ("--config.train.logits_chunk_tokens=4", "--config.model.vocab_size=1024", "--config.model.max_length=64")
  found = plan.make_plan(config(*chunks, name="tiny_bert"), jax.devices())
  assert found["executed_flops_per_step"] == pytest.approx(found["flops_per_step"], rel=0.05)


@pytest.mark.exhaustive
def test_full_remat_runs_the_layers_forward_again():
  """A third more is executed, except for the parts that no later layer needs."""
  # With fsdp: if parameters are whole on each device, XLA for CPUs merges the recomputation.
  model = ("--config.model.remat=full", "--config.model.vocab_size=8", "--config.model.mlp_dim=512")
  changed = config(*T5, *model, "--config.mesh.fsdp=-1")
  found = plan.make_plan(changed, jax.devices())
  assert 1.2 < found["executed_flops_per_step"] / found["flops_per_step"] < 4 / 3


@pytest.mark.exhaustive
def test_microbatches_compute_the_same(small):
  """The microbatch loop counts per iteration; the mesh does not change the total over devices."""
  two = plan.make_plan(config(*T5, "--config.train.microbatches=2"), jax.devices())
  assert two["executed_flops_per_step"] == pytest.approx(small["executed_flops_per_step"], rel=0.02)


def test_what_waits_in_the_hosts_memory_takes_none_of_the_devices():
  """A shard counts in its own memory."""
  mesh = sharding.make_mesh({"fsdp": 8})
  place = lambda kind: sharding.batch_sharding(mesh).with_memory_kind(kind)
  moment = lambda kind: jax.ShapeDtypeStruct((16, 4), np.float32, sharding=place(kind))
  assert aot_compile.bytes_per_device({"m": moment("device"), "v": moment("pinned_host")}) == 2 * 4 * 4


def test_memory_is_that_of_the_shards(small):
  """float32 parameters over eight devices, a batch over four; the total is the sum of the parts."""
  memory = small["memory_per_chip"]
  assert memory["parameters"] == pytest.approx(4 * small["parameters"] / 8, rel=0.05)
  assert memory["batch"] == (16 // 4) * (32 + 3 * 16) * 4
  parts = memory["parameters"] + memory["optimizer"] + memory["batch"]
  assert memory["arguments"] == pytest.approx(parts, rel=0.05)  # unused inputs are not arguments
  assert memory["total"] >= memory["temporaries"] >= memory["activations"] > 0
  assert small["fits"] is (memory["total"] <= memory["capacity"])


@pytest.mark.exhaustive
def test_a_pipeline_by_hand():
  """Stages compute in the bubble, too, so FLOPs grow by ticks per microbatch; each tick sends a microbatch."""
  stages = ("--config.model.num_encoder_layers=2", "--config.model.num_decoder_layers=2", "--config.mesh.stage=2")
  made = lambda number: plan.make_plan(
    config(*stages, "--config.mesh.fsdp=4", f"--config.model.pipeline_microbatches={number}"), jax.devices()
  )
  one, four = made(1), made(4)
  assert (one["pipeline"]["bubble"], four["pipeline"]["bubble"]) == (0.5, pytest.approx(0.2))
  assert "4 microbatches pass 2 stages; a bubble of 20% of the layers' time" in " ".join(plan.report(four).split())
  of_layers = model_flops(config(*stages).model, batch_size=16, lengths={"encoder": 32, "decoder": 16}, predicted=0)
  more = one["executed_flops_per_step"] - four["executed_flops_per_step"]
  assert more == pytest.approx((2 / 1 - 5 / 4) * of_layers, rel=0.1)
  # A device has 1 row of a microbatch, with 32 + 16 positions of 16 float32 features. It sends 5 ticks forward and
  # backward, and the gradients of the 4 microbatches to the last stage.
  assert four["collective_bytes"]["collective-permute"]["stage"] == (5 + 5 + 4) * 48 * 16 * 4


def test_collectives_of_a_plan_are_over_the_axes_of_its_mesh(small):
  """Weights are gathered over fsdp, activations summed over tensor; no axis of one device occurs."""
  sent = small["collective_bytes"]
  assert sent["all-gather"]["fsdp"] > 0
  assert sent["all-reduce"]["tensor"] > 0
  assert {axis for by_axes in sent.values() for axes in by_axes for axis in axes.split("+")} == {"fsdp", "tensor"}


@pytest.mark.parametrize(
  ("overrides", "message"),
  [
    (("--config.mesh.fsdp=3",), r"config.mesh.*8"),
    (("--config.mesh.fsdp=1", "--config.mesh.tensor=8"), r"config.mesh.tensor=8.*num_heads=4.*\[1, 2, 4\]"),
    (("--config.train.batch_size=12",), r"config.train.batch_size=12.*Give 8 or 16"),
    (("--config.train.microbatches=3",), "config.train.batch_size=16.*Give 24"),
  ],
)
def test_sizes_that_do_not_divide_are_refused(overrides, message):
  """Before anything is compiled, with sizes that work."""
  with pytest.raises(UserError, match=message):
    plan.make_plan(config(*T5, *overrides), jax.devices())


# ---- The mesh --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  ("name", "devices", "kind", "mesh", "why"),
  [
    # embed is 768, 4,096 and 1,024: shards of 192, 128 and 128.
    (
      "t5_1_1_base",
      16,
      "TPU v5 lite",
      {"data": 4, "fsdp": 4, "tensor": 1},
      "fsdp 4, the largest with shards .* 128 wide; the rest",
    ),
    ("t5_1_1_xxl", 1_024, "TPU v5", {"data": 32, "fsdp": 32, "tensor": 1}, "fsdp 32, the largest"),
    ("t5_1_1_xxl", 8, "TPU v5", {"data": 1, "fsdp": 8, "tensor": 1}, "fsdp 8, all devices$"),
    # Wide enough shards would have 11.3 GB of the state, more than half of a v5e's memory.
    ("t5_xxl", 256, "TPU v5 lite", {"data": 16, "fsdp": 16, "tensor": 1}, "fsdp 16, to fit 90.* GB of param"),
    ("ul2_20b", 64, "TPU v5 lite", {"data": 2, "fsdp": 32, "tensor": 1}, "fsdp 32, the largest"),
    ("llama2_13b", 256, "TPU v5 lite", {"data": 8, "fsdp": 32, "tensor": 1}, "fsdp 32"),
    ("tiny", 8, "", {"data": 8, "fsdp": 1, "tensor": 1}, "fsdp 1, the largest"),
    ("tiny", 1, "", {"data": 1, "fsdp": 1, "tensor": 1}, "^$"),
  ],
)
def test_the_mesh_that_is_chosen(name, devices, kind, mesh, why):
  """Shards stay as wide as a TPU's rows, unless the training state needs more of them; data takes the rest."""
  found = mesh_selection.choose(records(load_config(name)), devices, device_kind=kind)
  assert found[0] == mesh
  assert re.search(why, found[1]), found[1]


def test_what_is_said_of_the_mesh_is_kept():
  """Given sizes and -1 are kept; fsdp is chosen for the rest beside tensor and dcn_data, and errors name the cause."""
  choose = lambda devices, **mesh: mesh_selection.choose(records(config_of_mesh(**mesh)), devices)
  config_of_mesh = lambda **mesh: override(
    load_config("t5_1_1_base"), [f"--config.mesh.{axis}={size}" for axis, size in mesh.items()]
  )
  assert choose(16, fsdp=-1) == ({"data": 1, "fsdp": 16, "tensor": 1}, "")
  assert choose(16, data=-1)[0] == {"data": 16, "fsdp": 1, "tensor": 1}
  assert choose(16, tensor=4)[0] == {"data": 1, "fsdp": 4, "tensor": 4}
  assert choose(64, dcn_data=2, data=2)[0] == {"dcn_data": 2, "data": 8, "fsdp": 4, "tensor": 1}
  for mesh, message in (({"tensor": 3}, "3 does not divide 16"), ({"fsdp": 4}, "needs 4 device")):
    with pytest.raises(UserError, match=message):
      choose(16, **mesh)


# ---- The report ------------------------------------------------------------------------------------------------------


def on_a_tpu(small: plan.Plan, **memory: float) -> plan.Plan:
  """Returns a plan as it would be with a prediction."""
  times = {"compute": 0.5, "memory": 0.25, "host": 0.1, "links": {"fsdp": 0.125, "fsdp+tensor": 1e-5}}
  found = small | {
    "seconds_at_peak": times,
    "exposed_seconds": 0.1,
    "waiting_seconds": {"fsdp": 0.1},
    "host_bytes_per_step": 1e9,
  }
  found |= {"predicted_step_seconds": 0.75, "bound": "matmuls"}
  found |= {"predicted_mfu": 0.4, "tokens_per_second": small["tokens_per_step"] / 0.75, "device": "8 x TPU v5 lite"}
  found["memory_per_chip"] = small["memory_per_chip"] | memory
  found["fits"] = found["memory_per_chip"]["total"] <= found["memory_per_chip"]["capacity"]
  return found


def test_hours_and_cost_of_a_number_of_tokens(small):
  """Tokens by speed; chips by hours; price by chip-hours."""
  found = plan.with_budget(on_a_tpu(small) | {"tokens_per_second": 1000.0}, 7.2e6, 1.5)
  assert (found["hours"], found["chip_hours"], found["cost"]) == (2.0, 16.0, 24.0)
  assert "cost" not in plan.with_budget(on_a_tpu(small), 7.2e6, None)


def test_a_report_is_80_columns_wide(small):
  """On a CPU, with a prediction, and without enough memory."""
  tight = on_a_tpu(small, total=3e10, capacity=16e9, temporaries=2.9e10)
  tight["would_fit"] = plan.would_fit(tight)
  for each in (small, plan.with_budget(on_a_tpu(small), 1e12, 4.2), tight):
    assert max(len(line) for line in plan.report(each).splitlines()) <= 80
  assert "it does NOT fit: 14 GB too much for each chip" in plan.report(tight)
  assert "prediction (not a measurement" in plan.report(on_a_tpu(small))
  assert " 0 GB" not in plan.report(small) and re.search(r"parameters +\d+\.?\d* [kM]B\n", plan.report(small))
  assert "attention: encoder plain (CPU); decoder plain (CPU); cross plain (CPU)" in plan.report(small).splitlines()


def test_a_report_begins_with_what_one_asks_first(small):
  """The product name of the chip, and whether the step fits; then the details."""
  said = plan.report(on_a_tpu(small, capacity=16e9) | {"device": "8 x TPU v5"}).splitlines()
  assert said[0].startswith("8 x TPU v5p, ")
  first = [next(place for place, line in enumerate(said) if line.startswith(text)) for text in ("it fits", "a step")]
  assert first[1] == first[0] + 1 < said.index("memory of one chip")
  assert "750 ms" in said[first[1]]
  assert plan.report(on_a_tpu(small, capacity=16e9)).startswith("8 x TPU v5e, ")


def test_what_a_plan_calls_longest_fits_its_line():
  """Each part has its reason beside it."""
  assert all(len(text) <= 39 for text in roofline.BOUNDS.values())


def test_what_would_make_a_plan_fit(small):
  """More shards if the state is too large; otherwise fewer rows at a time, or more recomputation."""
  gigabytes = {"parameters": 2e9, "optimizer": 4e9, "arguments": 6e9, "capacity": 16e9}
  large = on_a_tpu(small, total=30e9, temporaries=24e9, **gigabytes)
  # 2 GB of gradients and 22 GB for 4 rows; 10 GB are free, of which gradient accumulators take 4.
  assert plan.would_fit(large)[0].startswith("--config.train.microbatches=4: 1 row of the batch at a time")
  assert plan.would_fit(large)[-1].startswith("--config.model.remat=full")  # with an unknown effect
  # A contrastive loss compares the rows of a whole batch.
  whole = large | {"takes_microbatches": False}
  assert (whole["batch_size"], whole["rows_at_a_time"]) == (16, 4)
  assert plan.would_fit(whole)[0] == "--config.train.batch_size=4"  # 5.5 GB for a row, and 8 are free: no accumulators
  wide = on_a_tpu(small, total=36e9, temporaries=30e9, **gigabytes) | {"takes_microbatches": False}
  # 7 GB for a row, which fits only without accumulators
  assert plan.would_fit(wide)[0] == "--config.train.batch_size=4"
  state = on_a_tpu(small, total=60e9, temporaries=30e9, **(gigabytes | {"parameters": 10e9, "optimizer": 20e9}))
  state |= {"parameters": 2.5e9 * 8, "optimizer": "adamw"}
  assert plan.would_fit(state)[0] == "32 chips or more: parameters, optimizer and gradients alone fill 20"
  assert plan.would_fit(state)[1].startswith("--config.optimizer.name=adafactor")


# ---- Cache and command -----------------------------------------------------------------------------------------------


def test_a_finished_plan_is_kept(tmp_path):
  """A compiled plan is read from the cache, until one of its inputs changes."""
  path = tmp_path / "plans" / "a.json"
  assert plan.cached(path, lambda: {"fits": True}) == {"fits": True}
  assert plan.cached(path, lambda: pytest.fail("compiled again")) == {"fits": True}
  path.write_text("{")
  assert plan.cached(path, lambda: {"fits": False}) == {"fits": False}


def test_the_name_of_a_plan_depends_on_config_devices_and_flags(monkeypatch):
  """Another step, TPU or compiler flag gives another plan."""
  first = plan.cache_path(config(), "v5e:4x4")
  assert plan.cache_path(config(), "v5e:4x4") == first
  others = plan.cache_path(config(), "v5e:4x8"), plan.cache_path(config("--config.train.z_loss=0"), "v5e:4x4")
  flags = []
  for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS"):
    with monkeypatch.context() as patch:
      patch.setenv(name, "--xla_tpu_scoped_vmem_limit_kib=1024")
      flags.append(plan.cache_path(config(), "v5e:4x4"))
  assert len({first, *others, *flags}) == 5


@pytest.mark.exhaustive
def test_the_command_prints_a_report_and_json(capsys, tmp_path, monkeypatch):
  """Both have the same numbers; the second run does not compile."""
  monkeypatch.setenv("T2T_CACHE_DIR", str(tmp_path))
  arguments = ["plan", "--config", "t5_1_1_small", *SMALL, *T5, "--json"]
  assert command.main(arguments) == 0
  out, error = capsys.readouterr()
  found = json.loads(out.splitlines()[-1])
  assert f"{found['parameters']:,} parameters" in out
  assert "compiling t5_1_1_small" in error
  assert {"flops_per_step", "collective_bytes", "predicted_step_seconds", "predicted_mfu", "fits"} <= set(found)
  assert {"arguments", "temporaries", "total", "capacity"} <= set(found["memory_per_chip"])
  assert math.isfinite(found["executed_flops_per_step"])
  assert command.main(arguments) == 0
  again, error = capsys.readouterr()
  assert again == out
  assert not error


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["--topology", "v9:1x1"], "--topology v9:1x1: unknown TPU topology"),
    (["--slices", "2"], "--slices 2 needs --topology"),
    (["--price", "4"], "--price 4 needs the number of tokens. Give --tokens"),
    (["--tokens", "-1"], "argument --tokens: -1 is not valid. Give a finite number, above 0"),
    (["--tokens", "1e9", "--price", "0"], "argument --price: 0 is not valid. Give a finite number, above 0"),
    (["--search", "--max_compiles", "0"], "argument --max_compiles: 0 is not valid. Give a whole number, 1 or more"),
    (["--config.model.positions=learned", "--config.model.max_length=64"], "config.model.max_length=64 positions"),
    (
      ["--search", "--config.model.positions=learned", "--config.model.max_length=64"],
      "sequences of 512 tokens in the encoder",
    ),
    (["--config.data.inputs_length=0"], "config.data.inputs_length=0 must be at least 1"),
    (["--search", "--config.data.targets_length=-5"], "config.data.targets_length=-5 must be at least 1"),
    (["--hlo", "/proc/none/step.txt"], "--hlo /proc/none/step.txt cannot be written (No such file or directory)"),
  ],
)
def test_bad_options_are_refused(capsys, arguments, message):
  """Prints one line, with exit code 2."""
  try:
    code = command.main(["plan", "--config", "t5_1_1_small", *arguments])
  except SystemExit as ended:  # for options that argparse refuses
    code = ended.code
  assert code == 2
  assert message in capsys.readouterr().err


@pytest.mark.parametrize(
  ("name", "overrides", "asks"),
  [
    ("t5_1_1_small", (), False),
    ("bert_base", (), False),
    ("bert_nsp_base", (), False),
    ("bert_base", ("--config.data.mixture=odd_label",), True),
    ("bert_base", ("--config.data.files=text.txt",), False),
    ("bert_base", ("--config.data.mixture=odd_label", "--config.train.loss=cross_entropy"), False),
    ("finetune_superglue", (), False),
    ("finetune_superglue", ("--config.train.loss=heads",), True),
    ("finetune_superglue", ("--config.train.epochs=3.0",), True),
  ],
)
def test_what_only_the_data_knows(name, overrides, asks):
  """Heads of tasks and the steps of an epoch; all else is planned without loading TensorFlow."""
  assert recipe.asks_data(records(override(load_config(name), list(overrides)))) is asks


@pytest.mark.exhaustive
def test_a_plan_of_fine_tuning_has_the_heads_of_its_tasks(module, capsys):
  """The model is the checkpoint's, the head the task's, and the recipe an encoder's, as in training."""
  argv = ["plan", "--json", "--config=finetune_superglue", *test_evaluate.options(module)]
  assert command.main([*argv, f"--config.init.checkpoint={trained.workdir('encoder_only')}"]) == 0
  plan = json.loads(capsys.readouterr().out.splitlines()[-1])
  assert (plan["lengths"], plan["optimizer"]) == ({"encoder": 72}, "adamw")
  source = pretrained.read_source(str(trained.workdir("encoder_only")))
  body = jax.tree.leaves(pretrained.abstract(source, sharding.make_mesh({"data": 8})).params)
  # Pooler and projection, with their biases.
  assert plan["parameters"] == sum(x.size for x in body) + 16 * 16 + 16 + 16 * 2 + 2


@pytest.mark.exhaustive
def test_planning_loads_no_tensorflow():
  """A machine without TensorFlow can plan."""
  code = "import sys, t2t.commands.plan; sys.exit('tensorflow' in sys.modules or 'seqio' in sys.modules)"
  assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
