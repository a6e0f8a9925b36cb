"""``python -m powercut <store> <root> <module> ...`` records every fsync of a program.

Also those of Python processes that the program starts. `cut` then restores the folder
to the worst state after a loss of power: each file with its contents at its last fsync,
each folder with the names at its last fsync. With ``keeps_names``, as with a journal of
metadata, all names survive, and files that were never synced are empty. The record is
written before `os.fsync` returns. Files that exist at the start count as synced.
"""

import errno
import json
import os
import runpy
import shutil
import signal
import stat
import sys
import threading
from pathlib import Path
from typing import Any

JOURNAL = "journal"
STORE = "POWERCUT_STORE"
DIES_AT = "POWERCUT_DIES_AT"
"""Environment variable: the program is killed before this fsync; 0: never."""

VERSION = "user.powercut"
"""Extended attribute with a file's last synced version, shared by all processes."""

SITE = """
import os, pathlib
if os.environ.get("POWERCUT_STORE"):
    import powercut
    os.fsync = powercut.Recorder(pathlib.Path(os.environ["POWERCUT_STORE"]))
"""


class Recorder:
    """Replaces `os.fsync`."""

    def __init__(self, store: Path) -> None:
        store.mkdir(parents=True, exist_ok=True)
        self._store = store
        self._fsync = os.fsync
        self._lock = threading.Lock()
        self._count = 0
        self.left = 0
        self._journal = (store / JOURNAL).open("a", encoding="utf-8")

    def __call__(self, where: Any) -> None:  # noqa: ANN401 - a descriptor or a file
        descriptor = where if isinstance(where, int) else where.fileno()
        with self._lock:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self._fsync(descriptor)
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                self._record_folder(descriptor)
            else:
                self._record_file(descriptor)

    def keep_all(self, folder: Path) -> None:
        """Record all files and folders below a folder."""
        for path in folder.iterdir():
            if path.is_dir():
                self.keep_all(path)
            else:
                self._record(path)
        self._record(folder)

    def _record(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            self(descriptor)
        finally:
            os.close(descriptor)

    def _record_file(self, descriptor: int) -> None:
        self._count += 1
        version = f"{os.getpid()}-{self._count}"
        shutil.copyfile(f"/proc/self/fd/{descriptor}", self._store / version)
        os.setxattr(descriptor, VERSION, version.encode())

    def _record_folder(self, descriptor: int) -> None:
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        names: dict[str, str | None] = {}
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir():
                    names[f"{entry.name}/"] = None
                else:
                    names[entry.name] = _version(entry.path)
        line = json.dumps({"path": path, "names": names})
        self._journal.write(line + "\n")
        self._journal.flush()


def cut(store: Path, root: Path, *, keeps_names: bool = False) -> None:
    """Restore a folder to its state after a power cut, and clear the record.

    Args:
        store: Folder of the record.
        root: The folder.
        keeps_names: Whether names survive that were not synced with their folder.
    """
    survivors = root.with_name(f"{root.name}-rest")
    if keeps_names:
        folders = {str(p): _names(p) for p in (root, *root.rglob("*")) if p.is_dir()}
    else:
        # A program that is killed can leave part of a line: that folder was not synced.
        lines = (store / JOURNAL).read_text(encoding="utf-8").split("\n")[:-1]
        folders = {each["path"]: each["names"] for each in map(json.loads, lines)}
    _rebuild(store, folders, root, survivors)
    shutil.rmtree(root)
    shutil.rmtree(store)
    survivors.rename(root)


def _names(folder: Path) -> dict[str, str | None]:
    return {
        f"{path.name}/" if path.is_dir() else path.name: _version(path)
        for path in folder.iterdir()
    }


def _version(path: str | Path) -> str | None:
    try:
        return os.getxattr(path, VERSION).decode()
    except OSError as error:
        # Never synced, or removed since the folder was listed.
        if error.errno not in {errno.ENODATA, errno.ENOENT}:
            raise
        return None


def _rebuild(
    store: Path, folders: dict[str, dict[str, str | None]], old: Path, new: Path
) -> None:
    new.mkdir()
    for name, version in folders.get(str(old), {}).items():
        if name.endswith("/"):
            _rebuild(store, folders, old / name[:-1], new / name[:-1])
        elif version is not None:
            shutil.copyfile(store / version, new / name)
        else:
            (new / name).touch()  # named, but never synced: empty


def main() -> None:
    """Run a module with the recorder."""
    store, root, module = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    recorder = Recorder(store)
    recorder.keep_all(root)
    os.fsync = recorder
    recorder.left = int(os.environ.get(DIES_AT, "0"))
    (store / "sitecustomize.py").write_text(SITE, encoding="utf-8")
    paths = (str(store), str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.environ[STORE] = str(store)
    sys.argv = [module, *sys.argv[4:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
