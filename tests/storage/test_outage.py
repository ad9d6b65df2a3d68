"""Outages of a bucket are detected from errors of the real clients on a port without a server."""

import socket

import google.api_core.exceptions as api
import google.auth.exceptions as auth
import pytest
import requests
import tensorflow as tf
import tensorstore as ts

from t2t import UserError
from t2t import __main__ as command
from t2t.data.sources import named
from t2t.storage import gcs, outage


@pytest.fixture
def nobody(monkeypatch):
  """All clients use an address that does not answer; t2t's own retries only briefly."""
  with socket.socket() as taken:
    taken.bind(("127.0.0.1", 0))
    address = f"http://127.0.0.1:{taken.getsockname()[1]}"
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
    monkeypatch.setenv("TENSORSTORE_GCS_HTTP_URL", address)
    monkeypatch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "x")
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "test")
    monkeypatch.setattr(gcs, "RETRY_SECONDS", 0.1)
    gcs.client.cache_clear()
    yield
  gcs.client.cache_clear()


def listed():
  gcs.names("gs://bucket/folder", where="--workdir")


def read():
  gcs.read("gs://bucket/folder/file")


def array():
  kvstore = {"driver": "gcs", "bucket": "bucket", "path": "a/"}
  few = ts.Context({"gcs_request_retries": {"max_retries": 1}})
  ts.open({"driver": "zarr", "kvstore": kvstore}, context=few).result()


def tensorflow():
  """Returns TensorFlow's error, which takes two minutes."""
  said = "All 10 retry attempts failed. The last failure: Error executing an HTTP request: libcurl code 7 meaning"
  raise tf.errors.AbortedError(None, None, f"{said} 'Could not connect'\n\t when reading metadata of gs://bucket/a")


@pytest.mark.parametrize("ask", [listed, read, array, tensorflow])
def test_each_client_of_a_bucket_that_is_away_is_known(nobody, ask):
  with pytest.raises(Exception) as caught:
    ask()
  reason = outage.reason(caught.value)
  assert reason and "\n" not in reason and len(reason) < 210
  wrapped = UserError("what t2t makes of it")
  wrapped.__cause__ = caught.value
  assert outage.reason(wrapped) == reason


_NO_HOST = "Error executing an HTTP request: libcurl code 6 meaning 'Couldn't resolve host name', gs://bucket/a"


@pytest.mark.parametrize(
  "error",
  [
    auth.RefreshError("the metadata server did not answer", retryable=True),
    auth.TimeoutError("the metadata server"),
    api.from_http_status(408, "Request Timeout"),
    requests.exceptions.ChunkedEncodingError("Connection broken: IncompleteRead(5 bytes read)"),
    tf.errors.FailedPreconditionError(None, None, _NO_HOST),
    ValueError('Error opening "zarr" driver: UNAVAILABLE: Error reading gs://bucket/a'),
  ],
)
def test_ways_to_a_bucket_that_are_broken_are_known(error):
  """Credentials, connections and host names: temporary failures."""
  assert outage.reason(error)


@pytest.mark.parametrize(
  "error",
  [
    auth.RefreshError("invalid_grant: the token was revoked"),
    auth.DefaultCredentialsError("no credentials"),
    ValueError("DATA_LOSS: gs://bucket/a: checksum"),
    UserError("--workdir gs://bucket/a: is a file"),
    FileNotFoundError("gs://bucket/a"),
    PermissionError(13, "Permission denied"),
    ValueError("NOT_FOUND: Error opening gs://bucket/a/.zarray"),
    ValueError("INTERNAL: a program of XLA"),
    tf.errors.InternalError(None, None, "a function of tf.data"),
    tf.errors.NotFoundError(None, None, "gs://bucket/a"),
  ],
)
def test_what_a_user_or_the_code_has_done_is_none(error):
  assert outage.reason(error) is None


def test_a_bucket_that_does_not_exist_is_none(monkeypatch):
  from google.api_core import exceptions

  def refuse(*arguments, **options):
    raise exceptions.NotFound("no such bucket")

  monkeypatch.setattr(gcs, "client", lambda: type("Client", (), {"list_blobs": refuse})())
  with pytest.raises(UserError, match="bucket .* does not exist") as caught:
    listed()
  assert outage.reason(caught.value) is None


@pytest.mark.parametrize("ask", [listed, tensorflow])
def test_the_command_ends_with_what_launchers_start_again_at(nobody, monkeypatch, capsys, ask):
  """Without a traceback, for each client's error."""
  monkeypatch.setitem(command.SUBCOMMANDS, "train", (__name__, ""))
  monkeypatch.setattr(f"{__name__}.main", lambda rest: ask(), raising=False)
  assert command.main(["train"]) == 75
  said = capsys.readouterr().err
  assert "t2t train: error: " in said and "Traceback" not in said and "bucket" in said


def test_an_outage_is_one_beyond_tf_data():
  """tf.data passes on only the text of an error, and has errors of its own client."""

  def read():
    yield 1
    raise outage.Away("gs://bucket/a cannot be read after line 1")

  with pytest.raises(tf.errors.OpError) as ours:
    list(tf.data.Dataset.from_generator(read, output_signature=tf.TensorSpec([], tf.int32)))
  theirs = tf.errors.UnavailableError(
    None, None, "Error executing an HTTP request: HTTP response code 503, gs://bucket/a"
  )
  for error in (ours.value, theirs):
    for told in (named.in_pipeline(error, "task"), named.failure(error, "task", what="the source fails")):
      assert told.exit_code == 75 and "\n" not in str(told) and "gs://bucket/a" in str(told)
  assert named.failure(tf.errors.InternalError(None, None, "x"), "task", what="the source fails").exit_code == 2


def test_other_errors_keep_their_traceback(monkeypatch):
  def fail(rest):
    raise RuntimeError("of the code")

  monkeypatch.setitem(command.SUBCOMMANDS, "train", (__name__, ""))
  monkeypatch.setattr(f"{__name__}.main", fail, raising=False)
  with pytest.raises(RuntimeError, match="of the code"):
    command.main(["train"])


def test_who_has_no_right_is_not_told_to_come_again():
  from google.api_core import exceptions

  codes = {}
  for error in (exceptions.Forbidden("no right"), exceptions.ServiceUnavailable("later")):
    codes[error.code] = outage.refusal("gs://bucket/a cannot be written", error).exit_code
  assert codes == {403: 2, 503: 75}
