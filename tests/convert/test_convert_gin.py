"""T5X's gin files converted to t2t configs, and reports on bindings without a counterpart."""

import pathlib
import sys

import pytest

from t2t import UserError
from t2t.configuration.loading import load_config, records
from t2t.convert import gin
from t2t.convert.gin import param_map as gin_names
from t2t.convert.gin import parser as gin_parser
from t2t.convert.gin.parser import Macro, Reference
from t2t.models import presets
from t2t.training.optimizers import make_optimizer


def write(folder: pathlib.Path, name: str, text: str) -> str:
  path = folder / name
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(text)
  return str(path)


def config_of(folder: pathlib.Path, text: str, *, name: str = "mine.gin"):
  """Returns the converted config, loaded as by `t2t train`, and the notes."""
  made = gin.to_config(gin.read(write(folder, name, text)))
  config = load_config(write(folder, "made.py", made.text))
  assert made.config() == config  # the config of a run with the gin file
  records(config)
  return config, "\n".join(map(str, made.findings))


def notes_of(folder: pathlib.Path, text: str) -> dict[str, bool]:
  """Returns report on a gin file -> whether it prevents a run."""
  found = gin.to_config(gin.read(write(folder, "mine.gin", text)))
  return {each.text: each.refused for each in found.findings}


# ---- Grammar ---------------------------------------------------------------------------------------------------------

GRAMMAR = """\
# A comment.
from __gin__ import dynamic_registration
import __main__ as train_script
from t5x import utils  # what is configured
include 'other.gin'
STEPS = 1_020_000
RATE = -1.5e-3
NAME = 'two' " words"
train/utils.DatasetConfig:
  lengths = {"inputs": 256,
             'targets': %TARGETS,  # over several lines
  }

  # In between.
  seed = None
  pack = (True)
models.Model.predict.num_decodes = 4
LOGGERS = [@seqio.A, @a/b.C(), (1,), (), [], {}]
MODEL_DIR = %gin.REQUIRED
"""


def test_grammar():
  """All syntax of T5X's files."""
  statements = gin_parser.parse(GRAMMAR, "mine.gin")
  imports = [each.module for each in statements if isinstance(each, gin_parser.Import)]
  assert imports == ["__gin__.dynamic_registration", "__main__", "t5x.utils"]
  assert [each.path for each in statements if isinstance(each, gin_parser.Include)] == ["other.gin"]
  found = {
    (each.scope, each.function, each.parameter): each.value
    for each in statements
    if isinstance(each, gin_parser.Binding)
  }
  assert found == {
    ("", "", "STEPS"): 1_020_000,
    ("", "", "RATE"): -0.0015,
    ("", "", "NAME"): "two words",
    ("train", "utils.DatasetConfig", "lengths"): {"inputs": 256, "targets": Macro("TARGETS")},
    ("train", "utils.DatasetConfig", "seed"): None,
    ("train", "utils.DatasetConfig", "pack"): True,
    ("", "models.Model.predict", "num_decodes"): 4,
    ("", "", "LOGGERS"): [Reference("seqio.A"), Reference("a/b.C", True), (1,), (), [], {}],
    ("", "", "MODEL_DIR"): Macro("gin.REQUIRED"),
  }
  assert [each.location.line for each in statements][:7] == [2, 3, 4, 5, 6, 7, 8]
  assert [str(each.location) for each in statements][-1] == "mine.gin:19"


def test_values_are_shown_as_they_were_written():
  """Reported bindings are valid gin."""
  for binding in gin_parser.parse(GRAMMAR, "mine.gin"):
    if isinstance(binding, gin_parser.Binding):
      again = gin_parser.parse(str(binding), "again.gin")[0]
      assert (again.value, again.scope, again.parameter) == (binding.value, binding.scope, binding.parameter)


@pytest.mark.parametrize(
  ("text", "words"),
  [
    ("A = ", "mine.gin:1: not valid gin: expected a value, but found the end of the line"),
    ("A = 1\nb:\nC = 1", "mine.gin:3: not valid gin: expected indented parameters of b"),
    ("A = [1, 2\n", "mine.gin:1: not valid gin: '[' is not closed"),
    ("A = 1\nB = {'a': (1, 2)\nC = 3\n", "mine.gin:2: not valid gin: '{' is not closed"),
    ("A = 1\nB = )\n", "mine.gin:2: not valid gin: ')' has no opening bracket"),
    ("A = [1)\n", "mine.gin:1: not valid gin: ')' does not match '[' of line 1"),
    ("A = (1 2)", "expected ','"),
    ("A = {[1]: 2}", "a key (a string or a number)"),
    ("A = @x(1)", "expected ')'"),
    ("A = f'{1}'", "mine.gin:1: not valid gin"),
    ("A = b'x'", "expected a string without prefix"),
    ("A = rb'x'", "expected a string without prefix"),
    ("A = 1\nB = -@x", "mine.gin:2: not valid gin: expected a number, but found '@'"),
    ("A = {@x: 2}", "a key (a string or a number)"),
    ("A = {\n  'b': 1,\n  [2]: 3}", "mine.gin:3: not valid gin: expected a key (a string or a number)"),
    ("b:\n  c = 1\n    d = 2", "mine.gin:3: not valid gin: the line is indented, but belongs to no block"),
    ("A = 1\nB = " + "[" * 5_000 + "]" * 5_000, "mine.gin:2: not valid gin: '[' is nested in more than 100 brackets"),
    ("from a import b.c", "expected the end of the line, but found '.'"),
    ("A = 'b'\na.b/c.d = 1", "mine.gin:2: not valid gin: Malformatted scope"),
    ("A = __import__('os').getcwd()", "expected a value, but found '__import__'"),
    ("A = 1 + 1", "expected the end of the line, but found '+'"),
    ("A = -x", "expected a number"),
    ("  A = 1\n B = 2", "not valid gin"),
    ("include 3", "expected a file name after include"),
    ("def f(): pass", "not valid gin"),
  ],
)
def test_what_is_not_gin(text, words, tmp_path):
  """The message contains the line, and nothing is executed."""
  path = write(tmp_path, "mine.gin", text)
  with pytest.raises(UserError) as error:
    gin.read(path)
  assert words in str(error.value)
  assert path in str(error.value)


def test_nothing_is_executed(tmp_path, monkeypatch):
  """An imported module is reported, but neither imported nor called."""
  write(tmp_path, "registers_a_task.py", "raise AssertionError")
  monkeypatch.syspath_prepend(tmp_path)
  text = "import registers_a_task\nfrom registers_a_task import sub\nA = @registers_a_task.f()\nsub.g.x = %B\n"
  found = gin.read(write(tmp_path, "mine.gin", text))
  assert [each.module for each in found.imports] == ["registers_a_task", "registers_a_task.sub"]
  assert found.macros["A"].value == Reference("registers_a_task.f", True)
  assert "registers_a_task" not in sys.modules


# ---- T5X's examples --------------------------------------------------------------------------------------------------

MODEL = "include 't5x/examples/t5/t5_1_1/base.gin'\n"
PRETRAIN = MODEL + "include 't5x/configs/runs/pretrain.gin'\n"
FINETUNE = "include 't5x/configs/runs/finetune.gin'\n" + MODEL
TASK = 'TASK_FEATURE_LENGTHS = {"inputs": 500, "targets": 100}\nTRAIN_STEPS = 70_000\n'


def test_pretraining(tmp_path):
  """T5X's example of pre-training on C4."""
  config, notes = config_of(
    tmp_path,
    f"import __main__ as train_script\nimport t5.data.mixtures\n{PRETRAIN}{TASK}"
    'MIXTURE_OR_TASK_NAME = "c4_v220_span_corruption"\nDROPOUT_RATE = 0.0\nBATCH_SIZE = 256\n'
    "train_script.train:\n  eval_period = 2000\n",
  )
  assert dict(config.model) == presets.t5_1_1("base") | {"remat": "none"}
  assert (config.data.mixture, config.data.task_modules) == ("c4_span_corruption", ("t2t.tasks.c4",))
  assert (config.data.inputs_length, config.data.targets_length, config.data.pack) == (500, 100, True)
  assert config.data.vocabulary == "gs://t5-data/vocabs/cc_all.32000.100extra/sentencepiece.model"
  assert config.data.extra_ids == 0  # the file includes the sentinels
  assert (config.train.steps, config.train.batch_size, config.train.z_loss) == (70_000, 128, 1e-4)
  assert (config.eval.every, config.eval.batches, config.checkpoint.save_interval_steps) == (2_000, 20, 1_000)
  assert config.optimizer.name == "adafactor"
  # T5X's run does not read BATCH_SIZE, although its example sets it.
  first, second = notes.split("\n")
  assert first == f"{tmp_path}/mine.gin:9: BATCH_SIZE = 256: unused in this run"
  assert second.startswith(
    "t5x/configs/runs/pretrain.gin (T5X's copy): SaveCheckpointConfig.keep = None: T5X deletes no"
  )


@pytest.mark.parametrize("step", [0, 10_000, 50_000])
def test_learning_rate_of_pretraining(step, tmp_path):
  """constant * rsqrt_decay is base / sqrt(max(step, warm-up))."""
  config, _ = config_of(tmp_path, PRETRAIN + "utils.create_learning_rate_scheduler.base_learning_rate = 0.5\n")
  optimizer = records(config).optimizer
  rate = make_optimizer(optimizer, config.train.steps)[1](step)
  assert float(rate) == pytest.approx(0.5 / max(step, 10_000) ** 0.5)


@pytest.mark.parametrize(
  ("factors", "schedule", "learning_rate", "warmup_steps"),
  [
    ("constant", "constant", 2.0, 0),
    ("constant * linear_warmup", "constant", 2.0, 400),
    ("rsqrt_decay * constant", "t5_inverse_sqrt", 0.1, 400),
    ("constant * rsqrt_normalized_decay", "t5_inverse_sqrt", 2.0, 400),
    ("constant * linear_warmup * rsqrt_decay", "inverse_sqrt", 0.1, 400),
  ],
)
def test_schedules(factors, schedule, learning_rate, warmup_steps, tmp_path):
  config, _ = config_of(
    tmp_path,
    f"{MODEL}create_learning_rate_scheduler:\n  factors = {factors!r}\n"
    "  base_learning_rate = 2.0\n  warmup_steps = 400\n",
  )
  found = config.optimizer
  assert (found.schedule, found.warmup_steps) == (schedule, warmup_steps)
  assert found.learning_rate == pytest.approx(learning_rate)


def test_fine_tuning(tmp_path):
  """T5X counts steps from the checkpoint's, t2t from 0."""
  text = (
    f"{FINETUNE}{TASK.replace('70_000', '1_020_000')}"
    'MIXTURE_OR_TASK_NAME = "wmt_t2t_ende_v003"\nUSE_CACHED_TASKS = True\nDROPOUT_RATE = 0.1\n'
    'INITIAL_CHECKPOINT_PATH = "gs://t5-data/pretrained_models/t5x/t5_1_1_base/checkpoint_1000000"\n'
    "LOSS_NORMALIZING_FACTOR = 233472\nmodels.EncoderDecoderModel.predict_batch_with_aux.num_decodes = 4\n"
    "infer_eval/utils.DatasetConfig:\n  batch_size = 64\n  split = 'test'\n"
    "seqio.Evaluator:\n  logger_cls = [@seqio.JSONLogger]\n  num_examples = 50\n"
  )
  config, notes = config_of(tmp_path, text)
  assert config.init.checkpoint == "gs://t5-data/pretrained_models/t5x/t5_1_1_base/checkpoint_1000000"
  assert (config.train.steps, config.model.dropout_rate) == (20_000, 0.1)
  assert (config.data.mixture, config.data.task_modules) == ("wmt_en_de", ("t2t.tasks.translation",))
  assert (config.optimizer.schedule, config.optimizer.learning_rate) == ("constant", 0.001)
  assert (config.optimizer.warmup_steps, config.checkpoint.save_interval_steps) == (0, 5_000)
  assert (config.eval.num_beams, config.eval.max_examples) == (4, 50)
  lines = text.split("\n")
  for words in ("TRAIN_STEPS", "USE_CACHED", "LOSS_NORM", "split = 'test'", "logger_cls"):
    line = next(number for number, each in enumerate(lines, 1) if words in each)
    assert f"mine.gin:{line}: " in notes, words
  assert "mine.gin:8: RestoreCheckpointConfig.path = " in notes and "Adafactor.step_offset = 1000000" in notes
  assert len(notes.split("\n")) == 7  # including the deletion of checkpoints


@pytest.mark.parametrize(
  ("path", "fields"),
  [
    ("t5x/examples/t5/t5_1_0/11B.gin", presets.t5_1_0("xxl")),
    ("t5x/examples/scalable_t5/t5_1_1/xl.gin", presets.t5_1_1("xl") | {"remat": "minimal"}),
    ("t5x/examples/t5/mt5/small.gin", presets.mt5("small")),
    ("t5x/examples/t5/byt5/large.gin", presets.byt5("large")),
    ("t5x/contrib/gpu/t5/t5_1_1/large.gin", presets.t5_1_1("large")),
    ("flaxformer/t5x/configs/t5/models/mt5_base.gin", presets.mt5("base")),
    (
      "t5x/examples/t5/t5_1_1/tiny.gin",
      presets.t5_1_1("small")
      | dict(embed_dim=8, num_heads=4, head_dim=3, mlp_dim=16, num_encoder_layers=2, num_decoder_layers=2),
    ),
  ],
)
def test_models_that_come_with_t5x(path, fields, tmp_path):
  config, notes = config_of(tmp_path, f"include '{path}'\nDROPOUT_RATE = 0.1\n")
  assert dict(config.model) == {"remat": "none"} | fields | {"dropout_rate": 0.1}
  assert (config.data.vocabulary == "bytes") == ("byt5" in path)
  assert notes == ""


def test_a_model_of_ones_own(tmp_path):
  """Without includes, unbound parameters have T5X's defaults."""
  config, notes = config_of(
    tmp_path,
    "from t5x.examples.t5 import network\n"
    "network.T5Config:\n  vocab_size = 1000\n  emb_dim = 96\n  mlp_activations = ('swish', 'linear')\n"
    "  logits_via_embedding = True\n  float32_attention_logits = True\n  scan_layers = False\n",
  )
  model = config.model
  assert (model.vocab_size, model.embed_dim, model.mlp_activation, model.tied_logits) == (1000, 96, "gated_silu", True)
  assert (model.num_heads, model.head_dim, model.mlp_dim, model.num_encoder_layers) == (8, 64, 2_048, 6)
  assert (model.dropout_rate, model.dtype) == (0.1, "float32")
  assert "mine.gin:7: network.T5Config.float32_attention_logits = True: dtype of the softmax" in notes
  assert "mine.gin:8: network.T5Config.scan_layers = False" in notes


def test_files_that_lie_beside_it_come_before_those_known(tmp_path):
  """Files in parent folders come first, as in T5X; later bindings win, also over an include."""
  write(tmp_path, "t5x/examples/t5/t5_1_1/base.gin", "T5Config.emb_dim = 24\nT5Config.mlp_dim = 48\nMIDDLE = 3\n")
  text = "T5Config.emb_dim = 12\ninclude 't5x/examples/t5/t5_1_1/base.gin'\nT5Config.mlp_dim = 60\n"
  config, notes = config_of(tmp_path, text, name="t5x/mine/runs/mine.gin")
  assert (config.model.embed_dim, config.model.mlp_dim) == (24, 60)
  assert f"{tmp_path}/t5x/examples/t5/t5_1_1/base.gin:3: MIDDLE = 3: unused" in notes


def test_what_is_included_takes_the_place_of_what_stands_above(tmp_path):
  """Bindings after an include override it."""
  config, _ = config_of(tmp_path, f"T5Config.emb_dim = 12\n{MODEL}T5Config.mlp_dim = 60\n")
  assert (config.model.embed_dim, config.model.mlp_dim) == (768, 60)


def test_scopes(tmp_path):
  """A parameter without a scope applies to all scopes without their own binding."""
  config, _ = config_of(
    tmp_path, "DatasetConfig.batch_size = 3\ntrain/DatasetConfig.batch_size = 5\nDatasetConfig.split = 'some'\n"
  )
  assert (config.train.batch_size, config.eval.batch_size) == (5, 3)
  assert (config.data.train_split, config.data.eval_split) == ("some", "some")


def test_adamw(tmp_path):
  config, _ = config_of(
    tmp_path,
    f"{PRETRAIN}OPTIMIZER = @optimizers.chain()\n"
    "optimizers.chain.transformations = [@optax.clip_by_global_norm(), @optax.adamw()]\n"
    "optax.clip_by_global_norm.max_norm = 1.0\noptax.adamw:\n  learning_rate = 0.0001\n  weight_decay = 0.01\n",
  )
  found = config.optimizer
  assert (found.name, found.learning_rate, found.schedule, found.warmup_steps) == ("adamw", 1e-4, "constant", 0)
  assert (found.weight_decay, found.clip_norm, found.scale_by_parameter) == (0.01, 1.0, False)
  assert tuple(found.no_decay) == ()


def test_the_mesh(tmp_path):
  config, _ = config_of(tmp_path, PRETRAIN + "partitioning.ModelBasedPjitPartitioner.num_partitions = 2\n")
  assert config.mesh.tensor == 2
  config, _ = config_of(tmp_path, PRETRAIN + "ModelBasedPjitPartitioner.model_parallel_submesh = (2, 2, 1, 1)\n")
  assert config.mesh.tensor == 4


# ---- No counterpart --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  ("text", "words"),
  [
    (PRETRAIN, "TRAIN_STEPS is required by T5X"),
    (FINETUNE, "INITIAL_CHECKPOINT_PATH is required by T5X"),
    ("include 't5x/configs/runs/pretrain.gin'\n", "MODEL is required by T5X"),
    ("A = 1\n", "contains no model"),
    (f"{PRETRAIN}include 'gone/away.gin'\n", "mine.gin:3: include 'gone/away.gin': no such file in "),
    (f"{MODEL}Adafactor.beta1 = 0.9\n", "mine.gin:2: Adafactor.beta1 = 0.9: t2t's Adafactor has no momentum"),
    (
      f"{MODEL}T5Config.emd_dim = 3\n",
      "unknown parameter emd_dim of T5Config; t2t has no counterpart; nearest: emb_dim",
    ),
    (
      f"{PRETRAIN}utils.DatasetConfigs.seed = 3\n",
      "unknown function DatasetConfigs; t2t has no counterpart; nearest: DatasetConfig",
    ),
    (f"{PRETRAIN}trian/DatasetConfig.seed = 3\n", "nothing refers to trian/DatasetConfig; nearest: train"),
    (
      f"{PRETRAIN}DatasetConfig.batch_size = 3\n",
      "each scope has its own binding, train/DatasetConfig.batch_size, train_eval/",
    ),
    (f"{PRETRAIN}from t5x import utlis\n", "mine.gin:3: import t5x.utlis: T5X has no module utlis; nearest: utils"),
    (
      f"{PRETRAIN}import my\ntrain.trainer_cls = @my.Trainer\n",
      "mine.gin:4: train.trainer_cls = @my.Trainer: t2t does not support @my.Tr",
    ),
    (
      f"{MODEL}EncoderDecoderModel.loss_normalizing_factor = 'AVERAGE_PER_SEQUENCE'\n",
      "long sequences have more weight",
    ),
    (f"{MODEL}include 't5x/examples/t5/t5_1_1/adamw_opt.gin'\n", "T5X clips the gradient of their sum: set it to"),
    (f"{MODEL}Adafactor.weight_decay_rate = 0.1\n", "set weight_decay_rate_lr_exponent = 1.0"),
    (
      f"{PRETRAIN}train.actions = {{'TRAIN_EVAL': [@trainer.EarlyStoppingAction()]}}\n",
      "t2t does not support @trainer.EarlySt",
    ),
    (
      f"{PRETRAIN}EncoderDecoderModel.decode_fn = @decoding.temperature_sample\ntemperature_sample.topk = 5\n",
      "only `t2t infer` samples",
    ),
    (f"{PRETRAIN}RestoreCheckpointConfig.path = ['a', 'b']\n", "t2t supports only one checkpoint. Give one path"),
    (
      f"{PRETRAIN}TRAIN_STEPS = '3'\n",
      "mine.gin:3: train.total_steps = '3': is not a number above the checkpoint's 0",
    ),
    (
      f"{PRETRAIN}RestoreCheckpointConfig.path = 'gs://x/checkpoint_500'\n",
      "factors = 'constant * rsqrt_decay': T5X's schedule begins at step 500, t2t's at 0: set create_learning_ra",
    ),
    (f"{MODEL}OPTIMIZER = @t5x.lion.Lion()\n", "mine.gin:2: EncoderDecoderModel.optimizer_def = @t5x.lion.Lion()"),
    (
      f"{MODEL}T5Config.mlp_activations = ('tanh',)\n",
      "mine.gin:2: T5Config.mlp_activations = ('tanh',): t2t supports",
    ),
    (f"{MODEL}T5Config.emb_dim = 1.5\n", "mine.gin:2: T5Config.emb_dim = 1.5: config.model.embed_dim has type int"),
    (
      f"{PRETRAIN}MIXTURE_OR_TASK_NAME = 'mine'\n",
      "mine.gin:3: train/DatasetConfig.mixture_or_task_name = 'mine': t2t has no such mixture. Import the"
      " module of the mixture in the gin file, or give --config.data.task_modules=MODULE. T5X's mixtures in t2t:"
      " c4_v220_",
    ),
    (
      f"{PRETRAIN}MIXTURE_OR_TASK_NAME = 'mine'\nimport gone_away.tasks\n",
      "mine.gin:4: import gone_away.tasks: there is no module gone_away, in which T5X's users",
    ),
    (
      f"{PRETRAIN}create_learning_rate_scheduler.factors = 'constant * cosine_decay'\n",
      "mine.gin:3: create_learning_rate_scheduler.factors = 'constant * cosine_decay': t2t supports"
      " constant * rsqrt_decay",
    ),
    (
      "include 't5x/configs/runs/pretrain.gin'\nMODEL = @models.DecoderOnlyModel()\n",
      "mine.gin:2: train.model = @models.DecoderOnlyModel(): only encoder-decoders are supported",
    ),
    (
      f"{PRETRAIN}TASK_FEATURE_LENGTHS = {{'inputs': 9, 'decoder_positions': 7}}\n",
      "mine.gin:3: train/DatasetConfig.task_feature_lengths = {{'decoder_positions': 7}}",
    ),
    (f"{MODEL}Z_LOSS = %gin.REQUIRED\n", "Z_LOSS is required by T5X"),
    (f"{MODEL}Z_LOSS = %NOWHERE\n", "NOWHERE is required by T5X"),
  ],
)
def test_what_would_change_the_result_is_refused(text, words, tmp_path):
  """The message contains the line and an alternative; the config has the other settings."""
  config_of(tmp_path, text)
  notes = notes_of(tmp_path, text)
  assert [refused for note, refused in notes.items() if words.format() in note] == [True], "\n".join(notes)


@pytest.mark.parametrize(
  ("text", "words"),
  [
    (
      "train_eval/DatasetConfig.mixture_or_task_name = 'x'\n",
      "mine.gin:3: train_eval/DatasetConfig.mixture_or_task_name",
    ),
    (
      "infer_eval/DatasetConfig.split = 'test'\n",
      "mine.gin:3: infer_eval/DatasetConfig.split = 'test': unused in this run",
    ),
    ("USE_CACHED_TASKS = True\n", "mine.gin:3: USE_CACHED_TASKS = True: tasks from T5X's cache"),
    ("train/DatasetConfig.shuffle = False\n", "mine.gin:3: train/utils.DatasetConfig.shuffle = False: t2t always shuf"),
    ("LOSS_NORMALIZING_FACTOR = 233472\n", "mine.gin:3: EncoderDecoderModel.loss_normalizing_factor = 233472: divisor"),
    ("OPTIMIZE = 3\n", "mine.gin:3: OPTIMIZE = 3: unused in this run; nearest: OPTIMIZER"),
    ("optax.adamw.weight_decay = 0.1\n", "mine.gin:3: optax.adamw.weight_decay = 0.1: unused in this run"),
    (
      "train.actions = {'TRAIN': [@trainer.TerminateOnNanAction()]}\n",
      "actions at a NaN; t2t has config.nan_policy.on_nonfinite",
    ),
    (
      "MIXTURE_OR_TASK_NAME = 'squad_v010_allanswers'\nimport mine\n",
      "mine.gin:4: import mine: not needed, because t2t",
    ),
  ],
)
def test_what_changes_nothing_is_told(text, words, tmp_path):
  """The message contains the line, the meaning in T5X, and the reason."""
  notes = notes_of(tmp_path, PRETRAIN + text.replace("train/DatasetConfig", "train/utils.DatasetConfig"))
  assert [refused for note, refused in notes.items() if words in note] == [False], "\n".join(notes)


@pytest.mark.parametrize(
  ("text", "words"),
  [
    ("include 'mine.gin'\n", "mine.gin includes "),
    (f"{MODEL}Z_LOSS = %A\nA = %B\nB = %A\n", "refers to itself (Z_LOSS -> A -> B -> A)"),
  ],
)
def test_circles(text, words, tmp_path):
  with pytest.raises(UserError) as error:
    config_of(tmp_path, text)
  assert words in str(error.value)


def test_a_file_that_is_not_there(tmp_path):
  with pytest.raises(UserError, match=r"--gin_file .*gone.gin: no such file"):
    gin.read(str(tmp_path / "gone.gin"))
  (tmp_path / "bytes.gin").write_bytes(b"\xff\xfe\x00")
  with pytest.raises(UserError, match="not a text file"):
    gin.read(str(tmp_path / "bytes.gin"))


@pytest.mark.parametrize("name", list(gin_names.MIXTURES))
def test_mixtures_that_t2t_has_under_another_name(name):
  """The config's module registers them."""
  from t2t.data import task_resolution

  ours, module = gin_names.MIXTURES[name]
  assert task_resolution.named(ours, modules=(module,)).name == ours


def test_main_prints_a_config_to_save_and_the_rest_apart(tmp_path, capsys):
  """So that `t2t convert --gin base.gin > base.py` is a config."""
  gin.main(gin.read(write(tmp_path, "mine.gin", MODEL + "Adafactor.beta1 = 0.9\n")))
  out, err = capsys.readouterr()
  config = load_config(write(tmp_path, "made.py", out))
  assert config.model.embed_dim == 768
  assert "settle before the run" in err and "mine.gin:2: Adafactor.beta1" in err
