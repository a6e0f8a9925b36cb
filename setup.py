"""Entry point for tools that still call setup.py; all metadata is in pyproject.toml.

Two rules of a build have no setting there: a package without the console's pages is
refused, and the sdist has the same bytes each time.
"""

import gzip
import os
import tarfile
import time
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist
from setuptools.errors import SetupError

PAGES = Path("backend_spark/console/static/index.html")


class BuildWithPages(build_py):
    """Copies the packages, which must have the console's built pages."""

    def run(self) -> None:
        """Raise SetupError before a wheel without pages is made."""
        if not self.editable_mode and not PAGES.is_file():
            raise SetupError(f"{PAGES} must be built; run scripts/setup first")
        super().run()


class ReproducibleSdist(sdist):
    """An archive that depends on names and contents of files and SOURCE_DATE_EPOCH."""

    def make_archive(
        self,
        base_name: str,
        format: str,  # noqa: A002 - the name is setuptools'
        root_dir: str | None = None,
        base_dir: str | None = None,
        **_owners: str | None,
    ) -> str:
        """Write the archive; returns its path."""
        if format != "gztar" or root_dir is not None or base_dir is None:
            raise SetupError(f"the format of a sdist must be gztar, got {format}")
        made_s = int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())  # noqa: TID251 - the build's clock
        path = f"{base_name}.tar.gz"

        def without_builder(member: tarfile.TarInfo) -> tarfile.TarInfo:
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime = made_s
            member.mode = 0o755 if member.mode & 0o100 else 0o644
            return member

        with (
            Path(path).open("wb") as raw,
            gzip.GzipFile("", "wb", fileobj=raw, mtime=made_s) as packed,
            # A hard link of the build is a file of its own.
            tarfile.open(fileobj=packed, mode="w", dereference=True) as tar,
        ):
            tar.add(base_dir, filter=without_builder)  # in the order of names
        return path


setup(cmdclass={"build_py": BuildWithPages, "sdist": ReproducibleSdist})
