"""File accesses and saved data state of each host of a large run, simulated in one process.

  python benchmarks/hosts.py [--files 5000] [--batch_size 2048] [--hosts 1,16,256] [--json]

Writes small files and simulates each host: it assigns the streams, reads an epoch of the host's own streams, and
measures the saved position of each. File opens are counted. With --json the last line is one JSON object.
"""

import argparse
import collections
import contextlib
import json
import pathlib
import tempfile
import time

from t2t.configuration.schema import DataConfig
from t2t.data import batch_iterator, example_windows, pipeline
from t2t.data import fingerprint as identities
from t2t.data.sources import text_files


@contextlib.contextmanager
def counted_opens():
  """Counts how often each file is opened."""
  opened: collections.Counter[str] = collections.Counter()
  plain = text_files._open_decompressed

  def counting(path: str):
    opened[path] += 1
    return plain(path)

  text_files._open_decompressed = counting
  try:
    yield opened
  finally:
    text_files._open_decompressed = plain


def measure(data: DataConfig, *, hosts: int, batch_size: int) -> dict[str, float]:
  """Returns opens, seconds and bytes of the busiest of a few hosts, and of all."""
  per_host = batch_size // hosts
  host_rows = {host: {(host * per_host, (host + 1) * per_host)} for host in range(hosts)}
  number = batch_iterator.choose_num_streams(host_rows, batch_size=batch_size)
  plan = pipeline.plan(data, "encoder_decoder", pipeline.load_task(data), train=True, seed=0)
  source = example_windows.sources_of(plan, number)[0]
  sample = sorted({0, hosts // 2, hosts - 1})
  opens, distinct, seconds = [], [], []
  for host in sample:
    streams_of_host = batch_iterator.host_streams(host_rows[host], batch_size=batch_size, num_streams=number)
    started = time.monotonic()
    with counted_opens() as opened:
      for stream in streams_of_host:
        for piece in source.shares[stream]:
          for _ in source.records.read(piece):
            pass
    seconds.append(time.monotonic() - started)
    opens.append(sum(opened.values()))
    distinct.append(len(opened))
  # The host's share of the held-out text.
  held_out = pipeline._eval_streams(batch_size)
  own_held_out = len(batch_iterator.host_streams(host_rows[0], batch_size=batch_size, num_streams=held_out))
  position = example_windows.beginning(plan) + 10**6
  vocabulary = pipeline.vocabulary(data)
  identity = identities.settings(data, vocabulary, batch_size=batch_size, seed=0, num_streams=number)
  saved = json.dumps({"version": 2, "position": example_windows.position_to_json(plan, position), "identity": identity})
  return {
    "hosts": hosts,
    "streams": number,
    "streams_of_a_host": len(batch_iterator.host_streams(host_rows[0], batch_size=batch_size, num_streams=number)),
    "files_of_a_host": max(distinct),
    "opens_of_a_host_and_epoch": max(opens),
    "seconds_to_read_them": round(max(seconds), 2),
    "position_bytes_of_all_streams": len(saved) * number,
    "held_out_share_of_a_host": f"{own_held_out} of {held_out}",
  }


def main() -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--files", type=int, default=5000)
  parser.add_argument("--batch_size", type=int, default=2048)
  parser.add_argument("--hosts", default="1,16,256")
  parser.add_argument("--json", action="store_true")
  arguments = parser.parse_args()
  with tempfile.TemporaryDirectory() as folder:
    for number in range(arguments.files):
      text = "".join(f"document {number} {line}, a sentence of some words\n" for line in range(40))
      (pathlib.Path(folder) / f"{number:05}.txt").write_text(text)
    data = DataConfig(files=f"{folder}/*.txt", vocabulary="bytes", inputs_length=64, targets_length=18)
    started = time.monotonic()
    task = pipeline.load_task(data)
    print(f"{task.name}: {arguments.files} files listed, checked and scanned in {time.monotonic() - started:.1f} s")
    results = [measure(data, hosts=int(hosts), batch_size=arguments.batch_size) for hosts in arguments.hosts.split(",")]
  for result in results:
    print("\n" + "\n".join(f"  {name:<32}{value}" for name, value in result.items()))
  if arguments.json:
    print(json.dumps({"benchmark": "hosts", "results": results}))


if __name__ == "__main__":
  main()
