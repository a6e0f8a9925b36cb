"""Runs our commands for a page's shell, so that imports and a JVM are loaded once.

A command runs in a child of this process or, for Spark, in this process itself. A
daemon moves to the background as soon as it notifies READY=1, as under systemd.
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
    "spatial-mqtt": "spatial_mqtt.__main__",
}
SOCKETS = ("plain", "spark")
SPARK = {"score", "replay", "trim"}
"""Commands that need a JVM, and use the second socket."""

END = "end-of-page"
"""Command that stops the daemons that a page has started."""

CLIENT_SCRIPT = f"""#!{sys.executable} -SE
import json, os, socket, sys
argv = [os.path.basename(sys.argv[0]), *sys.argv[1:]]
name = "{SOCKETS[0]}" if set(argv[1:2]).isdisjoint({SPARK}) else "{SOCKETS[1]}"
server = socket.socket(socket.AF_UNIX)
server.connect(os.path.join(os.environ["COMMAND_SERVER"], name))
request = {{"argv": argv, "cwd": os.getcwd(), "env": dict(os.environ)}}
socket.send_fds(server, [json.dumps(request).encode() + b"\\n"], [0, 1, 2])
sys.exit(int(server.recv(16) or 70))
"""
"""Program that replaces each of our commands in the shell."""


def main(folder: Path) -> None:
    """Serve both sockets until SIGINT."""
    # A shell that starts tests in the background ignores SIGINT; this is inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for module in PACKAGES.values():
        cli = importlib.import_module(module).cli
        for name in cli.list_commands(None):
            cli.get_command(None, name)
    spark = os.fork()
    if spark == 0:
        _serve(folder / SOCKETS[1])
    else:
        try:
            _serve(folder / SOCKETS[0])
        finally:
            os.kill(spark, signal.SIGINT)
            os.waitpid(spark, 0)


def _serve(path: Path) -> None:
    """Run one command after another."""
    daemons: dict[int, list[str]] = {}
    with (
        socket.socket(socket.AF_UNIX) as listener,
        contextlib.suppress(KeyboardInterrupt),
    ):
        listener.bind(str(path))
        listener.listen()
        while True:
            client, _ = listener.accept()
            with client:
                client.sendall(str(_handle(client, path, daemons)).encode())


def _handle(client: socket.socket, path: Path, daemons: dict[int, list[str]]) -> int:
    """Run one request; returns the exit code for the shell."""
    request, fds = _receive(client)
    if request["argv"][0] == END:
        return _stop_daemons(daemons, fds)
    notify = path.with_suffix(".notify")
    request["env"]["NOTIFY_SOCKET"] = str(notify)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready:
        ready.bind(str(notify))
        try:
            if path.name == SOCKETS[1]:
                return _run_here(request, fds, ready)
            return _run_in_child(request, fds, ready, daemons)
        finally:
            notify.unlink()


def _receive(client: socket.socket) -> tuple[dict[str, Any], list[int]]:
    raw, fds, _, _ = socket.recv_fds(client, 1 << 20, 3)
    while not raw.endswith(b"\n"):
        raw += client.recv(1 << 20)
    return json.loads(raw), fds


def _run_in_child(
    request: dict[str, Any],
    fds: list[int],
    ready: socket.socket,
    daemons: dict[int, list[str]],
) -> int:
    """Run a command in a child; returns its exit code, or 0 once it is ready."""
    child = os.fork()
    if child == 0:
        os._exit(_run(request, fds))
    for fd in fds:
        os.close(fd)
    if _is_ready(child, ready):
        daemons[child] = request["argv"]
        return 0
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _run_here(request: dict[str, Any], fds: list[int], ready: socket.socket) -> int:
    """Run a command in this process; a daemon gets SIGTERM as soon as it is ready."""
    mine, watcher = os.getpid(), os.fork()
    if watcher == 0:
        if _is_ready(mine, ready):
            os.kill(mine, signal.SIGTERM)
        os._exit(0)
    code = _run(request, fds)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.kill(watcher, signal.SIGKILL)
    os.waitpid(watcher, 0)
    return code


def _is_ready(process: int, ready: socket.socket) -> bool:
    """Wait until a process notifies READY=1 or has ended; True if it is ready."""
    end = os.pidfd_open(process)
    either: list[int] = [ready.fileno(), end]
    try:
        while end not in select.select(either, [], [])[0]:
            if b"READY=1" in ready.recv(65536):
                return True
        return False
    finally:
        os.close(end)


def _run(request: dict[str, Any], fds: list[int]) -> int:
    """Run a command with the shell's files; returns its exit code."""
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = request["argv"]
    try:
        importlib.import_module(PACKAGES[sys.argv[0]]).main()
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter does
        sys.excepthook(*sys.exc_info())
        return 70
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _stop_daemons(daemons: dict[int, list[str]], fds: list[int]) -> int:
    """Send SIGTERM to the daemons; returns 0 if each exits cleanly for systemd."""
    for process in daemons:
        os.kill(process, signal.SIGTERM)
    status = 0
    for process, command in daemons.items():
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if code not in {0, -signal.SIGTERM}:
            os.write(fds[2], f"{' '.join(command)} ended with {code}\n".encode())
            status = 1
    daemons.clear()
    for fd in fds:
        os.close(fd)
    return status


if __name__ == "__main__":
    main(Path(sys.argv[1]))
