"""A virtual environment in a tar archive, as executors of a Spark cluster get it."""

import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path
from typing import Final

from page_shell import ROOT

SITE: Final = Path(sysconfig.get_path("purelib"))
TASKS: Final = (
    "import sys; import backend_spark.streaming.workers, backend_spark.streaming.job; "
    "print(*{name.partition('.')[0] for name in sys.modules})"
)
"""Prints the modules that a task imports."""

OF_WORKERS: Final = {"pyspark", "py4j"}
"""A worker gives its executors its own Spark."""


def pack_environment(folder: Path) -> Path:
    """Make the archive from what is installed here; returns its path.

    An operator installs into a new environment with pip. This copies the libraries that
    tasks import, which gives an archive of the same form, smaller and without network.
    """
    environment, archive = folder / "packed", folder / "environment.tar.gz"
    venv.create(environment, with_pip=False, symlinks=True)
    done = subprocess.run(
        [sys.executable, "-c", TASKS], capture_output=True, text=True, check=True
    )
    ours = {path.parent.name: path.parent for path in ROOT.glob("*/__init__.py")}
    lib = Path(f"lib/python{sysconfig.get_python_version()}/site-packages")
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        for path in (environment / "bin", environment / "pyvenv.cfg"):
            tar.add(path, path.name)
        for name in sorted(set(done.stdout.split()) - OF_WORKERS):
            found = [ours[name]] if name in ours else list(SITE.glob(f"{name}.*"))
            found += [path for path in (SITE / name,) if path.is_dir()]
            for path in found:
                tar.add(path, str(lib / path.name), filter=_without_tests)
    return archive


def _without_tests(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    parts = set(Path(member.name).parts)
    return (
        None if parts & {"tests", "__pycache__", "node_modules", "static"} else member
    )
