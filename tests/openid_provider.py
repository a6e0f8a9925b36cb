"""A real OpenID provider for tests: oidc-provider, which `make stores` installs."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
from conftest import free_port, wait_until
from console_workspace import HTTP_ONLY

PROGRAM: Final = Path(__file__).parent / "stores/openid_provider.mjs"
LIBRARY: Final = Path(__file__).parent / "stores/node_modules/oidc-provider"
SECRET: Final = "a secret: of tests & more"  # noqa: S105 - of the test's client
START_S: Final = 60.0


@dataclass(frozen=True)
class TestProvider:
    """A running provider.

    Attributes:
        port: On this machine.
        process: That runs it.
    """

    __test__ = False  # its name begins like a test's

    port: int
    process: "subprocess.Popen[bytes]"

    @property
    def issuer(self) -> str:
        """Its URL; for a browser it is another site than the console at 127.0.0.1."""
        return f"http://localhost:{self.port}"

    def settings(self, folder: Path, console_port: int, more: str = "") -> str:
        """Settings of a console that uses it.

        Args:
            folder: For the file of the secret.
            console_port: Port of the console.
            more: Lines that are added to ``[console.oidc]``.
        """
        secret = folder / "client-secret"
        secret.write_text(SECRET + "\n", encoding="utf-8")
        return (
            f'address = "http://127.0.0.1:{console_port}"\n[console.oidc]\n'
            f'issuer = "{self.issuer}"\nclient_id = "console"\n'
            f'client_secret_file = "{secret}"\n'
            'viewers = ["staff"]\nchiefs = ["landslide-chief"]\n' + more
        )

    def damage(self, **faults: Any) -> None:  # noqa: ANN401 - JSON
        """Damage the ID tokens from now on; see the program."""
        _post(f"{self.issuer}/faults", faults)

    def change_keys(self) -> None:
        """Sign with another key from now on."""
        _post(f"{self.issuer}/keys")

    def stop(self) -> None:
        """Kill it."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def run_provider(console_port: int, log: Path) -> Iterator[TestProvider]:
    """Run the provider for a console on a port.

    Args:
        console_port: Where it sends browsers back.
        log: File of what it prints.
    """
    assert LIBRARY.exists(), "oidc-provider is missing: run make stores"
    node = shutil.which("node", path=f"{Path(sys.executable).parent}:/usr/bin")
    assert node is not None, "node is missing: run make setup"
    port = free_port()
    redirect = f"http://127.0.0.1:{console_port}/oidc/callback"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [node, str(PROGRAM), str(port), redirect],
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    provider = TestProvider(port, process)
    try:
        wait_until(lambda: _answers(provider) or process.poll() is not None, START_S)
        assert process.poll() is None, log.read_text(errors="replace")
        yield provider
    finally:
        if process.poll() is None:
            provider.stop()


def _answers(provider: TestProvider) -> bool:
    url = f"{provider.issuer}/jwks"
    try:
        return httpx.get(url, timeout=5, verify=HTTP_ONLY).status_code == 200
    except httpx.HTTPError:
        return False


def _post(url: str, json: object = None) -> None:
    httpx.post(url, json=json, timeout=60, verify=HTTP_ONLY).raise_for_status()


def sign_in_at(browser: httpx.Client, url: str, user: str) -> str:
    """Sign in at the provider by its forms.

    Args:
        browser: With the cookies of the user.
        url: Where the console sent the browser.
        user: Any name.

    Returns:
        Where the provider sends the browser: the callback of the console.
    """
    answer = browser.get(url)
    for _ in range(9):
        if "/oidc/callback" in answer.headers.get("location", ""):
            return answer.headers["location"]
        if answer.is_redirect:
            answer = browser.get(answer.url.join(answer.headers["location"]))
            continue
        assert answer.status_code == 200, answer.text
        action = re.search(r'action="([^"]+)"', answer.text)
        prompt = re.search(r'name="prompt" value="(\w+)"', answer.text)
        assert action is not None, answer.text
        assert prompt is not None, answer.text
        form = {"prompt": prompt[1], "login": user, "password": "any"}
        answer = browser.post(action[1], data=form)
    raise AssertionError(f"no end of redirects: {answer.headers}")
