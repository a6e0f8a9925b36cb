"""A built image in QEMU, which gpiozero detects as a Raspberry Pi, with a rain gauge.

QEMU's machine "virt" has a GPIO chip of eight lines. With the power key on line 3
removed, each power-down request is a pulse of 100 ms on that line: one bucket tip.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest
from conftest import wait_until

ROOT = Path(__file__).parents[2]
MACHINE = ["-M", "virt", "-cpu", "cortex-a72", "-smp", "2", "-m", "1024"]
RAIN_PIN = 3
SECTOR = 512
CARD_BYTES = 2 << 30
BOOT, DATA = 1, 4
"""Partition numbers; 2 and 3 are the slots."""


def built(role: str) -> Path:
    """The folder of an image built by `make image`; skips the test without one."""
    folder = Path(os.environ.get("IMAGE_OUT", ROOT / "out/image")) / role
    if not (folder / "sdcard.img").exists():
        pytest.skip(f"no image in {folder}; make it with: make image ROLE={role}")
    for program in ("qemu-system-aarch64", "fdtput", "mcopy", "debugfs", "e2fsck"):
        if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None:
            pytest.skip(f"{program} is missing; run: make image-test")
    return folder


class Card:
    """A card flashed with the image."""

    def __init__(self, image: Path, path: Path) -> None:
        self.path = path
        self._run("cp", "--sparse=always", str(image), str(path))
        os.truncate(path, CARD_BYTES)

    def put(self, path: Path, name: str) -> None:
        """Copy a file to the FAT partition, as an installer does on a laptop."""
        at = f"{self.path}@@{self._start(BOOT) * SECTOR}"
        target = Path("yamamori") / name
        for folder in list(target.parents)[-2::-1]:
            with contextlib.suppress(subprocess.CalledProcessError):
                self._run("mmd", "-i", at, "-D", "s", f"::{folder}")
        self._run("mcopy", "-o", "-i", at, str(path), f"::{target}")

    def names(self) -> list[str]:
        """Names in the installer's folder."""
        at = f"{self.path}@@{self._start(BOOT) * SECTOR}"
        return self._run("mdir", "-b", "-i", at, "::yamamori").split()

    def read(self, name: str) -> str:
        """A file of the installer's folder."""
        at = f"{self.path}@@{self._start(BOOT) * SECTOR}"
        return self._run("mtype", "-i", at, f"::yamamori/{name}")

    def state(self, name: str, folder: Path) -> Path:
        """A copy of a database on the data partition, after a file system check.

        The card itself is not changed.
        """
        data = folder / "data.ext4"
        start = self._start(DATA)
        where = f"bs=1M skip={start * SECTOR} iflag=skip_bytes conv=sparse"
        self._run("dd", f"if={self.path}", f"of={data}", *where.split())
        subprocess.run(["e2fsck", "-fy", data], capture_output=True, check=False)
        out = folder / Path(name).name
        for end in ("", "-wal"):
            self._run("debugfs", "-R", f"dump {name}{end} {out}{end}", str(data))
        data.unlink()
        return out

    def data_bytes(self) -> int:
        """Size of the data partition by the partition table."""
        return self._entry(DATA)[1] * SECTOR

    def _start(self, number: int) -> int:
        return self._entry(number)[0]

    def _entry(self, number: int) -> tuple[int, int]:
        with self.path.open("rb") as file:
            file.seek(446 + 16 * (number - 1) + 8)
            raw = file.read(8)
        return int.from_bytes(raw[:4], "little"), int.from_bytes(raw[4:], "little")

    def _run(self, *command: str) -> str:
        path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, env={"PATH": path}
        )
        return done.stdout


class Pi:
    """A machine with a card. It is switched off by `kill -9`, as by a power cut.

    Args:
        image: Folder of the image, for kernel and initrd.
        card: The card.
        folder: Folder for sockets, console and device tree.
        ports: Forwarded ports, such as ``tcp:127.0.0.1:1234-:1883``.
    """

    def __init__(self, image: Path, card: Card, folder: Path, *ports: str) -> None:
        self._image, self._card, self._folder = image, card, folder
        self.console = folder / "console.log"
        self.console.write_bytes(b"")
        self._tree = _make_device_tree(folder)
        self._net = ",".join(["user", "id=net", *(f"hostfwd={p}" for p in ports)])
        self._process: subprocess.Popen[bytes] | None = None

    def on(self, *kernel: str, has_watchdog: bool = False) -> None:
        """Switch on. The clock starts in 2020, as on a Pi without a battery.

        The hardware watchdog uses this machine's time, so on a busy machine it would
        also reset a kernel that does not hang. The unsafe disk cache is sufficient,
        because killing QEMU does not lose this machine's cache.
        """
        for name in ("qmp", "serial"):
            (self._folder / name).unlink(missing_ok=True)
        logging = (
            "loglevel=5",
            "systemd.show_status=0",
            "systemd.journald.forward_to_console=1",
        )
        append = (
            "console=ttyAMA0",
            "panic=10",
            "systemd.log_color=0",
            *logging,
            *kernel,
        )
        more = f"""
          -nographic -monitor none -accel tcg,thread=multi
          -kernel {self._image}/vmlinuz -initrd {self._image}/initrd.img
          -dtb {self._tree} -rtc base=2020-01-01T00:00:00
          -drive if=none,id=card,format=raw,cache=unsafe,file={self._card.path}
          -device virtio-blk-device,drive=card
          -netdev {self._net} -device virtio-net-device,netdev=net
          -device virtio-rng-device -action watchdog=reset
          -qmp unix:{self._folder}/qmp,server=on,wait=off -serial chardev:serial
        """.split()
        more += ["-device", "i6300esb"] * has_watchdog
        serial = f"socket,id=serial,path={self._folder}/serial,server=on,wait=off"
        chardev = f"{serial},logfile={self.console},logappend=on"
        self._process = subprocess.Popen(
            [
                *("setpriv", "--pdeathsig", "KILL"),  # if the tests are killed
                *("nice", "-n5", "qemu-system-aarch64", *MACHINE, *more),
                *("-chardev", chardev, "-append", " ".join(append)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        self._on_s = time.monotonic()
        wait_until((self._folder / "qmp").exists, 30)

    def age_s(self) -> float:
        """Seconds since it was switched on."""
        return round(time.monotonic() - self._on_s, 1)

    def cpu_s(self) -> float:
        """CPU seconds used, which do not depend on the load of this machine."""
        assert self._process is not None
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().split()
        used = int(fields[13]) + int(fields[14])
        return round(used / os.sysconf("SC_CLK_TCK"), 1)

    def cut_power(self) -> None:
        """Kill the machine: its memory is lost."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def off(self) -> None:
        """Kill the machine if it is running."""
        if self._process is not None:
            self.cut_power()

    def tip(self, count: int = 1) -> None:
        """Tip the bucket `count` times."""
        for _ in range(count):
            self._command("system_powerdown")
            time.sleep(1.0)  # the pulse is 100 ms of the machine's time

    def hang(self) -> None:
        """Crash the kernel by SysRq on the console; panic=0 prevents a restart."""
        with socket.socket(socket.AF_UNIX) as console:
            console.connect(f"{self._folder}/serial")
            self._command("chardev-send-break", id="serial")
            console.sendall(b"c")
            time.sleep(1.0)

    def count_in_console(self, text: str) -> int:
        """How often the console printed a text, over all boots."""
        return self.console.read_bytes().count(text.encode())

    def _command(self, name: str, **arguments: str) -> None:
        with socket.socket(socket.AF_UNIX) as qmp:
            qmp.connect(f"{self._folder}/qmp")
            lines = qmp.makefile("rw")
            lines.readline()
            for command in (
                {"execute": "qmp_capabilities"},
                {"execute": name, "arguments": arguments},
            ):
                lines.write(json.dumps(command) + "\n")
                lines.flush()
                while "event" in (answer := json.loads(lines.readline())):
                    pass
                assert "return" in answer, f"{name}: {answer}"


def _make_device_tree(folder: Path) -> Path:
    """QEMU's device tree, changed to a Compute Module 3: its GPIO3 has no pull-up."""
    tree = folder / "pi.dtb"
    machine = [*MACHINE[:1], f"virt,dumpdtb={tree}", *MACHINE[2:]]
    commands = (
        ["qemu-system-aarch64", *machine, "-nographic", "-nic", "none"],
        ["fdtput", "-p", "-t", "x", str(tree), "/system", "linux,revision", "a020a0"],
        [
            "fdtput",
            "-t",
            "s",
            str(tree),
            "/",
            "model",
            "Raspberry Pi Compute Module 3",
        ],
        ["fdtput", "-r", str(tree), "/gpio-keys"],
    )
    for command in commands:
        subprocess.run(command, capture_output=True, check=True)
    return tree
