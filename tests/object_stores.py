"""Object stores for tests: moto for the protocol of S3, Azurite for that of Azure.

Both are servers of their own. `make stores` installs Azurite.
"""

import http.client
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from conftest import free_port, wait_until
from pyarrow import fs

AZURITE: Final = (
    Path(__file__).parent / "stores/node_modules/azurite/dist/src/blob/main.js"
)
ACCOUNT: Final = "devstoreaccount1"
KEY: Final = (  # published, the same in each Azurite
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
START_S: Final = 60.0


@dataclass(frozen=True)
class ObjectStore:
    """A running store.

    Attributes:
        scheme: Of its URLs.
        port: On this machine.
        environment: How programs reach it.
    """

    scheme: str
    port: int
    environment: dict[str, str]

    def make_place(self) -> str:
        """URL of a new bucket or container."""
        name = f"test-{uuid.uuid4()}"
        if self.scheme == "s3":
            link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
            link.request("PUT", f"/{name}")
            assert link.getresponse().status == 200
            link.close()
        else:
            authorities = dict.fromkeys(
                ("blob_storage_authority", "dfs_storage_authority"),
                f"127.0.0.1:{self.port}",
            )
            schemes = dict.fromkeys(
                ("blob_storage_scheme", "dfs_storage_scheme"), "http"
            )
            fs.AzureFileSystem(
                account_name=ACCOUNT, account_key=KEY, **authorities, **schemes
            ).create_dir(name)
        return f"{self.scheme}://{name}/backend"


@contextmanager
def run_store(scheme: str, log: Path) -> Iterator[ObjectStore]:
    """Run the server of a scheme, s3 or az.

    Args:
        scheme: Of its URLs.
        log: File of what it prints.
    """
    port = free_port()
    with log.open("wb") as out:
        server = subprocess.Popen(
            _command(scheme, port),
            stdout=out,
            stderr=out,
            cwd=log.parent,
            start_new_session=True,
        )
    try:
        wait_until(lambda: _answers(port) or server.poll() is not None, START_S)
        assert server.poll() is None, log.read_text(errors="replace")
        yield ObjectStore(scheme, port, _environment(scheme, port))
    finally:
        os.killpg(server.pid, signal.SIGKILL)  # the command node starts another one
        server.wait()


def _command(scheme: str, port: int) -> list[str]:
    if scheme == "s3":
        code = "from moto.server import main; main()"
        return [sys.executable, "-c", code, "-H", "127.0.0.1", "-p", str(port)]
    assert AZURITE.exists(), "Azurite is missing: run make stores"
    node = shutil.which("node", path=f"{Path(sys.executable).parent}:/usr/bin")
    assert node is not None, "node is missing: run make setup"
    where = ["--blobHost", "127.0.0.1", "--blobPort", str(port)]
    flags = ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"]
    return [node, str(AZURITE), *where, *flags, "--silent"]


def _answers(port: int) -> bool:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        link.request("GET", "/")
        return link.getresponse().status > 0
    except OSError:
        return False
    finally:
        link.close()


def _environment(scheme: str, port: int) -> dict[str, str]:
    endpoint = f"http://127.0.0.1:{port}"
    if scheme == "s3":
        return {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "ap-northeast-1",
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ALLOW_HTTP": "true",
        }
    return {
        "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": KEY,
        "AZURE_STORAGE_USE_EMULATOR": "true",
        "AZURITE_BLOB_STORAGE_URL": endpoint,
        "AZURE_ALLOW_HTTP": "true",
    }
