"""``backend-spark postgis``: a copy is always one version of gold, as a whole."""

import itertools
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import free_port, wait_until
from postgis_server import PostgisServer, run_postgis

from backend_spark.postgis import PostgisCopy, SyncResult, connect, sync_postgis
from backend_spark.scoring.holds import HoldLimits, PresentLevel
from backend_spark.tables.delta_writer import (
    append_rows,
    create_tables,
    delete_rows,
    merge_rows,
    time_literal,
)
from backend_spark.tables.maintenance import compact
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.schemas import LEVEL_KEY, LEVELS
from backend_spark.tables.store import open_table
from spatial_mqtt.cells import Cell

pytestmark = pytest.mark.long
T0 = datetime(2026, 7, 1, tzinfo=UTC)
STEP = timedelta(minutes=10)
CELLS = ("354e18bc", "354e18c4", "354e18cc")
HOLD_S = 5 * 86_400.0


@pytest.fixture(scope="module")
def server() -> Iterator[PostgisServer]:
    """A server for all tests."""
    with run_postgis() as server:
        yield server


@dataclass(frozen=True)
class Copy:
    """Tables, and the database that they are copied to.

    Attributes:
        server: Of the database.
        database: Its name.
        folder: Of the settings, the tables and the service file.
    """

    server: PostgisServer
    database: str
    folder: Path

    @property
    def gold(self) -> Path:
        """Folder of gold."""
        return self.folder / "data/tables/levels"

    @property
    def tables(self) -> DeltaTables:
        """The tables."""
        return DeltaTables(self.gold.parent)

    def write_service(self, **options: object) -> None:
        """Write the service ``yamamori``, with other options than the usual."""
        usual = {
            "host": self.server.folder,
            "port": self.server.port,
            "dbname": self.database,
            "user": "postgres",
        }
        lines = [f"{name}={value}\n" for name, value in (usual | options).items()]
        (self.folder / "service.conf").write_text(f"[yamamori]\n{''.join(lines)}")

    def start(self, *options: str) -> "subprocess.Popen[str]":
        """Start a pass of the command."""
        command = [sys.executable, "-m", "backend_spark", "postgis", "--config"]
        command += [str(self.folder / "backend.toml"), "--service", "yamamori"]
        return subprocess.Popen(
            [*command, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *options: str) -> tuple[int, str]:
        """Run a pass; its status and what it printed."""
        program = self.start(*options)
        printed, _ = program.communicate(timeout=120)
        return program.returncode, printed

    def sync(self, history_days: int | None = None) -> SyncResult:
        """Run a pass in this process."""
        copy = PostgisCopy(
            self.gold.parent, "yamamori", "yamamori", HOLD_S, history_days
        )
        return sync_postgis(copy)

    def query(self, text: str) -> list[tuple[Any, ...]]:
        """Rows of a query, whose names are those of the schema."""
        with self.server.connect(self.database) as link:
            link.execute("SET search_path = yamamori, public; SET timezone = 'UTC'")
            return link.execute(text).fetchall()

    def version(self) -> int:
        """Version of gold that the copy says it has."""
        ((version,),) = self.query("SELECT version FROM sync_state")
        return int(version)

    def check(self) -> None:
        """Compare the copy with the version that it says it has, and that alone."""
        columns = ", ".join(f'"{name}"' for name in LEVELS.names)
        found = self.query(f"SELECT {columns} FROM levels ORDER BY cell, at")  # noqa: S608 - a constant
        rows = self.tables.dataset("levels", self.version()).to_table()
        wanted = rows.select(LEVELS.names).to_pylist()
        wanted.sort(key=lambda row: (row["cell"], row["at"]))
        assert found == [tuple(row.values()) for row in wanted]

    def check_newest(self) -> None:
        """Compare the copy with the newest version."""
        assert self.version() == open_table(self.gold).version()
        self.check()
        found = self.query("SELECT cell, at, level, level_since FROM newest ORDER BY 1")
        wanted = self.tables.newest().select(["cell", "at", "level", "level_since"])
        assert found == [tuple(row.values()) for row in wanted.to_pylist()]


@pytest.fixture
def copy(
    server: PostgisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Copy:
    """Empty tables and a database that is set up."""
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "service.conf"))
    made = Copy(server, server.make_database(), tmp_path)
    (tmp_path / "backend.toml").write_text(
        f'[backend]\ndata = "{tmp_path}/data"\n[score]\nhold_s = {HOLD_S}\n'
    )
    create_tables(made.gold.parent, ["levels"])
    made.write_service()
    with server.connect(made.database) as link:
        link.execute("CREATE EXTENSION postgis")
        link.execute("CREATE SCHEMA yamamori")
    return made


def rows_of(*levels: tuple[str, int, int | None], **more: object) -> pa.Table:
    """Rows of gold from cell, number of the step and level."""
    rows = [
        {"cell": cell, "at": T0 + step * STEP, "level": level, "reasons": ["雨量", "b"]}
        | {"margin_mm": step / 3, "forecast_mm": [1.5, None], "lower_bound": False}
        | more
        for cell, step, level in levels
    ]
    return pa.Table.from_pylist(rows, schema=LEVELS)


def fill(gold: Path, steps: range, level: int = 1) -> None:
    """Append steps of all cells."""
    append_rows(
        gold, rows_of(*((cell, step, level) for cell in CELLS for step in steps))
    )


def change(gold: Path, dice: random.Random, turn: int) -> None:
    """What a pass and the maintenance may do between two passes of the copy."""
    fill(gold, range(turn * 3, turn * 3 + 3), dice.randint(1, 5))
    late = [
        (cell, dice.randrange(turn * 3 + 3), dice.choice([None, 2])) for cell in CELLS
    ]
    if dice.random() < 0.7:
        merge_rows(gold, rows_of(*late), LEVEL_KEY)
    if dice.random() < 0.4:
        compact(gold)
    if dice.random() < 0.3:
        before_us = round((T0 + turn * STEP).timestamp() * 1_000_000)
        delete_rows(gold, f"at < {time_literal(before_us)}")
    if dice.random() < 0.2:
        delete_rows(gold, f"cell = '{CELLS[0]}' AND level = 5")


@pytest.mark.parametrize("seed", range(3))
def test_copy_follows_any_history_of_gold(copy: Copy, seed: int) -> None:
    """Appends, revisions, compactions and deletions; most passes read changes only."""
    dice, passes, turns = random.Random(seed), [], itertools.count()
    for _ in range(8):
        for turn in itertools.islice(turns, dice.randint(1, 3)):
            change(copy.gold, dice, turn)
        passes.append(copy.sync())
        copy.check_newest()
    again = copy.sync()

    assert (again.is_whole, again.rows) == (False, 0)
    assert sum(not each.is_whole for each in passes) >= 3


def test_kill_in_the_middle_leaves_the_version_before(copy: Copy) -> None:
    """Killed with -9 between levels and newest rows; the next pass continues."""
    fill(copy.gold, range(3))
    copy.sync()
    before = copy.version()
    fill(copy.gold, range(3, 6), 4)
    merge_rows(copy.gold, rows_of((CELLS[0], 1, 5)), LEVEL_KEY)
    with copy.server.connect(copy.database) as link, link.transaction():
        link.execute("LOCK TABLE yamamori.newest IN SHARE MODE")
        killed = copy.start()
        waiting = "SELECT FROM pg_stat_activity WHERE application_name = 'yamamori' "
        waiting += f"AND datname = '{copy.database}' AND wait_event_type = 'Lock'"
        wait_until(lambda: copy.query(waiting))
        killed.kill()
        killed.communicate()
    wait_until(lambda: not copy.query(waiting.partition(" AND wait")[0]))

    assert copy.version() == before
    copy.check()
    assert copy.query("SELECT DISTINCT level FROM newest") == [(1,)]
    assert not copy.sync().is_whole
    copy.check_newest()


def test_kills_at_any_time_leave_one_version(copy: Copy) -> None:
    """Passes, each killed with -9 at another moment of its run."""
    dice, killed = random.Random(1), 0
    began_s = time.monotonic()
    assert copy.run()[0] == 0
    whole_s = time.monotonic() - began_s
    for turn in range(6):
        change(copy.gold, dice, turn)
        program = copy.start()
        try:
            program.communicate(timeout=dice.uniform(0.5, 1.1) * whole_s)
        except subprocess.TimeoutExpired:
            program.kill()
            program.communicate()
            killed += 1
        copy.check()
    copy.sync()
    copy.check_newest()

    assert killed


def test_restored_or_new_tables_replace_the_copy(copy: Copy) -> None:
    """Older; older and then as new as before; and made anew with as many versions."""
    fill(copy.gold, range(2))
    shutil.copytree(copy.gold, copy.folder / "backup")
    fill(copy.gold, range(2, 4), 3)
    copy.sync()

    def restore() -> None:
        shutil.rmtree(copy.gold)
        shutil.copytree(copy.folder / "backup", copy.gold)

    restore()
    assert copy.sync().is_whole
    copy.check_newest()
    fill(copy.gold, range(2, 4), 3)
    copy.sync()
    restore()
    fill(copy.gold, range(4, 6), 2)
    assert copy.sync().is_whole
    copy.check_newest()
    versions = copy.version()
    shutil.rmtree(copy.gold)
    create_tables(copy.gold.parent, ["levels"])
    for step in range(versions):
        fill(copy.gold, range(step, step + 1), 2)
    assert copy.sync().is_whole
    copy.check_newest()


STATES: list[tuple[timedelta, int | None, str | None, timedelta | None]] = [
    (age, level, state, known)
    for age in (
        timedelta(minutes=-9),
        *(timedelta(hours=h) for h in (0.4, 0.6, 23, 25, 119, 121)),
    )
    for level in (None, 1, 2, 3, 5)
    for state, known in (
        ("judged", None),
        ("held", timedelta(hours=2)),
        ("held", timedelta(hours=110)),
        ("unknown", None),
        (None, None),
    )
]
"""Age, level, state and age of the last judgement of a row."""


def test_view_has_the_level_of_the_moment(copy: Copy) -> None:
    """As `PresentLevel`: a silent cell is held, then unknown, and never as it was."""
    now = datetime.now(UTC)
    first = Cell.from_token(CELLS[0]).id
    cells = [Cell(first + (i << 35)).token for i in range(len(STATES))]
    rows = [
        {"cell": cell, "at": now - age, "level": level, "state": state}
        | {"known_until": known and now - age - known}
        for cell, (age, level, state, known) in zip(cells, STATES, strict=True)
    ]
    append_rows(copy.gold, pa.Table.from_pylist(rows, schema=LEVELS))
    copy.sync()
    found = copy.query(
        "SELECT cell, level, state, known_until, moment, level_since FROM current"
    )
    by_cell = {cell: rest for cell, *rest in found}

    assert len(by_cell) == len(STATES)
    for row in rows:
        level, state, known_until, moment, since = by_cell[row["cell"]]
        present = PresentLevel.of_row(row, moment.timestamp(), HoldLimits(HOLD_S))
        known_s = None if known_until is None else known_until.timestamp()
        assert PresentLevel(level, state, known_s) == present, row
        assert (since is None) == (level != row["level"])


def test_view_keeps_time_in_an_open_transaction(copy: Copy) -> None:
    """Its moment is that of the query, and not that of the transaction's begin."""
    fill(copy.gold, range(1))
    copy.sync()
    with copy.server.connect(copy.database) as link, link.transaction():
        query = "SELECT moment > now() FROM yamamori.current"
        link.execute("SELECT 1")

        assert set(link.execute(query).fetchall()) == {(True,)}


def test_layer_opens_in_gdal(copy: Copy) -> None:
    """With the outline of each cell, in WGS 84."""
    now = datetime.now(UTC)
    rows = [{"cell": cell, "at": now, "level": 4, "state": "judged"} for cell in CELLS]
    append_rows(copy.gold, pa.Table.from_pylist(rows, schema=LEVELS))
    copy.sync()
    place = f"PG:host={copy.server.folder} port={copy.server.port} user=postgres "
    place += f"dbname={copy.database} schemas=yamamori"
    shown = subprocess.run(
        ["ogrinfo", "-ro", "-al", place, "current"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    centroids = "SELECT cell, ST_X(ST_Centroid(geom)), ST_Y(ST_Centroid(geom))"
    polygons = {cell: at for cell, *at in copy.query(f"{centroids} FROM current")}

    assert "Feature Count: 3" in shown
    assert 'ID["EPSG",4326]' in shown
    assert shown.count("level (Integer) = 4") == 3
    for cell in CELLS:
        lat, lon = Cell.from_token(cell).center()
        assert polygons[cell] == pytest.approx([lon, lat], abs=1e-4)


def test_rows_survive_other_layouts_and_texts(copy: Copy) -> None:
    """A column that an older program lacked is filled; a NUL in a text is replaced."""
    odd = rows_of((CELLS[0], 1, 2), reasons=["a\0b", None], forecast_why="c\0d")
    append_rows(copy.gold, odd)
    fill(copy.gold, range(2, 4))
    copy.sync()
    with copy.server.connect(copy.database) as link:
        link.execute("ALTER TABLE yamamori.levels DROP COLUMN margin_mm")

    assert copy.sync().is_whole
    assert copy.query("SELECT margin_mm FROM levels WHERE level = 2") == [(1 / 3,)]
    assert copy.query("SELECT reasons, forecast_why FROM levels WHERE level = 2") == [
        (["a\ufffdb", None], "c\ufffdd")
    ]


def test_history_is_as_long_as_asked(copy: Copy) -> None:
    """Older levels are neither copied nor kept; more days bring them back."""
    fill(copy.gold, range(0, 5 * 144, 72))
    copy.sync(2)
    short = copy.query("SELECT count(*) FROM levels")
    fill(copy.gold, range(5 * 144, 5 * 144 + 1))
    copy.sync(2)
    later = copy.query("SELECT min(at) FROM levels")
    copy.sync(3)
    longer = copy.query("SELECT min(at) FROM levels")
    copy.sync()

    assert short == [(len(CELLS) * 5,)]
    assert later == [(T0 + timedelta(days=3),)]
    assert longer == [(T0 + timedelta(days=2),)]
    copy.check_newest()


def test_database_that_is_away_is_tried_again(copy: Copy) -> None:
    """Status 75; the error names the service and not the password."""
    secret = "very-secret"  # noqa: S105 - of a test
    copy.write_service(host="127.0.0.1", port=free_port(), password=secret)
    status, printed = copy.run()

    assert status == 75
    assert "service yamamori must answer" in printed
    assert "Connection refused" in printed
    assert secret not in printed
    assert "Traceback" not in printed


def test_connection_ends_when_the_database_is_cut_off(copy: Copy) -> None:
    """After a minute, in which the kernel has tried to reach its machine."""
    with copy.server.connect(copy.database) as link:
        link.execute("ALTER ROLE postgres PASSWORD 'very-secret'")
    copy.write_service(host="127.0.0.1", password="very-secret", sslmode="disable")  # noqa: S106 - of a test
    with connect("yamamori") as link, socket.socket(fileno=os.dup(link.fileno())) as s:
        wait_ms = s.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        idle_s = s.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)

    assert (wait_ms, idle_s) == (60_000, 30)


def test_password_goes_to_no_server_without_a_certificate(copy: Copy) -> None:
    """Unless the service says so: over TCP TLS with its name is required."""
    with copy.server.connect(copy.database) as link:
        link.execute("ALTER ROLE postgres PASSWORD 'very-secret'")
    away = {"host": "127.0.0.1", "password": "very-secret"}
    copy.write_service(**away)
    status, printed = copy.run()
    copy.write_service(**away, sslmode="disable")
    plain, _ = copy.run("--history-days", "9")

    assert (status, plain) == (75, 0)
    assert "root certificate" in printed or "SSL" in printed


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("DROP EXTENSION postgis", "CREATE EXTENSION postgis"),
        ("DROP SCHEMA yamamori", "--schema must be a schema of the database"),
        ("", "must be allowed to write, got permission denied"),
    ],
)
def test_database_that_is_not_set_up_is_named(
    copy: Copy, wrong: str, message: str
) -> None:
    """Status 78, on which systemd does not repeat it; the remedy is named."""
    with copy.server.connect(copy.database) as link:
        if wrong:
            link.execute(wrong)
        else:
            link.execute("CREATE ROLE stranger LOGIN")
            link.execute("GRANT USAGE ON SCHEMA yamamori TO stranger")
            copy.write_service(user="stranger")
    status, printed = copy.run()

    assert status == 78
    assert message in printed
    assert "Traceback" not in printed


def test_missing_tables_and_services_are_named(copy: Copy) -> None:
    """An unmounted folder empties no copy."""
    fill(copy.gold, range(1))
    copy.sync()
    shutil.rmtree(copy.gold)
    status, printed = copy.run()
    (copy.folder / "service.conf").write_text("[other]\n")
    missing, named = copy.run()

    assert (status, missing) == (78, 78)
    assert "levels must be a table" in printed
    assert "--service must be defined" in named
    assert len(copy.query("SELECT FROM levels")) == len(CELLS)


def test_newer_layout_is_left_alone(copy: Copy) -> None:
    """That of a newer program."""
    copy.sync()
    with copy.server.connect(copy.database) as link:
        link.execute("UPDATE yamamori.sync_state SET layout = 99")
    status, printed = copy.run()

    assert status == 78
    assert "upgrade this one" in printed


def test_two_passes_follow_each_other(copy: Copy) -> None:
    """Started at the same time, also on an empty schema."""
    fill(copy.gold, range(20))
    programs = [copy.start() for _ in range(3)]
    printed = [program.communicate(timeout=120)[0] for program in programs]

    assert [program.returncode for program in programs] == [0, 0, 0], printed
    copy.check_newest()
