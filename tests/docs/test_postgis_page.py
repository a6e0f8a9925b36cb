"""Runs the commands of the page on PostGIS against a server, and tries the rights."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from page_shell import ROOT, Machine, sections
from postgis_server import PostgisServer, run_postgis

from backend_spark.tables.delta_writer import append_rows, create_tables
from backend_spark.tables.schemas import LEVELS

PAGE = sections(ROOT / "docs/how-to/postgis.md")
pytestmark = pytest.mark.long


@pytest.fixture
def server() -> Iterator[PostgisServer]:
    """A server."""
    with run_postgis() as server:
        yield server


@pytest.fixture
def machine(server: PostgisServer, tmp_path: Path) -> Machine:
    """A machine with tables of one cell, whose service is the role of the page."""
    machine = Machine(tmp_path)
    machine.env |= {
        "PGHOST": str(server.folder),
        "PGPORT": str(server.port),
        "PGUSER": "postgres",
    }
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/backend.toml").write_text(f'[backend]\ndata = "{tmp_path}/data"\n')
    (tmp_path / "etc/pg_service.conf").write_text(
        f"[landslides]\nhost={server.folder}\nport={server.port}\n"
        "dbname=landslides\nuser=yamamori_sync\n"
    )
    tables = tmp_path / "data/tables"
    create_tables(tables, ["levels"])
    row = {"cell": "354e18bc", "at": datetime.now(UTC), "level": 4, "state": "judged"}
    append_rows(tables / "levels", pa.Table.from_pylist([row], schema=LEVELS))
    return machine


def test_commands_of_the_page_run(server: PostgisServer, machine: Machine) -> None:
    """The first role writes in its schema alone; the second reads alone."""
    (set_up,) = PAGE["Set up the database"]
    (connect,) = PAGE["Connect"]
    with server.connect("template1") as link:  # as in PostgreSQL 13 and 14
        link.execute("GRANT CREATE ON SCHEMA public TO PUBLIC")
    machine.run(set_up)
    printed = machine.run(connect)

    assert "Feature Count: 1" in printed
    assert "POLYGON((133." in printed
    with server.connect("landslides") as link:
        link.execute("CREATE ROLE tanaka LOGIN IN ROLE yamamori_read")
    with server.connect("landslides", "tanaka") as link:
        found = link.execute("SELECT level FROM yamamori.current").fetchall()
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="newest"):
            link.execute("DELETE FROM yamamori.newest")
    assert found == [(4,)]
    with server.connect("landslides", "yamamori_sync") as link:
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="public"):
            link.execute("CREATE TABLE public.other (i integer)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="landslides"):
            link.execute("CREATE SCHEMA other")
