"""A console for tests: data folder, settings, accounts and server."""

import os
import ssl
import threading
from base64 import b32decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from hashlib import scrypt
from pathlib import Path
from typing import Final

import httpx
import pyarrow as pa
import uvicorn
from conftest import wait_until
from console_tables import CRITERIA, Slope, storm
from deltalake import write_deltalake
from scored_levels import score_levels

from backend_spark.config import read_settings
from backend_spark.console import accounts
from backend_spark.console.app import make_services, server_config
from backend_spark.console.dependencies import ConsoleServices
from backend_spark.console.event_detector import MESSAGE_COLUMNS

NOW_S = 1_793_000_400  # a full 10 minutes, 2026-10-26
HOSTILE = '<img src=x onerror="window.broken=1">'
PASSWORD = "correct horse battery"  # noqa: S105 - of test accounts

TOTP_SECRET = accounts.make_totp_secret(os.urandom)

SLOPES = (
    Slope("otani-1", 33.575, 133.500, storm(20, 48), [0.001 * n for n in range(288)]),
    Slope("otani-2", 33.590, 133.520, storm(12, 48)),
    Slope("nishi-1", 33.610, 133.540, storm(2, 48)),
    Slope("nishi-2", 33.630, 133.560, [*storm(20, 48)[:-12], *[None] * 12]),
    Slope(HOSTILE, 33.650, 133.580, storm(4, 48)),
)
"""Wet, damp, dry, silent for two hours, and one with a hostile name."""


def level_of(slope: Slope) -> int:
    """Level of a slope at `NOW_S`, computed by the real rules."""
    level = score_levels(list(slope.observations(NOW_S)), CRITERIA)[-1].level
    assert level is not None
    return level


HIGHEST = max(level_of(slope) for slope in SLOPES if slope.node != "nishi-2")
"""Highest current level; nishi-2 is silent."""


HTTP_ONLY: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients of http://, which else load all certificates first, 30 ms each."""


@cache
def hash_of(_role: str) -> str:
    """Hash of `PASSWORD` with a salt for each role, of a 64th of the usual costs.

    A login takes what the hash says; most tests begin with one.
    """
    salt = os.urandom(16)
    key = scrypt(PASSWORD.encode(), salt=salt, n=2**8, r=8, p=1)
    return "$".join(["scrypt$256$8$1", *(b64encode(x).decode() for x in (salt, key))])


def code_at(now_s: float, secret: str = TOTP_SECRET) -> str:
    """Code that an authenticator app shows."""
    return accounts.one_time_code(b32decode(secret), int(now_s // accounts.CODE_STEP_S))


@dataclass
class Workspace:
    """A data folder with settings.

    Attributes:
        folder: Folder of all files.
        port: Port of the console.
    """

    folder: Path
    port: int

    @property
    def data(self) -> Path:
        """The setting ``backend.data``."""
        return self.folder / "data"

    def config(self, more: str = "") -> Path:
        """Write the settings file; returns its path."""
        path = self.folder / "backend.toml"
        path.write_text(
            f'[backend]\ndata = "{self.data}"\n[console]\nport = {self.port}\n'
            f'place = "大谷町"\n{more}\n',
            encoding="utf-8",
        )
        return path

    def with_accounts(self) -> str:
        """Write accounts of every role; returns the line of settings for them."""
        path = self.folder / "accounts"
        known = {
            f"a-{role}": accounts.Account(f"a-{role}", role, hash_of(role))
            for role in accounts.ROLES
        }
        accounts.write_accounts(path, known)
        return f'accounts = "{path}"'

    def with_second_factor(self) -> str:
        """Accounts of which a-chief has the second factor `TOTP_SECRET`."""
        more, path = self.with_accounts(), self.folder / "accounts"
        found = accounts.read_accounts(path)
        chief = replace(found["a-chief"], totp_secret=TOTP_SECRET)
        accounts.write_accounts(path, found | {"a-chief": chief})
        return more


@dataclass
class Clock:
    """A clock that tests set."""

    now_s: float = NOW_S + 60.0

    def __call__(self) -> float:
        return self.now_s


def make_test_services(
    house: Workspace, clock: Clock, more: str = ""
) -> ConsoleServices:
    """The console's services with the test's clock."""
    return make_services(read_settings(house.config(more)), clock)


@contextmanager
def serve(parts: ConsoleServices, port: int) -> Iterator[httpx.Client]:
    """Run the console's web server on a real socket; yields a client."""
    server = uvicorn.Server(server_config(parts))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive())
        address = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=address, timeout=60, verify=HTTP_ONLY) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join()


def log_in(client: httpx.Client, name: str, password: str = PASSWORD) -> dict[str, str]:
    """Log in; returns the headers required for changes."""
    answer = client.post("/api/login", json={"name": name, "password": password})
    assert answer.status_code == 200, answer.text
    return {"X-Yamamori-Proof": client.get("/api/session").json()["proof"]}


def add_alert(house: Workspace, at_s: float = NOW_S + 30) -> None:
    """An alert of a node outside all cells; a new one is at the top of the events."""
    row = {"node": "otani-9", "boot": "b", "seq": 1, "pri": 5, "why": "wire"}
    row |= {"received_at": int(at_s * 1_000_000)}
    table = pa.Table.from_pylist([row], schema=MESSAGE_COLUMNS)
    path = str(house.data / "tables" / "alerts")
    write_deltalake(path, table, mode="append", schema_mode="merge")
