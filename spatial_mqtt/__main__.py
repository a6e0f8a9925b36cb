"""Commands of ``spatial-mqtt``: publish, subscribe by position, renew certificates."""

import getpass
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from service_runtime.cli import SETTINGS_FILE
from service_runtime.errors import FieldError
from service_runtime.lifecycle import EXIT_CONFIG, explain_denied
from service_runtime.settings import SettingsError
from service_runtime.tls import TlsFiles
from spatial_mqtt.certificates import read_tls_settings, renew_if_due
from spatial_mqtt.client import Client, SpatialMessage
from spatial_mqtt.errors import EnvelopeError
from spatial_mqtt.priority import LADDER
from spatial_mqtt.senml import decode_pack

EXIT_FAILED, EXIT_USAGE = 1, 64

Command = Callable[..., Any]


def main() -> None:
    """Run the command line."""
    cli(prog_name="spatial-mqtt")


def parse_position(text: str) -> tuple[float, float]:
    """Parse ``LATITUDE,LONGITUDE``.

    Raises:
        click.BadParameter: The text has another form.
    """
    try:
        latitude, longitude = map(float, text.split(","))
    except ValueError as error:
        raise click.BadParameter(
            f"must be LATITUDE,LONGITUDE in degrees, got {text!r}"
        ) from error
    return latitude, longitude


def _common_options(command: Command) -> Command:
    command = click.option(
        "--manager",
        "managers",
        multiple=True,
        required=True,
        help="mqtt://host:port or mqtts://host:port; may be given several times.",
    )(command)
    command = click.option(
        "--config",
        "tls",
        type=SETTINGS_FILE,
        callback=lambda _context, _option, path: (
            path and _try(lambda: read_tls_settings(path))
        ),
        help="Settings whose [tls] names the certificates for mqtts://.",
    )(command)
    name = f"{getpass.getuser()}-{socket.gethostname()}-{os.getpid()}"
    return click.option("--id", "client_id", default=name, help="MQTT client id.")(
        command
    )


@click.group()
@click.version_option(package_name="yamamori")
def cli() -> None:
    """Publish and subscribe by position on the earth."""


@cli.command()
@_common_options
@click.option(
    "--at", "where", type=parse_position, required=True, help="LATITUDE,LONGITUDE."
)
@click.option(
    "--priority", type=click.IntRange(1, LADDER.top), help="5 is the most urgent."
)
@click.argument("payload", required=False)
def pub(
    managers: tuple[str, ...],
    client_id: str,
    tls: TlsFiles | None,
    *,
    where: tuple[float, float],
    priority: int | None,
    payload: str | None,
) -> None:
    """Publish PAYLOAD, or each line of standard input, for a position."""
    lines = [payload] if payload is not None else sys.stdin.read().splitlines()
    with _client(managers, client_id, tls) as client:
        gateway = _try(lambda: client.connect(*where))
        sent = [client.publish_at(*where, each.encode(), priority) for each in lines]
        if not all(sent) or not client.flush():
            _fail(f"{gateway} did not acknowledge all; send again what matters")
    click.echo(f"{len(lines)} sent by {gateway}", err=True)


@cli.command()
@_common_options
@click.option(
    "--around", type=parse_position, required=True, help="LATITUDE,LONGITUDE."
)
@click.option("--radius-km", type=float, default=1.0, show_default=True)
@click.option(
    "--count", type=click.IntRange(1), help="Exit after this number of messages."
)
def sub(
    managers: tuple[str, ...],
    client_id: str,
    tls: TlsFiles | None,
    *,
    around: tuple[float, float],
    radius_km: float,
    count: int | None,
) -> None:
    """Print the messages published in a circle, until Ctrl-C."""
    with _client(managers, client_id, tls) as client:
        filters = _try(lambda: client.subscribe_around(*around, radius_km))
        gateway = _try(lambda: client.connect(*around))
        click.echo(f"listening on {gateway}: {' '.join(sorted(filters))}", err=True)
        for number, message in enumerate(client.messages(), start=1):
            click.echo(format_message(message))
            if number == count:
                break


@cli.command(name="renew")
@click.option(
    "--config",
    "path",
    required=True,
    type=SETTINGS_FILE,
    help="Settings of a program; its [tls] section is used.",
)
@click.option(
    "--now",
    "is_forced",
    is_flag=True,
    help="Ask the signer, whose clock decides, even if it is not due by ours.",
)
@click.option(
    "--credentials",
    envvar="CREDENTIALS_DIRECTORY",
    type=click.Path(path_type=Path),
    help="Folder with the credentials that the settings have in another unit's.",
)
def renew_certificate(path: Path, is_forced: bool, credentials: Path | None) -> None:
    """Renew a program's certificate if two thirds of its validity are over."""
    try:
        files = read_tls_settings(path, credentials)
        click.echo(renew_if_due(files, time.time(), is_forced=is_forced))  # noqa: TID251
    except SettingsError as error:
        _fail(str(error), EXIT_CONFIG)
    except FieldError as error:
        _fail(str(error))
    except OSError as error:  # includes BrokerError
        _fail(explain_denied(error) or str(error))


def format_message(message: SpatialMessage) -> str:
    """Format a message as one line; with its readings if it is a SenML pack."""
    late = f" ({message.age_s} s late)" if message.age_s else ""
    try:
        pack = decode_pack(message.payload)
    except EnvelopeError:
        shown = message.payload.decode(errors="backslashreplace")
        level = message.priority or "-"
        return f"{message.topic}  {level}{late}  {shown}"
    readings = ", ".join(
        f"{r.name} {r.sum if r.value is None else r.value!s} {r.unit or ''}".rstrip()
        for r in pack.readings
    )
    why = f"  [{pack.why}]" if pack.why else ""
    return f"{message.topic}  {pack.priority}{late}  {pack.id}  {readings}{why}"


def _client(managers: tuple[str, ...], client_id: str, tls: TlsFiles | None) -> Client:
    client: Client = _try(lambda: Client(managers, client_id, tls=tls))
    return client


def _try(action: Callable[[], Any]) -> Any:  # noqa: ANN401 - result of the action
    try:
        return action()
    except FieldError as error:
        _fail(str(error), EXIT_USAGE)
    except SettingsError as error:
        _fail(str(error), EXIT_CONFIG)
    except OSError as error:  # includes BrokerError
        _fail(explain_denied(error) or str(error))


def _fail(text: str, code: int = EXIT_FAILED) -> None:
    click.echo(f"spatial-mqtt: {text}", err=True)
    raise SystemExit(code)


if __name__ == "__main__":
    main()
