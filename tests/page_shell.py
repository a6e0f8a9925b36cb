"""Runs the commands of a page, in a folder that stands in for the machine."""

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
BIN = ROOT / ".venv" / "bin"

SYSTEMCTL = """#!/bin/bash
# Starts and stops what the test has named, as systemd would.
action=$1; shift
for unit in "$@"; do
  test -e "$UNITS/$unit" || continue
  if [ "$action" = stop ]; then
    kill "$(cat "$UNITS/$unit.pid")"
    tail --pid="$(cat "$UNITS/$unit.pid")" -f /dev/null
  else
    bash -c "exec $(cat "$UNITS/$unit")" >> "$UNITS/$unit.log" 2>&1 &
    echo $! > "$UNITS/$unit.pid"
  fi
  echo "$action $unit" >> "$UNITS/done"
done
"""


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
        self.names = {"/var/lib/yamamori": str(folder / "var"), **names}
        (folder / "var").mkdir()
        programs = folder / "bin"
        programs.mkdir()
        (programs / "systemctl").write_text(SYSTEMCTL)
        (programs / "systemctl").chmod(0o755)
        self.env = {
            **os.environ,
            "PATH": f"{programs}:{BIN}:/usr/sbin:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
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
        done = subprocess.run(
            ["/bin/bash", "-euo", "pipefail", "-c", self.named(commands)],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, f"{commands}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def named(self, commands: str) -> str:
        """Commands with our paths and ports instead of the page's."""
        for old, new in self.names.items():
            commands = commands.replace(old, new)
        return commands

    def stop(self) -> None:
        """Kill what runs."""
        for path in self.units.glob("*.pid"):
            subprocess.run(["/bin/kill", "-9", path.read_text().strip()], check=False)
