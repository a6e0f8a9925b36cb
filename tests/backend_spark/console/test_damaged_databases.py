"""The console on a database that a bad disk has damaged, or without space."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from conftest import wait_until
from console_process import fork_command
from console_workspace import Clock, Workspace, log_in, make_test_services, serve
from soak.disk import fill, mounted

from backend_spark.__main__ import EXIT_BUSY
from backend_spark.console.audit_log import Journal
from backend_spark.console.databases import find_emptied
from backend_spark.console.notifications.outbox import NotificationOutbox
from service_runtime.lifecycle import EXIT_USAGE_DATA

PAGE_BYTES = 4096
RULE = """
[[console.notifications]]
name = "duty"
to = ["http://127.0.0.1:1/"]
"""


def damage(path: Path, what: str) -> None:
    """Overwrite the header, or all pages but the first."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("pragma wal_checkpoint(truncate)")
    size = path.stat().st_size
    begin, end = (0, 100) if what == "header" else (PAGE_BYTES, size)
    assert begin < end
    with path.open("r+b") as file:
        file.seek(begin)
        file.write(os.urandom(end - begin))


def run(workspace: Workspace, *command: str) -> tuple[int | None, str]:
    """Run a command on the settings of the workspace; exit code and errors."""
    return run_command(workspace, *command, "--config", str(workspace.config(RULE)))


def run_command(workspace: Workspace, *command: str) -> tuple[int | None, str]:
    """Run a command; exit code and errors."""
    errors = workspace.folder / "errors"
    process = fork_command(list(command), errors)
    process.join(60)
    process.kill()  # if it has not ended
    return process.exitcode, errors.read_text()


@pytest.fixture
def used(workspace: Workspace, clock: Clock) -> Workspace:
    """The workspace after a console has run there, with an event that was notified."""
    services = make_test_services(workspace, clock, RULE)
    services.refresh()
    services.notify()
    wait_until(lambda: not services.notifications.is_busy())  # it writes its end
    services.notifications.close()
    return workspace


@pytest.mark.parametrize("what", ["header", "pages"])
@pytest.mark.parametrize(
    ("name", "lost"),
    [("journal", "decisions about events"), ("notifications", "waits for delivery")],
)
def test_start_ends_with_file_and_remedy(
    used: Workspace, name: str, lost: str, what: str
) -> None:
    """One line: the file, its damage, the backup, and what is lost without it."""
    path = used.data / f"console/{name}.sqlite"
    damage(path, what)
    before = path.read_bytes()
    commands = [["console"]]
    if name == "journal":
        commands.append(["report", "--out", str(used.folder / "report.html")])
    else:
        commands.append(["console-notifications", "log"])
    for command in commands:
        code, errors = run(used, *command)
        assert code == EXIT_USAGE_DATA, errors
        last = errors.splitlines()[-1]
        assert last.startswith(f"backend-spark: {path} must be an intact database, got")
        assert f"copy data/console/{path.name} of the newest backup" in last
        assert lost in last
        assert "Traceback" not in errors
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "what"),
    [("journal", "emptied"), ("journal", "removed"), ("notifications", "emptied")],
)
def test_lost_file_is_not_replaced_and_its_log_is_kept(
    used: Workspace, name: str, what: str
) -> None:
    """SQLite takes it for a new database, and deletes the log with its content."""
    path = used.data / f"console/{name}.sqlite"
    log = path.with_name(f"{path.name}-wal")
    kept = log.read_bytes()
    assert kept
    path.unlink() if what == "removed" else os.truncate(path, 0)
    ends = [run(used, "console")]
    if name == "journal":
        ends.append(run_command(used, "console-journal", "check", str(path)))
    for code, errors in ends:
        assert code == EXIT_USAGE_DATA, errors
        last = errors.splitlines()[-1]
        assert last.startswith(f"backend-spark: {path} must be an intact database, got")
    assert log.read_bytes() == kept
    assert not path.exists() or not path.stat().st_size


@pytest.mark.parametrize("name", ["journal", "notifications"])
def test_start_without_the_file_works(used: Workspace, name: str, clock: Clock) -> None:
    """What the error advises when there is no backup."""
    path = used.data / f"console/{name}.sqlite"
    damage(path, "pages")
    path.rename(used.folder / path.name)
    services = make_test_services(used, clock, RULE)
    services.refresh()
    services.notify()
    services.notifications.close()
    assert services.events.in_force()
    assert services.notifications.outbox.newest(1)


def is_killed_at(step: int, use: Callable[[], object]) -> bool:
    """Use a file in a child, killed at its n-th call; return whether it was."""
    child = os.fork()
    if child == 0:
        remaining = step

        def hook(event: str, _: tuple[object, ...]) -> None:
            nonlocal remaining
            if event.startswith(("open", "os.", "sqlite3.", "tempfile.")):
                remaining -= 1
                if remaining == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        use()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def test_first_start_that_is_killed_leaves_no_empty_file(tmp_path: Path) -> None:
    """Each later start would take it for a lost one, and there is no backup yet."""
    is_killed, step = True, 0
    while is_killed:
        step += 1
        path = tmp_path / f"{step}/journal.sqlite"
        is_killed = is_killed_at(step, lambda path=path: Journal(path))
        assert not find_emptied(path), step
        Journal(path).write(1.0, "note", "", "鈴木", {})
        # A restore refuses a folder with files of this form.
        left = {each.name for each in path.parent.glob("*.sqlite*")}
        assert left <= {path.name, f"{path.name}-wal", f"{path.name}-shm"}
    assert step > 5


@pytest.mark.parametrize(
    ("made", "mode"), [(Journal, 0o640), (NotificationOutbox, 0o600)]
)
def test_mode_of_a_new_file(
    tmp_path: Path, made: Callable[[Path], object], mode: int
) -> None:
    """The umask says who may read the journal; notifications are private."""
    before = os.umask(0o027)
    try:
        made(tmp_path / "new.sqlite")
    finally:
        os.umask(before)
    assert (tmp_path / "new.sqlite").stat().st_mode & 0o777 == mode


def test_file_that_another_process_makes_meanwhile_is_kept(tmp_path: Path) -> None:
    """Such as the console, while a report makes the first journal."""
    path = tmp_path / "journal.sqlite"
    is_made = False

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal is_made
        if event == "sqlite3.connect" and arguments[0] == ":memory:" and not is_made:
            is_made = True
            Journal(path).write(1.0, "note", "", "鈴木", {})

    child = os.fork()
    if child == 0:
        sys.addaudithook(hook)
        Journal(path)
        os._exit(0 if is_made else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [each.who for each in Journal(path).read("note")] == ["鈴木"]


def test_start_on_a_full_disk_names_the_folder(workspace: Workspace) -> None:
    """One line, as SQLite's own error names none."""
    folder = workspace.data / "console"
    with mounted(folder, "1m") as disk:
        if disk is None:
            pytest.skip("only root may mount a small disk")
        fill(disk)
        code, errors = run(workspace, "console")
        # The next start would take an empty one for a lost one.
        assert not [each for each in folder.iterdir() if not each.stat().st_size]
    assert code == EXIT_BUSY, errors
    last = errors.splitlines()[-1]
    assert last.startswith(f"backend-spark: {folder} must be on a disk with space, got")
    assert "Traceback" not in errors


@pytest.mark.parametrize("what", ["header", "pages"])
def test_damaged_sessions_are_set_aside(
    workspace: Workspace, clock: Clock, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """They are only logins: users log in again, and the console goes on."""
    more = workspace.with_accounts()
    path = workspace.data / "console/sessions.sqlite"
    with serve(make_test_services(workspace, clock, more), workspace.port) as client:
        log_in(client, "a-chief")
        session = dict(client.cookies)
    for number in (1, 2):
        damage(path, what)
        damaged = path.read_bytes()
        services = make_test_services(workspace, clock, more)
        with serve(services, workspace.port) as client:
            client.cookies.update(session)
            assert client.get("/api/cells").status_code == 401
            log_in(client, "a-chief")
            assert client.get("/api/cells").status_code == 200
        aside = path.with_name(f"{path.name}.damaged-{number}")
        assert aside.read_bytes() == damaged
        assert f"{path} is set aside as {aside.name}: " in caplog.text
        assert path.stat().st_mode & 0o777 == 0o600


@contextmanager
def running(workspace: Workspace) -> Iterator[subprocess.Popen[str]]:
    """A console that serves its pages and has written its files."""
    config = str(workspace.config(RULE))
    line = [sys.executable, "-m", "backend_spark", "console", "--config", config]
    with (
        (workspace.folder / "log").open("w", encoding="utf-8") as log,
        subprocess.Popen(line, stderr=log, text=True) as program,
    ):
        try:
            wait_until(lambda: "console at http" in written(workspace))
            yield program
        finally:
            program.kill()


def written(workspace: Workspace) -> str:
    """Log of the console."""
    return (workspace.folder / "log").read_text("utf-8")


@pytest.mark.parametrize("name", ["journal", "notifications"])
def test_damage_ends_a_running_console_with_file_and_remedy(
    used: Workspace, name: str
) -> None:
    """As at the start; before, with a traceback that names no file."""
    path = used.data / f"console/{name}.sqlite"
    with running(used) as program:
        damage(path, "pages")
        wait_until(lambda: program.poll() is not None)
    lines = written(used).splitlines()
    assert program.returncode == EXIT_USAGE_DATA, lines
    assert f"{path} must be an intact database, got" in lines[-1]
    assert f"copy data/console/{path.name} of the newest backup" in lines[-1]
    assert "Traceback" not in written(used), written(used)


def test_file_that_is_emptied_ends_a_running_console(used: Workspace) -> None:
    """Before SQLite writes it anew at its end, and deletes the log."""
    path = used.data / "console/journal.sqlite"
    with running(used) as program:
        os.truncate(path, 0)
        wait_until(lambda: program.poll() is not None)
    assert program.returncode == EXIT_USAGE_DATA, written(used)
    last = written(used).splitlines()[-1]
    assert f"{path} must be an intact database, got: a file of 0 bytes" in last
    assert path.with_name("journal.sqlite-wal").stat().st_size


def test_request_that_meets_damage_names_file_and_remedy(
    used: Workspace, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """What no loop of the console reads, such as old entries, ends no page."""
    path = used.data / "console/journal.sqlite"
    with serve(make_test_services(used, clock), used.port) as client:
        damage(path, "pages")
        for _ in range(2):
            answer = client.get("/api/notes")
            assert answer.status_code == 500
            assert answer.json()["detail"].startswith(
                f"{path} must be an intact database, got"
            )
        assert client.get("/api/cells").status_code == 200
    assert f"requests of /api/notes: {path} must be an intact" in caplog.text
    assert "Traceback" not in caplog.text


def test_delivery_that_meets_damage_logs_one_line(
    used: Workspace, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The loops report the file and the remedy, and end the console."""
    services = make_test_services(used, clock, RULE)
    services.refresh()
    sender = services.notifications
    damage(used.data / "console/journal.sqlite", "pages")
    clock.now_s += 300.0  # the next attempt is due
    with suppress(sqlite3.DatabaseError):
        sender.step()
    wait_until(lambda: not sender.is_busy())
    sender.close()
    failed = [each for each in caplog.records if "it is repeated" in each.message]
    assert failed
    assert not any(each.exc_info for each in failed)
    assert "malformed" in failed[0].message


def test_sessions_that_become_damaged_are_set_aside(
    workspace: Workspace, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """One request fails, users log in again, and no restart is needed."""
    more = workspace.with_accounts()
    path = workspace.data / "console/sessions.sqlite"
    with serve(make_test_services(workspace, clock, more), workspace.port) as client:
        log_in(client, "a-chief")
        damage(path, "pages")
        with closing(sqlite3.connect(path)) as db:
            db.execute("pragma user_version = 1")  # so that the console reads it again
        assert client.get("/api/cells").status_code == 500
        assert client.get("/api/cells").status_code == 401
        log_in(client, "a-chief")
        assert client.get("/api/cells").status_code == 200
    assert f"{path} is set aside as {path.name}.damaged-1: " in caplog.text
    assert "Traceback" not in caplog.text
    assert path.stat().st_mode & 0o777 == 0o600
