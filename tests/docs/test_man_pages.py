"""Man pages of the programs."""

import subprocess
import sys
from pathlib import Path

from edge_agent.cli import COMMANDS

ROOT = Path(__file__).parents[2]


def test_each_command_has_a_man_page(tmp_path: Path) -> None:
    """Also commands that are imported on first use, and those below them."""
    script = ROOT / "scripts/man_pages.py"
    subprocess.run([sys.executable, script, tmp_path], check=True, cwd=ROOT)

    for command in COMMANDS:
        assert (tmp_path / f"edge-agent-{command}.1").exists()
    page = (tmp_path / "edge-agent-queue-peek.1").read_text(encoding="utf-8")
    assert "\n\\fB\\-\\-config\\fP" in page
    assert (tmp_path / "backend-spark-places-load.1").exists()
