"""`make demo` on a Debian that has nothing of ours."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NO_MACHINE = 77
"""Exit status of scripts/fresh where it cannot make or enter a system."""


@pytest.mark.long
def test_demo_runs_on_a_new_debian_by_a_user_with_sudo() -> None:
    """Set-up installs all that the demo calls, and no message is lost."""
    choice = {"DEBIAN": "13", "ACCOUNT": "sudo", "COMMANDS": "demo"}
    done = subprocess.run(
        [ROOT / "scripts/fresh"],
        env=os.environ | choice,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == NO_MACHINE:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    log = ROOT / "out/fresh/13-sudo-demo.log"

    assert done.returncode == 0, done.stdout + log.read_text(errors="replace")[-3000:]
    assert "nothing was lost" in log.read_text(errors="replace")


def test_choice_that_does_not_exist_is_refused() -> None:
    """It names the variable and its values, before anything is made."""
    done = subprocess.run(
        [ROOT / "scripts/fresh"],
        env=os.environ | {"DEBIAN": "11"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == NO_MACHINE:
        pytest.skip(done.stderr.strip())

    assert done.returncode == 64
    assert "DEBIAN must be of: 12 13, got '11'" in done.stderr
