"""Metrics of the real daemons, compared with the documentation."""

import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import Broker, free_port, wait_until
from programs import Client, Programs
from prometheus_client.parser import text_string_to_metric_families

from edge_agent.queue.store import DROP_REASONS
from service_runtime.metrics import Metric, MetricSample, MetricsServer
from spatial_mqtt.client import fetch_retained
from spatial_mqtt.priority import LADDER
from spatial_mqtt.topics import offer_topic

PAGE = Path(__file__).parents[2] / "docs/reference/metrics.md"


def documented(title: str) -> set[str]:
    section = PAGE.read_text(encoding="utf-8").partition(f"## {title}\n")[2]
    return set(re.findall(r"^\| `(\w+)`", section.partition("\n## ")[0], re.MULTILINE))


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as page:
        assert page.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return page.read().decode()


@contextmanager
def served(metrics: list[Metric]) -> Iterator[int]:
    server = MetricsServer("127.0.0.1", 0, lambda: metrics)
    server.start()
    yield server.port
    server.stop()


def names(text: str) -> set[str]:
    return set(re.findall(r"^# TYPE (\w+) (?:gauge|counter)$", text, re.MULTILINE))


def drops_by_lane(text: str) -> dict[str, dict[tuple[str, str], float]]:
    """Drops of each lane by priority and reason."""
    families = {each.name: each for each in text_string_to_metric_families(text)}
    lanes = {s.labels["lane"] for s in families["yamamori_queue_messages"].samples}
    drops: dict[str, dict[tuple[str, str], float]] = {lane: {} for lane in lanes}
    for sample in families["yamamori_queue_dropped"].samples:
        labels = sample.labels
        drops[labels["lane"]][labels["priority"], labels["reason"]] = sample.value
    return drops


def test_families_have_names_types_labels_and_values() -> None:
    """The text parses to what was collected; labels are escaped."""
    samples = (MetricSample(3, {"a": 'x"\\\n'}), MetricSample(0.25), MetricSample(True))
    metrics = [
        Metric("m", "gauge", "Of it.", samples),
        Metric("n_total", "counter", "Of all.", (MetricSample(7),)),
    ]

    with served(metrics) as port:
        text = scrape(port)
    gauge, counter = text_string_to_metric_families(text)

    assert (gauge.name, gauge.type, gauge.documentation) == ("m", "gauge", "Of it.")
    assert [(each.name, each.labels, each.value) for each in gauge.samples] == [
        ("m", {"a": 'x"\\\n'}, 3), ("m", {}, 0.25), ("m", {}, 1),
    ]  # fmt: skip
    assert (counter.name, counter.type) == ("n", "counter")
    assert [(each.name, each.labels, each.value) for each in counter.samples] == [
        ("n_total", {}, 7)
    ]
    assert names(text) == {"m", "n_total"}


def test_only_metrics_are_served_and_a_silent_client_blocks_no_other() -> None:
    """Every connection has a thread of its own."""
    server = MetricsServer("127.0.0.1", 0, list)
    server.start()
    with socket.create_connection(("127.0.0.1", server.port)):
        assert scrape(server.port) == ""
        with pytest.raises(urllib.error.HTTPError, match="only /metrics is here"):
            urllib.request.urlopen(f"http://127.0.0.1:{server.port}/", timeout=60)
    server.stop()


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    created = Programs(tmp_path)
    yield created
    created.kill_all()


@pytest.mark.broker
def test_daemons_export_exactly_the_documented_metrics(
    programs: Programs, make_broker: Callable[[], Broker], tmp_path: Path
) -> None:
    """Drops from 0 on, as `increase()` needs; the queue depth without a broker."""
    manager, local, first = (make_broker() for _ in range(3))
    at_manager, at_gateway = free_port(), free_port()
    programs.start(
        "manager",
        "manager",
        f'[manager]\nbroker = "{manager.url}"\ndata = "{tmp_path}/manager"\n'
        f'[metrics]\nlisten = "127.0.0.1:{at_manager}"\n'
        f'[[broker]]\ntopic = "/"\nurl = "{first.url}"\n',
    )
    programs.start(
        "gateway",
        "run",
        f'[gateway]\nid = "g"\nbroker = "{local.url}"\nbeat_s = 0.5\n'
        f'managers = ["{manager.url}"]\ndata = "{tmp_path}/gateway"\n'
        f'[metrics]\nlisten = "127.0.0.1:{at_gateway}"\n',
    )
    fetch_retained(local.endpoint, offer_topic("g"), "probe", 120)
    text = scrape(at_gateway)
    assert names(text) == documented("A gateway")
    assert drops_by_lane(text) == {
        lane: {(str(p), r): 0 for p in LADDER.descending for r in DROP_REASONS}
        for lane in {"own", "nowhere", *drops_by_lane(text)}
    }
    wait_until(lambda: "yamamori_area_heat{" in scrape(at_manager))
    assert names(scrape(at_manager)) == documented("A Manager")
    assert 'yamamori_gateways{state="here"} 1' in scrape(at_manager)

    first.kill()
    down = f'yamamori_uplink_up{{lane="127.0.0.1:{first.port}"}} 0'
    wait_until(lambda: down in scrape(at_gateway))
    node = Client(local.endpoint, "node")
    node.publish("/forward/3/1/pri4", b"late")
    waits = f'messages{{lane="127.0.0.1:{first.port}",priority="4"}} 1'
    wait_until(lambda: waits in scrape(at_gateway))
    assert f'oldest_seconds{{lane="127.0.0.1:{first.port}",priority="4"}}' in scrape(
        at_gateway
    )
    node.connection.stop()


@pytest.mark.parametrize(
    ("listen", "reason"),
    [("9464", "host:port"), ("127.0.0.1:99999", "host:port"), (None, "that is free")],
)
def test_unusable_listen_address_is_a_settings_error(
    tmp_path: Path, listen: str | None, reason: str
) -> None:
    """The error names it, and systemd does not retry."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = listen or f"127.0.0.1:{taken.getsockname()[1]}"
        path = tmp_path / "manager.toml"
        path.write_text(
            f'[manager]\nbroker = "mqtt://127.0.0.1:1"\ndata = "{tmp_path}"\n'
            f'[metrics]\nlisten = "{listen}"\n'
        )
        done = subprocess.run(
            [sys.executable, "-m", "gateway_daemon", "manager", "--config", str(path)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    assert done.returncode == 78
    assert reason in done.stderr
