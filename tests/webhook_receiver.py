"""A real receiver of webhooks."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Receiver:
    """A webhook receiver.

    Attributes:
        port: Its TCP port.
        status: Status of its answers.
        requests: Headers and bodies.
        may_answer: Requests are answered while it is set.
    """

    port: int
    status: int = 200
    answer: bytes = b"{}"
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    may_answer: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        """Answer from the beginning."""
        self.may_answer.set()

    @property
    def url(self) -> str:
        """Address of the webhook; its path is a secret."""
        return f"http://127.0.0.1:{self.port}/hook/secret"

    def bodies(self) -> list[dict[str, Any]]:
        """Bodies of the requests."""
        return [json.loads(body) for _, body in self.requests]


@contextmanager
def receiver(port: int) -> Iterator[Receiver]:
    """A receiver on a real socket."""
    made = Receiver(port)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            made.requests.append((dict(self.headers), self.rfile.read(length)))
            made.may_answer.wait()
            self.send_response(made.status)
            self.end_headers()
            self.wfile.write(made.answer)

        def do_GET(self) -> None:
            self.do_POST()

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield made
    finally:
        made.may_answer.set()
        server.shutdown()
        thread.join()
        server.server_close()
