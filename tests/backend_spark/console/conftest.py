"""Fixtures: the console over real tables, in this process or as a subprocess."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import httpx
import pytest
from browser import browser, forget, resize
from conftest import free_port, wait_until
from console_process import fork_command
from console_tables import write_scored, write_tables
from console_workspace import NOW_S, SLOPES, Clock, Workspace, make_test_services, serve
from creeping_slope import CREEP, creep_readings
from selenium.webdriver import Chrome


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data folder with five slopes up to `NOW_S`; each test gets a copy."""
    folder = tmp_path_factory.mktemp("console") / "data"
    write_tables(folder, SLOPES, NOW_S)
    return folder


@pytest.fixture
def workspace(tmp_path: Path, tables: Path) -> Workspace:
    """Data folder with five slopes up to `NOW_S`, its settings and a free port."""
    workspace = Workspace(tmp_path, free_port())
    shutil.copytree(tables, workspace.data)
    return workspace


@pytest.fixture(scope="session")
def creep_tables(tables: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data folder with a creeping slope besides the five."""
    folder = tmp_path_factory.mktemp("creep") / "data"
    shutil.copytree(tables, folder)
    write_scored(folder, CREEP, list(creep_readings()))
    return folder


@pytest.fixture
def creep(workspace: Workspace, creep_tables: Path) -> None:
    """A creeping slope besides the five in the data folder."""
    shutil.copytree(creep_tables, workspace.data, dirs_exist_ok=True)


@pytest.fixture
def clock() -> Clock:
    """Clock set to one minute after the last step of the slopes."""
    return Clock()


@pytest.fixture
def open_app(
    workspace: Workspace, clock: Clock
) -> Iterator[Callable[..., httpx.Client]]:
    """Function that starts the app with extra settings and returns an HTTP client."""
    with ExitStack() as stack:

        def opener(more: str = "") -> httpx.Client:
            parts = make_test_services(workspace, clock, more)
            parts.refresh()
            return stack.enter_context(serve(parts, workspace.port))

        yield opener


class RunningConsole:
    """The program on a workspace, in a process of its own."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._process: ForkServerProcess | None = None

    def start(self, more: str = "", *, exercise: bool = True) -> str:
        """Start it with some more settings; returns its address."""
        present = f"exercise = {str(exercise).lower()}"
        config = self._workspace.config(f"{present}\n{more}")
        log = self._workspace.folder / "console.log"
        log.write_text("")
        command = ["console", "--config", str(config)]
        process = self._process = fork_command(command, log)
        wait_until(
            lambda: "Uvicorn running" in log.read_text() or not process.is_alive()
        )
        assert process.is_alive(), log.read_text()
        return f"http://127.0.0.1:{self._workspace.port}/"

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, such as SIGSTOP or SIGCONT."""
        assert self._process is not None
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def stop(self) -> None:
        """Stop it; it ends by the signal."""
        if self._process is not None:
            self._process.terminate()
            self._process.join(60)
            assert self._process.exitcode in {0, -signal.SIGTERM}
            self._process.close()


@pytest.fixture
def running_console(workspace: Workspace) -> Iterator[RunningConsole]:
    """The program, which is not started yet."""
    console = RunningConsole(workspace)
    yield console
    console.stop()


@pytest.fixture
def run_console(running_console: RunningConsole) -> Callable[..., str]:
    """Start the program with some more settings; returns its address."""
    return running_console.start


@pytest.fixture
def signal_console(running_console: RunningConsole) -> Callable[..., None]:
    """Send a signal to the program."""
    return running_console.signal


@pytest.fixture
def run_program(workspace: Workspace) -> Iterator[Callable[[], str]]:
    """Start the program from its command line; returns its address."""
    with ExitStack() as stack:

        def start() -> str:
            log = workspace.folder / "console.log"
            config = str(workspace.config("exercise = true"))
            command = [sys.executable, "-m", "backend_spark", "console"]
            with log.open("wb") as file:
                process = subprocess.Popen([*command, "--config", config], stderr=file)
            stack.callback(process.wait, 60)
            stack.callback(process.terminate)
            wait_until(lambda: "Uvicorn running" in log.read_text() or process.poll())
            assert process.poll() is None, log.read_text()
            return f"http://127.0.0.1:{workspace.port}/"

        yield start


@pytest.fixture(scope="session")
def console(tables: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of the program on the five slopes, for tests that change nothing."""
    workspace = Workspace(tmp_path_factory.mktemp("shared"), free_port())
    shutil.copytree(tables, workspace.data)
    shared = RunningConsole(workspace)
    yield shared.start()
    shared.stop()


@pytest.fixture(scope="session")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """Chromium, started once."""
    with browser(tmp_path_factory.mktemp("chrome") / "profile") as started:
        yield started


@pytest.fixture
def driver(chrome: Chrome) -> Iterator[Chrome]:
    """A new tab with the window size of an office screen, and nothing remembered."""
    resize(chrome)
    yield chrome
    forget(chrome)
