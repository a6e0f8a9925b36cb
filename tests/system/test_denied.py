"""Programs that cannot have their data folder: it is another user's, or in use."""

import ctypes
import errno
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import wait_until

from service_runtime.files import LockHolder
from service_runtime.lifecycle import explain_denied

PR_CAPBSET_DROP = 24
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2
EXIT_BUSY, EXIT_DENIED, EXIT_CONFIG = 75, 77, 78

pytestmark = pytest.mark.system

GATEWAY = """
[gateway]
id = "gw"
broker = "mqtt://127.0.0.1:1"
managers = ["mqtt://127.0.0.1:1"]
areas = ["/1/2"]
data = "{data}"
"""
MANAGER = """
[manager]
broker = "mqtt://127.0.0.1:1"
data = "{data}"
[[broker]]
topic = "/"
url = "mqtt://127.0.0.1:1"
"""
BACKEND = """
[backend]
data = "{data}"
[ingest]
broker = "mqtt://127.0.0.1:1"
[notify]
brokers = ["mqtt://127.0.0.1:1"]
"""
PROGRAMS = {
    "gateway": ("gateway_daemon", "run", GATEWAY),
    "manager": ("gateway_daemon", "manager", MANAGER),
    "ingest": ("backend_spark", "ingest", BACKEND),
    "alerts": ("backend_spark", "alerts", BACKEND),
    "notify": ("backend_spark", "notify", BACKEND),
    "console": ("backend_spark", "console", BACKEND),
}


def without_override() -> None:
    """Root, too, must keep to the rights of files."""
    libc = ctypes.CDLL(None)
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


def run(program: str, data: Path, timeout_s: float = 120) -> tuple[int, str]:
    """Exit status of a program, and its last line."""
    package, command, settings = PROGRAMS[program]
    config = data.with_name("settings.toml")
    config.write_text(settings.format(data=data))
    done = subprocess.run(
        [sys.executable, "-m", package, command, "--config", str(config)],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=timeout_s,
        preexec_fn=without_override,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr.splitlines()[-1]


CLOSED, READ_ONLY = 0o000, 0o555
CASES = [
    *((program, CLOSED) for program in PROGRAMS),
    *(
        pytest.param(program, READ_ONLY, marks=pytest.mark.long)
        for program in PROGRAMS
        if program != "manager"  # goes on without its file, and logs that
    ),
]


@pytest.mark.parametrize(("program", "mode"), CASES)
def test_folder_of_another_user_is_named_with_the_remedy(
    tmp_path: Path, program: str, mode: int
) -> None:
    """Each ended with a traceback; the console said that its disk is full."""
    data = tmp_path / "data"
    data.mkdir(mode=mode)
    user = pwd.getpwuid(os.geteuid()).pw_name

    status, line = run(program, data)

    assert status == EXIT_DENIED
    assert f"{data} must be accessible for the user {user}, got: Permission" in line
    assert f"owner {user}); run this as {user}, or give it to {user}: " in line
    assert line.endswith(f"chown -R {user} {data}")


def test_folder_of_the_system_is_given_to_nobody() -> None:
    """`chown -R` of /var/lib would take it from every other program."""
    missing = "/var/lib/no-such-folder"
    words = explain_denied(PermissionError(errno.EACCES, "denied", missing)) or ""

    assert words.startswith("/var/lib must be accessible")
    assert "make a folder for" in words
    assert "chown" not in words
    gone = PermissionError(errno.EACCES, "denied", f"{missing}/queue.db")
    assert explain_denied(gone) is None


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.EROFS, "name its folder in ReadWritePaths="),
        (errno.EACCES, "chown -R"),
    ],
)
def test_thread_that_meets_it_ends_the_program_with_the_remedy(
    tmp_path: Path, code: int, remedy: str
) -> None:
    """A disk that becomes read-only, and rights that are changed meanwhile."""
    program = (
        "import os, threading; from service_runtime.lifecycle import *; "
        "log_to_stderr(); exit_on_thread_error()\n"
        f"def work(): raise OSError({code}, os.strerror({code}), {str(tmp_path)!r})\n"
        "thread = threading.Thread(target=work); thread.start(); thread.join()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, check=False
    )

    assert (done.returncode, len(done.stderr.splitlines())) == (EXIT_DENIED, 1)
    assert str(tmp_path) in done.stderr
    assert remedy in done.stderr


@pytest.mark.parametrize("program", ["gateway", "manager"])
def test_second_program_on_a_folder_is_refused(tmp_path: Path, program: str) -> None:
    """Two gateways sent the same messages and ended each other's connections."""
    package, command, settings = PROGRAMS[program]
    data, config = tmp_path / "data", tmp_path / "first.toml"
    config.write_text(settings.format(data=data))
    first = subprocess.Popen(
        [sys.executable, "-m", package, command, "--config", str(config)],
        stderr=subprocess.DEVNULL,
    )
    lock = data / f".lock-{program}"
    try:
        wait_until(lambda: lock.exists() and lock.read_text() != "")
        status, line = run(program, data)
    finally:
        first.kill()
        first.wait()

    assert status == EXIT_BUSY
    assert f"cannot start while another process holds {lock}; stop it" in line
    assert LockHolder.read(lock) is None


@pytest.mark.parametrize(
    "command",
    ["edge_agent send", "gateway_daemon run", "backend_spark trim"],
)
def test_settings_without_rights_are_named_with_the_remedy(
    tmp_path: Path, command: str
) -> None:
    """A unit is not started again for ever, and a node takes its last settings."""
    config = tmp_path / "settings.toml"
    config.touch(mode=CLOSED)
    done = subprocess.run(
        [sys.executable, "-m", *command.split(), "--config", str(config)],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=120,
        preexec_fn=without_override,
    )
    assert done.returncode == EXIT_CONFIG
    assert f"{config} must be accessible for the user" in done.stderr
