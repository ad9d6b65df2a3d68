"""`t2t infer --server`: a page on this machine where one asks the model, and paths at which programs do."""

import concurrent.futures
import socket
import sys

import uvicorn

from t2t import UserError
from t2t.runtime import console, preemption
from t2t.serving import admission, app, connection
from t2t.serving.routes import Service


class Server(uvicorn.Server):
  """An HTTP server in a thread of its own: it begins to answer in a `with` block, and stops at its end.

  Args:
    service: answers.
    let_in: who is let in.
    port: 0 is any that is free.
  """

  def __init__(self, service: Service, let_in: admission.Admission, port: int):
    self.admission, self.application = let_in, app.Application(service, let_in)
    config = uvicorn.Config(
      self.application.asgi,
      http=connection.Connection,
      loop="asyncio",
      ws="none",
      lifespan="off",
      log_config=None,  # what goes wrong is told to the client
      log_level="critical",
      access_log=False,
      proxy_headers=False,
      server_header=False,
      headers=list(app.HEADERS.items()),
      backlog=connection.MAX_CONNECTIONS,
      h11_max_incomplete_event_size=connection.MAX_HEAD,
      timeout_graceful_shutdown=app.END_SECONDS + app.CUT_SECONDS,
    )
    super().__init__(config)
    family = socket.AF_INET6 if ":" in let_in.host else socket.AF_INET
    self._socket = socket.create_server((let_in.host, port), family=family, backlog=connection.MAX_CONNECTIONS)
    # Accepted connections inherit it: else the body of each response waits for the client to acknowledge its head.
    self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    self.server_port: int = self._socket.getsockname()[1]
    # What a signal raises in the main thread would cut off the request that is just being taken.
    self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="server")

  def __enter__(self) -> "Server":
    self._running = self._thread.submit(self.run, [self._socket])
    return self

  def __exit__(self, *_: object) -> None:
    self.application.ending = self.application.cutting = self.should_exit = True
    self._thread.shutdown()

  def wait(self) -> None:
    """Returns when the server has stopped."""
    while not self._running.done():
      concurrent.futures.wait([self._running], timeout=0.2)  # in between the main thread hears what came to another
    self._running.result()

  def end(self) -> tuple[int, int]:
    """Stops listening, and waits for the pending answers; returns how many were late, and how many never ended."""
    self.application.ending = self.should_exit = True
    late = self.application.wait_for_answers(app.END_SECONDS)
    self.application.cutting = True  # each with a last event that says so
    return late, self.application.wait_for_answers(app.CUT_SECONDS) if late else 0


def make_server(service: Service, *, host: str, port: int) -> Server:
  """Returns a server that has its port, and answers in a `with` block.

  Args:
    service: answers.
    host: address whose requests are heard.
    port: 0 is any that is free.

  Raises:
    UserError: the port is taken, there is no such address, or the environment's token is none.
  """
  try:
    return Server(service, admission.of(host), port)
  except (OSError, OverflowError) as error:
    raise UserError(f"--host {host} --port {port}: {error}; give another, or --port 0 for any that is free") from error


def serve(service: Service, *, host: str, port: int) -> None:
  """Serves until a signal arrives; pending requests are answered first.

  Args:
    service: answers.
    host, port: see `make_server`.

  Raises:
    Stopped: a signal came.
  """
  with make_server(service, host=host, port=port) as server:
    at = f"[{host}]" if ":" in host else host
    # Behind #, what a browser keeps to itself.
    token = f"#{server.admission.token}" if server.admission.token else ""
    if not admission.is_local(host):
      print(
        f"--host {host}: others than this machine reach the page, unencrypted; whoever has the address with its token"
        " may ask the model",
        file=sys.stderr,
      )
    answering = preemption.winding_up(app.END_SECONDS + app.CUT_SECONDS + 1, "when those who have asked are answered")
    with answering, preemption.leaving(lambda: "who was not answered may ask again"):
      print(f"http://{at}:{server.server_port}/{token} is the page; Ctrl-C ends it", flush=True)
      try:
        server.wait()
      except KeyboardInterrupt:
        late, stuck = server.end()
        if stuck:  # in XLA, which would bring down a process that Python takes apart around it
          preemption.end(f"ended; {late} requests were not answered in time")
        console.tell(f"ended; {late} requests were not answered in time" if late else "ended; all are answered")
        raise
