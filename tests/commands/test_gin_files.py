"""T5X's gin files on the command line: every family and kind of run, T5X's flags, and errors."""

import json
import pathlib
import re

import folders
import pytest
import t5x_files

from t2t import UserError
from t2t import __main__ as command
from t2t.commands import gin_conversion, gin_files, options
from t2t.configuration.loading import load_config, records
from t2t.convert import gin
from t2t.convert.gin import param_map as gin_names
from t2t.convert.gin import t5x_defaults as standard
from t2t.convert.gin.bindings import macros_in
from t2t.models import presets
from t2t.training.optimizers import make_optimizer

ROOT = folders.ROOT
TINY = str(ROOT / "configs" / "gin")

# family -> T5X's file of a size, and t2t's fields; with T5X's spelling of sizes.
FAMILIES = {
  "t5_1_0": ("t5x/examples/t5/t5_1_0/{}.gin", presets.t5_1_0, ("small", "base", "large", "3B", "11B")),
  "t5_1_1": ("t5x/examples/t5/t5_1_1/{}.gin", presets.t5_1_1, ("small", "base", "large", "xl", "xxl")),
  "mt5": ("t5x/examples/t5/mt5/{}.gin", presets.mt5, ("small", "base", "large", "xl", "xxl")),
  "byt5": ("t5x/examples/t5/byt5/{}.gin", presets.byt5, ("small", "base", "large", "xl", "xxl")),
  "flaxformer": ("flaxformer/t5x/configs/t5/models/t5_1_1_{}.gin", presets.t5_1_1, ("small", "xxl")),
  "ul2": ("", presets.ul2, ("small", "20b")),
}
MODELS = [(family, size) for family, (_, _, names) in FAMILIES.items() for size in names]
OURS = {"3B": "xl", "11B": "xxl"}


def ul2(folder: pathlib.Path, size: str) -> str:
  """Writes a file of UL2 in Flaxformer's terms: T5 1.1's architecture, other sizes, and SwiGLU."""
  fields = presets.ul2(size)
  lines = [
    "include 'flaxformer/t5x/configs/t5/architectures/t5_1_1_flaxformer.gin'",
    "from flaxformer.components import dense",
    *(f"{macro} = {fields[ours]}" for ours, macro in standard._MACROS.items()),
    "dense.MlpBlock.activations = ('swish', 'linear')",
    "VOCABULARY = @seqio.SentencePieceVocabulary()",
    "seqio.SentencePieceVocabulary.sentencepiece_model_file = 'ul2.model'",
    "OPTIMIZER = @adafactor.Adafactor()",
    "MODEL = @models.EncoderDecoderModel()",
    *(f"models.EncoderDecoderModel.{side}_vocabulary = %VOCABULARY" for side in ("input", "output")),
    "models.EncoderDecoderModel.module = %ARCHITECTURE",
    "models.EncoderDecoderModel.optimizer_def = %OPTIMIZER",
    "models.EncoderDecoderModel.z_loss = 0.0001",
    "models.EncoderDecoderModel.loss_normalizing_factor = %LOSS_NORMALIZING_FACTOR",
    "LOSS_NORMALIZING_FACTOR = None",
  ]
  path = folder / f"ul2_{size}.gin"
  path.write_text("\n".join(lines) + "\n")
  return str(path)


def model_file(family: str, size: str, folder: pathlib.Path) -> tuple[str, dict]:
  """Returns the gin file of a model, and the corresponding fields."""
  path, fields, _ = FAMILIES[family]
  return path.format(size) if path else ul2(folder, size), fields(OURS.get(size, size))


def parse(kind: str, *argv: str):
  """Returns options and config of a command line."""
  parser = options.config_parser(f"t2t {kind}", "")
  for name in ("workdir", "checkpoint"):
    parser.add_argument(f"--{name}")
  gin_files.add_options(parser, kind)
  return options.parse(parser, list(argv))


def flags(*files: str, **bound: object) -> list[str]:
  """Returns flags in T5X's syntax."""
  return [*(f"--gin_file={file}" for file in files), *(f"--gin.{name}={value!r}" for name, value in bound.items())]


LENGTHS = {"inputs": 256, "targets": 64}
MIXTURE = "wmt_t2t_ende_v003"

# ---- Every family and kind of run ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "size"), MODELS)
def test_pretraining(family, size, tmp_path):
  """`python -m t5x.train` with a model's file and runs/pretrain.gin."""
  model, fields = model_file(family, size, tmp_path)
  bound = dict(MIXTURE_OR_TASK_NAME="c4_v220_span_corruption", TASK_FEATURE_LENGTHS=LENGTHS, TRAIN_STEPS=7)
  found, config = parse(
    "train", *flags(model, "t5x/configs/runs/pretrain.gin", **bound, DROPOUT_RATE=0.0, MODEL_DIR="gs://b/run")
  )
  assert dict(config.model) == {"remat": "none"} | fields | {"dropout_rate": 0.0}
  assert found.workdir == "gs://b/run"
  assert (config.data.mixture, config.data.task_modules) == ("c4_span_corruption", ("t2t.tasks.c4",))
  assert (config.data.inputs_length, config.data.targets_length, config.data.pack) == (256, 64, True)
  assert (config.data.vocabulary == "bytes") == (family == "byt5")
  assert ("mc4" in config.data.vocabulary) == (family == "mt5")
  assert (config.train.steps, config.train.batch_size, config.train.z_loss) == (7, 128, 1e-4)
  assert (config.optimizer.name, config.init.checkpoint) == ("adafactor", "")
  rate = make_optimizer(records(config).optimizer, 20_000)[1]
  assert [float(rate(step)) for step in (0, 20_000)] == pytest.approx([1e-2, 20_000**-0.5])


@pytest.mark.parametrize(("family", "size"), MODELS)
def test_fine_tuning(family, size, tmp_path):
  """The same with runs/finetune.gin and a published checkpoint."""
  model, fields = model_file(family, size, tmp_path)
  path = f"gs://t5-data/pretrained_models/t5x/{family}_{size}/checkpoint_1000000"
  bound = dict(MIXTURE_OR_TASK_NAME=MIXTURE, TASK_FEATURE_LENGTHS=LENGTHS, TRAIN_STEPS=1_020_000)
  bound |= dict(INITIAL_CHECKPOINT_PATH=path, LOSS_NORMALIZING_FACTOR=233_472, USE_CACHED_TASKS=False)
  _, config = parse("train", *flags(model, "t5x/configs/runs/finetune.gin", **bound, BATCH_SIZE=64))
  assert dict(config.model) == {"remat": "none"} | fields | {"dropout_rate": 0.1}
  assert (config.init.checkpoint, config.train.steps, config.train.batch_size) == (path, 20_000, 64)
  assert (config.data.mixture, config.checkpoint.save_interval_steps, config.eval.batch_size) == ("wmt_en_de", 5_000, 0)
  rate = make_optimizer(records(config).optimizer, config.train.steps)[1]
  assert [float(rate(step)) for step in (0, 19_999)] == pytest.approx([1e-3, 1e-3])


@pytest.mark.parametrize(("family", "size"), MODELS)
def test_evaluation(family, size, tmp_path):
  """`python -m t5x.eval`; the model is compared with the checkpoint's."""
  model, fields = model_file(family, size, tmp_path)
  bound = dict(MIXTURE_OR_TASK_NAME=MIXTURE, CHECKPOINT_PATH="runs/c/checkpoint_9", EVAL_OUTPUT_DIR="out")
  bound |= {"seqio.Evaluator.num_examples": 50, "EncoderDecoderModel.predict_batch_with_aux.num_decodes": 4}
  found, config = parse("eval", *flags(model, "t5x/configs/runs/eval.gin", **bound))
  assert (found.checkpoint, found.workdir, found.gin.of_split) == ("runs/c/checkpoint_9", "out", True)
  assert (config.data.mixture, config.data.eval_split) == ("wmt_en_de", "test")
  assert (config.eval.batch_size, config.eval.max_examples, config.eval.num_beams) == (32, 50, 4)
  compared = {key.partition(".")[2]: value for key, value in found.gin.model.items()}
  assert len(compared) == 9 and compared == {name: fields[name] for name in compared}


@pytest.mark.parametrize(("family", "size"), MODELS)
def test_inference(family, size, tmp_path):
  """`python -m t5x.infer`."""
  model, _ = model_file(family, size, tmp_path)
  bound = dict(
    MIXTURE_OR_TASK_NAME=MIXTURE, CHECKPOINT_PATH="runs/c", INFER_OUTPUT_DIR="out", TASK_FEATURE_LENGTHS=LENGTHS
  )
  found, config = parse("infer", *flags(model, "t5x/configs/runs/infer.gin", **bound))
  assert (found.checkpoint, found.workdir) == ("runs/c", "out")
  assert (config.data.mixture, config.data.eval_split) == ("wmt_en_de", "test")
  assert set(found.gin.options) == {"--max_length=64", "--inputs_length=256", "--batch_size=32"}


@pytest.mark.parametrize(
  ("text", "drawn"),
  [
    ("temperature_sample.topk = 0\ntemperature_sample.temperature = 0.7", {"--beam=1", "--temperature=0.7"}),
    ("temperature_sample.topk = 40", {"--beam=1", "--temperature=1.0", "--top_k=40"}),
    ("temperature_sample.topk = 0\ntemperature_sample.topp = 0.9", {"--beam=1", "--temperature=1.0", "--top_p=0.9"}),
    ("temperature_sample.temperature = 0.0", {"--beam=1"}),
    ("", {"--beam=1"}),  # T5X's default is sampling from one token
  ],
)
def test_how_inference_draws(text, drawn, tmp_path):
  (tmp_path / "drawn.gin").write_text(f"models.EncoderDecoderModel.decode_fn = @decoding.temperature_sample\n{text}\n")
  found, _ = parse("infer", *flags(f"{TINY}/tiny_infer.gin", f"{tmp_path}/drawn.gin", CHECKPOINT_PATH="c"))
  assert set(found.gin.options) - {"--max_length=8", "--inputs_length=64", "--batch_size=32"} == drawn


# Further bindings in T5X's files.
OTHERS = """\
train_script.train.train_dataset_cfg = @train/utils.DatasetConfig()
train_script.train.train_eval_dataset_cfg = @train_eval/utils.DatasetConfig()
train_script.train.checkpoint_cfg = @utils.CheckpointConfig()
train_script.train.partitioner = @partitioning.ModelBasedPjitPartitioner()
train_script.train.trainer_cls = @trainer.Trainer
train_script.train.summarize_config_fn = @gin_utils.summarize_gin_config
train_script.train.inference_evaluator_cls = @seqio.Evaluator
train/utils.DatasetConfig.seed = None
train_eval/utils.DatasetConfig.seed = 42
train_eval/utils.DatasetConfig.shuffle = False
partitioning.PjitPartitioner.num_partitions = 1
partitioning.PjitPartitioner.logical_axis_rules = @partitioning.standard_logical_axis_rules()
partitioning.ModelBasedPjitPartitioner.model_parallel_submesh = ()
utils.CheckpointConfig.restore = @utils.RestoreCheckpointConfig()
utils.CheckpointConfig.save = @utils.SaveCheckpointConfig()
utils.SaveCheckpointConfig.dtype = 'float32'
utils.SaveCheckpointConfig.save_dataset = False
trainer.Trainer.learning_rate_fn = @utils.create_learning_rate_scheduler()
trainer.Trainer.weight_metrics_computer = @trainer.WeightMetricsComputer()
seqio.Evaluator.logger_cls = [@seqio.PyLoggingLogger, @seqio.TensorBoardLogger, @seqio.JSONLogger]
adafactor.Adafactor.step_offset = 0
adafactor.Adafactor.logical_factor_rules = @adafactor.standard_logical_factor_rules()
models.EncoderDecoderModel.module = @network.Transformer()
network.Transformer.config = @network.T5Config()
"""


@pytest.mark.parametrize("run", ["pretrain", "finetune"])
def test_a_checkout_of_t5x_says_what_is_known_by_heart(run, tmp_path):
  """T5X's files on the search paths replace the built-in copies, and nothing in them is refused."""
  base = "t5x/examples/t5/t5_1_1/base.gin"
  for path in (base, f"t5x/configs/runs/{run}.gin"):
    (tmp_path / path).parent.mkdir(parents=True)
    bound = [str(each) for each in standard.standard(path)]
    (tmp_path / path).write_text("\n".join(bound) + "\n" + (OTHERS if "runs" in path else ""))
  (tmp_path / "elsewhere").mkdir()
  bound = dict(MIXTURE_OR_TASK_NAME=MIXTURE, TASK_FEATURE_LENGTHS=LENGTHS, TRAIN_STEPS=9, DROPOUT_RATE=0.1)
  argv = flags(base, f"t5x/configs/runs/{run}.gin", **bound, INITIAL_CHECKPOINT_PATH="runs/c")
  argv = argv if run == "finetune" else [each for each in argv if "INITIAL" not in each]
  found, config = parse("train", *argv, f"--gin_search_paths={tmp_path}/elsewhere,{tmp_path}")
  _, known = parse("train", *argv)
  assert config.to_dict() == known.to_dict()
  assert f"{tmp_path}/t5x/configs/runs/{run}.gin:" in "\n".join(map(str, found.gin.findings))


def test_the_recipes_for_gpus_do_not_pack():
  """NVIDIA's run files are in another folder, and do not pack."""
  bound = dict(
    MIXTURE_OR_TASK_NAME=MIXTURE, TASK_FEATURE_LENGTHS=LENGTHS, TRAIN_STEPS=9, DROPOUT_RATE=0.1, BATCH_SIZE=24
  )
  folder = "t5x/contrib/gpu/t5"
  _, config = parse("train", *flags(f"{folder}/t5_1_1/small.gin", f"{folder}/configs/runs/pretrain.gin", **bound))
  assert (config.data.pack, config.train.batch_size, config.eval.batch_size) == (False, 24, 0)


def test_modules_that_a_file_imports_register_its_mixture(tmp_path, monkeypatch):
  """Imported modules register mixtures, as in T5X, except libraries."""
  monkeypatch.syspath_prepend(tmp_path)
  (tmp_path / "my_gin_tasks.py").write_text("")
  (tmp_path / "a.gin").write_text("import my_gin_tasks\nfrom t5.data import mixtures\nMIXTURE_OR_TASK_NAME = 'mine'\n")
  _, config = parse("train", *flags(f"{TINY}/tiny_pretrain.gin", f"{tmp_path}/a.gin"))
  assert (config.data.mixture, config.data.task_modules) == ("mine", ("t2t.tasks.docs", "my_gin_tasks"))


def test_a_module_in_this_folder_is_found(tmp_path, monkeypatch):
  """The module is in the working folder or on PYTHONPATH; it is not executed by the lookup."""
  monkeypatch.chdir(tmp_path)
  (tmp_path / "gin_tasks_here.py").write_text("raise AssertionError\n")
  (tmp_path / "a.gin").write_text("import gin_tasks_here\nMIXTURE_OR_TASK_NAME = 'mine'\n")
  (tmp_path / "configs").symlink_to(ROOT / "configs")
  _, config = parse("train", *flags(f"{TINY}/tiny_pretrain.gin", "a.gin"))
  assert config.data.task_modules == ("t2t.tasks.docs", "gin_tasks_here")


@pytest.mark.parametrize("text", ['a"b', "a\\b", "a\rb", "a\nb", 'x"""\nimport gone\n"""'])
def test_a_text_stays_a_text(text):
  """Any string survives the conversion to a Python config."""
  _, config = parse("train", *flags(f"{TINY}/tiny_pretrain.gin", MIXTURE_OR_TASK_NAME=text))
  assert config.data.mixture == text


# ---- T5X's flags -----------------------------------------------------------------------------------------------------


def test_what_runs_is_what_convert_prints(tmp_path, capsys):
  """The config file and the gin file give the same config."""
  argv = flags(f"{TINY}/tiny_pretrain.gin", TRAIN_STEPS=5)
  command.main(["convert", *argv])
  (tmp_path / "made.py").write_text(capsys.readouterr().out)
  assert parse("train", *argv)[1].to_dict() == load_config(str(tmp_path / "made.py")).to_dict()


def test_later_files_bindings_and_keys_count(tmp_path):
  """Order of precedence: files, bindings of the command line, config keys."""
  (tmp_path / "a.gin").write_text("TRAIN_STEPS = 4\nRANDOM_SEED = 5\ntrain.eval_steps = 6\n")
  argv = [*flags(f"{TINY}/tiny_pretrain.gin", f"{tmp_path}/a.gin"), "--gin_bindings=RANDOM_SEED = 7"]
  _, config = parse("train", *argv, "--gin.train/utils.DatasetConfig.batch_size=16", "--config.train.steps=9")
  assert (config.train.steps, config.train.seed, config.eval.batches, config.train.batch_size) == (9, 7, 6, 16)


def test_the_workdir_that_is_typed_comes_first():
  found, _ = parse("train", *flags(f"{TINY}/tiny_pretrain.gin", MODEL_DIR="a"), "--workdir", "b")
  assert found.workdir == "b"


def test_a_key_settles_what_is_refused(tmp_path):
  """The key is the alternative in the message."""
  (tmp_path / "a.gin").write_text("OPTIMIZER = @optax.lion()\n")
  argv = flags(f"{TINY}/tiny_pretrain.gin", f"{tmp_path}/a.gin")
  with pytest.raises(UserError, match=r"a\.gin:1: EncoderDecoderModel.optimizer_def = @optax.lion\(\): lion|a\.gin:1"):
    parse("train", *argv)
  assert parse("train", *argv, "--config.optimizer.name=lion")[1].optimizer.name == "lion"


@pytest.mark.parametrize(
  ("argv", "words"),
  [
    (["--gin_file=gone.gin"], "--gin_file gone.gin: no such file in {cwd}, nor among T5X's"),
    (["--gin_file=gone.gin", "--gin_search_paths=/a,/b"], "no such file in {cwd}, /a, /b, nor among"),
    (["--gin.A=1"], "--gin.A=1 sets a name of a gin file, but --gin_file is missing. Add --gin_file FILE"),
    (
      ["--gin_file=x.gin", "--config=tiny"],
      "--config and --gin_file x.gin exclude each other. Give only one of these options",
    ),
    (flags("{tiny}/tiny_pretrain.gin", TRAIN_STEP=3), "--gin.TRAIN_STEP: TRAIN_STEP = 3: unused in this run"),
    (flags("{tiny}/tiny_pretrain.gin", TRAIN_STEP=3), "nearest: TRAIN_STEPS"),
    (["--gin_file={tiny}/tiny_pretrain.gin", "--gin.MODEL_DIR=runs/x"], "--gin.MODEL_DIR='\"runs/x\"'"),
    (
      ["--gin_file={tiny}/tiny_pretrain.gin", "--gin.MODEL_DIR"],
      "--gin.MODEL_DIR has no value. Give --gin.MODEL_DIR=VALUE",
    ),
    (
      flags("{tiny}/tiny_pretrain.gin", **{"train.eval_perod": 3}),
      "unknown parameter eval_perod of train; t2t has no counterpart; nearest: eval_period",
    ),
    (
      ["--gin_file={tiny}/tiny_model.gin"],
      "no binding of train, so the files describe no run. Add --gin_file t5x/configs/runs/pre",
    ),
    (
      ["--gin_file={tiny}/tiny_eval.gin"],
      "for T5X's eval.py, not for `t2t train`. Run `t2t eval --gin_file",
    ),
    (["--gin_file={tiny}/tiny_infer.gin"], "Run `t2t infer --gin_file"),
    (
      ["--gin_file=t5x/configs/runs/pretrain.gin"],
      "MODEL is required by T5X. Give --gin.MODEL=VALUE; add one",
    ),
    (["--gin_file={bad}/include.gin"], "include.gin:2: include 'gone/away.gin': no such file in {cwd}, {bad}, "),
    (["--gin_file={bad}/syntax.gin"], "syntax.gin:2: not valid gin: ')' has no opening bracket"),
    (["--gin_file={bad}/syntax.gin", "--nonsense"], "syntax.gin:2: not valid gin"),
    (
      ["--gin_file={tiny}/tiny_pretrain.gin", "--run_mode=eval"],
      "--run_mode=eval: t2t does not have this flag of T5X",
    ),
    (
      flags("{tiny}/tiny_finetune.gin", INITIAL_CHECKPOINT_PATH="c", **{"RestoreCheckpointConfig.mode": "latest"}),
      "Give the path of this checkpoint",
    ),
    (
      ["--gin_file={bad}/export.gin"],
      "export.gin:1: the line binds export. t2t does not run T5X's export. Use `t2t convert --to hf`",
    ),
  ],
)
def test_what_is_wrong_is_said(argv, words, tmp_path):
  """A one-line error contains file and line, before anything starts."""
  (tmp_path / "include.gin").write_text("A = 1\ninclude 'gone/away.gin'\n")
  (tmp_path / "syntax.gin").write_text("A = 1\nB = )\n")
  (tmp_path / "export.gin").write_text("export.model = %MODEL\n")
  places = {"tiny": TINY, "bad": tmp_path, "cwd": pathlib.Path.cwd()}
  placed = lambda text: re.sub(r"\{(\w+)\}", lambda found: str(places[found[1]]), text)
  with pytest.raises(UserError) as error:
    parse("train", *map(placed, argv))
  assert placed(words) in str(error.value)


RUNS = "t5x/configs/runs"
MODEL = "t5x/examples/t5/t5_1_1/small.gin"


@pytest.mark.parametrize(
  ("kind", "argv", "words"),
  [
    ("train", flags(f"{TINY}/tiny_pretrain.gin"), ["--workdir FOLDER", "--gin.MODEL_DIR='\"PATH\"'"]),
    ("eval", flags(f"{TINY}/tiny_eval.gin"), ["--checkpoint PATH", "--gin.CHECKPOINT_PATH='\"PATH\"'"]),
    (
      "eval",
      flags(f"{TINY}/tiny_eval.gin", CHECKPOINT_PATH="gone"),
      ["--workdir PATH", "--gin.EVAL_OUTPUT_DIR='\"PATH\"'"],
    ),
    (
      "eval",
      [*flags(f"{TINY}/tiny_eval.gin", CHECKPOINT_PATH="gone"), "--workdir=x"],
      ["--checkpoint gone: no checkpoint in", "--checkpoint is T5X's CHECKPOINT_PATH"],
    ),
    (
      "eval",
      flags(MODEL, f"{RUNS}/eval.gin"),
      ["--gin.MIXTURE_OR_TASK_NAME='\"NAME\"' or --config.data.mixture=VALUE"],
    ),
    ("infer", flags(f"{TINY}/tiny_infer.gin"), ["--output FILE", "--gin.INFER_OUTPUT_DIR='\"PATH\"'"]),
    (
      "infer",
      flags(f"{TINY}/tiny_infer.gin", INFER_OUTPUT_DIR="x"),
      ["--checkpoint PATH", "--gin.CHECKPOINT_PATH='\"PATH\"'"],
    ),
    (
      "infer",
      flags(MODEL, f"{RUNS}/infer.gin"),
      [
        "--gin.MIXTURE_OR_TASK_NAME='\"NAME\"' or --input VALUE",
        "--gin.TASK_FEATURE_LENGTHS=\"{'inputs': NUMBER, 'targets': NUMBER}\" or --inputs_length VALUE",
      ],
    ),
  ],
)
def test_what_is_missing_has_both_names(kind, argv, words, tmp_path, monkeypatch, capsys):
  """The message contains T5X's and t2t's name."""
  monkeypatch.chdir(tmp_path)
  (tmp_path / "configs").symlink_to(ROOT / "configs")
  assert command.main([kind, *argv]) == 2
  said = capsys.readouterr().err
  for each in words:
    assert each in said


def test_the_macros_are_those_of_t5x():
  """T5X's run files refer to each macro in messages."""
  for kind, runs in {"train": ("pretrain", "finetune"), "eval": ("eval",), "infer": ("infer",)}.items():
    read = {
      each.name
      for run in runs
      for binding in standard.standard(f"{RUNS}/{run}.gin")
      for each in macros_in(binding.value)
    }
    own = {
      name
      for run in runs
      for name in [binding.parameter for binding in standard.standard(f"{RUNS}/{run}.gin") if not binding.function]
    }
    macros = {theirs for theirs in gin_names.in_t5x(kind).values() if theirs.isupper()}
    assert macros <= read | own, kind


def test_a_message_without_gin_files_is_t2ts(capsys):
  """Without gin files messages contain no T5X names."""
  assert command.main(["eval", "--config=tiny", "--checkpoint=gone", "--workdir=x"]) == 2
  assert "T5X's CHECKPOINT_PATH" not in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["train", "eval", "infer", "convert"])
def test_help_says_it(kind, capsys):
  with pytest.raises(SystemExit):
    command.main([kind, "--help"])
  said = capsys.readouterr().out
  assert "--gin_file FILE" in said and "--gin.TRAIN_STEPS=100" in said and "--gin_search_paths" in said


def test_the_public_config_of_ul2_is_refused_for_what_t5_has_not(tmp_path):
  """Its last norm has no scale, and Adafactor scales all parameters except the position table."""
  (tmp_path / "more.gin").write_text(
    "adafactor.Adafactor.multiply_by_parameter_scale = @adafactor.HParamMap()\n"
    "adafactor.HParamMap.rules = [('relpos_bias', False), ('.*', True)]\n"
    "t5_architecture.Decoder.layer_norm_factory = @final_layer_norm/layer_norm.T5LayerNorm\n"
    "final_layer_norm/layer_norm.T5LayerNorm.use_scale = False\n"
  )
  found = gin.to_config(gin.read([ul2(tmp_path, "20b"), f"{tmp_path}/more.gin"], search_paths=()))
  refused = [each.text for each in found.findings if each.refused]
  assert [text.partition("more.gin:")[2][0] for text in refused if "more.gin:" in text] == ["1", "2", "4"]


# ---- Whole commands --------------------------------------------------------------------------------------------------


def losses(workdir: pathlib.Path) -> list[float]:
  rows = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
  return [row["train/loss"] for row in rows if "train/loss" in row]


def written(workdir: pathlib.Path) -> list[str]:
  rows = (workdir / "predictions" / "docs_summary.validation.jsonl").read_text().splitlines()
  return [json.loads(row)["prediction"] for row in rows]


@pytest.mark.exhaustive
def test_trained_evaluated_and_asked(tmp_path, monkeypatch, capsys):
  """Losses are bit-identical to the converted config's, and so are metrics and predictions."""
  monkeypatch.chdir(ROOT)
  trained = [f"--gin_file={TINY}/tiny_pretrain.gin", "--gin.TRAIN_STEPS=3"]
  assert command.main(["convert", *trained]) == 0
  (tmp_path / "made.py").write_text(capsys.readouterr().out)
  assert command.main(["train", *trained, f'--gin.MODEL_DIR="{tmp_path}/gin"']) == 0
  assert (
    "SaveCheckpointConfig.keep = None: all checkpoints are kept" in capsys.readouterr().err.partition("step 1/3")[0]
  )
  assert command.main(["train", f"--config={tmp_path}/made.py", f"--workdir={tmp_path}/config"]) == 0
  assert len(losses(tmp_path / "gin")) == 3
  assert losses(tmp_path / "gin") == losses(tmp_path / "config")

  place = f'--gin.CHECKPOINT_PATH="{tmp_path}/gin"'
  asked = [f"--gin_file={TINY}/tiny_eval.gin", "--gin.seqio.Evaluator.num_examples=2"]
  capsys.readouterr()
  assert command.main(["convert", *asked]) == 0
  (tmp_path / "made_eval.py").write_text(capsys.readouterr().out)
  assert command.main(["eval", *asked, place, f'--gin.EVAL_OUTPUT_DIR="{tmp_path}/eval"']) == 0
  made = [f"--config={tmp_path}/made_eval.py", f"--checkpoint={tmp_path}/gin", f"--workdir={tmp_path}/made"]
  assert command.main(["eval", *made]) == 0
  longest = [*asked, "--gin.TASK_FEATURE_LENGTHS=None", place, f'--gin.EVAL_OUTPUT_DIR="{tmp_path}/longest"']
  assert command.main(["eval", *longest]) == 0
  assert written(tmp_path / "eval") == written(tmp_path / "made")
  assert max(map(len, written(tmp_path / "eval"))) <= 20 < max(map(len, written(tmp_path / "longest")))
  assert command.main(["eval", *asked, place, "--gin.network.T5Config.emb_dim=64", f"--workdir={tmp_path}/no"]) == 2
  assert "tiny_eval.gin sets config.model.embed_dim=64, but " in capsys.readouterr().err
  argv = [*asked, place, f"--workdir={tmp_path}/no", '--gin.MIXTURE_OR_TASK_NAME="docs_sumary"']
  assert command.main(["eval", *argv]) == 2
  said = capsys.readouterr().err
  assert "docs_sumary: no task" in said and "config.data.mixture is T5X's MIXTURE_OR_TASK_NAME" in said

  asked = [f"--gin_file={TINY}/tiny_infer.gin", '--gin.MIXTURE_OR_TASK_NAME="docs_package"']
  assert command.main(["infer", *asked, place, f'--gin.INFER_OUTPUT_DIR="{tmp_path}/infer"']) == 0
  rows = (tmp_path / "infer" / "docs_package-predict.jsonl").read_text().splitlines()
  inputs = (tmp_path / "infer" / "docs_package-inputs.jsonl").read_text().splitlines()
  assert len(rows) == len(inputs) > 10
  typed = ["--max_length=8", "--inputs_length=64", "--beam=2", f"--input={tmp_path}/infer/docs_package-inputs.jsonl"]
  assert command.main(["infer", f"--checkpoint={tmp_path}/gin", *typed, f"--output={tmp_path}/typed.jsonl"]) == 0
  assert (tmp_path / "typed.jsonl").read_text().splitlines() == rows


@pytest.mark.exhaustive
def test_a_checkpoint_of_t5x_takes_the_vocabulary_of_the_file(tmp_path, monkeypatch, capsys):
  """A T5X checkpoint has no vocabulary, but the gin file has one."""
  monkeypatch.chdir(ROOT)
  monkeypatch.setattr(t5x_files, "VOCAB", 384)
  checkpoint = t5x_files.write(tmp_path / "checkpoint_7", t5x_files.parameters())
  (tmp_path / "in.txt").write_text("one\ntwo\n")
  shape = dict(emb_dim=10, num_heads=5, head_dim=3, mlp_dim=14, num_decoder_layers=4)
  argv = [f"--input={tmp_path}/in.txt", f"--output={tmp_path}/out.jsonl", "--beam=1", "--max_length=3"]
  bound = {f"network.T5Config.{name}": value for name, value in shape.items()} | {"CHECKPOINT_PATH": str(checkpoint)}
  assert command.main(["infer", *flags(f"{TINY}/tiny_infer.gin", **bound), *argv]) == 0
  assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 2
  assert command.main(["infer", f"--checkpoint={checkpoint}", *argv]) == 2
  assert "there is no vocabulary beside this checkpoint" in capsys.readouterr().err


def test_keys_at_the_end_of_a_sentence_are_translated():
  """A full stop ends the key; a longer key is another one."""
  assert "config.train.steps is T5X's TRAIN_STEPS" in gin_conversion.also_called("Lower config.train.steps.", "train")
  assert gin_conversion.also_called("Lower config.train.steps.of.a.source.", "train") == ""
