"""Runs the commands of a page, in a folder that replaces the machine."""

import os
import re
import subprocess
from pathlib import Path
from tempfile import TemporaryFile

from java_start import java_options
from page_stubs import STUBS

ROOT = Path(__file__).parents[1]
BIN = ROOT / ".venv" / "bin"

PATHS = {
    "/var/lib/yamamori": "var",
    "/etc/yamamori": "etc",
    "/etc/mosquitto": "mosquitto",
    "/opt/yamamori": "opt",
    "/usr/bin/": "usr-bin/",
}
"""Paths in pages, and their replacements in a machine's folder."""

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
    """A folder that replaces a machine.

    Args:
        folder: Folder of all files.
        names: Replacements in the text of the page, such as ports.
    """

    def __init__(self, folder: Path, **names: str) -> None:
        self.folder = folder
        self.units = folder / "units"
        self.units.mkdir()
        self.names = {
            path: str(folder / local) for path, local in PATHS.items()
        } | names
        (folder / "var").mkdir()
        programs = folder / "bin"
        programs.mkdir()
        for name, text in STUBS.items():
            (programs / name).write_text(f"#!/bin/bash\n{text}")
            (programs / name).chmod(0o755)
        self.env = {
            **os.environ,
            "PATH": f"{programs}:{BIN}:/usr/sbin:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "ROOT": str(ROOT),
            "UNITS": str(self.units),
            # Options for a fast start of the JVM.
            "JAVA_TOOL_OPTIONS": java_options(),
        }

    def unit(self, name: str, command: str) -> None:
        """Define a unit and start it."""
        (self.units / name).write_text(command)
        self.run(f"systemctl start {name}")

    def run(self, commands: str, timeout_s: float = 300) -> str:
        """Run commands, each of which must exit with 0; returns their output."""
        with TemporaryFile("w+") as out, TemporaryFile("w+") as err:
            # No pipes: background processes would keep them open.
            done = subprocess.run(
                ["/bin/bash", "-euo", "pipefail", "-c", self.named(commands)],
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                timeout=timeout_s,
                check=False,
            )
            for file in (out, err):
                file.seek(0)
            output, errors = out.read(), err.read()
        assert done.returncode == 0, f"{commands}\n{output}\n{errors}"
        return output

    def named(self, commands: str) -> str:
        """Commands with the page's paths and ports replaced.

        A port is a whole number: a free one, put in before, may contain its digits.
        """
        for old, new in self.names.items():
            if old.isdigit():
                commands = re.sub(rf"\b{old}\b", new, commands)
            else:
                commands = commands.replace(old, new)
        return commands

    def stop(self) -> None:
        """Kill all units."""
        for path in self.units.glob("*.pid"):
            subprocess.run(["/bin/kill", "-9", path.read_text().strip()], check=False)
