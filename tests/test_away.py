"""A bucket that TensorFlow cannot reach ends a command with one sentence, and a code at which launchers start again."""

import pytest
import tensorflow as tf

from t2t import __main__ as command
from t2t.runtime import exit_codes
from t2t.storage import away

SAID = (
  "All 10 retry attempts failed. The last failure: Error executing an HTTP request\n\t when reading gs://b/run/t.json"
)


@pytest.mark.parametrize("kind", [tf.errors.AbortedError, tf.errors.UnavailableError, tf.errors.DeadlineExceededError])
def test_a_bucket_that_is_away_is_no_error_of_the_code(kind, monkeypatch, capsys):
  def raising(_):
    raise kind(None, None, SAID)

  monkeypatch.setattr("t2t.commands.vocab.main", raising)
  assert command.main(["vocab"]) == exit_codes.LOST and exit_codes.goes_on(exit_codes.LOST)
  err = capsys.readouterr().err
  assert err.startswith("t2t vocab: error: gs://b/run/t.json: cannot be reached (All 10 retry attempts failed.")
  assert err.count("\n") == 1


@pytest.mark.parametrize("error", [tf.errors.NotFoundError(None, None, SAID), ValueError(SAID)])
def test_other_errors_are_what_they_are(error):
  assert away.said_by(error) is None
