"""Runs the operator's command that starts or stops a standby server."""

import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway_daemon.manager.planner import Decision

TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Ran:
    """A command has ended.

    Attributes:
        decision: What it was run for.
        said: The last line of its output.
        failure: Why it failed; None when it did not.
    """

    decision: Decision
    said: str
    failure: str | None = None


def run_apart(
    command: Sequence[str], decision: Decision, tell: Callable[[Ran], object]
) -> None:
    """Run a command in a thread of its own.

    Args:
        command: Program and arguments; no shell is between.
        decision: What it is for.
        tell: Takes the outcome, in that thread.
    """
    threading.Thread(
        target=lambda: tell(_run(command, decision)), name="command", daemon=True
    ).start()


def _run(command: Sequence[str], decision: Decision) -> Ran:
    try:
        done = subprocess.run(  # noqa: S603 - the operator's own, from the settings
            command, check=False, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Ran(decision, "", str(error))
    said = (done.stdout.splitlines() or [""])[-1].strip()
    if done.returncode != 0:
        last = (done.stderr.splitlines() or [""])[-1]
        return Ran(decision, said, f"status {done.returncode}: {last}")
    return Ran(decision, said)
