"""Runs our commands for a page's shell, so that imports and a JVM are paid for once.

A command is a child of this process, or, for Spark, this process itself. A daemon goes
on behind the page's back as soon as it says that it is ready, as under systemd.
"""

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Any

PACKAGES = {
    "edge-agent": "edge_agent.__main__",
    "gateway-daemon": "gateway_daemon.__main__",
    "backend-spark": "backend_spark.__main__",
    "spatial-mqtt": "spatial_mqtt.cli",
}
DOORS = ("plain", "spark")
SPARK = {"score", "replay", "trim"}
"""Commands that want a JVM, and go to the second door."""

END = "end-of-page"
"""Ends the daemons that a page has started."""

STAND_IN = f"""#!{sys.executable} -SE
import json, os, socket, sys
argv = [os.path.basename(sys.argv[0]), *sys.argv[1:]]
door = "{DOORS[0]}" if set(argv[1:2]).isdisjoint({SPARK}) else "{DOORS[1]}"
talk = socket.socket(socket.AF_UNIX)
talk.connect(os.path.join(os.environ["OFFICE"], door))
told = {{"argv": argv, "cwd": os.getcwd(), "env": dict(os.environ)}}
socket.send_fds(talk, [json.dumps(told).encode() + b"\\n"], [0, 1, 2])
sys.exit(int(talk.recv(16) or 70))
"""
"""What stands in for each of our commands in the shell."""


def main(folder: Path) -> None:
    """Take commands at both doors, until SIGINT."""
    # A shell that starts tests in the background has it ignored, and that is inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for module in PACKAGES.values():
        cli = importlib.import_module(module).cli
        for name in cli.list_commands(None):
            cli.get_command(None, name)
    spark = os.fork()
    if spark == 0:
        _serve(folder / DOORS[1])
    else:
        try:
            _serve(folder / DOORS[0])
        finally:
            os.kill(spark, signal.SIGINT)
            os.waitpid(spark, 0)


def _serve(door: Path) -> None:
    """Take one command after another."""
    daemons: dict[int, list[str]] = {}
    with (
        socket.socket(socket.AF_UNIX) as listener,
        contextlib.suppress(KeyboardInterrupt),
    ):
        listener.bind(str(door))
        listener.listen()
        while True:
            talk, _ = listener.accept()
            with talk:
                talk.sendall(str(_answer(talk, door, daemons)).encode())


def _answer(talk: socket.socket, door: Path, daemons: dict[int, list[str]]) -> int:
    """What the shell is told: an exit code."""
    told, fds = _taken(talk)
    if told["argv"][0] == END:
        return _end(daemons, fds)
    notify = door.with_suffix(".notify")
    told["env"]["NOTIFY_SOCKET"] = str(notify)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready:
        ready.bind(str(notify))
        try:
            if door.name == DOORS[1]:
                return _here(told, fds, ready)
            return _beside(told, fds, ready, daemons)
        finally:
            notify.unlink()


def _taken(talk: socket.socket) -> tuple[dict[str, Any], list[int]]:
    said, fds, _, _ = socket.recv_fds(talk, 1 << 20, 3)
    while not said.endswith(b"\n"):
        said += talk.recv(1 << 20)
    return json.loads(said), fds


def _beside(
    told: dict[str, Any],
    fds: list[int],
    ready: socket.socket,
    daemons: dict[int, list[str]],
) -> int:
    """Run it in a child; 0 as soon as it is ready."""
    child = os.fork()
    if child == 0:
        os._exit(_run(told, fds))
    for fd in fds:
        os.close(fd)
    if _is_ready(child, ready):
        daemons[child] = told["argv"]
        return 0
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _here(told: dict[str, Any], fds: list[int], ready: socket.socket) -> int:
    """Run it in this process; a daemon is asked to end as soon as it is ready."""
    mine, watcher = os.getpid(), os.fork()
    if watcher == 0:
        if _is_ready(mine, ready):
            os.kill(mine, signal.SIGTERM)
        os._exit(0)
    code = _run(told, fds)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.kill(watcher, signal.SIGKILL)
    os.waitpid(watcher, 0)
    return code


def _is_ready(process: int, ready: socket.socket) -> bool:
    """Wait until a process says that it is ready, or has ended."""
    end = os.pidfd_open(process)
    either: list[int] = [ready.fileno(), end]
    try:
        while end not in select.select(either, [], [])[0]:
            if b"READY=1" in ready.recv(65536):
                return True
        return False
    finally:
        os.close(end)


def _run(told: dict[str, Any], fds: list[int]) -> int:
    """Run a command with the shell's files; its exit code."""
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(told["cwd"])
    os.environ.clear()
    os.environ.update(told["env"])
    sys.argv = told["argv"]
    try:
        importlib.import_module(PACKAGES[sys.argv[0]]).main()
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter ends a program
        sys.excepthook(*sys.exc_info())
        return 70
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _end(daemons: dict[int, list[str]], fds: list[int]) -> int:
    """Ask the daemons to end, as systemd does; 0 if it would call each end clean."""
    for process in daemons:
        os.kill(process, signal.SIGTERM)
    wrong = 0
    for process, words in daemons.items():
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if code not in {0, -signal.SIGTERM}:
            os.write(fds[2], f"{' '.join(words)} ended with {code}\n".encode())
            wrong = 1
    daemons.clear()
    for fd in fds:
        os.close(fd)
    return wrong


if __name__ == "__main__":
    main(Path(sys.argv[1]))
