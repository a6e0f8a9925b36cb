"""Table of nodes, their states and sensors, and the console's metrics."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from console_tables import MICRO
from console_workspace import NOW_S, SLOPES, Clock, Workspace, make_test_services
from deltalake import write_deltalake

from backend_spark.config import KeepSection
from backend_spark.console.metrics import ConsoleMetrics
from backend_spark.console.nodes import (
    MAX_ROW_FAULTS,
    MAX_TABLE_ROWS,
    NewestReading,
    NodeState,
    NodeStates,
)
from backend_spark.tables.maintenance import delete_old_rows
from backend_spark.tables.node_rows import (
    MAX_LENGTH,
    MAX_TEXTS,
    newest_node_rows,
    update_nodes,
)
from backend_spark.tables.schemas import NODES, PARSED, SILVER, UTC_TIME
from service_runtime.metrics import (
    MetricFamilies,
    collect_certificate_end,
    collect_links,
)
from service_runtime.tls import TlsFiles
from service_runtime.watchdog import LoopWatchdog

OpenApp = Callable[..., httpx.Client]


@pytest.mark.parametrize(
    ("node", "state"),
    [
        (NodeState("a", at_s=1000, received_s=1002), "well"),
        (NodeState("a", at_s=1000 - 1900, received_s=1000), "silent"),
        (NodeState("a", at_s=1000, received_s=1000, age_s=700), "late"),
        (NodeState("a", at_s=1000, received_s=1000, synchronised=False), "clock"),
        (NodeState("a", at_s=1100, received_s=1000), "clock"),
        (
            NodeState(
                "a",
                at_s=1000,
                received_s=1000,
                readings={"t": NewestReading(1, 1.0, None, None, 4)},
            ),
            "suspect",
        ),
    ],
)
def test_state_of_a_node(node: NodeState, state: str) -> None:
    """The most serious state is reported."""
    assert node.state(1000) == state


def test_silent_nodes_come_first(open_app: OpenApp) -> None:
    """Nodes that need repair stand at the top of the table."""
    table = open_app().get("/api/health").json()

    assert table["rows"][0]["id"] == "nishi-2"
    assert table["rows"][0]["state"] == "silent"
    assert len(table["rows"]) == len(SLOPES)
    assert table["rows"][1]["lag_s"] == 2.0


def test_node_silent_for_a_month_is_listed(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """With its last status report, such as the battery voltage."""
    at_us = (NOW_S - 30 * 86_400) * MICRO
    row = {
        "node": "dead",
        "cell": SLOPES[0].cell.token,
        "at": at_us,
        "received_at": at_us + MICRO,
        "reported_at": at_us,
        "queued": "5:1 3:13",
        "oldest_s": 724.0,
        "gateway": "gw-1:1883",
        "dropped": 0.0,
        "battery_v": 10.9,
    }
    table = pa.Table.from_pylist([row], schema=NODES)
    write_deltalake(str(workspace.data / "tables" / "nodes"), table, mode="append")
    client = open_app()
    rows = {row["id"]: row for row in client.get("/api/health").json()["rows"]}

    assert rows["dead"]["state"] == "silent"
    assert rows["dead"]["at_s"] == NOW_S - 30 * 86_400
    assert rows["dead"]["queued"] == "5:1 3:13"
    assert rows["dead"]["oldest_s"] == 724.0
    assert rows["dead"]["gateway"] == "gw-1:1883"
    assert rows["dead"]["battery"]["value"] == 10.9
    assert rows[SLOPES[0].node]["queued"] is None
    assert "dead" in client.get("/api/nodes").json()["id"]


def test_node_whose_row_was_deleted_is_gone_after_a_restart(
    workspace: Workspace, clock: Clock
) -> None:
    """As the runbook says of nodes that are gone for good."""
    tables, at_us = workspace.data / "tables", (NOW_S - 40 * 86_400) * MICRO
    row = {"node": "dead", "at": at_us, "received_at": at_us}
    table = pa.Table.from_pylist([row], schema=NODES)
    write_deltalake(str(tables / "nodes"), table, mode="append")
    counts = []
    for _ in range(2):
        parts = make_test_services(workspace, clock)
        parts.refresh()
        counts.append(len(parts.live_state.nodes.by_id))
        delete_old_rows(tables, ["nodes"], KeepSection(nodes_days=30), clock())

    assert counts == [len(SLOPES) + 1, len(SLOPES)]


def test_newest_report_of_a_node_is_shown(workspace: Workspace, clock: Clock) -> None:
    """A report in silver is newer than the table `nodes`."""
    rain_row = silver("n", NOW_S, 1.0).to_pylist()[0]
    report_row = rain_row | {
        "name": "agent/queued",
        "value": None,
        "value_text": "none",
    }
    table = pa.Table.from_pylist([rain_row, report_row], schema=SILVER)
    write_deltalake(str(workspace.data / "tables" / "silver"), table, mode="append")
    parts = make_test_services(workspace, clock)
    parts.refresh()
    row = next(
        row for row in parts.live_state.health_table()["rows"] if row["id"] == "n"
    )

    assert (row["queued"], row["reported_s"]) == ("none", NOW_S)


def test_late_message_does_not_replace_newer_readings() -> None:
    """A backlog of yesterday does not change the current state of a node."""
    nodes = NodeStates()
    nodes.add_readings(silver("n", NOW_S, 2.0))
    nodes.add_readings(silver("n", NOW_S - 3600, 1.0))

    assert nodes.by_id["n"].at_s == NOW_S
    assert nodes.by_id["n"].readings["rain"].value == 2.0


NO_ANSWER = "no answer: sensor tilt cannot be read; check power"
FAULT = {"name": "tilt/health", "text": NO_ANSWER}


def health_rows(*texts: tuple[str, str, str]) -> pa.Table:
    """Health texts by boot and name in silver, a minute apart, up to `NOW_S`."""
    begin_us = (NOW_S - 60 * (len(texts) - 1)) * MICRO
    place = {"node": "n", "topic": "/1/2", "synchronised": True, "flag": 2}
    rows = [
        place
        | {"boot": boot, "name": name, "value_text": text}
        | {"at": begin_us + 60 * MICRO * at, "received_at": NOW_S * MICRO}
        for at, (boot, name, text) in enumerate(texts)
    ]
    return pa.Table.from_pylist(rows, schema=silver("n", 0, 0).schema)


@pytest.mark.parametrize(
    ("texts", "faults"),
    [
        ([("b", "tilt/health", NO_ANSWER), ("b", "rain/health", "ok")], [FAULT]),
        ([("b", "tilt/health", NO_ANSWER), ("b", "tilt/health", "ok")], []),
        ([("b", "tilt/health", NO_ANSWER), ("next", "rain/health", "ok")], []),
        (
            [
                ("b", "config/mistake/1", "[sensor.1] kind: missing"),
                ("b", "disk/health", "replace the SD card"),
                ("b", "rain/rule", "no table"),
            ],
            [
                {"name": "disk/health", "text": "replace the SD card"},
                {"name": "rain/rule", "text": "no table"},
                {"name": "config/mistake/1", "text": "[sensor.1] kind: missing"},
            ],
        ),
    ],
    ids=["dead", "repaired", "restarted", "all kinds"],
)
def test_reported_fault_makes_a_node_suspect(
    open_app: OpenApp,
    workspace: Workspace,
    texts: list[tuple[str, str, str]],
    faults: list[dict[str, str]],
) -> None:
    """Until the node reports `ok`, or starts again without the fault."""
    path = str(workspace.data / "tables" / "silver")
    write_deltalake(path, health_rows(*texts), mode="append", schema_mode="merge")
    client = open_app()
    row = client.get("/api/health", params={"node": "n"}).json()["rows"]
    found = next(each for each in row if each["id"] == "n")

    assert found["state"] == ("suspect" if faults else "well")
    assert found["faults"] == faults
    assert client.get("/api/node/n").json()["faults"] == faults


def test_fault_of_last_month_is_listed_after_a_restart(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """The table of nodes keeps the text of a sensor that died then."""
    parsed = PARSED.empty_table().to_pylist()
    for at_s, name, text in [
        (NOW_S - 30 * 86_400, "tilt/health", NO_ANSWER),
        (NOW_S, "rain", None),
    ]:
        row = {"node": "n", "topic": "/1/2", "boot": "b", "name": name}
        times = {"at": at_s * MICRO, "received_at": at_s * MICRO}
        parsed.append(row | times | {"value_text": text, "synchronised": True})
    rows = newest_node_rows(pa.Table.from_pylist(parsed, schema=PARSED))
    table = update_nodes(NODES.empty_table(), {"n": rows.to_pylist()[0]})
    path = str(workspace.data / "tables" / "nodes")
    write_deltalake(path, table, mode="append", schema_mode="merge")
    rows = open_app().get("/api/health", params={"node": "n"}).json()["rows"]
    found = next(row for row in rows if row["id"] == "n")

    assert (found["state"], found["faults"]) == ("suspect", [FAULT])


def test_row_of_the_table_has_some_faults(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """The answer stays small when a node reports very many."""
    texts = [("b", f"s{n}/health", "x" * 10_000) for n in range(200)]
    path = str(workspace.data / "tables" / "silver")
    write_deltalake(path, health_rows(*texts), mode="append", schema_mode="merge")
    rows = open_app().get("/api/health", params={"node": "n"}).json()["rows"]
    found = next(row for row in rows if row["id"] == "n")

    assert len(found["faults"]) == MAX_ROW_FAULTS
    assert found["more_faults"] == MAX_TEXTS - MAX_ROW_FAULTS
    assert {len(fault["text"]) for fault in found["faults"]} == {MAX_LENGTH}


def silver(node: str, at_s: int, value: float) -> pa.Table:
    """One reading as a table with the schema of silver."""
    row: dict[str, Any] = {
        "node": node,
        "name": "rain",
        "value": value,
        "at": at_s * MICRO,
        "received_at": (NOW_S + 5) * MICRO,
        "topic": "/1",
    }
    schema = (
        SILVER
        if "flag" in SILVER.names
        else SILVER.append(pa.field("flag", pa.int32()))
    )
    return pa.Table.from_pylist([row], schema=schema)


def test_sensor_rows_are_shown_when_the_table_exists(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """Rates with their noise, and the failure time with its gate."""
    rows = [
        {
            "cell": SLOPES[0].cell.token,
            "node": "otani-1",
            "sensor": "tilt",
            "at": (NOW_S - step * 600) * MICRO,
            "tilt_rate_deg_per_h": 0.02,
            "failure_at": (NOW_S + 7200) * MICRO,
            "failure_usable": False,
            "failure_gate": "fewer than 8 velocities",
        }
        for step in range(3)
    ]
    schema = pa.schema([
        pa.field("cell", pa.string()),
        pa.field("node", pa.string()),
        pa.field("sensor", pa.string()),
        pa.field("at", UTC_TIME),
        pa.field("tilt_rate_deg_per_h", pa.float64()),
        pa.field("failure_at", UTC_TIME),
        pa.field("failure_usable", pa.bool_()),
        pa.field("failure_gate", pa.string()),
    ])
    table = pa.Table.from_pylist(rows, schema=schema)
    write_deltalake(
        str(workspace.data / "tables" / "sensors"),
        table,
        mode="append",
        schema_mode="merge",
    )
    panel = open_app().get("/api/node/otani-1").json()

    assert [row["at"] for row in panel["sensors"]] == [NOW_S - 1200, NOW_S - 600, NOW_S]
    assert panel["sensors"][-1]["failure_gate"] == "fewer than 8 velocities"
    assert panel["tilt_limits"] == [[3, 0.01], [4, 0.1]]
    assert panel["velocity_limits"] == [[2, 2.0], [4, 4.0], [5, 10.0]]


def test_quality_flags_are_shown(open_app: OpenApp, workspace: Workspace) -> None:
    """A suspect reading makes its node suspect and is listed by name."""
    flagged = silver("doubtful", NOW_S, 99.0).to_pylist()[0] | {
        "flag": 4,
        "topic": "/1/2/2",
    }
    table = pa.Table.from_pylist([flagged], schema=silver("x", 0, 0).schema)
    path = workspace.data / "tables" / "silver"
    write_deltalake(str(path), table, mode="append", schema_mode="merge")
    rows = open_app().get("/api/health").json()["rows"]
    found = next(row for row in rows if row["id"] == "doubtful")

    assert found["state"] == "suspect"
    assert found["doubts"] == [{"name": "rain", "flag": 4}]


def test_metrics_match_the_reference(workspace: Workspace, clock: Clock) -> None:
    """Nodes, levels, events and notifications, named as in docs/reference."""
    parts = make_test_services(workspace, clock)
    parts.refresh()
    parts.live_state.nodes.by_id[SLOPES[0].node].synchronised = False
    families = ConsoleMetrics(
        parts.live_state, LoopWatchdog(clock), parts.notifications
    ).collect()
    values = {
        (sample.name, *sample.labels.values()): sample.value
        for family in MetricFamilies(lambda: families).collect()
        for sample in family.samples
    }
    reference = Path(__file__).parents[3] / "docs/reference/metrics.md"
    section = reference.read_text("utf-8").partition("## The console\n")[2]
    named = re.findall(r"^\| `(\w+)`", section.partition("\n## ")[0], re.MULTILINE)

    assert values["yamamori_nodes", "silent"] == 1
    assert values["yamamori_nodes_unsynchronised",] == 1
    assert values["yamamori_levels_age_seconds",] == 60
    cells = {key[1:]: n for key, n in values.items() if key[0] == "yamamori_cells"}
    assert cells["4", "held"] == 1
    assert sum(cells.values()) == len(SLOPES)
    assert values["yamamori_events_open", "4"] == 2
    assert values["yamamori_notifications_waiting",] == 0
    families += [collect_certificate_end(TlsFiles()), *collect_links()]
    assert [each.name for each in families] == named


def test_table_has_the_worst_nodes_and_those_of_a_filter(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """Its size does not grow with the number of nodes."""
    names = [f"More-{number:03d}" for number in range(MAX_TABLE_ROWS + 50)]
    at_us = (NOW_S - 86_400) * MICRO
    silent = [{"node": name, "at": at_us, "received_at": at_us} for name in names]
    table = pa.Table.from_pylist(silent, schema=NODES)
    write_deltalake(str(workspace.data / "tables" / "nodes"), table, mode="append")
    client = open_app()
    worst = client.get("/api/health").json()
    found = client.get("/api/health", params={"node": "more-34"}).json()
    well = client.get("/api/health", params={"node": SLOPES[0].node}).json()

    assert worst["all"] == len(names) + len(SLOPES)
    assert [row["id"] for row in worst["rows"]] == names[:MAX_TABLE_ROWS]
    assert [row["id"] for row in found["rows"]] == names[340:350]
    assert [row["id"] for row in well["rows"]] == [SLOPES[0].node]
