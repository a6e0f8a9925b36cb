"""Since when and why a level: begins, causes, order, and levels of silent cells."""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from console_workspace import NOW_S, SLOPES, Clock, Workspace, make_test_services
from deltalake import write_deltalake

from backend_spark.console.dependencies import ConsoleServices
from backend_spark.console.level_grid import HELD_OFFSET, MISSING, NO_JUDGEMENT, STEPS
from backend_spark.console.metrics import ConsoleMetrics
from backend_spark.console.places import Place, write_places
from backend_spark.console.report import SituationReport
from backend_spark.tables.delta_writer import create_tables
from backend_spark.tables.schemas import LEVELS, NODES
from service_runtime.watchdog import LoopWatchdog

OpenApp = Callable[..., httpx.Client]
HOUR_S = 3600
DAYS_144_S = 144 * 86_400
A, B, C, D, E = (slope.cell.token for slope in SLOPES)
WIRE = '["unconfirmed",["wire_cut","n1 wire"]]'
TILT = '["confirmed",["tilt","n1 tilt",0.2,0.1],"n2 tilt"]'
SPECIAL = '["soil_water",300,277,"special"]'
SPEED = '["node_level","n1",5,["speed","n1 ext",12,10]]'
LINE = '["soil_water",230,221,"line",10]'


def row(
    cell: str, level: int | None, at_s: float, code: str = SPECIAL, swi_mm: float = 240
) -> dict[str, Any]:
    """A row of the levels table."""
    return {
        **dict.fromkeys(LEVELS.names),
        "cell": cell,
        "at": datetime.fromtimestamp(at_s, UTC),
        "level": level,
        "reasons": ["a reason"],
        "reason_codes": [code],
        "rain_known": True,
        "lower_bound": False,
        "r60_mm": 10.0,
        "swi_mm": swi_mm,
        "s1_mm": swi_mm,
        "s2_mm": 0.0,
        "s3_mm": 0.0,
        "state": "judged",
        "latest_received": datetime.fromtimestamp(at_s, UTC),
    }


def steps(
    cell: str, level: int | None, from_s: float, to_s: float, code: str = SPECIAL
) -> Iterator[dict[str, Any]]:
    """Rows of each step after `from_s`."""
    for at_s in range(int(from_s) + 600, int(to_s) + 1, 600):
        yield row(cell, level, at_s, code)


def append(data: Path, *rows: dict[str, Any]) -> None:
    table = pa.Table.from_pylist(rows, LEVELS)
    write_deltalake(str(data / "tables" / "levels"), table, mode="append")


def append_node(data: Path, cell: str, at_s: float) -> None:
    at = datetime.fromtimestamp(at_s, UTC)
    node = {"node": "n1", "cell": cell, "at": at, "received_at": at}
    rows = [{**dict.fromkeys(NODES.names), **node}]
    table = pa.Table.from_pylist(rows, NODES)
    write_deltalake(str(data / "tables" / "nodes"), table, mode="append")


@pytest.fixture
def empty(tmp_path: Path) -> Workspace:
    """Empty tables; the console runs in this process."""
    workspace = Workspace(tmp_path, 8088)
    create_tables(workspace.data / "tables", ("levels", "nodes"))
    return workspace


def services_of(
    workspace: Workspace, clock: Clock | None = None, more: str = ""
) -> ConsoleServices:
    """The console after it has read the tables."""
    services = make_test_services(workspace, clock or Clock(), more)
    services.refresh()
    return services


def value(services: ConsoleServices, name: str, cell: str) -> object:
    return services.live_state.snapshot()[name][services.live_state.grid.row_of[cell]]


def report_of(services: ConsoleServices, language: str = "ja") -> str:
    report = SituationReport(
        services.live_state, services.journal, "大谷町", False, services.places.now
    )
    return report.render(language)


def test_level_has_its_begin_from_gold(empty: Workspace) -> None:
    """The first step of the run: within 72 hours, before them, and across gaps."""
    begin = NOW_S - 560 * 60  # 9 h 20 min
    append(
        empty.data,
        *steps(A, 3, NOW_S - 20 * HOUR_S, begin - 600, LINE),
        *steps(A, 5, begin - 600, NOW_S),
        *steps(B, 2, NOW_S - 110 * HOUR_S, NOW_S - 100 * HOUR_S),
        *steps(B, 5, NOW_S - 100 * HOUR_S, NOW_S - 90 * HOUR_S),
        *steps(B, 5, NOW_S - 2 * HOUR_S, NOW_S),
        *steps(C, 5, NOW_S - 5 * HOUR_S, NOW_S - 3 * HOUR_S),
        *steps(C, None, NOW_S - 3 * HOUR_S, NOW_S - 2 * HOUR_S),
        *steps(C, 5, NOW_S - 2 * HOUR_S, NOW_S),
        *steps(D, 1, NOW_S - 2 * HOUR_S, NOW_S),
    )
    services = services_of(empty)

    assert value(services, "since_s", A) == begin
    assert value(services, "since_s", B) == NOW_S - 100 * HOUR_S + 600
    assert value(services, "since_s", C) == NOW_S - 2 * HOUR_S + 600
    assert value(services, "since_s", D) == 0
    assert re.search(r"\d\d:\d\dから（9時間21分）", report_of(services))
    assert re.search(r"since \d\d:\d\d \(9 h 21 min\)", report_of(services, "en"))


def test_report_names_no_time_ahead(empty: Workspace) -> None:
    """The newest step ends in eight minutes, near midnight on the next day."""
    clock = Clock(NOW_S - 8 * 60)
    append(empty.data, *steps(A, 1, NOW_S - HOUR_S, NOW_S - 600), row(A, 5, NOW_S))
    page = report_of(services_of(empty, clock), "en")

    assert "Data as of 2026-10-26 16:32" in page
    assert "since 16:32 (0 min)" in page
    assert "16:40" not in page


def test_begin_is_kept_when_it_leaves_the_grid(empty: Workspace) -> None:
    """A console that runs for days does not move it."""
    clock = Clock()
    append(
        empty.data,
        *steps(A, 3, NOW_S - 2 * HOUR_S, NOW_S - HOUR_S, LINE),
        *steps(A, 5, NOW_S - HOUR_S, NOW_S),
    )
    services = services_of(empty, clock)
    clock.now_s += 80 * HOUR_S
    append(empty.data, *steps(A, 5, NOW_S + 79 * HOUR_S, NOW_S + 80 * HOUR_S))
    services.refresh()

    assert value(services, "since_s", A) == NOW_S - HOUR_S + 600


def test_cell_that_is_silent_for_months_is_never_forgotten(empty: Workspace) -> None:
    """It stays at its last level, and nothing says that no criterion is reached."""
    append(empty.data, row(A, 5, NOW_S), row(B, 1, NOW_S), row(C, 3, NOW_S, LINE))
    services = services_of(empty, Clock(NOW_S + DAYS_144_S))
    now = services.live_state.snapshot()

    assert value(services, "levels", A) == HELD_OFFSET + 5
    assert value(services, "levels", B) == MISSING
    assert value(services, "levels", C) == HELD_OFFSET + 3
    assert value(services, "known_s", A) == NOW_S
    assert now["newest_s"] == NOW_S
    page = report_of(services)
    assert "現在の状況は判定できません。" in page
    assert "最後のデータは 2026-10-26 16:40（144日0時間前）です。" in page
    assert "判定不能（最終 レベル5相当 10-26 16:40、以後データなし）" in page
    assert "基準に達した区画はありません" not in page
    assert "The present state cannot be judged" in report_of(services, "en")


def test_silent_cell_stays_beside_living_ones(empty: Workspace) -> None:
    """Found by its node, although the levels of the last 72 hours lack it."""
    silent = NOW_S - 20 * 24 * HOUR_S
    append(empty.data, row(A, 4, silent, LINE), *steps(B, 1, NOW_S - HOUR_S, NOW_S))
    append_node(empty.data, A, silent)
    services = services_of(empty)

    assert value(services, "levels", A) == HELD_OFFSET + 4
    assert value(services, "levels", B) == 1
    assert services.live_state.cells()["tokens"] == [B, A]


def test_hold_that_ended_is_shown_as_unknown_with_its_last_level(
    empty: Workspace,
) -> None:
    """Other sensors go on, but nobody knows that the danger is over."""
    ended = f'["hold_ended",4,{NOW_S - 8 * 86_400}]'
    append(empty.data, row(A, None, NOW_S, ended))

    assert value(services_of(empty), "levels", A) == HELD_OFFSET + 4


def history_of(services: ConsoleServices, cell: str) -> list[int]:
    """Levels of a cell over 72 hours."""
    _, levels = services.live_state.level_history()
    row = services.live_state.grid.row_of[cell]
    return list(levels[row * STEPS : (row + 1) * STEPS])


def test_slider_keeps_the_level_of_a_hold_that_ended(empty: Workspace) -> None:
    """In the rows without a judgement, as the map; events have no level there."""
    ended = f'["hold_ended",4,{NOW_S - 8 * 86_400}]'
    append(
        empty.data,
        *steps(A, None, NOW_S - 2 * HOUR_S, NOW_S - HOUR_S, ended),
        *steps(B, None, NOW_S - 2 * HOUR_S, NOW_S - HOUR_S),
    )
    services = services_of(empty)

    assert history_of(services, A).count(HELD_OFFSET + 4) == 6
    assert history_of(services, B).count(NO_JUDGEMENT) == 6
    assert services.live_state.grid.levels.max() == NO_JUDGEMENT


def test_slider_has_the_level_held_before_it(empty: Workspace) -> None:
    """Also of a cell that was silent for weeks and has returned today."""
    silent_s = NOW_S - 40 * 24 * HOUR_S
    append(
        empty.data,
        *(row(A, 4, silent_s), row(B, 2, silent_s)),
        *(row(cell, 1, NOW_S) for cell in (A, B, C)),
    )
    services = services_of(empty)

    assert history_of(services, A)[0] == HELD_OFFSET + 4
    for cell in (B, C):
        assert history_of(services, cell)[0] == MISSING
    assert services.live_state.level_history() == services.live_state.level_history()


def test_metrics_count_a_hold_that_ended_as_unknown(empty: Workspace) -> None:
    """A landslide that destroys its node must not be an alert for months."""
    destroyed_s = NOW_S - 90 * 24 * HOUR_S
    append_node(empty.data, A, destroyed_s)
    append(
        empty.data,
        row(A, 5, destroyed_s, LINE),
        row(B, 4, NOW_S - 48 * HOUR_S, LINE),
        row(C, None, NOW_S, f'["hold_ended",4,{NOW_S - 8 * 86_400}]'),
        row(D, 4, NOW_S, LINE),
    )
    services, clock = services_of(empty), Clock()
    metrics = ConsoleMetrics(
        services.live_state, LoopWatchdog(clock), services.notifications
    ).collect()
    (cells,) = (each for each in metrics if each.name == "yamamori_cells")

    assert {tuple(s.labels.values()): s.value for s in cells.samples if s.value} == {
        ("4", "judged"): 1,
        ("4", "held"): 1,
        ("none", "unknown"): 2,
    }
    assert value(services, "levels", A) == HELD_OFFSET + 5


def test_report_without_any_data_says_that_it_cannot_judge(empty: Workspace) -> None:
    """An empty table is no calm."""
    page = report_of(services_of(empty))

    assert "現在の状況は判定できません。データがまだありません。" in page
    assert "基準に達した区画はありません" not in page


def test_downloads_of_stale_levels_are_refused(open_app: OpenApp, clock: Clock) -> None:
    """A draft never states a level of months ago, nor one of the past."""
    past = open_app().get(f"/api/download/draft.xml?at={int(NOW_S) - 7200}")
    clock.now_s += DAYS_144_S
    present = open_app_again(past).get("/api/download/draft.xml")

    assert past.status_code == 409
    assert "--at must be the present for a draft" in past.json()["detail"]
    assert present.status_code == 404
    assert "Extreme" not in present.text


def open_app_again(answer: httpx.Response) -> httpx.Client:
    """A client of the server that gave an answer."""
    return httpx.Client(base_url=str(answer.url.join("/")))


@pytest.mark.parametrize(
    ("code", "named", "not_named"),
    [
        (WIRE, "ワイヤーセンサーの切断による", "特別警報の基準に相当"),
        (TILT, "傾斜の変化による", "特別警報の基準に相当"),
        (SPEED, "地表の変位", "特別警報の基準"),
        ('["held",["pore_turned","n1 pore",3,2]]', "間隙水圧の上昇", "特別警報の基準"),
        (SPECIAL, "土砂災害特別警報の基準に相当", "による（"),
    ],
)  # fmt: skip
def test_official_criterion_is_named_for_rain_only(
    empty: Workspace, code: str, named: str, not_named: str
) -> None:
    """A cut wire at an index of 101 of 277 mm reaches no criterion of rain."""
    append(empty.data, row(A, 5, NOW_S, code, 101.0))
    page = report_of(services_of(empty))

    assert named in page
    assert not_named not in page


def test_report_is_ordered_by_level_margin_and_households(empty: Workspace) -> None:
    """Of equal levels the one nearest to the next; then the most households."""
    append(
        empty.data,
        row(A, 3, NOW_S, LINE, 160.0),
        row(B, 3, NOW_S, LINE, 200.0),
        row(C, 3, NOW_S, LINE, 200.0),
        row(D, 4, NOW_S - 3 * HOUR_S, LINE),
        row(E, 4, NOW_S, LINE, 10.0),
    )
    places = [
        Place(district="B", cells=(B,), households=3),
        Place(district="C", cells=(C,), households=30),
    ]
    write_places(empty.data, places)
    page = report_of(services_of(empty))

    assert re.findall(r"<code>(\w+)</code>", page) == [E, D, C, B, A]
