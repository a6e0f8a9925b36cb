"""The command group ``ca``: the municipal certificate authority and broker files."""

import os
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

import click
import msgspec

from gateway_daemon import config
from gateway_daemon.app import Links, supervision
from gateway_daemon.ca import acl
from gateway_daemon.ca.acl import MosquittoConfig
from gateway_daemon.ca.authority import (
    ALL_ROLES,
    BROKER,
    DAY_S,
    AuthorityError,
    Identity,
    IssuedCertificate,
    is_same_crl,
)
from gateway_daemon.ca.signer import RenewalSigner
from gateway_daemon.ca.store import (
    AUTHORITY_FILE,
    CRL_FILE,
    INFRASTRUCTURE_CRL_FILE,
    ISSUED_FOLDER,
    PRIVATE_MODE,
    PUBLIC_MODE,
    ROOT_KEY_FILE,
    AuthorityFolder,
    write_file,
)
from gateway_daemon.cli import (
    config_option,
    fail,
    json_option,
    read_settings,
    verbose_option,
)
from gateway_daemon.config import SignerSettings
from service_runtime import lifecycle
from service_runtime.lifecycle import SystemdSupervisor, run_service
from service_runtime.metrics import make_metrics_servers
from service_runtime.watchdog import LoopWatchdog

T = TypeVar("T")
LIFE_DAYS = 398.0
BROKER_CERTIFICATE = {"broker.pem", "broker.key"}


@click.group(name="ca")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path("/var/lib/yamamori-ca"),
    show_default=True,
    help="Folder of the authority.",
)
@click.option(
    "--password-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File of the password that encrypts the authority's key.",
)
@click.pass_context
def ca_commands(
    context: click.Context, folder: Path, password_file: Path | None
) -> None:
    """Issue and revoke certificates, and write the brokers' access rules."""
    password = password_file.read_bytes().strip() if password_file else None
    context.obj = AuthorityFolder(folder, time.time, password)  # noqa: TID251 - a command's clock


token_option = click.option(
    "--token",
    help="URI (RFC 7512) of a new key in a PKCS #11 token, for the issuing authority: "
    "pkcs11:token=..;object=..?module-path=..&pin-source=/file.",
)


@ca_commands.command()
@click.argument("name")
@token_option
@click.pass_obj
def init(folder: AuthorityFolder, name: str, token: str | None) -> None:
    """Create the authority of the municipality NAME."""
    _try(lambda: folder.create(name, token))
    click.echo(
        f"{folder.path / AUTHORITY_FILE}: copy it to every machine, but no key\n"
        f"{folder.path / ROOT_KEY_FILE}: move it to a safe; replace-issuing needs it"
    )


@ca_commands.command(name="replace-issuing")
@click.option(
    "--root-key",
    type=click.Path(path_type=Path),
    required=True,
    help="File of the root's key, brought back from its safe.",
)
@token_option
@click.pass_obj
def replace_issuing(folder: AuthorityFolder, root_key: Path, token: str | None) -> None:
    """Replace the issuing authority after its key was stolen or lost.

    All certificates are revoked: issue them again and run broker-config. Machines keep
    their ca.pem, since the root remains.
    """
    _try(lambda: folder.replace_issuing(root_key, token))
    click.echo("the issuing authority is replaced; issue all certificates again")


@ca_commands.command()
@click.argument("role", type=click.Choice(ALL_ROLES))
@click.argument("name")
@click.option(
    "--cell", "cells", multiple=True, help="Area, such as /1/2/2; repeatable."
)
@click.option("--host", "hosts", multiple=True, help="Name or address of a broker.")
@click.option("--days", type=float, default=LIFE_DAYS, show_default=True)
@click.option(
    "--request",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Signing request of a key that the holder has made, such as NAME.csr.",
)
@click.pass_obj
def issue(
    folder: AuthorityFolder,
    /,
    role: str,
    name: str,
    *,
    days: float,
    request: Path | None,
    **places: tuple[str, ...],
) -> None:
    """Issue a certificate to the ROLE called NAME; and its key without --request."""
    identity = Identity(role, name, places["cells"], places["hosts"])
    if request is None:
        path = _try(lambda: folder.issue_with_key(identity, days * DAY_S))
        click.echo(f"{path} and {path.with_suffix('.key').name}")
        return
    csr = request.read_bytes()
    path = _try(lambda: folder.issue_for_request(identity, csr, days * DAY_S))
    click.echo(f"{path}; its key is where the request was made")


@ca_commands.command()
@click.argument("name")
@click.pass_obj
def revoke(folder: AuthorityFolder, name: str) -> None:
    """Revoke every certificate of NAME; then run broker-config for each broker."""
    _try(lambda: folder.revoke(name))
    click.echo(f"revoked {name}; takes effect with the next broker-config")


@ca_commands.command(name="list")
@json_option
@click.pass_obj
def list_issued(folder: AuthorityFolder, is_json: bool) -> None:
    """List certificates with their expiry dates."""
    register = _try(folder.load_register)
    if is_json:
        click.echo(msgspec.json.encode(register))
        return
    for each in register.issued:
        owner = each.identity
        places = " ".join((*owner.cells, *owner.hosts))
        click.echo(
            f"{owner.role:<8} {owner.name:<24} {_state(each):<17} {places}".rstrip()
        )


def _state(issued: IssuedCertificate) -> str:
    if issued.revoked_s is not None:
        return "revoked"
    until = f"until {datetime.fromtimestamp(issued.until_s, UTC):%Y-%m-%d}"
    return until if issued.contested_s is None else f"{until}, CONTESTED"


@ca_commands.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="File.")
@click.pass_obj
def places(folder: AuthorityFolder, out: Path) -> None:
    """Write the areas of each name, for the backend's ingest.places."""
    areas = _try(folder.load_register).areas_by_name(time.time())  # noqa: TID251
    _try(lambda: write_file(out, msgspec.json.encode(areas), PUBLIC_MODE))
    click.echo(f"{out}: places of {len(areas)} names")


@ca_commands.command(name="broker-config")
@click.argument("kind", type=click.Choice(acl.BROKER_KINDS))
@click.argument("name")
@click.option(
    "--broker", help="Name of the broker's certificate; NAME-broker if absent."
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder.")
@click.option(
    "--at", type=click.Path(path_type=Path), help="Path of the folder for Mosquitto."
)
@click.option("--port", type=click.IntRange(1, 65535), default=8883, show_default=True)
@click.option(
    "--daemons-port", type=click.IntRange(1, 65535), default=8884, show_default=True
)
@click.option("--bind", default="0.0.0.0", show_default=True)  # noqa: S104
@click.option("--owner", help="User that Mosquitto runs as; may read the key.")
@click.option(
    "--reload", "pid", type=int, help="Process id of the Mosquitto to reload."
)
@click.pass_obj
def broker_config(
    folder: AuthorityFolder, /, kind: str, name: str, **options: object
) -> None:
    """Write the files for a Mosquitto of KIND; NAME is its gateway or Manager."""
    out = Path(str(options["out"]))
    at = Path(str(options["at"] or out.resolve()))
    ports = int(str(options["port"])), int(str(options["daemons_port"]))
    now_s = time.time()  # noqa: TID251 - a command's clock
    register = _try(folder.load_register)
    holders, unmarked = register.list_holders(now_s), register.list_unmarked(now_s)
    plan = MosquittoConfig(
        kind, at, *ports, bind=str(options["bind"]), refuses_nodes=not unmarked
    )
    issued = folder.path / ISSUED_FOLDER / str(options["broker"] or f"{name}-broker")
    key = issued.with_name(issued.name + ".key")
    if not key.exists():
        fail(f"{key} is missing; issue {BROKER} {issued.name} --host ... first")
    out.mkdir(mode=0o755, parents=True, exist_ok=True)
    files = {
        "yamamori.conf": plan.format().encode(),
        "acl": acl.format_acl(kind, name, holders).encode(),
        "ca.pem": (folder.path / AUTHORITY_FILE).read_bytes(),
        # The change of revoked.pem restarts the broker, which then reads both.
        **{name: (folder.path / name).read_bytes() for name in plan.crl_files},
        "broker.pem": issued.with_name(issued.name + ".pem").read_bytes(),
        "broker.key": key.read_bytes(),
    }
    changed = _write_changed(
        out, files, None if options["owner"] is None else str(options["owner"])
    )
    click.echo(f"{out / 'yamamori.conf'}: {len(holders)} certificates count")
    _echo_remarks(out, changed, unmarked)
    if options["pid"]:
        os.kill(int(str(options["pid"])), signal.SIGHUP)


def _echo_remarks(out: Path, changed: set[str], unmarked: list[str]) -> None:
    if unmarked:
        click.echo(
            "listeners for daemons accept certificates of nodes until these names are "
            f"renewed or issued again: {', '.join(unmarked)}"
        )
    if changed & BROKER_CERTIFICATE:
        reload = "once it is reloaded (systemctl kill --signal=HUP mosquitto)"
        click.echo(f"the broker's certificate has changed: it counts {reload}")
    restart = "when the broker starts again (systemctl restart mosquitto)"
    if "yamamori.conf" in changed:
        click.echo(f"{out / 'yamamori.conf'} has changed: it counts {restart}")
    if CRL_FILE in changed:
        ends = "connections with revoked certificates end"
        click.echo(f"{out / CRL_FILE} has changed: {ends} {restart}")


def _write_changed(out: Path, files: dict[str, bytes], owner: str | None) -> set[str]:
    """Write the files that change, as programs watch them; return their names.

    Those of another broker, which the first line of the ACL names, are not replaced.
    """
    rights = out / "acl"
    current = _try(rights.read_bytes) if rights.exists() else b""
    was, now = (each.partition(b"\n")[0] for each in (current, files[rights.name]))
    if was.startswith(b"# ") and was != now:
        other = was.removeprefix(b"# ").decode(errors="replace")
        remedy = f"give another --out, or delete {rights} to replace them"
        fail(f"{out} has the files of the {other}; {remedy}")
    changed = {
        name: data for name, data in files.items() if not _is_current(out / name, data)
    }
    for name, data in changed.items():
        mode = PRIVATE_MODE if name.endswith((".key", "acl")) else PUBLIC_MODE
        _try(partial(write_file, out / name, data, mode, owner))
    return set(changed)


def _is_current(path: Path, data: bytes) -> bool:
    """Whether a file has this content; a revocation list's signature is ignored."""
    if not path.exists():
        return False
    current = path.read_bytes()
    if path.name not in {CRL_FILE, INFRASTRUCTURE_CRL_FILE}:
        return current == data
    return is_same_crl(current, data)


@ca_commands.command()
@config_option
@verbose_option
@click.pass_obj
def sign(folder: AuthorityFolder, path: Path, verbose: bool) -> None:
    """Renew certificates on request at a Manager's broker, until SIGTERM."""
    settings = read_settings(config.read_signer_settings, path)
    _try(folder.load_authority)
    lifecycle.log_to_stderr(verbose)
    lifecycle.exit_on_thread_error()
    run_service(*_build_signer(settings, folder))


def _build_signer(
    settings: SignerSettings, folder: AuthorityFolder
) -> tuple[RenewalSigner, SystemdSupervisor]:
    """Build a signer of certificates and its systemd supervision."""
    section = settings.signer
    links = Links(settings.tls, LoopWatchdog(time.monotonic))  # noqa: TID251 - a command's clock
    signer = RenewalSigner(
        folder,
        section.id,
        links.to_own(section.broker),
        lifetime_s=section.life_days * DAY_S,
        watchdog=links.watchdog,
    )
    signer.attach(
        *make_metrics_servers(settings.metrics, signer.collect_metrics, settings.tls)
    )
    return signer, supervision(links.watchdog, signer.status, lambda: signer.is_up)


def _try(call: Callable[[], T]) -> T:
    try:
        return call()
    except (AuthorityError, OSError, LookupError) as error:
        fail(error)
