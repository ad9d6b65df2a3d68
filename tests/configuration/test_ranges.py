"""Integer options of commands are checked while parsing, before any file is read."""

import pytest

from t2t import __main__ as command

INFER = ("infer", "--checkpoint=x", "--input=x.txt", "--output=x.jsonl")
EMBED = ("embed", "--checkpoint=x", "--input=x.txt", "--output=x.npy")
LAUNCH = ("launch", "tpu-vm", "--type=v5p-32", "--zone=z")


@pytest.mark.parametrize(
  ("arguments", "option", "least"),
  [
    (INFER, "batch_size", 1),
    (EMBED, "batch_size", 1),
    (EMBED, "examples", 1),
    (("fisher", "x", "--output=y"), "examples", 1),
    (("replay", "x", "--step=1"), "rows", 0),
    (("checkpoint", "prune", "x"), "keep", 1),
    (("vocab", "report", "--vocabulary=bytes", "en=x.txt"), "max_lines", 1),
    (LAUNCH, "restarts", 0),
  ],
)
@pytest.mark.parametrize("value", ["below", "1.5", "nan"])
def test_a_number_out_of_range_is_refused(arguments, option, least, value, capsys):
  value = str(least - 1) if value == "below" else value
  with pytest.raises(SystemExit) as ended:
    command.main([*arguments, f"--{option}={value}"])
  assert ended.value.code == 2
  said = " ".join(capsys.readouterr().err.split())
  assert f"argument --{option}: " in said and f"{value} is not valid. Give a whole number, {least} or more" in (
    said.replace("'", "")
  )
