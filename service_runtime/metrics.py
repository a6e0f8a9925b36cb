"""A tiny endpoint for Prometheus: what there is to tell, told when it is asked for.

Source: Prometheus text exposition format 0.0.4.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

from service_runtime import tls
from service_runtime.errors import FieldError, TlsFileError
from service_runtime.settings import Problem, Rule, SettingsError, key
from service_runtime.tls import TlsFiles
from service_runtime.watchdog import Pulse

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Kind = Literal["gauge", "counter"]
IDLE_S = 5.0
"""A client that says nothing for so long is let go."""


def listens_at(listen: str) -> tuple[str, int]:
    """Host and port of ``host:port``.

    Raises:
        FieldError: It has another form.
    """
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or not int(port) <= 65535:  # noqa: PLR2004
        raise FieldError("listen", "host:port, such as 127.0.0.1:9464", listen)
    return host, int(port)


@dataclass(frozen=True)
class MetricsSection:
    """``[metrics]``."""

    listen: str | None = key(
        Rule(
            "Where Prometheus may ask, host:port; absent listens nowhere.",
            check=lambda listen: listen is None or listens_at(listen),
        ),
        None,
    )


@dataclass(frozen=True)
class Metric:
    """One name and its samples.

    Attributes:
        name: With the unit, and ``_total`` for a counter.
        kind: A counter only grows while the process lives.
        doc: One sentence.
        samples: Labels and values.
    """

    name: str
    kind: Kind
    doc: str
    samples: tuple["Sample", ...] = ()


@dataclass(frozen=True)
class Sample:
    """One value."""

    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


def gauge(name: str, doc: str, value: float) -> Metric:
    """A gauge without labels."""
    return Metric(name, "gauge", doc, (Sample(value),))


def loops(pulse: Pulse) -> Metric:
    """For how long each loop of a process has not said that it lives."""
    silences = sorted(pulse.silences_s().items())
    return Metric(
        "yamamori_loop_silence_seconds",
        "gauge",
        "Time since a loop last said that it lives.",
        tuple(Sample(silence_s, {"loop": name}) for name, silence_s in silences),
    )


def certificate(files: TlsFiles) -> Metric:
    """When our certificate ends; no sample where the settings name none."""
    own, _ = tls.own_files(files)
    samples = () if own is None else (Sample(_end_s(own)),)
    return Metric(
        "yamamori_certificate_end_timestamp_seconds",
        "gauge",
        "Unix time at which our certificate ends; 0 when it cannot be read.",
        samples,
    )


def _end_s(path: str) -> float:
    try:
        return tls.ends_at(path).timestamp()
    except TlsFileError:
        return 0.0


def exposition(metrics: Iterable[Metric]) -> str:
    """Metrics as Prometheus reads them."""
    lines = []
    for metric in metrics:
        lines.append(f"# HELP {metric.name} {metric.doc}")
        lines.append(f"# TYPE {metric.name} {metric.kind}")
        lines += [
            f"{metric.name}{_labels(sample.labels)} {sample.value:.15g}"
            for sample in metric.samples
        ]
    return "\n".join(lines) + "\n"


class MetricsServer:
    """Serves ``/metrics`` in threads of its own.

    Args:
        host: Where to listen.
        port: Where to listen; 0 is any.
        collect: Called for each request, in its thread.

    Raises:
        OSError: The address is taken, or not ours.
    """

    def __init__(
        self, host: str, port: int, collect: Callable[[], Iterable[Metric]]
    ) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = IDLE_S

            def do_GET(self) -> None:
                if self.path.partition("?")[0] != "/metrics":
                    self.send_error(HTTPStatus.NOT_FOUND, "only /metrics is here")
                    return
                body = exposition(collect()).encode()
                self.send_response(HTTPStatus.OK)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """A line for each scrape would wear out a card."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = False  # a request that runs is waited for
        self.port = self._server.server_port
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="metrics", daemon=True
        )

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def stop(self) -> None:
        """End, when the requests that run are answered."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


def serve_metrics(
    section: MetricsSection,
    collect: Callable[[], Iterable[Metric]],
    files: TlsFiles,
    named: str = "metrics.listen",
) -> list[MetricsServer]:
    """The server that the settings ask for, not started; none when they do not.

    Args:
        section: Where to listen.
        collect: What the program has to tell.
        files: Of its links; the end of its certificate is told too.
        named: The setting, for people.

    Raises:
        SettingsError: The address is taken, or not ours.
    """
    if section.listen is None:
        return []
    try:
        return [
            MetricsServer(
                *listens_at(section.listen), lambda: [*collect(), certificate(files)]
            )
        ]
    except OSError as error:
        rule = f"an address that is free ({error})"
        problem = Problem(named, f"must be {rule}", section.listen)
        raise SettingsError([problem]) from error


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    words = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
    return f"{{{words}}}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
