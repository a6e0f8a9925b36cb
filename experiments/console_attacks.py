"""Attacks on the console: ``python -m experiments.console_attacks``.

Each is made on the real program, and prints what an honest analyst sees while it lasts,
and the memory that it takes.
"""

import asyncio
import contextlib
import json
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import httpx

PASSWORD = "correct horse battery"  # noqa: S105 - of accounts of this run
GUESSERS, HALF_REQUESTS, SECONDS = 16, 1100, 8.0
BIG = "9" * 23


@dataclass
class Target:
    """A console that runs for one attack.

    Attributes:
        folder: Of its files.
        address: URL.
        process: The program.
    """

    folder: Path
    address: str
    process: subprocess.Popen[bytes]

    @property
    def port(self) -> int:
        """TCP port."""
        return int(self.address.rsplit(":", 1)[1])

    def client(self, site: str = "198.51.100.7", **more: str) -> httpx.Client:
        """Client behind the reverse proxy, at an address."""
        headers = {"X-Forwarded-For": site} | more
        return httpx.Client(base_url=self.address, headers=headers, timeout=30)

    def account(self, *args: str) -> None:
        """Run console-account."""
        command = [sys.executable, "-m", "backend_spark", "console-account"]
        command += [args[0], str(self.folder / "accounts"), *args[1:]]
        subprocess.run(command, check=True, capture_output=True)

    def memory_mib(self) -> float:
        """Resident memory of the program at its highest."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        (line,) = [each for each in status.splitlines() if each.startswith("VmHWM")]
        return int(line.split()[1]) / 1024


@contextlib.contextmanager
def running() -> Iterator[Target]:
    """A console with an empty data folder and two accounts."""
    with tempfile.TemporaryDirectory() as name, socket.socket() as free:
        folder = Path(name)
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        target = Target(folder, f"http://127.0.0.1:{port}", None)  # type: ignore[arg-type]
        for person, role in (("suzuki", "chief"), ("tanaka", "analyst")):
            target.account("add", person, "--role", role, "--password", PASSWORD)
        config = folder / "backend.toml"
        config.write_text(
            f'[backend]\ndata = "{folder}/data"\n[console]\nport = {port}\n'
            f'accounts = "{folder}/accounts"\n',
            encoding="utf-8",
        )
        # systemd gives a unit 1,024 files.
        command = ["prlimit", "--nofile=1024", sys.executable]
        command += ["-m", "backend_spark", "console", "--config"]
        with (folder / "log").open("wb") as log:
            target.process = subprocess.Popen([*command, str(config)], stderr=log)
        try:
            _wait_for(target)
            yield target
        finally:
            target.process.send_signal(signal.SIGKILL)
            target.process.wait()


def _wait_for(target: Target) -> None:
    for _ in range(600):
        with contextlib.suppress(httpx.TransportError), target.client() as client:
            client.get("/api/session")
            return
        time.sleep(0.1)
    raise TimeoutError((target.folder / "log").read_text(encoding="utf-8"))


def log_in(client: httpx.Client, name: str, password: str = PASSWORD) -> int:
    """Status of a login; 0 if there was no answer within 30 s."""
    login = {"name": name, "password": password}
    with contextlib.suppress(httpx.TransportError):
        return client.post("/api/login", json=login).status_code
    return 0


def proof_of(client: httpx.Client) -> dict[str, str]:
    """Header that a page sends with changes."""
    return {"X-Yamamori-Proof": client.get("/api/session").json()["proof"]}


def wrong_names(target: Target) -> str:
    """Six wrong passwords under different names, then an honest login elsewhere."""
    with target.client("203.0.113.9") as thief, target.client() as owner:
        for n in range(6):
            log_in(thief, f"name-{n}", "wrong password")
        return f"honest login elsewhere: {log_in(owner, 'suzuki')}"


def guessed_name(target: Target) -> str:
    """Guesses at a name, then its owner logs in on the usual device."""
    with target.client("203.0.113.9") as thief, target.client() as owner:
        first = log_in(owner, "suzuki")
        for _ in range(40):
            log_in(thief, "suzuki", "wrong password")
        return f"owner's logins before and after: {first}, {log_in(owner, 'suzuki')}"


def guessers(target: Target) -> str:
    """16 guessers at once; the pages' delay."""
    ended = threading.Event()

    def guess(n: int) -> None:
        with target.client(f"203.0.113.{n}") as thief:
            for k in range(10_000):
                if ended.is_set():
                    return
                log_in(thief, f"name-{n}-{k}", "wrong password")

    with target.client() as owner:
        log_in(owner, "suzuki")
        threads = [threading.Thread(target=guess, args=(n,)) for n in range(GUESSERS)]
        for thread in threads:
            thread.start()
        delays_s = _delays_s(owner, SECONDS)
        again = log_in(owner, "suzuki")
        ended.set()
        for thread in threads:
            thread.join()
    return f"{_in_ms(delays_s)}; owner logs in again: {again}"


def _delays_s(client: httpx.Client, seconds: float) -> list[float]:
    delays_s, end_s = [], time.monotonic() + seconds
    while time.monotonic() < end_s:
        begin_s = time.monotonic()
        client.get("/api/cells").raise_for_status()
        delays_s.append(time.monotonic() - begin_s)
        time.sleep(0.05)
    return delays_s


def _in_ms(delays_s: list[float]) -> str:
    middle, worst = statistics.median(delays_s) * 1000, max(delays_s) * 1000
    return f"pages in the median {middle:.0f} ms, at most {worst:.0f} ms"


def half_requests(target: Target) -> str:
    """1,100 connections with half a request each; an honest login meanwhile."""
    return asyncio.run(_half_requests(target))


async def _half_requests(target: Target) -> str:
    opened = []
    for _ in range(HALF_REQUESTS):
        with contextlib.suppress(OSError, TimeoutError):
            link = asyncio.open_connection("127.0.0.1", target.port)
            _, writer = await asyncio.wait_for(link, 2)
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n")
            opened.append(writer)
    begin_s = time.monotonic()
    status = await asyncio.to_thread(_login_once, target)
    seconds = time.monotonic() - begin_s
    for writer in opened:
        writer.close()
    return f"{len(opened)} opened; honest login: {status} after {seconds:.1f} s"


def _login_once(target: Target) -> int:
    with target.client() as owner:
        return log_in(owner, "suzuki")


def removed_account(target: Target) -> str:
    """An account is removed while it reads."""
    with target.client() as reader:
        log_in(reader, "tanaka")
        stream = _stream(reader)
        target.account("remove", "tanaka")
        status = reader.get("/api/cells").status_code
        return f"reads: {status}; event stream: {stream()}"


def logged_out_stream(target: Target) -> str:
    """The event stream after the logout."""
    with target.client() as reader:
        log_in(reader, "tanaka")
        stream = _stream(reader)
        reader.post("/api/logout", headers=proof_of(reader))
        return f"event stream: {stream()}"


def _stream(client: httpx.Client) -> Callable[[], str]:
    """Read the event stream; the function says how it went on."""
    events: list[float] = []
    cookies = "; ".join(f"{k}={v}" for k, v in client.cookies.items())

    def read() -> None:
        with (
            contextlib.suppress(httpx.TransportError),
            httpx.stream(
                "GET", f"{client.base_url}/api/live", headers={"Cookie": cookies}
            ) as answer,
        ):
            events.extend(time.monotonic() for _ in answer.iter_bytes())

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    time.sleep(1.5)

    def result() -> str:
        thread.join(5)
        return "goes on" if thread.is_alive() else "ended"

    return result


def replaced_entry(target: Target) -> str:
    """A journal entry is overwritten with SQL."""
    with target.client() as owner:
        log_in(owner, "suzuki")
        note = {"text": "evacuated"}
        owner.post("/api/notes", json=note, headers=proof_of(owner))
    path = target.folder / "data" / "console" / "journal.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as db:
        (number,) = db.execute("select max(id) from entry").fetchone()
        forged = json.dumps({"text": "nothing happened"})
        try:
            db.execute(
                "insert or replace into entry values (?, 0, 'note', '', 'suzuki', ?)",
                (number, forged),
            )
            db.commit()
        except sqlite3.IntegrityError as error:
            return f"refused: {error}"
    return "overwritten"


def long_number(target: Target) -> str:
    """A number of 23 digits in the address."""
    with target.client() as owner:
        log_in(owner, "suzuki")
        answer = owner.get(f"/api/events/{BIG}")
        return f"status {answer.status_code}"


def https_cookie(target: Target) -> str:
    """Cookie and headers behind a proxy that speaks https."""
    with target.client(**{"X-Forwarded-Proto": "https"}) as owner:
        login = {"name": "suzuki", "password": PASSWORD}
        headers = owner.post("/api/login", json=login).headers
    secure = "; secure" in headers["set-cookie"].lower()
    strict = "strict-transport-security" in headers
    return f"Secure cookie: {secure}, HSTS: {strict}"


def failures_in_journal(target: Target) -> str:
    """What the journal holds of a wrong and a right login."""
    with target.client() as owner:
        log_in(owner, "suzuki", "wrong password")
        log_in(owner, "suzuki")
    path = target.folder / "data" / "console" / "journal.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as db:
        kinds: list[Any] = [row[0] for row in db.execute("select kind from entry")]
    return f"entries: {', '.join(kinds) or 'none'}"


ATTACKS = (
    wrong_names,
    guessed_name,
    guessers,
    half_requests,
    removed_account,
    logged_out_stream,
    replaced_entry,
    long_number,
    https_cookie,
    failures_in_journal,
)


@click.command()
def main() -> None:
    """Make all attacks, each on a console of its own."""
    for attack in ATTACKS:
        with running() as target:
            result = attack(target)
            print(f"{attack.__name__:20} {result} ({target.memory_mib():.0f} MiB)")


if __name__ == "__main__":
    main()
