"""``spatial-mqtt``: publish and listen by place, for people at a terminal."""

import getpass
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

import click

from spatial_mqtt.client import Client, Message
from spatial_mqtt.envelope import decode
from spatial_mqtt.errors import BrokerError, EnvelopeError, FieldError
from spatial_mqtt.priority import LADDER

EXIT_FAILED, EXIT_USAGE = 1, 64

Command = Callable[..., Any]


def main() -> None:
    """Run the command line."""
    cli(prog_name="spatial-mqtt")


def place(text: str) -> tuple[float, float]:
    """Parse ``LATITUDE,LONGITUDE``.

    Raises:
        click.BadParameter: It is none.
    """
    try:
        latitude, longitude = map(float, text.split(","))
    except ValueError as error:
        raise click.BadParameter(
            f"must be LATITUDE,LONGITUDE in degrees, got {text!r}"
        ) from error
    return latitude, longitude


def _shared(command: Command) -> Command:
    command = click.option(
        "--manager",
        "managers",
        multiple=True,
        required=True,
        help="mqtt://host:port or mqtts://host:port; may be given several times.",
    )(command)
    name = f"{getpass.getuser()}-{socket.gethostname()}-{os.getpid()}"
    return click.option("--id", "client_id", default=name, help="MQTT client id.")(
        command
    )


@click.group()
@click.version_option(package_name="yamamori")
def cli() -> None:
    """Publish and listen by place on the earth."""


@cli.command()
@_shared
@click.option("--at", "where", type=place, required=True, help="LATITUDE,LONGITUDE.")
@click.option(
    "--priority", type=click.IntRange(1, LADDER.top), help="5 is the most urgent."
)
@click.argument("payload", required=False)
def pub(
    managers: tuple[str, ...],
    client_id: str,
    where: tuple[float, float],
    priority: int | None,
    payload: str | None,
) -> None:
    """Publish PAYLOAD, or each line of standard input, for a place."""
    lines = [payload] if payload is not None else sys.stdin.read().splitlines()
    with _client(managers, client_id) as client:
        gateway = _try(lambda: client.connect(*where))
        sent = [client.publish_at(*where, each.encode(), priority) for each in lines]
        if not all(sent) or not client.flush():
            _fail(f"{gateway} did not acknowledge all; send again what matters")
    click.echo(f"{len(lines)} sent by {gateway}", err=True)


@cli.command()
@_shared
@click.option("--around", type=place, required=True, help="LATITUDE,LONGITUDE.")
@click.option("--radius-km", type=float, default=1.0, show_default=True)
@click.option("--count", type=click.IntRange(1), help="End after so many messages.")
def sub(
    managers: tuple[str, ...],
    client_id: str,
    around: tuple[float, float],
    radius_km: float,
    count: int | None,
) -> None:
    """Print what is published in a circle, until Ctrl-C."""
    with _client(managers, client_id) as client:
        filters = _try(lambda: client.subscribe_around(*around, radius_km))
        gateway = _try(lambda: client.connect(*around))
        click.echo(f"listening on {gateway}: {' '.join(sorted(filters))}", err=True)
        for number, message in enumerate(client.messages(), start=1):
            click.echo(words(message))
            if number == count:
                break


def words(message: Message) -> str:
    """One line for a message: its readings if it is one of ours."""
    late = f" ({message.age_s} s late)" if message.age_s else ""
    try:
        pack = decode(message.payload)
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


def _client(managers: tuple[str, ...], client_id: str) -> Client:
    made: Client = _try(lambda: Client(managers, client_id))
    return made


def _try(act: Callable[[], Any]) -> Any:  # noqa: ANN401 - what the act gives
    try:
        return act()
    except FieldError as error:
        _fail(str(error), EXIT_USAGE)
    except BrokerError as error:
        _fail(str(error))


def _fail(words_: str, code: int = EXIT_FAILED) -> None:
    click.echo(f"spatial-mqtt: {words_}", err=True)
    raise SystemExit(code)
