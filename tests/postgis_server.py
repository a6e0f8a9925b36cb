"""A PostgreSQL server with PostGIS for tests, as an unprivileged user.

`make test-long` installs both.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg
from conftest import free_port, wait_until

BINARIES: Final = Path("/usr/lib/postgresql")
EXTENSIONS: Final = Path("/usr/share/postgresql")
ADMINISTRATOR: Final = "postgres"


@dataclass(frozen=True)
class PostgisServer:
    """A running server.

    Attributes:
        folder: Of its socket; who reaches that is trusted. On the port, roles need a
            password, and TLS is off.
        port: On this machine.
    """

    folder: Path
    port: int

    def make_database(self) -> str:
        """Name of a new database."""
        name = f"test_{uuid.uuid4().hex}"
        with self.connect("postgres") as link:
            link.execute(f'CREATE DATABASE "{name}"')
        return name

    def connect(self, database: str, role: str = ADMINISTRATOR) -> psycopg.Connection:
        """Connect by the socket; each statement is a transaction."""
        return psycopg.connect(
            host=str(self.folder),
            port=self.port,
            dbname=database,
            user=role,
            autocommit=True,
        )


@contextmanager
def run_postgis() -> Iterator[PostgisServer]:
    """Run a server with an empty cluster in a folder of its own."""
    versions = sorted(EXTENSIONS.glob("*/extension/postgis.control"))
    assert versions, "PostGIS is missing: run scripts/install-programs long"
    programs = BINARIES / versions[-1].parts[-3] / "bin"
    # The folders of pytest are closed to other users.
    folder = Path(tempfile.mkdtemp(prefix="yamamori-postgis-"))
    user = "nobody" if os.geteuid() == 0 else None
    if user is not None:
        shutil.chown(folder, user)
    port = free_port()
    try:
        _make_cluster(programs, folder, user)
        server = _start(programs, folder, user, port)
        try:
            found = PostgisServer(folder, port)
            wait_until(lambda: _answers(found) or server.poll() is not None)
            assert server.poll() is None, (folder / "log").read_text()
            yield found
        finally:
            server.send_signal(signal.SIGQUIT)  # at once, with all of its processes
            server.wait()
    finally:
        shutil.rmtree(folder)


def _make_cluster(programs: Path, folder: Path, user: str | None) -> None:
    subprocess.run(
        [
            str(programs / "initdb"),
            f"--pgdata={folder}/data",
            f"--username={ADMINISTRATOR}",
            "--auth-local=trust",
            "--auth-host=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
            "--no-sync",
        ],
        user=user,
        cwd=folder,
        check=True,
        capture_output=True,
    )


def _start(
    programs: Path, folder: Path, user: str | None, port: int
) -> "subprocess.Popen[bytes]":
    options = (
        f"--port={port}",
        "--listen_addresses=127.0.0.1",
        f"--unix_socket_directories={folder}",
        "--fsync=off",
    )
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [
                str(programs / "postgres"),
                "-D",
                f"{folder}/data",
                *options,
            ],
            user=user,
            cwd=folder,
            stdout=log,
            stderr=log,
        )


def _answers(server: PostgisServer) -> bool:
    try:
        server.connect("postgres").close()
    except psycopg.OperationalError:
        return False
    return True
