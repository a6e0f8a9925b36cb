"""Fixtures: the console over real tables, in this process or as a subprocess."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from browser import browser
from conftest import free_port, wait_until
from console_house import NOW_S, SLOPES, Clock, House, parts_of, serve
from console_tables import write_tables
from selenium.webdriver import Chrome


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data folder with five slopes up to `NOW_S`; each test gets a copy."""
    folder = tmp_path_factory.mktemp("console") / "data"
    write_tables(folder, SLOPES, NOW_S)
    return folder


@pytest.fixture
def workspace(tmp_path: Path, tables: Path) -> House:
    """Data folder with five slopes up to `NOW_S`, its settings and a free port."""
    workspace = House(tmp_path, free_port())
    shutil.copytree(tables, workspace.data)
    return workspace


@pytest.fixture
def clock() -> Clock:
    """Clock set to one minute after the last step of the slopes."""
    return Clock()


@pytest.fixture
def open_app(workspace: House, clock: Clock) -> Iterator[Callable[..., httpx.Client]]:
    """Function that starts the app with extra settings and returns an HTTP client."""
    with ExitStack() as stack:

        def opener(more: str = "") -> httpx.Client:
            parts = parts_of(workspace, clock, more)
            parts.refresh()
            return stack.enter_context(serve(parts, workspace.port))

        yield opener


@pytest.fixture
def run_console(workspace: House) -> Iterator[Callable[..., str]]:
    """Function that starts the console as a subprocess and returns its URL."""
    running: list[subprocess.Popen[bytes]] = []

    def run(more: str = "", *, exercise: bool = True) -> str:
        present = f"exercise = {str(exercise).lower()}"
        config = str(workspace.config(f"{present}\n{more}"))
        log = workspace.folder / "console.log"
        command = [sys.executable, "-m", "backend_spark", "console", "--config", config]
        with log.open("wb") as file:
            running.append(subprocess.Popen(command, stderr=file))
        wait_until(lambda: "Uvicorn running" in log.read_text() or running[0].poll())
        assert running[0].poll() is None, log.read_text()
        return f"http://127.0.0.1:{workspace.port}/"

    yield run
    for process in running:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in {0, -signal.SIGTERM}


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Chrome]:
    """Chromium with the window size of an office screen."""
    with browser(tmp_path / "profile") as chrome:
        yield chrome
