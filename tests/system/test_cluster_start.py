"""A standby whose Spark cluster gives it no executor, as after a loss of the master."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyspark
import pytest

from demo.processes import Processes, free_port, wait_for_port

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.long]

SPARK_CLASS: Final = str(Path(pyspark.__file__).parent / "bin/spark-class")
MASTER: Final = "org.apache.spark.deploy.master.Master"
START_S: Final = 600.0
STANDBY: Final = """
import runpy, sys
from backend_spark.streaming import job
job.EXECUTORS_S = 1.0
sys.argv[0] = "backend-spark"
runpy.run_module("backend_spark", run_name="__main__")
"""
"""The program with a short wait for executors."""

MANAGER: Final = """
import os, sys
from pathlib import Path
from service_runtime.container import ContainerManager
manager = ContainerManager(Path(sys.argv[1]), 20.0)
sys.exit(manager.run([sys.executable, *sys.argv[2:]], dict(os.environ)))
"""
"""A service manager with a watchdog of 20 s."""


@pytest.fixture
def master(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """URL of a master without workers."""
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("SPARK_LOG_DIR", str(tmp_path))
    processes, port = Processes(tmp_path), free_port()
    processes.start(
        "master", SPARK_CLASS, MASTER, "--host", "127.0.0.1", "--port", str(port),
        "--webui-port", "0",
    )  # fmt: skip
    wait_for_port(port, START_S)
    yield f"spark://127.0.0.1:{port}"
    processes.stop()


def test_standby_without_executors_is_ended_by_its_watchdog(
    tmp_path: Path, master: str
) -> None:
    """It has reported ready, so no limit of its start ends it."""
    config = tmp_path / "backend.toml"
    config.write_text(
        f'[backend]\ndata = "{tmp_path / "data"}"\n[score]\nmaster = "{master}"\n'
    )
    words = ["-c", STANDBY, "score", "--standby", "--config", str(config)]
    done = subprocess.run(
        [sys.executable, "-c", MANAGER, str(tmp_path / "run"), *words],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
        timeout=START_S,
    )

    assert done.returncode > 128, done.stderr
    assert "the check of the executors is silent" in done.stderr
    assert "container: watchdog not fed" in done.stderr
