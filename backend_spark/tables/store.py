"""Storage of the tables: a folder, or a prefix in an object store by its URL.

delta-rs reads and commits the tables, pyarrow reads and writes their other files. Both
take credentials and endpoint from the environment, so that neither settings nor the
tasks of Spark contain a secret. The names are those of delta-rs: ``AWS_*``, ``AZURE_*``
and ``GOOGLE_*``.

An object is durable when its request has returned, and a commit is a conditional
request: one of two writers of the same version is refused. So fsync and the repair of
torn files are for folders only.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from deltalake import DeltaTable
from pyarrow import fs

from backend_spark.config import TABLES_FOLDER, BackendSection, parse_tables_url
from service_runtime.errors import FieldError
from service_runtime.files import fsync_folder, make_folder, write_atomic
from service_runtime.settings import Problem, SettingsError

_EMULATOR_URL: Final = "http://127.0.0.1:10000"
"""Azurite, unless ``AZURITE_BLOB_STORAGE_URL`` says where it is."""


@dataclass(frozen=True)
class StoreFolder:
    """A prefix of an object store; has the part of `Path` that the tables need.

    Attributes:
        url: URL without a slash at its end, such as ``s3://bucket/backend``.
    """

    url: str

    def __truediv__(self, name: str) -> "StoreFolder":
        """A file or folder in it."""
        return StoreFolder(f"{self.url}/{name}")

    def __str__(self) -> str:
        """URL of the folder."""
        return self.url

    @property
    def name(self) -> str:
        """Last part."""
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> "StoreFolder":
        """The folder that it is in."""
        return StoreFolder(self.url.rpartition("/")[0])


Folder = Path | StoreFolder
"""Where tables are."""

APP_ID_FILE: Final = ".app_id"
"""In the folder of the tables: id of the scoring job's batches in transactions."""

REPLAY_FILE: Final = ".replaying"
"""Likewise, while a replay is unfinished: its interval."""


def tables_folder(section: BackendSection) -> Folder:
    """Where the settings have the tables: ``backend.tables``, else in the data folder.

    Raises:
        SettingsError: The environment does not fit ``backend.tables``.
    """
    if section.tables is None:
        return Path(section.data) / TABLES_FOLDER
    try:
        return parse_folder(section.tables)
    except FieldError as error:
        raise SettingsError([Problem.of(error)]) from error


def parse_folder(text: str) -> Folder:
    """Parse a URL, or the path of a folder.

    Raises:
        FieldError: It is no URL of a store, or the environment does not fit it.
    """
    url = parse_tables_url(text)
    if url is None:
        return Path(text)
    if url.scheme == "file":
        return Path(url.path)
    _check_environment(url.scheme, os.environ)  # noqa: TID251 - credentials
    return StoreFolder(text.rstrip("/"))


def _endpoint(scheme: str, environment: Mapping[str, str]) -> str | None:
    """URL of a store that is not the provider's own."""
    if scheme == "s3":
        return environment.get("AWS_ENDPOINT_URL")
    if scheme == "az" and environment.get("AZURE_STORAGE_USE_EMULATOR") == "true":
        return environment.get("AZURITE_BLOB_STORAGE_URL", _EMULATOR_URL)
    return None


_PLAIN: Final = {"s3": "AWS_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP"}


def _check_environment(scheme: str, environment: Mapping[str, str]) -> None:
    """Refuse plain HTTP, unless it is allowed, and credentials that errors would show.

    Raises:
        FieldError: A variable is refused.
    """
    if scheme == "az" and environment.get("AZURE_STORAGE_SAS_TOKEN"):
        rule = "absent, because errors of the store would contain the token"
        remedy = "set AZURE_STORAGE_ACCOUNT_KEY, or use a managed identity"
        raise FieldError("AZURE_STORAGE_SAS_TOKEN", rule, "a token", remedy)
    endpoint = _endpoint(scheme, environment)
    if endpoint is None or not endpoint.startswith("http://"):
        return
    if environment.get(_PLAIN[scheme]) != "true":
        remedy = f"where the network itself is protected, set {_PLAIN[scheme]}=true"
        rule = "https:// in the environment"
        raise FieldError("endpoint of the object store", rule, endpoint, remedy)


@lru_cache(maxsize=8)
def _file_system(scheme: str, endpoint: str | None) -> fs.FileSystem:
    """File system of a scheme, with the credentials of the environment."""
    environment = os.environ  # noqa: TID251 - credentials
    if scheme == "s3":
        region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
        # A small file is one request instead of three.
        return fs.S3FileSystem(
            endpoint_override=endpoint, region=region, allow_delayed_open=True
        )
    if scheme == "gs":
        return fs.GcsFileSystem()
    host = {} if endpoint is None else _emulator_options(endpoint)
    return fs.AzureFileSystem(
        account_name=environment.get("AZURE_STORAGE_ACCOUNT_NAME", ""),
        account_key=environment.get("AZURE_STORAGE_ACCOUNT_KEY"),
        **host,
    )


def _emulator_options(endpoint: str) -> dict[str, str]:
    url = urlsplit(endpoint)
    kinds = ("blob", "dfs")
    options = {f"{kind}_storage_authority": url.netloc for kind in kinds}
    return options | {f"{kind}_storage_scheme": url.scheme for kind in kinds}


def open_files(folder: Folder) -> fs.FileSystem:
    """File system whose paths are relative to a folder.

    Files appear as a whole when they are closed, at a store. In Python's own file
    systems (delta-rs, fsspec) threads of Arrow outlive the interpreter.
    """
    if isinstance(folder, Path):
        return fs.SubTreeFileSystem(str(folder.absolute()), fs.LocalFileSystem())
    url = urlsplit(folder.url)
    files = _file_system(url.scheme, _endpoint(url.scheme, os.environ))  # noqa: TID251
    return fs.SubTreeFileSystem(url.netloc + url.path, files)


def table_url(folder: Folder) -> str:
    """Absolute path or URL of a table for delta-rs."""
    return str(folder.absolute() if isinstance(folder, Path) else folder)


def open_table(folder: Folder, version: int | None = None) -> DeltaTable:
    """Open a table, at its newest version or another."""
    return DeltaTable(table_url(folder), version)


def is_table(folder: Folder) -> bool:
    """Whether a folder is a table."""
    return DeltaTable.is_deltatable(table_url(folder))


def version_with_rows(folder: Folder) -> int | None:
    """Newest version of a table; None if there is no table, or none with a row."""
    if not is_table(folder):
        return None
    table = open_table(folder)
    return table.version() if table.file_uris() else None


def file_names(table: DeltaTable) -> list[str]:
    """Names of the files of a table, within its folder."""
    return [uri.rpartition("/")[2] for uri in table.file_uris()]


def has_file(folder: Folder, name: str) -> bool:
    """Whether a folder has a file."""
    return bool(open_files(folder).get_file_info(name).type == fs.FileType.File)


def read_text(folder: Folder, name: str) -> str:
    """Text of a file.

    Raises:
        FileNotFoundError: There is none.
    """
    with open_files(folder).open_input_file(name) as file:
        return str(file.read(), "utf-8")


def write_text(folder: Folder, name: str, text: str) -> None:
    """Write a file as a whole; durable when this returns."""
    if isinstance(folder, Path):
        make_folder(folder)
        write_atomic(folder / name, text.encode())
        return
    with open_files(folder).open_output_stream(name) as file:
        file.write(text.encode())


def delete_file(folder: Folder, name: str) -> None:
    """Delete a file; durable when this returns."""
    open_files(folder).delete_file(name)
    if isinstance(folder, Path):
        fsync_folder(folder)
