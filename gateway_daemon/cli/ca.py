"""``gateway-daemon ca``: the municipal authority, and what brokers make of it."""

import os
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NoReturn, TypeVar

import click
import msgspec

from gateway_daemon import app, config
from gateway_daemon.ca import acl
from gateway_daemon.ca.acl import BrokerPlan
from gateway_daemon.ca.authority import (
    BROKER,
    DAY_S,
    EVERY_ROLE,
    AuthorityError,
    Identity,
    is_same_list,
)
from gateway_daemon.ca.store import (
    AUTHORITY,
    ISSUED,
    OPEN,
    REVOKED,
    SECRET,
    Folder,
    write,
)
from service_runtime import lifecycle
from service_runtime.lifecycle import serve
from service_runtime.settings import SettingsError

T = TypeVar("T")
EXIT_FAILED = 1
LIFE_DAYS = 398.0


@click.group(name="ca")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path("/var/lib/yamamori-ca"),
    show_default=True,
    help="Where the authority is kept.",
)
@click.option(
    "--password-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File of the password that locks the authority's key.",
)
@click.pass_context
def ca_commands(
    context: click.Context, folder: Path, password_file: Path | None
) -> None:
    """Certificates: who is who in the system, and what each may say."""
    password = password_file.read_bytes().strip() if password_file else None
    context.obj = Folder(folder, time.time, password)  # noqa: TID251 - a command's clock


@ca_commands.command()
@click.argument("name")
@click.pass_obj
def init(folder: Folder, name: str) -> None:
    """Make the authority of the municipality NAME."""
    _try(lambda: folder.create(name))
    click.echo(f"{folder.path / AUTHORITY}: give it to every machine; the key to none")


@ca_commands.command()
@click.argument("role", type=click.Choice(EVERY_ROLE))
@click.argument("name")
@click.option(
    "--cell", "cells", multiple=True, help="Area, such as /1/2/2; repeatable."
)
@click.option("--host", "hosts", multiple=True, help="Name or address of a broker.")
@click.option("--days", type=float, default=LIFE_DAYS, show_default=True)
@click.pass_obj
def issue(
    folder: Folder,
    role: str,
    name: str,
    *,
    cells: tuple[str, ...],
    hosts: tuple[str, ...],
    days: float,
) -> None:
    """Issue a certificate and its key to the ROLE called NAME."""
    identity = Identity(role, name, cells, hosts)
    made = _try(lambda: folder.issue_with_key(identity, days * DAY_S))
    click.echo(f"{made} and {made.with_suffix('.key').name}")


@ca_commands.command()
@click.argument("name")
@click.pass_obj
def revoke(folder: Folder, name: str) -> None:
    """Take back every certificate of NAME; then run broker-config for each broker."""
    _try(lambda: folder.revoke(name))
    click.echo(f"revoked; brokers know it from the next broker-config on ({name})")


@ca_commands.command(name="list")
@click.option("--json", "is_json", is_flag=True, help="JSON instead of a table.")
@click.pass_obj
def list_issued(folder: Folder, is_json: bool) -> None:
    """List certificates, with the day each ends."""
    register = _try(folder.register)
    if is_json:
        click.echo(msgspec.json.encode(register))
        return
    for each in register.issued:
        until = datetime.fromtimestamp(each.until_s, UTC)
        state = "revoked" if each.revoked_s is not None else f"until {until:%Y-%m-%d}"
        who = each.identity
        places = " ".join((*who.cells, *who.hosts))
        click.echo(f"{who.role:<8} {who.name:<24} {state:<17} {places}".rstrip())


@ca_commands.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="File.")
@click.pass_obj
def places(folder: Folder, out: Path) -> None:
    """Write where each name may speak from, for the backend's ingest.places."""
    told = _try(folder.register).places(time.time())  # noqa: TID251
    _try(lambda: write(out, msgspec.json.encode(told), OPEN))
    click.echo(f"{out}: places of {len(told)} names")


@ca_commands.command(name="broker-config")
@click.argument("kind", type=click.Choice(acl.KINDS))
@click.argument("name")
@click.option(
    "--broker", help="Name of the broker's certificate; NAME-broker if absent."
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder.")
@click.option("--at", type=click.Path(path_type=Path), help="Where Mosquitto finds it.")
@click.option("--port", type=click.IntRange(1, 65535), default=8883, show_default=True)
@click.option(
    "--daemons-port", type=click.IntRange(1, 65535), default=8884, show_default=True
)
@click.option("--bind", default="0.0.0.0", show_default=True)  # noqa: S104
@click.option("--owner", help="Who reads the key: the user that Mosquitto runs as.")
@click.option("--reload", "pid", type=int, help="Process of the Mosquitto to tell.")
@click.pass_obj
def broker_config(folder: Folder, /, kind: str, name: str, **more: object) -> None:
    """Write what the Mosquitto of KIND needs; NAME is its gateway's or Manager's."""
    out = Path(str(more["out"]))
    at = Path(str(more["at"] or out.resolve()))
    ports = int(str(more["port"])), int(str(more["daemons_port"]))
    plan = BrokerPlan(kind, at, *ports, bind=str(more["bind"]))
    holders = _try(folder.register).holders(time.time())  # noqa: TID251
    issued = folder.path / ISSUED / str(more["broker"] or f"{name}-broker")
    key = issued.with_name(issued.name + ".key")
    if not key.exists():
        _fail(f"{key} is missing; issue {BROKER} {issued.name} --host ... first")
    out.mkdir(mode=0o755, parents=True, exist_ok=True)
    files = {
        "yamamori.conf": plan.text().encode(),
        "acl": acl.acl(kind, name, holders).encode(),
        "ca.pem": (folder.path / AUTHORITY).read_bytes(),
        "revoked.pem": (folder.path / REVOKED).read_bytes(),
        "broker.pem": issued.with_name(issued.name + ".pem").read_bytes(),
        "broker.key": key.read_bytes(),
    }
    news = _put(out, files, None if more["owner"] is None else str(more["owner"]))
    click.echo(f"{out / 'yamamori.conf'}: {len(holders)} certificates count")
    if REVOKED in news:
        click.echo(
            f"{out / REVOKED} has changed: links of what was revoked end when the "
            "broker starts again (systemctl restart mosquitto)"
        )
    if more["pid"]:
        os.kill(int(str(more["pid"])), signal.SIGHUP)


def _put(out: Path, files: dict[str, bytes], owner: str | None) -> set[str]:
    """Write what says something new; its names. Who watches a file goes by that."""
    news = {name: data for name, data in files.items() if not _says(out / name, data)}
    for name, data in news.items():
        mode = SECRET if name.endswith((".key", "acl")) else OPEN
        _try(partial(write, out / name, data, mode, owner))
    return set(news)


def _says(path: Path, data: bytes) -> bool:
    """Whether a file says the same already; a list of revocations is dated anew."""
    if not path.exists():
        return False
    there = path.read_bytes()
    if path.name != REVOKED:
        return there == data
    return is_same_list(there, data)


@ca_commands.command()
@click.option(
    "--config",
    "path",
    required=True,
    type=click.Path(path_type=Path),
    help="Settings in TOML.",
)
@click.option("--verbose", is_flag=True, help="Log every step.")
@click.pass_obj
def sign(folder: Folder, path: Path, verbose: bool) -> None:
    """Renew certificates for those who ask on a Manager's broker, until SIGTERM."""
    try:
        settings = config.read_signer(path)
    except (SettingsError, OSError) as error:
        raise SystemExit(
            lifecycle.exit_for_settings("gateway-daemon", error)
        ) from error
    _try(folder.authority)
    lifecycle.log_to_stderr(verbose)
    lifecycle.die_on_unknown_errors()
    serve(*app.signer(settings, folder))


def _try(act: Callable[[], T]) -> T:
    try:
        return act()
    except (AuthorityError, OSError, LookupError) as error:
        _fail(str(error))


def _fail(words: str) -> NoReturn:
    click.echo(f"gateway-daemon: {words}", err=True)
    raise SystemExit(EXIT_FAILED)
