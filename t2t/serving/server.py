"""`t2t infer --server`: HTTP server with a page for people and endpoints for programs."""

import concurrent.futures
import socket
import sys

import uvicorn

from t2t import UserError
from t2t.runtime import console, preemption
from t2t.serving import admission, app, connection
from t2t.serving.routes import Service


class Server(uvicorn.Server):
  """An HTTP server in a thread; it serves within a `with` block.

  Args:
    service: computes the answers.
    let_in: access control.
    port: 0 selects a free port.
  """

  def __init__(self, service: Service, let_in: admission.Admission, port: int):
    self.admission, self.application = let_in, app.Application(service, let_in)
    config = uvicorn.Config(
      self.application.asgi,
      http=connection.Connection,
      loop="asyncio",
      ws="none",
      lifespan="off",
      log_config=None,  # clients receive the errors
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
    # Inherited by accepted connections; otherwise each response body waits for the acknowledgement of its head.
    self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    self.server_port: int = self._socket.getsockname()[1]
    # A signal raises in the main thread and would interrupt a request there.
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
      concurrent.futures.wait([self._running], timeout=0.2)  # the timeout lets the main thread handle signals
    self._running.result()

  def end(self) -> tuple[int, int]:
    """Stops listening and waits for pending answers; returns the numbers of late and of unfinished answers."""
    self.application.ending = self.should_exit = True
    late = self.application.wait_for_answers(app.END_SECONDS)
    self.application.cutting = True  # pending requests get an error as their last event
    return late, self.application.wait_for_answers(app.CUT_SECONDS) if late else 0


def make_server(service: Service, *, host: str, port: int) -> Server:
  """Returns a server that is bound to its port; it serves within a `with` block.

  Args:
    service: computes the answers.
    host: address to listen on.
    port: 0 selects a free port.

  Raises:
    UserError: the port is taken, the address does not exist, or the environment's token is invalid.
  """
  try:
    return Server(service, admission.of(host), port)
  except (OSError, OverflowError) as error:
    raise UserError(
      f"--host {host} --port {port} cannot be used ({error}); give another --host or --port (0: any free port)"
    ) from error


def serve(service: Service, *, host: str, port: int) -> None:
  """Serves until a signal arrives; pending requests are answered first.

  Args:
    service: computes the answers.
    host, port: see `make_server`.

  Raises:
    Stopped: a signal arrived.
  """
  with make_server(service, host=host, port=port) as server:
    at = f"[{host}]" if ":" in host else host
    # Browsers do not send the part after #.
    token = f"#{server.admission.token}" if server.admission.token else ""
    if not admission.is_local(host):
      print(
        f"--host {host}: other machines can reach the page, without encryption; anyone with the address and its "
        "token can use the model",
        file=sys.stderr,
      )
    answering = preemption.winding_up(app.END_SECONDS + app.CUT_SECONDS + 1, "answering the pending requests")
    with answering, preemption.leaving(lambda: "clients without an answer may retry"):
      print(f"http://{at}:{server.server_port}/{token} is the page; Ctrl-C ends it", flush=True)
      try:
        server.wait()
      except KeyboardInterrupt:
        late, stuck = server.end()
        if stuck:  # a thread inside XLA would crash the process during interpreter shutdown
          preemption.end(f"stopped; {late} requests were not answered in time")
        console.tell(
          f"stopped; {late} requests were not answered in time" if late else "stopped; all requests were answered"
        )
        raise
