"""Downloads of TFDS: a server that is unavailable for a moment, and one that stays unavailable."""

import contextlib
import http.server
import socket
import threading
import time

from etils import epath
import pytest
import tensorflow_datasets as tfds

from t2t import UserError
from t2t.data.sources import tfds_source


class Downloaded(tfds.core.GeneratorBasedBuilder):
  """Data set with a line of text from a server."""

  VERSION = tfds.core.Version("1.0.0")
  pkg_dir_path = epath.Path(__file__).parent
  url = ""

  def _info(self):
    features = tfds.features.FeaturesDict({"text": tfds.features.Text()})
    return tfds.core.DatasetInfo(builder=self, features=features)

  def _split_generators(self, dl_manager):
    return {"train": self._generate_examples(dl_manager.download(self.url))}

  def _generate_examples(self, path):
    yield 0, {"text": path.read_text()}


@pytest.fixture
def source(tmp_path, monkeypatch):
  """Returns a source without data in TFDS; waits between retries are recorded and take no time."""
  monkeypatch.setattr(tfds_source.seqio.utils, "_TFDS_DATA_DIR_OVERRIDE", str(tmp_path))
  source = tfds_source.TfdsSource("downloaded:1.0.0", ("train",))
  source.waits = []
  real = time.sleep
  monkeypatch.setattr("urllib3.util.retry.time.sleep", lambda seconds: source.waits.append(seconds) or real(0))
  return source


@contextlib.contextmanager
def server(*statuses):
  """Yields the address of a server that answers with these statuses, one after another, and then with a text."""
  left = list(statuses)

  class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
      self.send_response(left.pop(0) if left else 200)
      self.end_headers()
      self.wfile.write(b"a text")

    def log_message(self, *_):
      pass

  with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{running.server_port}/file.txt"
    running.shutdown()
    thread.join()


def test_a_server_that_is_away_for_a_moment_is_asked_again(source, monkeypatch):
  with server(503, 503, 500) as url:
    monkeypatch.setattr(Downloaded, "url", url)
    assert source.num_input_examples("train") == 1
  (example,) = source.get_dataset("train").as_numpy_iterator()
  assert example == {"text": b"a text"} and len(source.waits) >= 2


def test_without_a_network_it_is_an_error_soon(source, monkeypatch):
  """The error names the URL, the number of attempts, the reason and the remedy; TFDS's settings are restored."""
  with socket.socket() as closed:
    closed.bind(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{closed.getsockname()[1]}/file.txt"
  monkeypatch.setattr(Downloaded, "url", url)
  for ask in (source.list_shards, source.get_dataset):
    source.waits.clear()
    with pytest.raises(UserError, match="cannot provide downloaded:1.0.0") as error:
      ask("train")
    assert f"({url} failed 7 times: [Errno 111] Connection refused). Set config.data.files" in str(error.value)
    assert 5 < sum(source.waits) < 20
  assert tfds_source.downloader.MAX_RETRIES == 10  # the default of TFDS
