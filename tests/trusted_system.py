"""Brokers and programs with certificates on every link, for system tests."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from programs import run_command
from trust_bench import IssuingAuthority, TrustedBroker

from backend_spark.ingest.segment_log import read_segments
from demo.processes import Processes
from service_runtime.tls import TlsFiles
from spatial_mqtt.cells import Cell
from spatial_mqtt.topics import cell_topic

HERE = (33.5588, 133.5312)
CELL = cell_topic(Cell.at(*HERE))
AREA = "/1/2/2"

NODE = """
[node]
id = "kochi-0001"
latitude = 33.5588
longitude = 133.5312
[uplink]
gather_s = 0
managers = ["mqtts://{manager.nodes}"]
[queue]
path = "{folder}/node.db"
window_s = 0
[simulation]
start = "2026-07-01T00:00:00+09:00"
[[sensor]]
kind = "wire"
name = "wire"
pin = 27
interval_s = 30
"""
MANAGER = """
[manager]
id = "m1"
broker = "mqtts://{manager.daemons}"
data = "{folder}/manager"
[[broker]]
topic = "/"
url = "mqtts://{distributed.daemons}"
"""
GATEWAY = """
[gateway]
id = "gw-1"
broker = "mqtts://{gateway.daemons}"
public = "mqtts://{gateway.nodes}"
managers = ["mqtts://{manager.daemons}"]
areas = ["{area}"]
data = "{folder}/gateway"
"""
BACKEND = """
[backend]
data = "{folder}/backend"
[ingest]
id = "ingest-0"
broker = "mqtts://{distributed.daemons}"
"""
PROGRAMS = {
    "m1": ("gateway_daemon", "manager", MANAGER),
    "gw-1": ("gateway_daemon", "run", GATEWAY),
    "ingest-0": ("backend_spark", "ingest", BACKEND),
    "kochi-0001": ("edge_agent", "run", NODE),
}


def tls_section(files: TlsFiles) -> str:
    """The section ``[tls]`` of a settings file."""
    rows = "".join(f'{k} = "{v}"\n' for k, v in vars(files).items() if v)
    return f"\n[tls]\n{rows}"


class System:
    """Brokers and programs with certificates of one authority.

    Args:
        folder: Folder of all files.
        programs: Module, command and settings of each program, by name.
    """

    def __init__(
        self, folder: Path, programs: Mapping[str, tuple[str, str, str]] = PROGRAMS
    ) -> None:
        self.folder = folder
        self.authority = IssuingAuthority(folder / "ca")
        self.files: dict[str, TlsFiles] = {
            "m1": self.authority.issue("manager", "m1"),
            "gw-1": self.authority.issue("gateway", "gw-1", AREA),
            "ingest-0": self.authority.issue("backend", "ingest-0"),
            "notify-0": self.authority.issue("backend", "notify-0"),
            "kochi-0001": self.authority.issue("node", "kochi-0001", CELL),
            "kochi-0002": self.authority.issue("node", "kochi-0002", CELL),
            "mayor": self.authority.issue("admin", "mayor"),
            "analyst": self.authority.issue("client", "analyst"),
        }
        self.brokers = {
            kind: TrustedBroker(folder, self.authority, kind, owner)
            for kind, owner in (
                ("manager", "m1"),
                ("gateway", "gw-1"),
                ("distributed", "d1"),
            )
        }
        self.processes = Processes(folder)
        for name, (module, command, text) in programs.items():
            config = self.config(name, text)
            self.processes.python(name, module, command, "--config", str(config))

    def config(self, name: str, text: str = "") -> Path:
        path = self.folder / f"{name}.toml"
        settings = text.format(**self.brokers, folder=self.folder, area=AREA)
        path.write_text(settings + tls_section(self.files[name]))
        return path

    def send(self, count: int) -> list[str]:
        lines = "\n".join(
            json.dumps({"pri": 1 + n % 5, "e": [{"n": "test", "v": float(n)}]})
            for n in range(count)
        )
        config = str(self.folder / "kochi-0001.toml")
        done = run_command("edge_agent", "send", "--config", config, given=lines)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    def run(self, module: str, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def archived(self) -> set[str]:
        """Ids in the log, without messages in quarantine."""
        log = self.folder / "backend" / "log"
        rows = [
            row
            for _, table in read_segments(log, ["node", "boot", "seq"])
            for row in table.to_pylist()
        ]
        return {":".join(map(str, row.values())) for row in rows if row["node"]}

    def stop(self) -> None:
        self.processes.stop()
        for broker in self.brokers.values():
            broker.kill()
