"""Prometheus metrics: samples collected on request, and the server of ``/metrics``.

prometheus-client writes the exposition format; the HTTP server is our own, because
that of the library answers every path and keeps a thread for each silent client.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from typing import Literal

from prometheus_client import CollectorRegistry, MetricsHandler
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from service_runtime import tls
from service_runtime.errors import FieldError, TlsFileError
from service_runtime.settings import KeyRule, Problem, SettingsError, key
from service_runtime.tls import Endpoint, TlsFiles
from service_runtime.watchdog import LoopWatchdog

MetricKind = Literal["gauge", "counter"]
IDLE_TIMEOUT_S = 5.0
"""A connection without a request is closed after this time."""


def parse_listen_address(listen: str) -> tuple[str, int]:
    """Parse ``host:port``.

    Raises:
        FieldError: The text has another form.
    """
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or not int(port) <= 65535:  # noqa: PLR2004
        raise FieldError("listen", "host:port, such as 127.0.0.1:9464", listen)
    return host, int(port)


@dataclass(frozen=True)
class MetricsSection:
    """``[metrics]``."""

    listen: str | None = key(
        KeyRule(
            "Address of the metrics endpoint, host:port; none without it.",
            check=lambda listen: listen is None or parse_listen_address(listen),
        ),
        None,
    )


@dataclass(frozen=True)
class Metric:
    """A metric and its samples.

    Attributes:
        name: Includes the unit, and ends in ``_total`` for a counter.
        kind: A counter only grows while the process runs.
        doc: Help text, one sentence.
        samples: Labels and values.
    """

    name: str
    kind: MetricKind
    doc: str
    samples: tuple["MetricSample", ...] = ()


@dataclass(frozen=True)
class MetricSample:
    """A value and its labels."""

    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


def gauge(name: str, doc: str, value: float) -> Metric:
    """A gauge without labels."""
    return Metric(name, "gauge", doc, (MetricSample(value),))


def collect_loop_silence(watchdog: LoopWatchdog) -> tuple[Metric, Metric]:
    """Time since the last heartbeat of each loop of a process, also by its limit."""
    return (
        _by_loop(
            "yamamori_loop_silence_seconds",
            "Time since the last heartbeat of a loop.",
            watchdog.silence_by_loop_s(),
        ),
        _by_loop(
            "yamamori_loop_silence_ratio",
            "The same as a share of the loop's own limit; above 1 the loop hangs.",
            watchdog.silence_share_by_loop(),
        ),
    )


def _by_loop(name: str, doc: str, values: Mapping[str, float]) -> Metric:
    samples = (MetricSample(values[loop], {"loop": loop}) for loop in sorted(values))
    return Metric(name, "gauge", doc, tuple(samples))


def collect_certificate_end(files: TlsFiles) -> Metric:
    """End of the program's certificate; no sample without a certificate."""
    end_s = _end_s(files)
    samples = () if end_s is None else (MetricSample(end_s),)
    return Metric(
        "yamamori_certificate_end_timestamp_seconds",
        "gauge",
        "Unix time at which the certificate ends; 0 when it cannot be read.",
        samples,
    )


def collect_links() -> tuple[Metric, Metric]:
    """By broker: the end of its certificate, and whether our client id is shared."""
    return (
        _by_broker(
            "yamamori_broker_certificate_end_timestamp_seconds",
            "Unix time at which a broker's certificate ends, at the last handshake.",
            tls.list_peer_certificate_ends(),
        ),
        _by_broker(
            "yamamori_client_id_shared",
            "Whether another program seems to connect with the same client id.",
            tls.list_shared_client_ids(),
        ),
    )


def _by_broker(name: str, doc: str, values: Mapping[Endpoint, float]) -> Metric:
    samples = (MetricSample(v, {"broker": str(each)}) for each, v in values.items())
    return Metric(name, "gauge", doc, tuple(samples))


def _end_s(files: TlsFiles) -> float | None:
    try:
        path, _ = tls.select_certificate(files)
        return None if path is None else tls.read_certificate_end(path).timestamp()
    except TlsFileError:
        return 0.0


class MetricFamilies(Collector):
    """Adapter: metrics as families of prometheus-client.

    Args:
        collect: Called for each request, in its thread.
    """

    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterator[Family]:
        for metric in self._collect():
            # The library adds the suffix to the name of a counter's family.
            family = Family(metric.name.removesuffix("_total"), metric.doc, metric.kind)
            for sample in metric.samples:
                family.add_sample(metric.name, dict(sample.labels), float(sample.value))
            yield family


class _RequestHandler(MetricsHandler):
    timeout = IDLE_TIMEOUT_S

    def do_GET(self) -> None:  # noqa: N802 - name set by http.server
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(HTTPStatus.NOT_FOUND, "only /metrics is here")
            return
        super().do_GET()


class MetricsServer:
    """Serves ``/metrics`` in threads of its own.

    Args:
        host: Address to listen on.
        port: Port to listen on; 0 selects a free one.
        collect: Called for each request, in its thread.

    Raises:
        OSError: The address is in use, or not an address of this machine.
    """

    def __init__(
        self, host: str, port: int, collect: Callable[[], Iterable[Metric]]
    ) -> None:
        registry = CollectorRegistry(support_collectors_without_names=True)
        registry.register(MetricFamilies(collect))
        self._server = ThreadingHTTPServer(
            (host, port), _RequestHandler.factory(registry)
        )
        self._server.daemon_threads = False  # server_close() waits for them
        self.port = self._server.server_port
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="metrics", daemon=True
        )

    def start(self) -> None:
        """Start to serve."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after the requests in progress are answered."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


def make_metrics_servers(
    section: MetricsSection,
    collect: Callable[[], Iterable[Metric]],
    files: TlsFiles,
    setting: str = "metrics.listen",
) -> list[MetricsServer]:
    """Create the metrics server of the settings, not started; none without an address.

    Args:
        section: The settings.
        collect: Collects the metrics of the program.
        files: TLS files of the program; the end of its certificate is a metric,
            as is the state of its links.
        setting: Name of the setting, for the error.

    Raises:
        SettingsError: The address is in use, or not an address of this machine.
    """
    if section.listen is None:
        return []
    try:
        return [
            MetricsServer(
                *parse_listen_address(section.listen),
                lambda: [
                    *collect(),
                    collect_certificate_end(files),
                    *collect_links(),
                ],
            )
        ]
    except OSError as error:
        rule = f"an address that is free ({error})"
        problem = Problem(setting, f"must be {rule}", section.listen)
        raise SettingsError([problem]) from error
