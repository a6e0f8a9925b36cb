"""``python -m powercut <store> <root> <module> ...``: every fsync is recorded.

Also those of Python processes that the program starts. `cut` then leaves the folder
as a loss of power may leave it at worst: of a file what was in it at its last fsync,
of a folder the names at its last fsync, and nothing else; or, as a journal of names
does it, all its names, and empty files where nothing was synced. It is recorded before
the program learns that its fsync is done. What is there at the start counts as synced.
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
"""In the environment: before which fsync of its own the program dies; 0: none."""

VERSION = "user.powercut"
"""The attribute of a file that names its last synced version, for every process."""

SITE = """
import os, pathlib
if os.environ.get("POWERCUT_STORE"):
    import powercut
    os.fsync = powercut.Recorder(pathlib.Path(os.environ["POWERCUT_STORE"]))
"""


class Recorder:
    """Takes the place of `os.fsync`."""

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
            told = os.fstat(descriptor)
            if stat.S_ISDIR(told.st_mode):
                self._note_folder(descriptor)
            else:
                self._keep(descriptor)

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

    def _keep(self, descriptor: int) -> None:
        self._count += 1
        version = f"{os.getpid()}-{self._count}"
        shutil.copyfile(f"/proc/self/fd/{descriptor}", self._store / version)
        os.setxattr(descriptor, VERSION, version.encode())

    def _note_folder(self, descriptor: int) -> None:
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
    """Leave of a folder what survives, and begin anew.

    Args:
        store: What was recorded.
        root: The folder.
        keeps_names: Whether names survive that no fsync of their folder saw.
    """
    rest = root.with_name(f"{root.name}-rest")
    if keeps_names:
        folders = {str(p): _names(p) for p in (root, *root.rglob("*")) if p.is_dir()}
    else:
        lines = (store / JOURNAL).read_text(encoding="utf-8").splitlines()
        folders = {told["path"]: told["names"] for told in map(json.loads, lines)}
    _rebuild(store, folders, root, rest)
    shutil.rmtree(root)
    shutil.rmtree(store)
    rest.rename(root)


def _names(folder: Path) -> dict[str, str | None]:
    return {
        f"{path.name}/" if path.is_dir() else path.name: _version(path)
        for path in folder.iterdir()
    }


def _version(path: str | Path) -> str | None:
    try:
        return os.getxattr(path, VERSION).decode()
    except OSError as error:
        # Never synced, or gone since the folder was listed.
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
    """Run a module."""
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
