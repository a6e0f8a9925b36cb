"""Runs all commands of the tutorial in one shell."""

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


@pytest.fixture
def session(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """One shell for the whole page, on free ports."""
    ports = {port: str(free_port()) for port in ("2883", "2884", "2885", "8088")}
    machine = Machine(tmp_path, **ports)
    typed = [
        f"echo 'command {number} of the page' >&2\n{block}"
        for number, block in enumerate(blocks(PAGE))
    ]
    with (tmp_path / "output").open("w") as output:
        process = subprocess.Popen(
            ["/bin/bash", "-euo", "pipefail", "-c", machine.named("".join(typed))],
            cwd=tmp_path,
            env=machine.env,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        yield process
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.broker
def test_programs_are_found_beside_the_broker_that_debian_starts() -> None:
    """A user's PATH lacks /usr/sbin, and apt starts a broker on 1883."""
    page = PAGE.read_text("utf-8")
    (export,) = re.findall(r"`(export PATH=[^`]+)`", page)
    script = f"{export}; command -v mosquitto edge-agent gateway-daemon backend-spark"
    root = PAGE.parents[2]
    path = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
    done = subprocess.run(["/bin/sh", "-ec", script], cwd=root, env=path, check=False)

    assert done.returncode == 0
    assert not re.search(r"-p 1883\b|:1883\b", page)


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.long
def test_commands_of_the_tutorial_give_the_documented_results(
    session: subprocess.Popen[str], tmp_path: Path
) -> None:
    """The urgent message that was sent during the outage is in the log, once."""
    code = session.wait(timeout=600)
    output = (tmp_path / "output").read_text()
    assert code == 0, output[-3000:]

    assert re.search(r"^ +5 +1 ", output, re.MULTILINE), "it waited on the node's disk"
    assert re.search(r"^ +5 +0 +0 +1 +1 +0", output, re.MULTILINE), "and was sent"
    rows = [
        pri
        for _, table in read_segments(tmp_path / "desk/backend/log")
        for pri in table["pri"].to_pylist()
    ]
    assert rows.count(5) == 1
    assert '"desk-0001"' in (tmp_path / "desk/health.json").read_text()
