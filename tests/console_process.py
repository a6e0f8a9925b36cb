"""Consoles that are forked from a process which has imported the program.

To start the program takes two seconds of a processor, nearly all for imports.
"""

import os
import sys
from collections.abc import Mapping
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

_CONTEXT = get_context("forkserver")
_CONTEXT.set_forkserver_preload(["console_imports"])


def fork_console(config: Path, log: Path) -> ForkServerProcess:
    """Start the command ``console`` in the present environment.

    Args:
        config: Its settings file.
        log: File for its log.
    """
    environment = dict(os.environ)
    process = _CONTEXT.Process(target=_run, args=(config, log, environment))
    path = [str(Path(__file__).parent), *environment.get("PYTHONPATH", "").split(":")]
    with pytest.MonkeyPatch.context() as patch:
        # Before Python 3.12 the process that is forked does not get this `sys.path`.
        patch.setenv("PYTHONPATH", ":".join(filter(None, path)))
        process.start()
    return process


def _run(config: Path, log: Path, environment: Mapping[str, str]) -> None:
    from backend_spark.__main__ import main  # noqa: PLC0415 - where the imports are

    os.environ.clear()
    os.environ.update(environment)
    with log.open("wb") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())
    sys.argv = ["backend-spark", "console", "--config", str(config)]
    main()
