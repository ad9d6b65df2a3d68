import contextlib
import dataclasses
import json
import re
import subprocess
import sys

from ml_collections import ConfigDict
import pytest

import t2t
from t2t import UserError
from t2t import __main__ as t2t_main
from t2t.commands import options
from t2t.configuration.loading import config_names, for_architecture, load_config, override, records
from t2t.configuration.renamed_keys import with_current_keys
from t2t.configuration.schema import FIRST, OPTIONAL
from t2t.losses import distillation
from t2t.runtime import exit_codes, preemption

T5_SIZES = ("small", "base", "large", "xl", "xxl")
FAMILIES = {
  **dict.fromkeys(("byt5", "modern_t5", "mt5", "prefix_lm", "red_llm", "t5", "t5_1_1"), T5_SIZES),
  "ul2": (*T5_SIZES, "20b"),
  "albert": ("base", "large", "xlarge", "xxlarge"),
  "electra": ("small", "base", "large"),
  **dict.fromkeys(("bart", "bert", "modern_bert", "roberta"), ("base", "large")),
  "transformer": ("base", "big"),
  "deberta": ("base", "large", "xlarge"),
  "deberta_v2": ("xlarge", "xxlarge"),
  "deberta_v3": ("xsmall", "small", "base", "large"),
  "nezha": ("base", "large"),
  "gpt1": ("base",),
  "xlnet": ("base", "large"),
  "awd_lstm": ("ptb", "wikitext2", "ulmfit"),
  "transformer_xl": ("wt103_base", "wt103_large", "enwik8_base", "enwik8_large"),
  "cramming": ("base",),
  "ettin": tuple(
    f"{side}_{size}" for side in ("encoder", "decoder") for size in ("17m", "32m", "68m", "150m", "400m", "1b")
  ),
  "eurobert": ("210m", "610m", "2_1b"),
  "neobert": ("base",),
  "mdlm": ("small",),
  "bd3lm": ("small_4", "small_8", "small_16"),
  "llada": ("8b",),
  "gpt2": ("small", "medium", "large", "xl"),
  "gpt3": ("small", "medium", "large", "xl", "2_7b", "6_7b", "13b", "175b"),
  "dapt": ("domain", "task"),
  "ulmfit": ("general", "task", "classifier"),
  "gpt_bert": ("small", "base"),
  "babylm": ("10m_encoder_decoder", "10m_hybrid"),
  "mbert": ("base",),
  "xlm": ("15", "100"),
  "xlm_r": ("base", "large"),
  "afriberta": ("small", "base", "large"),
  "rembert": ("base",),
  "unilm": ("base", "large"),
  "longformer": ("base", "large"),
  "switch": (*(f"base_{number}" for number in (8, 16, 32, 64, 128, 256)), "large_128", "xxl_128", "c_2048"),
  "st_moe": ("large", "32b"),
  "mixtral": ("8x7b", "8x22b"),
  "t5gemma": tuple(
    f"{size}_{objective}"
    for size in ("s_s", "b_b", "l_l", "ml_ml", "xl_xl", "2b_2b", "9b_2b", "9b_9b")
    for objective in ("ul2", "prefixlm")
  ),
  "t5gemma_adapt": tuple(
    f"{size}_{objective}" for size in ("2b_2b", "9b_2b", "9b_9b") for objective in ("ul2", "prefixlm")
  ),
  "universal_transformer": ("base", "big", "adaptive_base", "adaptive_big"),
  "mobilebert": ("base", "tiny"),
  "mobilebert_distilled": ("pretraining", "transfer"),
  "tinybert": ("general", "task"),
  "minilm": ("v1", "v2"),
  "q8bert": ("docs_package", "glue", "squad"),
  "megatron_bert": ("336m", "1_3b", "3_9b"),
  "megatron_gpt": ("355m", "2_5b", "8_3b"),
  "turing_nlg": ("17b",),
  "mpt": ("7b", "30b"),
  "llama2": ("1b", "7b", "13b"),
  "llama3": ("8b", "70b", "1_8b", "1_70b", "1_405b", "2_1b", "2_3b"),
  "qwen2": ("0_5b", "1_5b", "3b", "7b", "14b", "32b", "72b"),
  "finetune": (
    "superglue",
    "babylm",
    "glue",
    "squad",
    "squad_v2",
    "ner",
    "pos",
    "hellaswag",
    "imdb",
    "ag_news",
    "cnn_dailymail",
    "xsum",
    "wmt_en_de",
    "wmt_en_fr",
    "wmt_en_ro",
    "docs_match",
    "docs_package",
    "docs_summary",
  ),
  "tiny": (
    "albert",
    "bart",
    "bert",
    "cove",
    "deberta",
    "deberta_v2",
    "deberta_v3",
    "block_diffusion",
    "diffusion",
    "electra",
    "elmo",
    "gpt",
    "llama",
    "longformer",
    "lstm",
    "mixtral",
    "mobilebert",
    "modern_bert",
    "modern_t5",
    "nezha",
    "prefix_lm",
    "qrnn",
    "qwen2",
    "red_llm",
    "rembert",
    "roberta",
    "sa_lstm",
    "simcse",
    "skip_gram",
    "skip_thought",
    "cbow",
    "spanbert",
    "switch",
    "t5",
    "transformer",
    "transformer_xl",
    "ul2",
    "unilm",
    "universal",
    "xlnet",
  ),
  "bert_nsp": ("base", "large"),
  "struct_bert": ("base", "large"),
  "spanbert": ("base", "large"),
  "simcse": ("base", "large"),
  "labse": ("base",),
  "quick_thought": ("base", "large"),
  "word2vec": ("skip_gram", "cbow"),
  "fasttext": ("skip_gram", "cbow"),
}
NAMES = [f"{family}_{size}" for family, sizes in FAMILIES.items() for size in sizes]
NAMES += [
  "cove",
  "elmo",
  "sa_lstm",
  "skip_thought",
  "glove",
  "tiny",
  "superglue",
  "finetune",
  "t5_lm_adapt",
  "distilbert",
  "distilgpt2",
  "distil_t5",
  "q8bert",
]


def loaded(*arguments):
  return override(load_config("t5_1_1_small"), list(arguments))


def test_names_of_the_shipped_configs():
  """Every family has every size, and tiny configs."""
  assert sorted(config_names()) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_shipped_config_loads(name):
  """A config has its name and the default's keys, except the section of its own method."""
  config, plain = load_config(name), load_config("t5_1_1_small")
  sections = {"electra": ("electra", "deberta_v3"), "contrastive": ("simcse", "labse", "quick_thought")}
  sections |= {"negative_sampling": ("skip_gram", "cbow"), "glove": ("glove",)}
  sections["distillation"] = ("distil", "tinybert", "minilm")
  own = {section for section, words in sections.items() if any(word in name for word in words)}
  assert set(config) == set(plain) | own
  assert all(set(config[section]) == set(values) for section, values in plain.items() if section != "stages")
  if "distillation" in own:
    with pytest.raises(UserError, match=r"config\.distillation\.teacher is missing"):
      distillation.check_teacher(config)
    with config.unlocked():
      config.distillation.teacher = ("runs/teacher",)
    distillation.check_teacher(config)
  assert records(config).to_dict().keys() == set(config) - (set() if config.stages else {"stages"})


def test_overrides_change_keys():
  """Numbers, switches, strings and tuples get the key's type."""
  config = loaded(
    "--config.train.steps=7",
    "--config.train.z_loss=0.5",
    "--config.data.files=a.txt,b.txt",
    "--config.data.pack",
    "--noconfig.optimizer.scale_by_parameter",
    "--config.train.freeze=('embed','norm')",
  )
  assert (config.train.steps, config.train.z_loss, config.data.files) == (7, 0.5, "a.txt,b.txt")
  assert config.data.pack is True
  assert config.optimizer.scale_by_parameter is False
  assert config.train.freeze == ("embed", "norm")
  assert config.is_locked


def test_several_values_are_separated_by_commas():
  """A tuple may be in Python syntax, or without quotes and brackets."""
  for text in ("('cb','rte')", "cb,rte"):
    assert loaded(f"--config.eval.tasks={text}").eval.tasks == ("cb", "rte")
  assert loaded("--config.eval.tasks=cb").eval.tasks == ("cb",)
  assert loaded("--config.eval.tasks=").eval.tasks == ()
  nli = {"name": "nli", "num_classes": 3}
  for text in (f"{nli}", f"{nli},", f"({nli},)"):
    assert loaded(f"--config.model.heads={text}").model.heads == (nli,)


def test_a_section_that_nothing_reads_is_left_out():
  """ELECTRA's section is dropped with another loss."""
  config = override(load_config("tiny_electra"), ["--config.train.loss=cross_entropy"])
  assert records(config).electra is None and "electra" not in records(config).to_dict()


def test_a_mapping_takes_any_name(tmp_path):
  """Names may be typed or in a config; config.json contains non-empty mappings."""
  assert records(loaded()).data.benchmark_dirs == {} and "benchmark_dirs" not in records(loaded()).to_dict()["data"]
  config = load_config(
    write(
      tmp_path,
      "from t2t.configs import tiny\n"
      "def get_config():\n"
      "  config = tiny.get_config()\n"
      "  config.data.benchmark_dirs.superglue = 'a'\n"
      "  return config\n",
    )
  )
  config = override(config, ["--config.data.benchmark_dirs.xnli2=gs://b/x", "--config.data.benchmark_dirs.glue", "c"])
  folders = {"superglue": "a", "xnli2": "gs://b/x", "glue": "c"}
  assert records(config).data.benchmark_dirs == folders
  assert json.loads(json.dumps(records(config).to_dict()))["data"]["benchmark_dirs"] == folders
  assert config.is_locked
  config.data.benchmark_dirs = {"superglue": 3}
  with pytest.raises(UserError, match=r"config.data.benchmark_dirs.superglue=3 must be the path of a folder"):
    records(config)


def test_keys_of_before_are_read():
  """Renamed keys of checkpoints get their current names, and removed ones are dropped."""
  old = {"data": {"files": "x", "superglue_dir": "S", "glue_dir": "", "squad_dir": "Q"}, "model": {"heads": []}}
  new = {"data": {"files": "x", "benchmark_dirs": {"superglue": "S", "squad": "Q"}}, "model": {"heads": []}}
  assert with_current_keys(old) == with_current_keys(new) == new
  assert old["data"]["superglue_dir"] == "S"


def typed(*arguments):
  """Returns the config of a command line."""
  return options.parse(options.config_parser("t2t train", ""), ["--config=tiny", *arguments])[1]


@pytest.mark.parametrize("key", ["objective=prefix_lm", "objective=nonsense", "noise_density=0.5", "field=body"])
def test_keys_of_files_are_refused_where_none_are_read(key):
  """A registered task determines these settings, so that the keys would have no effect."""
  message = rf"^--config.data.{key} applies only to config.data.files, but the tasks of config.data.mixture=docs_span_"
  with pytest.raises(UserError, match=message):
    typed(f"--config.data.{key}")
  source = "--config.data.sources.a.mixture=docs_span_corruption"
  with pytest.raises(UserError, match=r"but the tasks of config.data.sources \(a\) determine this key"):
    typed("--config.data.mixture=", source, f"--config.data.{key}")


@pytest.mark.parametrize(
  "arguments",
  [
    ["--config.data.mixture=", "--config.data.files=a.txt", "--config.data.field=body"],
    ["--config.data.mixture=", "--config.data.sources.a.files=a.txt", "--config.data.field=body"],
    ['--config.stages={"name": "a"}, {"name": "b", "data.files": "a.txt"}', "--config.data.field=body"],
    ['--config.stages={"name": "b", "data.sources.a.files": "a.txt"},', "--config.data.field=body"],
    ["--config.data.field=text", "--config.data.eval_files=", "--config.data.max_bad_record_fraction=0.0"],
    ["--config.model.architecture=encoder_only", "--config.data.noise_density=0.3"],
  ],
  ids=["files", "a source", "a stage", "a source of a stage", "as it would be", "an encoder's FLOPs"],
)
def test_keys_of_files_are_taken_where_they_change_something(arguments):
  """Also if the value matches the default behavior."""
  key, _, value = arguments[-1].removeprefix("--config.data.").partition("=")
  assert str(typed(*arguments).data[key]) == value


def test_a_config_in_python_may_be_given_its_files_later():
  """Preprocessing keys may come before the files."""
  assert t2t.config("tiny", data={"objective": "prefix_lm", "field": "body"}).data.objective == "prefix_lm"


@pytest.mark.parametrize(
  ("argument", "message"),
  [
    ("--config.train.step=7", r"--config.train.step: no such key; nearest: train.steps"),
    ("--config.electra.head_dim=2", r"no such key; nearest: electra.embed_dim, electra.mlp_dim"),
    ("--config.electra.mlp_dim=16", r"mlp_dim=16 has no effect with config.train.loss=cross_entropy; add --config.tr"),
    ("--config.trian.steps=7", r"--config.trian.steps: no such key; nearest: train.steps"),
    ("--config.steps=7", r"--config.steps: no such key"),
    (
      "--config.init=runs/x",
      r"'init' is a section, not a key. Give --config.init.KEY=VALUE with one of these keys: checkpoint",
    ),
    ("--config.train.steps=many", r"config.train.steps"),
    ("--config.train.steps=1.5", r"config.train.steps"),
    ("--config.data.pack=perhaps", r"config.data.pack"),
    (
      '--config.stages={"fraction": 0.9, {"name": "b"}',
      r"^--config.stages={.* is not a valid value \('{' was never",
    ),
    ("--config.stages={'share': half}", r""". Give a mapping for each stage: --config.stages='{"name": "short", """),
    ("--config.stages=({'share': 0.5},", r"^--config.stages=\({'share': 0.5}, is not a valid value \("),
    ("--steps=7", r"unknown option --steps=7; did you mean --config.train.steps\?"),
    ("--batch-size", r"did you mean --config.(train|eval).batch_size or --config.(train|eval).batch_size\?"),
    ("--stpes=7", r"unknown option --stpes=7; did you mean --config.train.steps\?"),
    ("--zebra=7", r"unknown option --zebra=7; `--help` lists all options"),
    ("--config.lora.rank}2", r"--config.lora.rank}2: no such key; keys have only letters"),
    ("--config.train.steps[}=2", r"--config.train.steps\[}: no such key; keys have only letters"),
    ("tiny", r"unexpected argument 'tiny'"),
    (
      "--config.data.benchmark_dir.glue=x",
      r"--config.data.benchmark_dir.glue: no such key; nearest: data.benchmark_dirs",
    ),
    (
      "--config.data.benchmark_dirs=x",
      r"--config.data.benchmark_dirs=x: invalid key. Give --config.data.benchmark_dirs.NAME=VALUE",
    ),
    (
      "--config.data.benchmark_dirs.a.b=x",
      r"a.b=x: invalid key. Give .*benchmark_dirs.NAME=VALUE, with letters",
    ),
    (
      "--config.data.benchmark_dirs.a-b=x",
      r"a-b=x: invalid key. Give .*benchmark_dirs.NAME=VALUE, with letters",
    ),
  ],
)
def test_what_cannot_be_applied_is_refused(argument, message):
  """The message contains the argument, and the nearest key if the key is unknown."""
  with pytest.raises(UserError, match=message):
    loaded(argument)


@pytest.mark.parametrize("value", ["(1,)", "{}", "('a', None)"])
def test_texts_that_are_none_are_refused(value):
  """Non-string values are rejected before the files are read."""
  with pytest.raises(
    UserError, match=r"config.optimizer.param_groups=\(.*\) must contain only strings, separated by commas"
  ):
    records(loaded(f"--config.optimizer.param_groups={value}"))


@pytest.mark.parametrize(
  ("spec", "message", "listing"),
  [
    ("t5_1_1_smal", "nearest: t5_1_1_small", "`t2t train --help` lists"),
    ("default", "no such config", "`t2t train --help` lists"),
    ("missing.py", "missing.py: no such file", "\n  afriberta_*, albert_*, awd_lstm_*, babylm_*, "),
  ],
)
def test_a_config_that_is_not_there(spec, message, listing):
  """The message contains the nearest name, and lists the existing ones or explains."""
  with pytest.raises(UserError, match=message) as caught:
    load_config(spec)
  assert listing in str(caught.value)


@pytest.mark.parametrize(
  ("architecture", "objective"),
  [("encoder_only", "masked_lm"), ("decoder_only", "causal_lm"), ("encoder_decoder", "span_corruption")],
)
def test_a_model_goes_on_as_its_kind_is_trained(architecture, objective):
  """Continued pre-training on domain text keeps the objective of the architecture."""
  config = load_config("dapt_domain")
  config.model.architecture = architecture
  for_architecture("dapt_domain", config)
  assert config.data.objective == objective


def write(tmp_path, text):
  path = tmp_path / "mine.py"
  path.write_text(text)
  return str(path)


def test_a_config_file_takes_an_argument(tmp_path):
  """FILE.py calls get_config(), FILE.py:ARGUMENT calls get_config("ARGUMENT")."""
  path = write(
    tmp_path,
    "from t2t.configs import t5_1_1\n"
    "def get_config(size='base'):\n"
    "  config = t5_1_1.get_config(size)\n"
    "  config.train.steps = 3\n"
    "  return config\n",
  )
  assert load_config(path).model.embed_dim == 768
  assert load_config(f"{path}:large").model.embed_dim == 1024
  assert load_config(path).train.steps == 3


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("x = 1\ny = x / 0\n", r"mine.py, line 2: the file fails with ZeroDivisionError"),
    ("def get_config():\n  x = {}\n  return x['a']\n", r"mine.py, line 3: the file fails with KeyError"),
    ("def get_config(:\n", r"mine.py.*SyntaxError.*line 1"),
    ("from t2t.configs import default\ndef get_config():\n  config = default.get_config()\n  config.train.stpes = 3\n",
     r"(?s)mine.py, line 4: .*stpes"),
    ("", r"mine.py: the file does not define get_config\(\)"),
    ("get_config = 1\n", r"mine.py: the file does not define get_config\(\)"),
    ("def get_config():\n  return {}\n", r"returned dict, not a ConfigDict; start the config from"),
  ],
  ids=["import", "call", "syntax", "unknown-key", "empty", "no-function", "type"],
)  # fmt: skip
def test_a_config_file_that_fails_says_where(tmp_path, text, message):
  """The message contains file and line of the user's config, without a traceback."""
  with pytest.raises(UserError, match=message):
    load_config(write(tmp_path, text))


def test_a_missing_config_is_told(capsys):
  """Exit code 2, with the existing configs by family; --debug adds the traceback."""
  assert t2t_main.main(["train", "--workdir", "nowhere"]) == 2
  error = capsys.readouterr().err
  assert error.startswith("t2t train: error: --config is missing")
  assert max(map(len, error.splitlines())) <= 80 and len(error) < 1_100
  found = " ".join(error.split()).partition("--help): ")[2].split(", ")
  assert {"bert_nsp_*", "labse_base", "tiny", "tiny_*"} <= set(found)
  assert t2t_main.main(["train", "--debug"]) == 2
  assert capsys.readouterr().err.startswith("Traceback")


def test_a_file_is_no_workdir(capsys, tmp_path):
  """The error comes before anything is read."""
  (tmp_path / "README.md").write_text("text")
  assert t2t_main.main(["train", "--config", "tiny", f"--workdir={tmp_path / 'README.md'}"]) == 2
  assert "README.md is a file. Give a folder" in capsys.readouterr().err


COMMANDS = [
  *([name] for name in t2t_main.SUBCOMMANDS),
  *(["checkpoint", name] for name in ("list", "verify", "prune", "diff")),
  *(["launch", name] for name in ("tpu-vm", "gke", "slurm", "status", "logs", "stop", "delete")),
  *(["prune", name] for name in ("layers", "heads", "neurons", "rewind")),
  ["tasks", "show"],
  ["vocab", "train"],
]


@pytest.mark.parametrize("words", [[], *COMMANDS], ids=" ".join)
def test_help_has_80_columns(capsys, monkeypatch, words):
  """All commands and subcommands are checked."""
  monkeypatch.setenv("COLUMNS", "80")
  with contextlib.suppress(SystemExit):
    t2t_main.main([*words, "--help"])
  lines = capsys.readouterr().out.splitlines()
  assert len(lines) > 4 and [line for line in lines if len(line) > 80] == []


@pytest.mark.parametrize("name", ["sweep", "pet", "superglue"])
def test_help_of_commands_of_many_runs_is_short(capsys, monkeypatch, name):
  """It begins with the common use, and refers to the help of `t2t train` for configs and keys."""
  monkeypatch.setenv("COLUMNS", "80")
  with pytest.raises(SystemExit):
    t2t_main.main([name, "--help"])
  lines = capsys.readouterr().out.splitlines()
  assert len(lines) < 70 and any(line.startswith(f"  t2t {name} --") for line in lines[:7])
  with pytest.raises(SystemExit):
    t2t_main.main([name, "--help", "mesh"])
  assert "--config.mesh.fsdp=0" in capsys.readouterr().out


@pytest.mark.parametrize("steps", [0, 1])
def test_ctrl_c_before_the_first_step_says_that_nothing_was_saved(steps, monkeypatch, capsys):
  """Also for a loop that has begun and waits for the first step; not after a step."""

  def train(arguments):
    with preemption.after_steps() as loop:
      for _ in range(steps):
        loop.reached()
      raise KeyboardInterrupt

  monkeypatch.setattr("t2t.commands.train.main", train)
  assert t2t_main.main(["train"]) == exit_codes.INTERRUPTED
  said = capsys.readouterr().err
  assert "t2t train: interrupted" in said
  assert ("before the first step; nothing new was saved, the same command starts again" in said) == (steps == 0)


def test_help_of_a_section_is_the_section(capsys):
  """Nothing else comes before the keys; the lines of all sections have 80 columns."""
  with pytest.raises(SystemExit):
    t2t_main.main(["train", "--help", "distillation"])
  title, *keys = capsys.readouterr().out.splitlines()
  assert title.startswith("keys and") and "config.distillation.teacher or .logits is set" in keys[0]
  assert {line.split(".")[1] for line in keys if line.startswith("  --config.")} == {"distillation"}
  with pytest.raises(SystemExit):
    t2t_main.main(["train", "--help", "all"])
  lines = capsys.readouterr().out.splitlines()
  assert len(lines) > 500 and [line for line in lines if len(line) > 80 and "--config." not in line] == []


def test_help_of_every_command_is_looked_at(capsys, monkeypatch):
  """A command's own options are in its usage."""
  monkeypatch.setenv("COLUMNS", "1000")
  for name in t2t_main.SUBCOMMANDS:
    with contextlib.suppress(SystemExit):
      t2t_main.main([name, "--help"])
    found = re.search(r"^usage: t2t \S+ .*?([\w-]+(?: ?\| ?[\w-]+)+) \.\.\.$", capsys.readouterr().out, re.MULTILINE)
    own = {words[1] for words in COMMANDS if words[0] == name and words[1:]}
    assert {word.strip() for word in (found[1] if found else "").split("|")} <= {"", *own}


@pytest.mark.parametrize(
  ("words", "meant"),
  [
    (["train", "--config=tiny", "--workdirr=x"], "--workdirr; did you mean --workdir?"),
    (["plan", "--config=tiny", "--serch", "--config.data.files=a b"], "--serch; did you mean --search?"),
    (["train", "--config=tiny", "--sed=3"], "--sed=3; did you mean --config.train.seed?"),
  ],
)
def test_the_option_that_was_meant_is_told(capsys, words, meant):
  """The suggestion is an option of the command, or a key."""
  assert t2t_main.main(words) == 2
  assert capsys.readouterr().err.strip().endswith(f"error: unknown option {meant}")


@pytest.mark.parametrize(
  ("words", "told"),
  [
    (
      ["--debug", "train", "--config=tiny"],
      "--debug comes before the command; give options after the command: t2t train --debug ...",
    ),
    (["train", "tiny"], "--config is missing; did you mean --config tiny?"),
  ],
)
def test_words_that_stand_elsewhere_are_told(capsys, words, told):
  """The message contains the right place."""
  assert t2t_main.main(words) == 2
  assert capsys.readouterr().err.strip().endswith(f"error: {told}")


def test_an_unknown_command_is_told(capsys):
  """The message lists the existing commands."""
  assert t2t_main.main(["trian"]) == 2
  assert "train" in capsys.readouterr().err


def run(program):
  return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def imported(program):
  """Returns the top-level modules that a fresh interpreter has loaded after `program`."""
  return set(run(f"{program}\nimport sys\nprint(*{{name.split('.')[0] for name in sys.modules}})").split())


def test_help_imports_nothing_heavy():
  """`t2t --help` lists the commands without importing JAX or other slow packages."""
  words = imported("from t2t import __main__\nassert __main__.main(['--help']) == 0")
  assert {"train", "vocab", "--debug"} <= words
  assert not words & {"jax", "flax", "numpy", "tensorflow", "seqio", "ml_collections"}


def help_of(*words):
  """Returns the output of `t2t train --help ...`; TensorFlow is not loaded."""
  return run(
    "import sys\nfrom t2t import __main__\n"
    f"try:\n  __main__.main({['train', '--help', *words]!r})\nexcept SystemExit as ended:\n  assert not ended.code\n"
    "assert not {'tensorflow', 'seqio'} & set(sys.modules)"
  )


@pytest.mark.slow
def test_train_help_lists_configs_and_the_first_keys():
  """Each key has its default and comment, at 80 columns, within a limited length."""
  text = help_of()
  keys = re.findall(r"^  --config\.(\w+\.\w+)=", text, re.MULTILINE)
  assert sorted(keys) == sorted(f"{section}.{key}" for section, names in FIRST.items() for key in names)
  assert len(keys) <= 45
  assert all(name in text for name in [*NAMES, "--workdir", "--help all"])
  assert "--config.train.steps=1_000\n        number of updates" in text
  assert max(map(len, text.splitlines())) <= 80


@pytest.mark.exhaustive
def test_train_help_has_all_keys():
  """Each key occurs once, with its comment; a section can be selected."""
  text = help_of("all")
  plain = [(section, values) for section, values in load_config("tiny").items() if section != "stages"]
  names = lambda value: ".NAME" if isinstance(value, ConfigDict) else ""
  keys = [f"{section}.{key}{names(value)}" for section, values in plain for key, value in values.items()]
  keys += [f"{section}.{field.name}" for section, cls in OPTIONAL.items() for field in dataclasses.fields(cls)]
  assert "data.benchmark_dirs.NAME" in keys
  keys.append("stages")
  assert sorted(re.findall(r"^  --config\.([\w.]+)=", text, re.MULTILINE)) == sorted(keys)
  without = re.findall(r"^  --config\.([\w.]+)=.*\n(?!        )", text, re.MULTILINE)
  assert all(key.startswith("model.") for key in without), without
  assert "--config.model.remat=none\n        activations that the backward pass recomputes" in text
  assert all(line.startswith("  --config.mesh.") for line in help_of("mesh").splitlines() if "--config." in line[:12])


@pytest.mark.exhaustive
def test_the_core_does_without_tensorflow():
  """Models, losses, state, checkpoints and the command line work without TensorFlow."""
  names = [
    "models.transformer",
    "losses",
    "training.train_state",
    "training.writers",
    "checkpoints.store",
    "training.train",
  ]
  names += ["commands.train", "commands.plan", "commands.convert", "commands.infer", "generation.decoding"]
  modules = imported("import " + ", ".join(f"t2t.{name}" for name in names))
  assert "jax" in modules
  assert not modules & {"tensorflow", "seqio", "tensorflow_datasets", "keras"}


def test_configs_are_config_dicts():
  """Users' config files rely on this."""
  assert isinstance(load_config("tiny"), ConfigDict)


def test_a_config_file_is_read_as_it_stands(tmp_path, monkeypatch):
  """A file that is rewritten within a second with the same size is reloaded."""
  monkeypatch.setattr(sys, "dont_write_bytecode", False)
  path = tmp_path / "mine.py"
  for steps in (111, 222):
    path.write_text(
      "from t2t.configs import tiny\n\ndef get_config():\n  config = tiny.get_config()\n"
      f"  config.train.steps = {steps}\n  return config\n"
    )
    assert load_config(str(path)).train.steps == steps
  assert [each.name for each in tmp_path.iterdir()] == ["mine.py"]
