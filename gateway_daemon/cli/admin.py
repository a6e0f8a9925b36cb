"""Commands of an administrator: ``admin`` for servers, ``rollout`` for the nodes."""

import hashlib
import json
import tarfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Self

import click
import msgspec

from gateway_daemon.cli import EXIT_USAGE, fail, json_option, tls_option
from gateway_daemon.config import parse_broker_info
from gateway_daemon.gateway.notices_and_updates import BUNDLE_SUFFIX
from gateway_daemon.manager.autoscaler import (
    AreaReport,
    AutoscaleReport,
    DecisionReport,
    decode_autoscale_report,
)
from gateway_daemon.manager.manager import APPLY_TIMEOUT_S, COMPLETE_DELAY_S
from service_runtime.errors import FieldError
from service_runtime.lifecycle import EXIT_CONFIG, EXIT_USAGE_DATA
from service_runtime.settings import SettingsError
from service_runtime.tls import Endpoint, TlsFiles, check_link
from spatial_mqtt.announcements import NoticeSigner, Rollout
from spatial_mqtt.certificates import read_tls_settings
from spatial_mqtt.connection import Connection
from spatial_mqtt.directory import (
    AreaSetting,
    BrokerEntry,
    BrokerInfo,
    BrokerTable,
    GatewayReference,
    decode_broker_table,
    decode_gateways,
    encode_directory_message,
    find_responsible_broker,
)
from spatial_mqtt.errors import BrokerError, DirectoryError
from spatial_mqtt.topics import (
    BROKER_ADD,
    BROKER_REMOVE,
    BROKER_TABLE,
    COMMAND_CONTENT,
    ERRORS,
    GATEWAY_FORGET,
    GATEWAY_INFO,
    GATEWAY_SET,
    MANAGER_LOAD,
    check_area,
    covers,
    rollout_topic,
)
from spatial_mqtt.transport import (
    NO_SUBSCRIBERS,
    BaseConnectionHandler,
    IncomingMessage,
    Publication,
    Session,
)

TIMEOUT_S = 10.0
"""How long to wait for each answer."""

CHANGE_TIMEOUT_S = APPLY_TIMEOUT_S + COMPLETE_DELAY_S + TIMEOUT_S
"""A change waits until each gateway has applied the last one or is skipped."""

REFUSAL_WAIT_S = 2.0

MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 65_536


class ChangeRefusedError(Exception):
    """The Manager refused a change; the text is its reason."""


@dataclass(frozen=True)
class PublishedDirectory:
    """State published by a Manager.

    Attributes:
        gateways: One entry for each present gateway and each of its areas.
        table: The distributed brokers.
        report: Loads and decisions; None before the first one.
    """

    gateways: tuple[BrokerEntry, ...]
    table: BrokerTable
    report: AutoscaleReport | None = None

    def explain_route(self, topic: str) -> list[str]:
        """Explain which gateway serves a topic and which broker holds it, in lines."""
        near = [e for e in self.gateways if covers(e.topic, topic)]
        near.sort(key=lambda e: len(e.topic), reverse=True)
        holder = find_responsible_broker(self.table.brokers, topic)
        areas = [e.topic for e in self.table.brokers if e.broker_info == holder]
        lines = [
            f"gateway {e.broker_info} serves {e.topic}"
            + (": the closest area" if e.topic == near[0].topic else "")
            for e in near
        ] or ["no gateway's area holds it: its clients go to the nearest area's"]
        if holder is None:
            return [*lines, "no broker holds it: messages wait in the gateways"]
        area = max((a for a in areas if covers(a, topic)), key=len)
        lines.append(f"broker {holder} holds {area}: the closest area")
        decisions = self.report.decisions if self.report else ()
        return lines + [
            format_decision(d) for d in decisions if covers(d.area or "/", topic)
        ]


def format_decision(decision: DecisionReport) -> str:
    """Format a decision with its time in UTC."""
    at = datetime.fromtimestamp(decision.at_ms / 1000, UTC)
    would = "would " if decision.is_dry_run else ""
    return f"{at:%Y-%m-%dT%H:%M:%SZ} autoscale: {would}{decision.text}"


class AdminClient(BaseConnectionHandler):
    """A connection to a Manager's broker; a context manager.

    Args:
        manager: Address of the broker.
        tls: Files for an ``mqtts`` endpoint.
    """

    def __init__(self, manager: Endpoint, tls: TlsFiles | None = None) -> None:
        self._changed = threading.Condition()
        self._gateways: tuple[BrokerEntry, ...] | None = None
        self._table = BrokerTable(0, ())
        self._report: AutoscaleReport | None = None
        self._refusals: list[str] = []
        self._published: dict[int, str | None] = {}
        # The list comes last: without a table there never was a broker.
        filters = ((BROKER_TABLE, 2), (GATEWAY_INFO, 2), (MANAGER_LOAD, 1), (ERRORS, 1))
        session = Session("yamamori-admin", filters)
        self._connection = Connection(manager, session, self, tls)

    def __enter__(self) -> Self:
        """Connect and wait for the published state.

        Raises:
            BrokerError: No Manager answers in time.
        """
        self._connection.start()
        with self._changed:
            is_ready = self._changed.wait_for(
                lambda: self._gateways is not None, TIMEOUT_S
            )
        if not is_ready:
            self._connection.stop()
            reason = self._connection.last_reason or "no manager publishes there"
            raise BrokerError(str(self._connection.endpoint), reason)
        return self

    def __exit__(self, *_: object) -> None:
        """Disconnect."""
        self._connection.stop()

    @property
    def directory(self) -> PublishedDirectory:
        """The newest published state."""
        assert self._gateways is not None  # noqa: S101 - __enter__ waited for it
        return PublishedDirectory(self._gateways, self._table, self._report)

    def wait_for_report(self) -> AutoscaleReport:
        """Wait for loads and decisions.

        Raises:
            BrokerError: The Manager publishes none in time.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._report is not None, TIMEOUT_S)
        if self._report is None:
            at = str(self._connection.endpoint)
            raise BrokerError(at, "the manager publishes no loads")
        return self._report

    def request_change(
        self,
        topic: str,
        payload: bytes,
        is_done: Callable[[PublishedDirectory], bool] | None = None,
    ) -> PublishedDirectory:
        """Request a change and wait until it is published.

        Args:
            topic: Of the Manager's API.
            payload: The request.
            is_done: Whether a directory shows the change; None if it shows none, and
                then the absence of a refusal is the answer.

        Raises:
            ChangeRefusedError: The Manager refused it.
            BrokerError: The Manager does not answer in time.
        """
        with self._changed:
            self._refusals.clear()
        self._connection.publish(Publication(topic, payload, content=COMMAND_CONTENT))

        def is_answered() -> bool:
            is_seen = is_done is not None and is_done(self.directory)
            return is_seen or self._refusal(topic) is not None

        wait_s = REFUSAL_WAIT_S if is_done is None else CHANGE_TIMEOUT_S
        with self._changed:
            has_answer = self._changed.wait_for(is_answered, wait_s)
            if not has_answer and is_done is not None:
                reason = (
                    "the manager does not answer, or the change still waits for "
                    "gateways that apply the last one: its status and log name them"
                )
                raise BrokerError(str(self._connection.endpoint), reason)
        if refusal := self._refusal(topic):
            raise ChangeRefusedError(refusal)
        return self.directory

    def publish_all(self, publications: Sequence[Publication]) -> None:
        """Publish retained messages and wait for their acknowledgement.

        Raises:
            BrokerError: The broker does not acknowledge one in time, or refuses it.
        """
        for publication in publications:
            # Without the lock, which `on_published` acquires.
            self._wait_for(self._connection.publish(publication))

    def _wait_for(self, token: int | None) -> None:
        with self._changed:
            self._changed.wait_for(lambda: token in self._published, TIMEOUT_S)
        refused = self._published.get(token or 0, "the broker does not answer")
        if refused not in {None, NO_SUBSCRIBERS}:
            raise BrokerError(str(self._connection.endpoint), str(refused))

    def on_published(self, token: int, refused: str | None) -> None:
        with self._changed:
            self._published[token] = refused
            self._changed.notify_all()

    def on_message(self, message: IncomingMessage) -> None:
        with self._changed:
            try:
                if message.topic == GATEWAY_INFO:
                    self._gateways = decode_gateways(message.payload)
                elif message.topic == BROKER_TABLE:
                    self._table = decode_broker_table(message.payload)
                elif message.topic == MANAGER_LOAD:
                    self._report = decode_autoscale_report(message.payload)
                else:
                    self._refusals.append(message.payload.decode(errors="replace"))
            except DirectoryError as error:
                self._refusals.append(f"{message.topic}: {error}")
            self._changed.notify_all()

    def _refusal(self, topic: str) -> str | None:
        mine = [text for text in self._refusals if text.startswith(f"{topic}: ")]
        return mine[0].removeprefix(f"{topic}: ") if mine else None


class _HelpWithoutManager(click.Group):
    """Group whose commands print their help without a Manager."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        name = next((each for each in args if each in self.commands), None)
        if name and "--help" in args:
            self.commands[name].make_context(name, ["--help"], parent=ctx)
        return super().parse_args(ctx, args)


@click.group(name="admin", cls=_HelpWithoutManager)
@click.option(
    "--manager",
    "managers",
    required=True,
    multiple=True,
    help="mqtt://host:port of a Manager; several are tried in turn.",
)
@tls_option
@json_option
@click.pass_context
def admin_commands(
    context: click.Context, managers: tuple[str, ...], path: Path | None, is_json: bool
) -> None:
    """Inspect and change a running system."""
    endpoints = _checked(lambda: [Endpoint.parse(url) for url in managers])
    tls = _checked(lambda: read_tls_settings(path)) if path else None
    for endpoint in endpoints:
        _checked(partial(check_link, endpoint, tls))
    errors = []
    for endpoint in endpoints:
        try:
            context.obj = (context.with_resource(AdminClient(endpoint, tls)), is_json)
        except BrokerError as error:
            errors.append(str(error))
        else:
            return
    fail("; ".join(errors))


@admin_commands.command()
@click.pass_obj
def gateways(session: tuple[AdminClient, bool]) -> None:
    """List the gateways that are up, with their areas."""
    _show(session, lambda d: d.gateways, ("area", "gateway"))


@admin_commands.command()
@click.pass_obj
def brokers(session: tuple[AdminClient, bool]) -> None:
    """List the distributed brokers, with their areas."""
    _show(session, lambda d: d.table.brokers, ("area", "broker"))


@admin_commands.command()
@click.pass_obj
def load(session: tuple[AdminClient, bool]) -> None:
    """Show the load of every area and the decisions of the autoscaler."""
    client, is_json = session
    try:
        report = client.wait_for_report()
    except BrokerError as error:
        fail(error)
    if is_json:
        click.echo(msgspec.json.encode(report))
        return
    head = ("part", "area", "server", "msgs/s", "peak", "oldest s", "CPU", "heat")
    rows = [head, *(_load_row(area) for area in report.areas)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(head))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())
    click.echo(f"autoscale is {report.mode}, decided by manager {report.manager}")
    for decision in report.decisions:
        click.echo(format_decision(decision))


@admin_commands.command()
@click.argument("topic")
@click.pass_obj
def why(session: tuple[AdminClient, bool], topic: str) -> None:
    """Show the gateway and the broker of a TOPIC, with recent decisions."""
    client, is_json = session
    sentences = _checked(lambda: client.directory.explain_route(check_area(topic)))
    click.echo(json.dumps(sentences) if is_json else "\n".join(sentences))


@admin_commands.command(name="add-broker")
@click.argument("area")
@click.argument("url")
@click.pass_obj
def add_broker(session: tuple[AdminClient, bool], area: str, url: str) -> None:
    """Give an AREA to the broker at URL; present gateways take it over without a gap.

    Clients of a gateway that is away miss what is published at a new broker meanwhile.
    """
    entry = _checked(lambda: BrokerEntry(area, parse_broker_info(url)))
    _change(
        session,
        BROKER_ADD,
        encode_directory_message(entry),
        lambda d: entry in d.table.brokers,
    )


@admin_commands.command(name="remove-broker")
@click.argument("area")
@click.argument("url")
@click.pass_obj
def remove_broker(session: tuple[AdminClient, bool], area: str, url: str) -> None:
    """Take an AREA from the broker at URL; its waiting messages move."""
    entry = _checked(lambda: BrokerEntry(area, parse_broker_info(url)))
    before = session[0].directory.table.version
    _change(
        session,
        BROKER_REMOVE,
        encode_directory_message(entry),
        lambda d: d.table.version > before,
    )


@admin_commands.command(name="set-area")
@click.argument("url")
@click.argument("areas", nargs=-1, required=True)
@click.pass_obj
def set_area(
    session: tuple[AdminClient, bool], url: str, areas: tuple[str, ...]
) -> None:
    """Give the gateway at URL these AREAS and no others."""
    gateway = _checked(lambda: parse_broker_info(url))
    setting = _checked(lambda: AreaSetting(gateway, topics=areas))
    wanted = set(areas)
    payload = encode_directory_message(setting)
    if not _areas(session[0].directory, gateway):
        # It is not listed, so only a refusal can be detected.
        _change(session, GATEWAY_SET, payload, None)
        click.echo(f"{gateway} is away: it gets these areas when it returns", err=True)
        return
    _change(session, GATEWAY_SET, payload, lambda d: _areas(d, gateway) == wanted)


@admin_commands.command(name="unset-area")
@click.argument("url")
@click.argument("area")
@click.pass_obj
def unset_area(session: tuple[AdminClient, bool], url: str, area: str) -> None:
    """Take one AREA from the gateway at URL; without an area it serves everything."""
    gateway = _checked(lambda: parse_broker_info(url))
    before = _areas(session[0].directory, gateway)
    if area not in before:
        fail(f"{gateway} serves {', '.join(sorted(before)) or 'nothing'}, not {area}")
    after = tuple(sorted(before - {area})) or ("/",)
    payload = encode_directory_message(AreaSetting(gateway, topics=after))
    _change(session, GATEWAY_SET, payload, lambda d: _areas(d, gateway) == set(after))


@admin_commands.command()
@click.argument("url")
@click.pass_obj
def forget(session: tuple[AdminClient, bool], url: str) -> None:
    """Remove the gateway at URL permanently, with its areas."""
    gateway = _checked(lambda: parse_broker_info(url))
    # A gateway that is down is not listed anyway, so only a refusal can be detected.
    _change(
        session,
        GATEWAY_FORGET,
        encode_directory_message(GatewayReference(gateway)),
        None,
    )


def _load_row(area: AreaReport) -> tuple[str, ...]:
    is_broker = area.part == "broker"
    return (
        area.part + (" (spare)" if area.is_spare else ""),
        area.area,
        str(area.who),
        f"{area.per_s:.1f}",
        f"{area.peak_per_s:.1f}",
        f"{area.age_s:.1f}" if is_broker else "-",
        "-" if is_broker else f"{area.cpu:.0%}",
        f"{area.heat:.2f}",
    )


def _areas(directory: PublishedDirectory, gateway: BrokerInfo) -> set[str]:
    return {e.topic for e in directory.gateways if e.broker_info == gateway}


def _show(
    session: tuple[AdminClient, bool],
    entries_of: Callable[[PublishedDirectory], Sequence[BrokerEntry]],
    head: tuple[str, str],
) -> None:
    client, is_json = session
    entries = entries_of(client.directory)
    if is_json:
        click.echo(encode_directory_message(list(entries)))
        return
    width = max(len(head[0]), *(len(e.topic) for e in entries), 0) + 2
    click.echo(f"{head[0]:<{width}}{head[1]}")
    for entry in entries:
        click.echo(f"{entry.topic:<{width}}{entry.broker_info}")


def _change(
    session: tuple[AdminClient, bool],
    topic: str,
    payload: bytes,
    is_done: Callable[[PublishedDirectory], bool] | None,
) -> None:
    client, is_json = session
    try:
        directory = client.request_change(topic, payload, is_done)
    except (ChangeRefusedError, BrokerError) as error:
        fail(error)
    version = directory.table.version
    click.echo(json.dumps({"version": version}) if is_json else "done")


def _checked(call: Callable[[], Any]) -> Any:  # noqa: ANN401 - result of the call
    try:
        return call()
    except SettingsError as error:
        fail(error, EXIT_CONFIG)
    except (FieldError, ValueError, OSError) as error:
        fail(error, EXIT_USAGE)


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
