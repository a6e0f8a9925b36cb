"""Each program that is called is in one table with its Debian package."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from called_programs import (
    programs_in_page,
    programs_in_python,
    programs_in_shell,
    programs_in_unit,
)

from docs.programs_page import page, rows

ROOT = Path(__file__).parents[2]
OURS = {"backend-spark", "edge-agent", "gateway-daemon", "spatial-mqtt"}
FROM_VENV = {"node", "npm", "python"}
BUSYBOX_ONLY = "image/initrd/"
SHELL = re.compile(r"#!.*\b(ba|da)?sh\b")


def sources() -> Iterator[tuple[str, str]]:
    """Path and text of each file that Git knows."""
    command = ["git", "-C", ROOT, "ls-files", "-z"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for name in done.stdout.split("\0"):
        path = ROOT / name
        if path.is_file() and not name.startswith(BUSYBOX_ONLY):
            try:
                yield name, path.read_text("utf-8")
            except UnicodeDecodeError:
                continue


def called(name: str, text: str) -> set[str]:
    """Programs that a file calls."""
    suffix = Path(name).suffix
    if suffix == ".py":
        return set(programs_in_python(text))
    if suffix == ".md":
        return set(programs_in_page(text))
    if suffix == ".service":
        return set(programs_in_unit(text))
    return set(programs_in_shell(text)) if SHELL.match(text) else set()


def test_every_called_program_is_in_the_table() -> None:
    """Sources, scripts, tests, units and the blocks of all pages."""
    declared = {program for _, _, programs in rows() for program in programs}
    missing = {
        f"{name}: {program}"
        for name, text in sources()
        for program in called(name, text) - declared - OURS - FROM_VENV
    }

    assert missing == set()


@pytest.mark.parametrize(
    ("find", "text", "programs"),
    [
        (programs_in_python, "subprocess.run(['ip', 'link'])", {"ip"}),
        (programs_in_python, "c = [*('tc', '-s'), x]\nsubprocess.run(c)", {"tc"}),
        (programs_in_python, "subprocess.run('ps aux'.split())", {"ps"}),
        (programs_in_python, "for p in ('a', 'b'):\n  shutil.which(p)", {"a", "b"}),
        (programs_in_python, "run(['not', 'a', 'subprocess'])", set()),
        (programs_in_shell, "a=1 ip|tc; if ps; then dd; fi", {"dd", "ip", "ps", "tc"}),
        (programs_in_shell, 'x=$(ip link)\necho "$(tc) $((n + 1))"', {"ip", "tc"}),
        (programs_in_shell, "case $x in ip|tc) ps ;; *) dd ;; esac", {"ps", "dd"}),
        (programs_in_shell, "case $x in ip) : ;; esac; dd", {"dd"}),
        (programs_in_shell, "ip() { tc; }\nip # ps\nsudo nft", {"tc", "nft"}),
        (programs_in_shell, "x=(ip tc)\ncat <<END\nps aux\nEND\nnft", {"cat", "nft"}),
        (programs_in_page, "ip\n```sh\nalias ca=x\nca y; tc\n```\nps", {"tc"}),
        (programs_in_unit, "ExecStart=/usr/sbin/nft -f x", {"nft"}),
        (programs_in_unit, "ExecStop=-/bin/sh -c 'ip; tc'", {"sh", "ip", "tc"}),
    ],
)  # fmt: skip
def test_search_finds_the_programs_of_a_text(
    find: object, text: str, programs: set[str]
) -> None:
    """The test above can fail."""
    assert callable(find)
    assert set(find(text)) == programs


def test_setup_installs_what_this_machine_lacks_and_nothing_else() -> None:
    """After `make setup` nothing of `develop` is missing."""
    path = "/usr/sbin:/usr/bin:/sbin:/bin"
    absent = [
        program
        for _, uses, programs in rows()
        if "develop" in uses
        for program in programs
        if shutil.which(program, path=path) is None
    ]

    assert absent == []


def test_page_is_made_from_the_table() -> None:
    written = (ROOT / "docs/reference/programs.md").read_text("utf-8")

    assert written == "\n".join(page()) + "\n", "run scripts/write-reference"


TOOLS = ("cat", "dirname", "find", "grep", "ls", "paste", "sort", "tr")


def test_debian_starts_no_server_of_the_packages_for_long_tests(tmp_path: Path) -> None:
    """With several packages to install; before, only with a single one."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for tool in TOOLS:
        (programs / tool).symlink_to(shutil.which(tool) or "")
    # Without a reader of its pipe the script would end by SIGPIPE.
    sudo = f'echo "$@" >> {tmp_path}/log; [ "$1" != tee ] || while read -r; do :; done'
    for name, body in (("id", "echo 1000"), ("sudo", sudo)):
        (programs / name).write_text(f"#!/bin/bash\n{body}\n")
        (programs / name).chmod(0o755)
    # Nothing is installed or set in this file system, and nothing changes outside.
    script = (
        "for f in /etc /usr/share/postgresql; do"
        "  [ ! -d $f ] || mount -t tmpfs none $f; done;"
        f"PATH={programs} exec /bin/bash {ROOT}/scripts/install-programs long"
    )
    command = ["unshare", "--map-root-user", "--mount", "sh", "-euc", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"this machine allows no mounts: {done.stderr}")

    assert done.returncode == 0, done.stderr
    commands = (tmp_path / "log").read_text().splitlines()
    assert "apt-get install" in commands[-1]
    assert {"postgresql-postgis", "prometheus"} <= set(commands[-1].split())
    assert "tee /etc/postgresql-common/createcluster.d/yamamori.conf" in commands
    assert "ln -s /dev/null /etc/systemd/system/prometheus.service" in commands
