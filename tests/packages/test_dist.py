"""Wheel and sdist: what is in them, that they build again, and run elsewhere."""

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = "backend_spark/console/static/"
NODE = """[node]
id = "desk-0001"
latitude = 33.5588
longitude = 133.5312
[uplink]
managers = ["mqtt://127.0.0.1:1883"]
[queue]
path = "queue.db"
[[sensor]]
kind = "rain-gauge"
name = "rain"
pin = 17
[simulation]
start = "2026-07-01T00:00:00+09:00"
"""
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with what `make dist` makes."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([ROOT / "scripts/dist", folder], check=True)
    return folder


def one(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def tracked(*folders: str) -> set[str]:
    """Files that Git knows."""
    command = ["git", "-C", ROOT, "ls-files", *folders]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_second_build_has_the_same_bytes(dist: Path, tmp_path: Path) -> None:
    """All files: archives, bill of materials, provenance and sums."""
    subprocess.run([ROOT / "scripts/dist", tmp_path], check=True)
    names = {path.name for path in dist.iterdir()}

    assert len(names) == 5
    assert {path.name for path in tmp_path.iterdir()} == names
    for name in names:
        assert (dist / name).read_bytes() == (tmp_path / name).read_bytes(), name


def test_wheel_has_all_modules_and_pages_and_nothing_else(dist: Path) -> None:
    """No tests, no sources of pages, no units; the table of `check` is there."""
    with zipfile.ZipFile(one(dist, "*.whl")) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    packages = {name.partition("/")[0] for name in names}
    sources = {name for name in tracked(*packages) if name.endswith((".py", ".typed"))}
    pages = {f"{PAGES}{path.name}" for path in (ROOT / PAGES).glob("[!.]*")}
    templates = tracked("backend_spark/console/templates")

    assert f"{PAGES}index.html" in pages
    assert names == sources | pages | templates | {"service_runtime/programs.txt"}
    assert {"edge_agent", "gateway_daemon", "backend_spark"} < packages


def test_sdist_has_all_that_git_knows_and_the_pages(dist: Path) -> None:
    with tarfile.open(one(dist, "*.tar.gz")) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}

    assert tracked() <= names
    assert f"{PAGES}index.html" in names


def test_sdist_builds_the_same_wheel_without_git(dist: Path, tmp_path: Path) -> None:
    """With the version of its PKG-INFO."""
    with tarfile.open(one(dist, "*.tar.gz")) as sdist:
        made_s = sdist.getmembers()[0].mtime
        sdist.extractall(tmp_path, filter="data")
    subprocess.run(
        [
            *(sys.executable, "-m", "build", "--no-isolation", "--wheel"),
            *("--outdir", tmp_path, one(tmp_path, "yamamori-*")),
        ],
        env={"PATH": "/usr/bin:/bin", "SOURCE_DATE_EPOCH": str(int(made_s))},
        check=True,
    )
    here, there = one(dist, "*.whl"), one(tmp_path, "*.whl")

    assert here.name == there.name
    assert here.read_bytes() == there.read_bytes()


def test_build_without_pages_is_refused(dist: Path, tmp_path: Path) -> None:
    """The wheel would be a console that shows nothing."""
    with tarfile.open(one(dist, "*.tar.gz")) as sdist:
        sdist.extractall(tmp_path, filter="data")
    source = one(tmp_path, "yamamori-*")
    (source / PAGES / "index.html").unlink()
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--wheel", source],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )

    assert done.returncode != 0
    assert "index.html must be built; run scripts/setup first" in done.stdout


def locked_versions(folder: Path) -> Path:
    """The lock file as constraints: pip wants no hash of our wheel then."""
    lock = (ROOT / "requirements.lock").read_text()
    pins = re.findall(r"^[a-z0-9][^\\\n]*", lock, re.MULTILINE)
    path = folder / "constraints.txt"
    path.write_text("\n".join(pins) + "\n")
    return path


def test_node_runs_in_an_empty_environment(dist: Path, tmp_path: Path) -> None:
    """Installed as an operator does, away from the checkout."""
    venv, programs = tmp_path / "venv", tmp_path / "venv/bin"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    wanted = f"{one(dist, '*.whl')}[edge,pi]"
    subprocess.run(
        [
            *(programs / "python", "-m", "pip", "install", "--quiet"),
            *("--constraint", locked_versions(tmp_path), wanted),
        ],
        check=True,
    )
    (tmp_path / "node.toml").write_text(NODE)

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [programs / command[0], *command[1:]],
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        )

    version = one(dist, "*.whl").name.split("-")[1]
    for program in ("edge-agent", "spatial-mqtt"):
        assert "Commands:" in run(program, "--help").stdout
    for program in ("edge-agent", "spatial-mqtt", "gateway-daemon", "backend-spark"):
        assert run(program, "--version").stdout.endswith(f"{version}\n")
    assert "rain" in run("edge-agent", "check", "--config", "node.toml").stdout
    for command, extra in (
        ("gateway-daemon run", "gateway"),
        ("backend-spark ingest", "backend"),
    ):
        error = run(*command.split(), "--help").stderr
        assert f'install with: pip install "yamamori[{extra}]"' in error
