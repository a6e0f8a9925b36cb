"""``gateway-daemon rollout``: which version the nodes of areas should run."""

import hashlib
import json
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from gateway_daemon.admin_client import Desk
from gateway_daemon.gateway.update_server import SUFFIX
from service_runtime.errors import FieldError
from service_runtime.lifecycle import EXIT_CONFIG
from service_runtime.settings import SettingsError
from service_runtime.tls import Endpoint
from spatial_mqtt.announcements import Rollout, Signer
from spatial_mqtt.certificate_renewal import tls_of
from spatial_mqtt.errors import BrokerError
from spatial_mqtt.topics import rollout_topic
from spatial_mqtt.transport import Publication

MANIFEST = "manifest.json"
MOST_MANIFEST_BYTES = 65_536
EXIT_FAILED, EXIT_USAGE = 1, 65


def of_bundle(path: Path, percent: float, at_s: float, *, withdrawn: bool) -> Rollout:
    """What is to be said of a bundle.

    Raises:
        FieldError: It is none.
        OSError: It cannot be read.
    """
    rule = "a bundle, *.update, as `make image` writes it"
    try:
        told = _manifest(path)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return Rollout(
            version=told["version"],
            sha256=digest,
            size_bytes=path.stat().st_size,
            at_s=at_s,
            role=told["role"],
            percent=percent,
            withdrawn=withdrawn,
        )
    except (tarfile.TarError, KeyError, TypeError, ValueError) as error:
        raise FieldError("bundle", rule, str(path), str(error)) from error


def _manifest(path: Path) -> dict[str, Any]:
    with tarfile.open(path, "r:") as tar:
        member = tar.next()
        file = None if member is None else tar.extractfile(member)
        if member is None or file is None or member.name != MANIFEST:
            raise ValueError(f"its first member must be {MANIFEST}")
        told: dict[str, Any] = json.loads(file.read(MOST_MANIFEST_BYTES))
        return told


@click.command()
@click.argument("bundle", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("areas", nargs=-1, required=True)
@click.option(
    "--manager",
    "managers",
    required=True,
    multiple=True,
    help="mqtt://host:port of a Manager; all that are named are told.",
)
@click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path),
    help="Settings whose [tls] names the certificates for mqtts://.",
)
@click.option(
    "--key",
    required=True,
    type=click.Path(path_type=Path),
    help="Private Ed25519 key (PEM) whose public half the nodes know.",
)
@click.option("--percent", default=100.0, show_default=True, help="How many of them.")
@click.option("--withdraw", is_flag=True, help="Nodes that have not begun shall not.")
def rollout(**given: Any) -> None:  # noqa: ANN401 - as click has it
    """Roll BUNDLE out to the nodes in AREAS, such as /1/2/2.

    Gateways give its bytes to their nodes, once a copy lies in their folder of
    updates under the name that is printed.
    """
    try:
        tls = tls_of(given["path"]) if given["path"] else None
        endpoints = [Endpoint.parse(url) for url in given["managers"]]
        at_s = time.time()  # noqa: TID251 - a command's clock
        percent, withdrawn = given["percent"], given["withdraw"]
        made = of_bundle(given["bundle"], percent, at_s, withdrawn=withdrawn)
        said = _sealed(made, given["areas"], Signer(given["key"]))
    except SettingsError as error:
        _fail(error, EXIT_CONFIG)
    except (FieldError, OSError) as error:
        _fail(error, EXIT_USAGE)
    try:
        for endpoint in endpoints:
            with Desk(endpoint, tls) as desk:
                desk.tell(said)
    except BrokerError as error:
        _fail(error, EXIT_FAILED)
    where = ", ".join(given["areas"])
    click.echo(f"{made.version} for {made.percent:g} % of {where}: {name_of(made)}")


def name_of(made: Rollout) -> str:
    """Under which name gateways look for the bundle."""
    return f"{made.sha256}{SUFFIX}"


def _sealed(made: Rollout, areas: Sequence[str], signer: Signer) -> list[Publication]:
    topics = [rollout_topic(area) for area in areas]
    return [
        Publication(topic, signer.seal(topic, made.encode()), retain=True)
        for topic in topics
    ]


def _fail(error: Exception, code: int) -> NoReturn:
    click.echo(f"gateway-daemon: {error}", err=True)
    raise SystemExit(code)
