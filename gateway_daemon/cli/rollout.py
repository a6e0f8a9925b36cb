"""The command ``rollout``: publishes which version the nodes of areas should run."""

import hashlib
import json
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from gateway_daemon.cli import fail, tls_option
from gateway_daemon.cli.admin import AdminClient
from gateway_daemon.gateway.notices_and_updates import BUNDLE_SUFFIX
from service_runtime.errors import FieldError
from service_runtime.lifecycle import EXIT_CONFIG, EXIT_USAGE_DATA
from service_runtime.settings import SettingsError
from service_runtime.tls import Endpoint, check_link
from spatial_mqtt.announcements import Rollout
from spatial_mqtt.certificates import read_tls_settings
from spatial_mqtt.errors import BrokerError
from spatial_mqtt.notice_signatures import NoticeSigner
from spatial_mqtt.topics import rollout_topic
from spatial_mqtt.transport import Publication

MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 65_536


def describe_bundle(
    path: Path, percent: float, at_s: float, *, withdrawn: bool
) -> Rollout:
    """Describe a bundle for the nodes.

    Raises:
        FieldError: It is not a bundle.
        OSError: It cannot be read.
    """
    rule = "a bundle, *.update, as `make image` writes it"
    try:
        manifest = _manifest(path)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return Rollout(
            version=manifest["version"],
            sha256=digest,
            size_bytes=path.stat().st_size,
            at_s=at_s,
            role=manifest["role"],
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
        manifest: dict[str, Any] = json.loads(file.read(MAX_MANIFEST_BYTES))
        return manifest


@click.command()
@click.argument("bundle", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("areas", nargs=-1, required=True)
@click.option(
    "--manager",
    "managers",
    required=True,
    multiple=True,
    help="mqtt://host:port of a Manager; repeatable, each of them publishes it.",
)
@tls_option
@click.option(
    "--key",
    required=True,
    type=click.Path(path_type=Path),
    help="Private Ed25519 key (PEM); the nodes have its public key.",
)
@click.option("--percent", default=100.0, show_default=True, help="Share of the nodes.")
@click.option("--withdraw", is_flag=True, help="Stop nodes that have not begun.")
def rollout(**options: Any) -> None:  # noqa: ANN401 - values of click options
    """Roll BUNDLE out to the nodes in AREAS, such as /1/2/2.

    Copy the bundle into the updates folder of each gateway, under the name that this
    command prints; gateways serve it to their nodes.
    """
    try:
        tls = read_tls_settings(options["path"]) if options["path"] else None
        endpoints = [Endpoint.parse(url) for url in options["managers"]]
        for endpoint in endpoints:
            check_link(endpoint, tls)
        at_s = time.time()  # noqa: TID251 - a command's clock
        percent, withdrawn = options["percent"], options["withdraw"]
        made = describe_bundle(options["bundle"], percent, at_s, withdrawn=withdrawn)
        publications = _seal(made, options["areas"], NoticeSigner(options["key"]))
    except SettingsError as error:
        fail(error, EXIT_CONFIG)
    except (FieldError, OSError) as error:
        fail(error, EXIT_USAGE_DATA)
    try:
        for endpoint in endpoints:
            with AdminClient(endpoint, tls) as client:
                client.publish_all(publications)
    except BrokerError as error:
        fail(error)
    areas, file = ", ".join(options["areas"]), f"{made.sha256}{BUNDLE_SUFFIX}"
    click.echo(f"{made.version} for {made.percent:g} % of {areas}: {file}")


def _seal(
    made: Rollout, areas: Sequence[str], signer: NoticeSigner
) -> list[Publication]:
    topics = [rollout_topic(area) for area in areas]
    return [
        Publication(topic, signer.sign(topic, made.encode()), retain=True)
        for topic in topics
    ]
