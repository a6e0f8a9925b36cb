"""``python -m powercut <store> <root> <module> ...``: every fsync is recorded.

`cut` then leaves the folder as a loss of power may leave it at worst: of a file what
was in it at its last fsync, of a folder the names at its last fsync, and nothing
else. It is recorded before the program learns that its fsync is done. What is there
at the start counts as synced.
"""

import json
import os
import runpy
import shutil
import stat
import sys
import threading
from pathlib import Path
from typing import Any

JOURNAL = "journal"


class Recorder:
    """Takes the place of `os.fsync`."""

    def __init__(self, store: Path) -> None:
        store.mkdir(parents=True, exist_ok=True)
        self._store = store
        self._fsync = os.fsync
        self._lock = threading.Lock()
        self._versions: dict[int, str] = {}
        self._count = 0
        self._journal = (store / JOURNAL).open("a", encoding="utf-8")

    def __call__(self, where: Any) -> None:  # noqa: ANN401 - a descriptor or a file
        descriptor = where if isinstance(where, int) else where.fileno()
        with self._lock:
            self._fsync(descriptor)
            told = os.fstat(descriptor)
            if stat.S_ISDIR(told.st_mode):
                self._note_folder(descriptor)
            else:
                self._keep(descriptor, told.st_ino)

    def keep_all(self, folder: Path) -> None:
        """Record what is in a folder, and below it."""
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

    def _keep(self, descriptor: int, inode: int) -> None:
        self._count += 1
        version = f"{os.getpid()}-{self._count}"
        shutil.copyfile(f"/proc/self/fd/{descriptor}", self._store / version)
        self._versions[inode] = version

    def _note_folder(self, descriptor: int) -> None:
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        names: dict[str, str | None] = {}
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir():
                    names[f"{entry.name}/"] = None
                else:
                    names[entry.name] = self._versions.get(entry.inode())
        line = json.dumps({"path": path, "names": names})
        self._journal.write(line + "\n")
        self._journal.flush()


def cut(store: Path, root: Path) -> None:
    """Leave of a folder what survives, and begin anew."""
    lines = (store / JOURNAL).read_text(encoding="utf-8").splitlines()
    folders = {told["path"]: told["names"] for told in map(json.loads, lines)}
    rest = root.with_name(f"{root.name}-rest")
    _rebuild(store, folders, root, rest)
    shutil.rmtree(root)
    shutil.rmtree(store)
    rest.rename(root)


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
    """Run a module."""
    store, root, module = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    recorder = Recorder(store)
    recorder.keep_all(root)
    os.fsync = recorder
    sys.argv = [module, *sys.argv[4:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
