"""A machine for tests: Debian's systemd in a container, with our wheel installed."""

import errno
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import uuid
from pathlib import Path

import pytest
from conftest import wait_until

ROOT = Path(__file__).parents[1]
SUITES = {(3, 11): "bookworm", (3, 13): "trixie"}
PACKAGES = "systemd,systemd-sysv,dbus,udev,python3,python3-venv,mosquitto,openssl"
UNITS = tuple(sorted(path.stem for path in (ROOT / "systemd").glob("*.service")))
VENV = Path("opt/yamamori")
DEPENDENCIES = "/opt/dependencies"
"""Mount point of the libraries of the environment that runs the tests."""
PACKAGES_INSIDE = "/opt/debs"
"""Mount point of a folder of Debian packages."""

CGROUPS = [Path("/sys/fs/cgroup", name) for name in ("systemd", "unified")]
"""Hierarchies that systemd uses beside others, where there is not one for everything.

Containers that are started in one control group share those of their units: a command
of one, such as `systemctl kill`, then fails because of the processes of another.
"""


def tree(more: str = "") -> Path:
    """A Debian root with systemd, created once and kept in the user's cache.

    Its release has the Python version that runs the tests, whose libraries it mounts.

    Args:
        more: Debian packages besides `PACKAGES`, each after a comma.
    """
    suite = SUITES.get(sys.version_info[:2])
    if os.geteuid() != 0:
        pytest.skip("a container with systemd needs root")
    if suite is None:
        pytest.skip(f"no Debian has Python {sys.version_info[0]}.{sys.version_info[1]}")
    for program in ("systemd-nspawn", "mmdebstrap", "nsenter", "unshare"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is missing; run scripts/setup")
    allowed = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    if allowed.returncode:
        pytest.skip(f"no container may be made here: {allowed.stderr.strip()}")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "yamamori"
    packages = PACKAGES + more
    name = hashlib.sha256(f"{suite} {packages}".encode()).hexdigest()[:12]
    made = cache / f"systemd-{suite}-{name}"
    if not made.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        _make(made, suite, packages)
    return made


def _make(made: Path, suite: str, packages: str) -> None:
    with tempfile.TemporaryDirectory(dir=made.parent) as folder:
        fresh = Path(folder) / "tree"
        done = subprocess.run(
            [
                "mmdebstrap",
                "--variant=minbase",
                "--dpkgopt=path-exclude=/usr/share/doc/*",
                "--dpkgopt=path-exclude=/usr/share/man/*",
                "--dpkgopt=path-exclude=/usr/share/locale/*",
                f"--include={packages}",
                # Java's packages link their manual pages here.
                '--essential-hook=mkdir -p "$1/usr/share/man/man1"',
                f'--customize-hook=chroot "$1" python3 -m venv /{VENV}',
                suite,
                str(fresh),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            pytest.skip(f"no Debian could be fetched: {done.stderr[-300:]}")
        if not made.is_dir():  # another run may have created it meanwhile
            fresh.rename(made)


def wheel(folder: Path) -> Path:
    """Our wheel, of the files that Git knows."""
    subprocess.run([ROOT / "scripts/dist", "--wheel", folder], check=True)
    (made,) = folder.glob("*.whl")
    return made


def _mount(kind: str, options: str, at: Path) -> None:
    command = ["mount", "-t", kind, "-o", options, kind, str(at)]
    subprocess.run(command, check=True)


def _remove_groups(top: Path) -> bool:
    """Remove a control group and those below; False while one has processes."""
    try:
        for folder, _, _ in os.walk(top, topdown=False):
            Path(folder).rmdir()
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


class DebianMachine:
    """One container: boot, run commands in it, power off.

    Args:
        folder: For its mounts.
        more: Debian packages besides those of every machine, each after a comma.
        size: Of its root in memory, as mount takes it.
    """

    def __init__(self, folder: Path, more: str = "", size: str = "1g") -> None:
        self.root = folder / "root"
        self._memory = folder / "memory"
        name = f"yamamori-{uuid.uuid4().hex[:12]}"
        self._cgroups = [each / name for each in CGROUPS if each.is_dir()]
        self._mount_overlay(tree(more), size)

    def boot(self, packages: Path | None = None) -> None:
        """Start it, with a folder of packages, and wait until systemd is running."""
        Path("/run/systemd/nspawn").mkdir(parents=True, exist_ok=True)
        container = (
            f"systemd-nspawn --quiet --directory={self.root} --boot --register=no "
            "--keep-unit --console=pipe --private-network "
            f"--bind-ro={sysconfig.get_path('purelib')}:{DEPENDENCIES}"
        )
        if packages is not None:
            container += f" --bind-ro={packages.resolve()}:{PACKAGES_INSIDE}"
        before = "mount -t tmpfs tmpfs /run/systemd/nspawn"
        for each in self._cgroups:
            each.mkdir()
            before += f" && echo 0 > {each}/cgroup.procs"
        self._process = subprocess.Popen(
            [
                *("setpriv", "--pdeathsig", "KILL"),  # if the tests are killed
                *("unshare", "--mount", "--propagation", "private"),
                *("--pid", "--fork", "--kill-child", "--mount-proc"),
                *("sh", "-c", f"{before} && exec {container}"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        wait_until(self._find_leader)
        try:
            wait_until(lambda: self._state() in {"running", "degraded"})
        except AssertionError as error:
            error.add_note(f"state: {self._state()}, jobs that are not done:")
            error.add_note(self.run("systemctl", "list-jobs", check=False))
            raise

    def _state(self) -> str:
        return self.run("systemctl", "is-system-running", check=False)

    def run(self, *command: str, check: bool = True) -> str:
        """Run a command inside as root; returns its output."""
        inside = f"nsenter --target {self._leader} -m -u -i -n -p -r -w --".split()
        done = subprocess.run(
            [*inside, *command], capture_output=True, text=True, check=False
        )
        assert not check or done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout.strip()

    def put(self, path: str, text: str) -> Path:
        """Write a file and its parent folders."""
        at = self.root / path.lstrip("/")
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text(text)
        return at

    def inside(self, path: str) -> Path:
        """Path of a file of the running machine, also in its /run."""
        return Path(f"/proc/{self._leader}/root", path.lstrip("/"))

    def show(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.run("systemctl", "show", "--value", "-p", name, unit)

    def journal(self, unit: str) -> str:
        """Journal of a unit."""
        return self.run("journalctl", "--no-pager", "-o", "cat", "-u", unit)

    def power_off(self) -> None:
        """Kill it, and unmount its folders."""
        os.kill(self._leader, signal.SIGKILL)
        self._process.wait()
        for each in self._cgroups:
            # As the kernel removes the last processes of a group a moment later.
            wait_until(lambda at=each: _remove_groups(at))
        for path in (self.root, self._memory):
            subprocess.run(["umount", "--lazy", str(path)], check=True)

    def _mount_overlay(self, debian: Path, size: str) -> None:
        """Mount the root as an overlay in memory, so that Debian is not copied."""
        upper, work = self._memory / "upper", self._memory / "work"
        for path in (self.root, self._memory):
            path.mkdir()
        _mount("tmpfs", f"size={size},mode=755", self._memory)
        for path in (upper, work):
            path.mkdir()
        layers = f"lowerdir={debian},upperdir={upper},workdir={work}"
        _mount("overlay", layers, self.root)

    def _find_leader(self) -> bool:
        """Find the container's first process in this machine's /proc."""
        here = self.root.stat()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                at = (process / "root").stat()
                is_first = (
                    "\t1\n" in (process / "status").read_text().partition("NSpid:")[2]
                )
            except OSError:
                continue  # it has exited meanwhile
            if is_first and (at.st_dev, at.st_ino) == (here.st_dev, here.st_ino):
                self._leader = int(process.name)
                return True
        return False


class Machine(DebianMachine):
    """A container with our wheel and units."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._install(wheel(folder))

    def _install(self, ours: Path) -> None:
        shutil.copy(ours, self.root / "opt")
        pip = "pip install --quiet --no-deps --no-index --no-warn-script-location"
        subprocess.run(
            [
                *("chroot", str(self.root), f"/{VENV}/bin/python", "-m"),
                *(*pip.split(), f"/opt/{ours.name}"),
            ],
            check=True,
        )
        (packages,) = (self.root / VENV).glob("lib/python3*/site-packages")
        (packages / "dependencies.pth").write_text(f"{DEPENDENCIES}\n")
        for name in ("edge-agent", "gateway-daemon", "backend-spark", "spatial-mqtt"):
            (self.root / "usr/bin" / name).symlink_to(f"/{VENV}/bin/{name}")
        subprocess.run(
            [ROOT / "systemd/install", *UNITS],
            env={**os.environ, "DESTDIR": str(self.root)},
            check=True,
        )
