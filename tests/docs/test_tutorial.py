"""The tutorial from its first command to its last, as somebody at a desk types it."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import free_port
from page_shell import Machine, blocks

from backend_spark.ingest.segment_log import read_segments

PAGE = Path(__file__).parents[2] / "docs/tutorial/first-node.md"
pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long]


@pytest.fixture
def session(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """One shell for the whole page, on ports that are free."""
    ports = {port: str(free_port()) for port in ("1883", "1884", "1885", "8088")}
    machine = Machine(tmp_path, **ports)
    typed = [
        f"echo 'command {number} of the page' >&2\n{block}"
        for number, block in enumerate(blocks(PAGE))
    ]
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(
            ["/bin/bash", "-euo", "pipefail", "-c", machine.named("".join(typed))],
            cwd=tmp_path,
            env=machine.env,
            stdout=said,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        yield process
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_every_command_of_the_tutorial_does_what_it_says(
    session: subprocess.Popen[str], tmp_path: Path
) -> None:
    """The urgent message that was sent while the plug was out is in the log, once."""
    code = session.wait(timeout=600)
    said = (tmp_path / "said").read_text()
    assert code == 0, said[-3000:]

    assert re.search(r"^ +5 +1 ", said, re.MULTILINE), "it waited on the node's disk"
    assert re.search(r"^ +5 +0 +0 +1 +1 +0", said, re.MULTILINE), "and went on"
    rows = [
        pri
        for _, table in read_segments(tmp_path / "desk/backend/log")
        for pri in table["pri"].to_pylist()
    ]
    assert rows.count(5) == 1
    assert '"desk-0001"' in (tmp_path / "desk/health.json").read_text()
