"""An authority with certificates, and brokers that are stopped after the test."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import free_port, wait_until
from trust_bench import DUE_AGE_S, IssuingAuthority, Make, Person, TrustedBroker


@pytest.fixture
def authority(tmp_path: Path) -> IssuingAuthority:
    """A certificate authority."""
    return IssuingAuthority(tmp_path / "ca")


@pytest.fixture
def make_trusted(
    tmp_path: Path, authority: IssuingAuthority
) -> Iterator[Callable[..., TrustedBroker]]:
    """Start brokers with certificates of the authority."""
    brokers: list[TrustedBroker] = []

    def make(kind: str, owner: str) -> TrustedBroker:
        brokers.append(TrustedBroker(tmp_path, authority, kind, owner))
        return brokers[-1]

    yield make
    for broker in brokers:
        broker.kill()


@pytest.fixture
def join() -> Iterator[Callable[..., Person]]:
    """Connect clients that are disconnected after the test."""
    clients: list[Person] = []

    def make(*args: object, **more: object) -> Person:
        clients.append(Person(*args, **more))
        return clients[-1]

    yield make
    for client in clients:
        client.stop()


@pytest.fixture
def signer(
    authority: IssuingAuthority, make_trusted: Make, tmp_path: Path
) -> Iterator[TrustedBroker]:
    """The broker of Manager m1, with a signer as a process."""
    authority.issue("manager", "m1")
    tls = authority.issue("signer", "signer")
    for name in ("n1", "n2"):
        authority.issue("node", name, "/3/1/1/2", age_s=DUE_AGE_S)
    broker = make_trusted("manager", "m1")
    config = tmp_path / "signer.toml"
    config.write_text(
        f'[signer]\nbroker = "mqtts://{broker.daemons}"\nlife_days = 0.5\n'
        f'[tls]\nca = "{tls.ca}"\n'
        f'certificate = "{tls.certificate}"\nkey = "{tls.key}"\n'
    )
    metrics = f"127.0.0.1:{free_port()}"
    with config.open("a") as file:
        file.write(f'[metrics]\nlisten = "{metrics}"\n')
    broker.log.with_name("signer.metrics").write_text(metrics)
    words = [
        "ca",
        "--folder",
        str(authority.folder.path),
        "sign",
        "--config",
        str(config),
    ]
    log = broker.log.with_name("signer.log")
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway_daemon", *words], stderr=log.open("wb")
    )
    wait_until(lambda: "signer is up" in log.read_text())
    yield broker
    process.terminate()
    process.wait()
