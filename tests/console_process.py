"""Commands of ``backend-spark`` in a fork of a process that has imported the console.

To start the program takes two seconds of a processor, nearly all for imports.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

_CONTEXT = get_context("forkserver")
_CONTEXT.set_forkserver_preload(["console_imports"])


def fork_command(arguments: Sequence[str], log: Path) -> ForkServerProcess:
    """Start a command in the present environment.

    Args:
        arguments: Its name and options.
        log: File for its standard error.
    """
    environment = dict(os.environ)
    process = _CONTEXT.Process(target=_run, args=(arguments, log, environment))
    path = [str(Path(__file__).parent), *environment.get("PYTHONPATH", "").split(":")]
    with pytest.MonkeyPatch.context() as patch:
        # Before Python 3.12 the process that is forked does not get this `sys.path`.
        patch.setenv("PYTHONPATH", ":".join(filter(None, path)))
        process.start()
    return process


def _run(arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
    from backend_spark.__main__ import main  # noqa: PLC0415 - where the imports are

    os.environ.clear()
    os.environ.update(environment)
    with log.open("wb") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())
    sys.argv = ["backend-spark", *arguments]
    main()
