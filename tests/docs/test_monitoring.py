"""The dashboard and the alert rules match the metrics that the daemons export."""

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Broker, free_port, wait_until
from prometheus_client.parser import text_string_to_metric_families

from backend_spark.ingest import process as ingest
from gateway_daemon.ca.store import AuthorityFolder
from service_runtime.metrics import MetricsServer, collect_loop_silence
from service_runtime.watchdog import LoopWatchdog

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "operation"
METRIC = re.compile(r"\b(yamamori_\w+)(?:\{([^}]*)\})?")
RULE = re.compile(
    r"      - alert: (?P<alert>[A-Z]\w+)\n"
    r"        expr: '(?P<expr>[^'\n]+)'\n"
    r"        for: (?P<hold>\d+[smh])\n"
    r"        labels: \{severity: (?P<severity>page|ticket)\}\n"
    r'        annotations: \{summary: "(?P<summary>[^"\n]+)"\}\n'
)
"""The fixed form of YAML in which the file is written, so that no parser is needed."""


def rules() -> list[re.Match[str]]:
    text = (FOLDER / "alerts.yml").read_text("utf-8")
    body = text.partition("    rules:\n")[2]
    found = list(RULE.finditer(body))
    assert "".join(match[0] for match in found) == body
    return found


def panels() -> list[dict[str, Any]]:
    dashboard = json.loads((FOLDER / "dashboard.json").read_text("utf-8"))
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    drawn = [target["expr"] for panel in panels() for target in panel["targets"]]
    return [rule["expr"] for rule in rules()] + drawn


def text_at(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as page:
        text: str = page.read().decode()
    return text


def names_at(port: int) -> set[str]:
    return set(re.findall(r"^# TYPE (\w+) ", text_at(port), re.MULTILINE))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., int]]:
    """Start a daemon with some settings; returns the port of its metrics."""
    running: list[subprocess.Popen[bytes]] = []

    def start(module: str, command: str, config: str) -> int:
        port = free_port()
        path = tmp_path / f"{command.rsplit(maxsplit=1)[-1]}.toml"
        path.write_text(config.replace("PORT", str(port)))
        arguments = [
            sys.executable,
            "-m",
            module,
            *command.split(),
            "--config",
            str(path),
        ]
        with path.with_suffix(".log").open("wb") as log:
            running.append(subprocess.Popen(arguments, stderr=log))
        return port

    yield start
    for process in running:
        process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.mark.broker
def test_every_metric_of_dashboard_and_alerts_is_exported(
    start: Callable[..., int], broker: Broker, tmp_path: Path
) -> None:
    """An alert on an unknown metric would never fire."""
    metrics = '[metrics]\nlisten = "127.0.0.1:PORT"\n'
    authority = tmp_path / "ca"
    AuthorityFolder(authority, time.time).create("Otoyo")
    ports = [
        start(
            "gateway_daemon",
            "manager",
            f'[manager]\nbroker = "{broker.url}"\ndata = "{tmp_path}/m"\n{metrics}',
        ),
        start(
            "gateway_daemon",
            "run",
            f'[gateway]\nid = "g"\nbroker = "{broker.url}"\n'
            f'managers = ["{broker.url}"]\ndata = "{tmp_path}/g"\n{metrics}'
            "[overlay]\nfrom_managers = true\n",
        ),
        start(
            "gateway_daemon",
            f"ca --folder {authority} sign",
            f'[signer]\nbroker = "{broker.url}"\n{metrics}',
        ),
        start(
            "backend_spark",
            "ingest",
            f'[backend]\ndata = "{tmp_path}/b"\n'
            f'[ingest]\nbroker = "{broker.url}"\n{metrics}',
        ),
        start(
            "backend_spark",
            "console",
            f'[backend]\ndata = "{tmp_path}/b"\n'
            f'[console]\nport = {free_port()}\nmetrics = "127.0.0.1:PORT"\n',
        ),
    ]

    def exported() -> list[set[str]]:
        try:
            return [names_at(port) for port in ports]
        except OSError:
            return []

    wait_until(exported)
    used = {name for text in expressions() for name, _ in METRIC.findall(text)}
    assert used - set().union(*exported()) == set()


def hanging_loops(pulse: LoopWatchdog) -> set[str]:
    """Loops whose samples meet the expression of `LoopHangs`, a name > a number."""
    (expression,) = (each["expr"] for each in rules() if each["alert"] == "LoopHangs")
    name, limit = expression.split(" > ")
    server = MetricsServer("127.0.0.1", 0, lambda: collect_loop_silence(pulse))
    server.start()
    families = text_string_to_metric_families(text_at(server.port))
    (samples,) = (family.samples for family in families if family.name == name)
    server.stop()
    return {each.labels["loop"] for each in samples if each.value > float(limit)}


def test_loop_that_waits_within_its_own_limit_does_not_hang() -> None:
    """The ingester's `trim` waits for ten minutes between two passes."""
    now_s = 0.0
    pulse = LoopWatchdog(lambda: now_s)
    with (
        pulse.watch_loop("trim", ingest.TRIM_SILENCE_S),
        pulse.watch_loop("ingest", ingest.SILENCE_S) as beat,
    ):
        now_s = ingest.TRIM_S
        beat()
        waiting = hanging_loops(pulse)
        now_s += ingest.SILENCE_S + 1
        hung = hanging_loops(pulse)
        now_s = ingest.TRIM_SILENCE_S + 1
        both_hung = hanging_loops(pulse)

    assert (waiting, hung, both_hung) == (set(), {"ingest"}, {"trim", "ingest"})


def test_metrics_of_alerts_are_those_of_jobs_that_are_scraped() -> None:
    """The signer was none, so the alert about its requests never fired."""
    page = (FOLDER / "monitoring.md").read_text("utf-8")
    jobs = set(re.findall(r"- job_name: (\w+)", page))
    reference = (ROOT / "docs/reference/metrics.md").read_text("utf-8")
    parts = re.split(r"^## (.+)$", reference, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    scraped = {
        name
        for title, text in sections.items()
        if set(title.lower().replace("ingester", "ingest").split()) & jobs
        for name in re.findall(r"^\| `(\w+)`", text, re.MULTILINE)
    }
    (away,) = (rule["expr"] for rule in rules() if rule["alert"] == "DaemonAway")
    used = {name for rule in rules() for name, _ in METRIC.findall(rule["expr"])}

    assert used - scraped == set()
    assert set(re.findall(r"\w+", away.partition('"')[2].partition('"')[0])) == jobs


def test_labels_in_expressions_are_those_of_the_metric() -> None:
    """A wrong label selects nothing, so the alert would never fire."""
    page = (ROOT / "docs/reference/metrics.md").read_text("utf-8")
    known: dict[str, set[str]] = {}
    for name, labels in re.findall(
        r"^\| `(\w+)` \| \w+ \| ([^|]*)\|", page, re.MULTILINE
    ):
        known.setdefault(name, {"instance", "job"}).update(re.findall(r"\w+", labels))
    wrong = []
    for text in expressions():
        used = METRIC.findall(text)
        groups = re.findall(r"\b(?:by|on) \(([^)]*)\)", text)
        for name, selectors in used:
            selected = set(re.findall(r"(\w+)\s*(?:=~|!=|=)", selectors))
            for group in groups:
                selected |= set(re.findall(r"\w+", group))
            wrong += [(name, label) for label in selected - known[name]]
    assert wrong == []


def test_alerts_are_those_of_the_page_with_their_severity() -> None:
    """The alert rules and the page agree."""
    page = (FOLDER / "monitoring.md").read_text("utf-8")
    listed = re.findall(r"^\| `(\w+)` \| (\w+) \|", page, re.MULTILINE)

    assert listed == [(rule["alert"], rule["severity"]) for rule in rules()]


def test_every_alert_links_to_a_runbook_once() -> None:
    """The linked heading exists."""
    page = (ROOT / "docs/how-to/runbooks.md").read_text("utf-8")
    parts = re.split(r"^## (.+)$", page, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    rows = [
        line.split("|")[1:3]
        for line in sections["Woken at night"].splitlines()
        if line.startswith("| `")
    ]
    linked = [name for names, _ in rows for name in re.findall(r"`(\w+)`", names)]
    links = [link for _, where in rows for link in re.findall(r"\(#([^)]+)\)", where)]
    below = [names for names, where in rows if "#other-alerts" in where]
    others = re.findall(r"^\| `(\w+)` \|", sections["Other alerts"], re.MULTILINE)

    assert sorted(linked) == sorted(rule["alert"] for rule in rules())
    assert all(where.count("](#") for _, where in rows)
    assert set(links) <= {slug(title) for title in sections}
    assert set(re.findall(r"`(\w+)`", " ".join(below))) - set(others) <= {"CustodyLags"}


def slug(title: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def test_dashboard_panels_do_not_overlap_and_have_unique_ids() -> None:
    """Grafana would move overlapping panels."""
    dashboard = json.loads((FOLDER / "dashboard.json").read_text("utf-8"))
    occupied: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        grid = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(grid["x"], grid["x"] + grid["w"])
            for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert not occupied & cells, panel["title"]
        assert max(x for x, _ in cells) < 24
        occupied |= cells
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))


@pytest.mark.long
def test_promtool_accepts_every_rule_and_expression(tmp_path: Path) -> None:
    """The dashboard's expressions are checked as recording rules."""
    recorded = [
        {"record": f"panel:{number}", "expr": text}
        for number, text in enumerate(expressions())
    ]
    drawn = tmp_path / "drawn.yml"
    drawn.write_text(json.dumps({"groups": [{"name": "all", "rules": recorded}]}))
    for path in (FOLDER / "alerts.yml", drawn):
        done = subprocess.run(
            ["promtool", "check", "rules", str(path)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
