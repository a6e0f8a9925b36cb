"""Runs the commands of a page, in a folder that stands in for the machine."""

import os
import re
import subprocess
from pathlib import Path
from tempfile import TemporaryFile

from page_stand_ins import STAND_INS

ROOT = Path(__file__).parents[1]
BIN = ROOT / ".venv" / "bin"

PATHS = {
    "/var/lib/yamamori": "var",
    "/etc/yamamori": "etc",
    "/etc/mosquitto": "mosquitto",
    "/opt/yamamori": "opt",
    "/usr/bin/": "usr-bin/",
}
"""What a page writes to, and where it goes in a machine's folder."""

BLOCK = re.compile(r"^ *```sh\n(.*?)^ *```", re.DOTALL | re.MULTILINE)


def blocks(page: Path) -> list[str]:
    """Shell blocks of a page."""
    return BLOCK.findall(page.read_text("utf-8"))


def sections(page: Path) -> dict[str, list[str]]:
    """Shell blocks of a page, by the heading above them."""
    parts = re.split(r"^## (.+)$", page.read_text("utf-8"), flags=re.MULTILINE)
    return {
        title: BLOCK.findall(text)
        for title, text in zip(parts[1::2], parts[2::2], strict=True)
    }


class Machine:
    """A folder that stands in for a machine.

    Args:
        folder: Where everything is.
        names: What of the page to write otherwise: paths, ports.
    """

    def __init__(self, folder: Path, **names: str) -> None:
        self.folder = folder
        self.units = folder / "units"
        self.units.mkdir()
        self.names = {
            there: str(folder / here) for there, here in PATHS.items()
        } | names
        (folder / "var").mkdir()
        programs = folder / "bin"
        programs.mkdir()
        for name, text in STAND_INS.items():
            (programs / name).write_text(f"#!/bin/bash\n{text}")
            (programs / name).chmod(0o755)
        self.env = {
            **os.environ,
            "PATH": f"{programs}:{BIN}:/usr/sbin:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "ROOT": str(ROOT),
            "UNITS": str(self.units),
            # A JVM that starts quickly.
            "JAVA_TOOL_OPTIONS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        }

    def unit(self, name: str, command: str) -> None:
        """Name a unit and start it."""
        (self.units / name).write_text(command)
        self.run(f"systemctl start {name}")

    def run(self, commands: str, timeout_s: float = 300) -> str:
        """Run commands; each must end with 0."""
        with TemporaryFile("w+") as said, TemporaryFile("w+") as wrong:
            # No pipes: what goes on in the background would hold them open.
            done = subprocess.run(
                ["/bin/bash", "-euo", "pipefail", "-c", self.named(commands)],
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=wrong,
                timeout=timeout_s,
                check=False,
            )
            for file in (said, wrong):
                file.seek(0)
            told, why = said.read(), wrong.read()
        assert done.returncode == 0, f"{commands}\n{told}\n{why}"
        return told

    def named(self, commands: str) -> str:
        """Commands with our paths and ports instead of the page's."""
        for old, new in self.names.items():
            commands = commands.replace(old, new)
        return commands

    def stop(self) -> None:
        """Kill what runs."""
        for path in self.units.glob("*.pid"):
            subprocess.run(["/bin/kill", "-9", path.read_text().strip()], check=False)
