"""Notifications reach real servers, and none is lost by a kill or a dead receiver."""

import asyncio
import base64
import hashlib
import hmac
import json
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import pyarrow as pa
import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, Envelope
from aiosmtpd.smtp import Session as SmtpSession
from click.testing import CliRunner
from conftest import free_port, wait_until
from console_tables import write_tables
from console_workspace import (
    NOW_S,
    SLOPES,
    Clock,
    Workspace,
    log_in,
    make_test_services,
)
from console_workspace import serve as serve_console
from deltalake import write_deltalake
from webhook_receiver import Receiver, receiver

from backend_spark.cli import cli
from backend_spark.config import read_settings
from backend_spark.console.app import make_services
from backend_spark.console.event_detector import MESSAGE_COLUMNS
from backend_spark.console.events import EventFilter, Sign
from backend_spark.console.notifications import channels
from backend_spark.console.notifications.outbox import (
    NotificationState,
    StoredNotification,
)
from backend_spark.console.notifications.rules import QuietHours
from backend_spark.console.notifications.sender import MAX_EVENTS, MERGE_S
from backend_spark.console.notifications.texts import MessageTexts, Rise
from backend_spark.console.places import Place, write_places
from backend_spark.console.report import when
from service_runtime.errors import FieldError
from service_runtime.settings import SettingsError
from slope_science import JST

CELL = SLOPES[0].cell.token
KEY = "a key of at least 24 characters"
WIRE = '["rule","wire",["wire_cut","w"]]'
SHOCKS = '["rule","vibration",["shocks","v",40,12]]'


@pytest.fixture
def hook() -> Iterator[Receiver]:
    """A webhook receiver."""
    with receiver(free_port()) as made:
        yield made


class Mailbox:
    """Handler of the SMTP server: keeps what it accepts.

    Attributes:
        mails: Accepted mails.
        refused: Recipients that it refuses.
        accepted: Recipients of each accepted mail.
        scan_s: Time that it takes for each mail.
    """

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.refused: set[str] = set()
        self.accepted: list[list[str]] = []
        self.scan_s = 0.0

    async def handle_RCPT(  # noqa: N802 - name set by aiosmtpd
        self,
        server: SMTP,
        session: SmtpSession,
        envelope: Envelope,
        address: str,
        options: list[str],
    ) -> str:
        """Accept a recipient, or refuse it as a greylist does."""
        if address in self.refused:
            return "451 4.7.1 try again later"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(  # noqa: N802 - name set by aiosmtpd
        self, server: SMTP, session: SmtpSession, envelope: Envelope
    ) -> str:
        """Accept a mail."""
        await asyncio.sleep(self.scan_s)
        content = envelope.content
        assert isinstance(content, bytes)
        mail = message_from_bytes(content, policy=policy.default)
        assert isinstance(mail, EmailMessage)
        self.mails.append(mail)
        self.accepted.append(list(envelope.rcpt_tos))
        return "250 OK"


@pytest.fixture
def mailbox() -> Iterator[tuple[str, Mailbox]]:
    """Address of Apprise for a real SMTP server, and its mails."""
    box, port = Mailbox(), free_port()
    controller = Controller(box, "127.0.0.1", port)
    controller.start()
    address = (
        f"mailto://127.0.0.1:{port}?from=console@city.example&to=duty@city.example"
    )
    yield address, box
    controller.stop()


def rule(address: str, more: str = "", name: str = "duty") -> str:
    """Settings of a rule."""
    head = f'[[console.notifications]]\nname = "{name}"\nto = ["{address}"]\n'
    return f"{head}{more}\n"


def sign(level: int, at_s: float, slope: str = CELL) -> Sign:
    """A level of a cell."""
    at = int(at_s)
    return Sign(slope, None, level, at, at, "", ("wire: w is cut",), (WIRE,))


class Console:
    """The console's parts in this process, with a clock that a test sets."""

    def __init__(self, workspace: Workspace, clock: Clock, more: str) -> None:
        self.clock = clock
        self.services = make_test_services(workspace, clock, more)
        self.services.live_state.refresh()
        self.sender = self.services.notifications
        self.is_judged = self.sender.is_judged
        self.sender.is_judged = lambda: True
        self.outbox = self.sender.outbox

    def rise(self, level: int, slope: str = CELL) -> int:
        """Let a slope rise to a level; returns the number of its event."""
        self.services.events.add(sign(level, self.clock(), slope), self.clock())
        return self.services.events.select(EventFilter(text=slope))[0].number

    def end(self, number: int, at_s: int) -> None:
        """End an event."""
        event = self.services.events.get(number)
        assert event is not None
        self.services.events.end(event, at_s, at_s)

    def step(self, after_s: float = 0.0) -> None:
        """Plan and deliver, and wait until all deliveries have ended."""
        self.clock.now_s += after_s
        self.services.live_state.read_s = self.clock()
        self.sender.step()
        wait_until(lambda: not self.sender.is_busy())

    def states(self) -> list[str]:
        """States of all notifications, oldest first."""
        return [each.state.value for each in reversed(self.outbox.newest(100))]


MakeConsole = Callable[..., Console]


def rule_of(*addresses: str) -> str:
    """Settings of a rule with several addresses."""
    to = ", ".join(f'"{address}"' for address in addresses)
    return f'[[console.notifications]]\nname = "duty"\nto = [{to}]\n'


@pytest.fixture
def make_console(tmp_path: Path, clock: Clock) -> Iterator[MakeConsole]:
    """Make a console without tables, with some rules."""
    made: list[Console] = []

    def make(more: str) -> Console:
        made.append(Console(Workspace(tmp_path, 1), clock, more))
        return made[-1]

    yield make
    for console in made:
        console.sender.close()


def test_rise_is_mailed_once(
    make_console: MakeConsole, mailbox: tuple[str, Mailbox]
) -> None:
    """By a real SMTP server: place, level, time and reason, in Japanese."""
    address, box = mailbox
    console = make_console(f'address = "https://console.city.example"\n{rule(address)}')
    console.rise(4)
    console.step()
    console.step(60)

    (mail,) = box.mails
    assert mail["to"] == "duty@city.example"
    assert (
        mail["subject"]
        == f"大谷町 レベル4相当（ワイヤーセンサーの切断） メッシュ {CELL}"
    )
    text = str(mail.get_content())
    assert "ワイヤーセンサー：w のワイヤーが切断" in text
    assert "https://console.city.example/" in text
    assert "警報や避難情報ではありません" in text
    assert console.states() == ["delivered"]
    assert console.outbox.newest(1)[0].shown.startswith("mailto://127.0.0.1")


def test_title_is_one_line(make_console: MakeConsole, hook: Receiver) -> None:
    """A line break in a name would end the header of a mail."""
    console = make_console(rule(hook.url, 'language = "en"'))
    console.sender.name_of = lambda _: "East\r\nTo: x@x.example\n"
    console.rise(4)
    console.step()

    assert hook.bodies()[0]["title"].endswith("(a cut wire) East To: x@x.example")


def test_answer_of_the_mail_server_is_recorded(
    make_console: MakeConsole, mailbox: tuple[str, Mailbox]
) -> None:
    """It says what an operator must do: a password, or a mailbox that is full."""
    address, box = mailbox
    box.refused = {"duty@city.example"}
    console = make_console(rule(address))
    console.rise(4)
    console.step()

    (attempt,) = console.outbox.attempts(console.outbox.newest(1)[0].id)
    assert "451" in attempt["outcome"]
    assert "try again later" in attempt["outcome"]


OTHER = SLOPES[1].cell.token


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (4, (5, CELL)),
        (4, (5, OTHER)),
        (4, (4, OTHER)),
        (5, (4, OTHER)),
        (5, (5, OTHER)),
    ],
)
@pytest.mark.parametrize("late", ["to=b@x.example", "cc=b@x.example"])
def test_recipient_that_is_refused_lets_no_other_have_the_mail_again(
    make_console: MakeConsole,
    mailbox: tuple[str, Mailbox],
    late: str,
    first: int,
    second: tuple[int, str],
) -> None:
    """A greylist of one mailbox; what rises meanwhile reaches the other once too."""
    address, box = mailbox
    box.refused = {"b@x.example"}
    both = address.replace("to=duty@city.example", f"to=a@x.example&{late}")
    console = make_console(rule(both.replace("&to=b", ",b")))
    console.rise(first)
    console.step()
    console.step(5)
    console.rise(*second)
    console.step(1)
    console.step(30)
    assert box.accepted == [["a@x.example"], ["a@x.example"]]
    assert set(console.states()) == {"waiting"}

    box.refused = set()
    for _ in range(3):
        console.step(300)

    assert sorted(box.accepted[2:]) == [["b@x.example"]]
    assert set(console.states()) == {"delivered"}


def test_recipient_of_a_copy_of_its_own_mail_gets_it_once(
    make_console: MakeConsole, mailbox: tuple[str, Mailbox]
) -> None:
    """Each recipient has an own mail."""
    address, box = mailbox
    console = make_console(rule(f"{address}&cc=duty@city.example,b@x.example"))
    console.rise(4)
    console.step()

    assert sorted(box.accepted) == [["b@x.example"], ["duty@city.example"]]


@pytest.mark.parametrize("is_full", [True, False])
def test_recipient_that_has_the_mail_does_not_get_it_again_after_a_restart(
    make_console: MakeConsole,
    mailbox: tuple[str, Mailbox],
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_full: bool,
) -> None:
    """Beside a dead mailbox, also if the disk was full meanwhile."""
    address, box = mailbox
    box.refused = {"b@x.example"}
    more = rule(address.replace("duty@city.example", "a@x.example,b@x.example"))
    console = make_console(more)
    console.rise(4)
    if is_full:
        with monkeypatch.context() as disk:
            disk.setattr(console.outbox, "end", refuse_to_write)
            console.step()
    console.step(300)
    console.step(300)
    console.sender.close()
    again = make_console(more)
    again.step(300)
    box.refused = set()
    again.step(300)

    assert box.accepted == [["a@x.example"], ["b@x.example"]]
    assert again.states() == ["delivered"]


def test_webhook_is_signed(
    make_console: MakeConsole, hook: Receiver, tmp_path: Path
) -> None:
    """By Standard Webhooks; the body has the event as data."""
    key = tmp_path / "key"
    key.write_text(f"{KEY}\n", encoding="utf-8")
    console = make_console(rule(hook.url, f'key_file = "{key}"'))
    number = console.rise(5)
    console.step()

    ((headers, body),) = hook.requests
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    digest = hmac.new(KEY.encode(), signed, hashlib.sha256).digest()
    assert headers["webhook-signature"] == "v1," + base64.b64encode(digest).decode()
    (event,) = json.loads(body)["events"]
    assert (event["event"], event["cell"], event["level"]) == (number, CELL, 5)
    assert event["causes"] == ["wire"]
    assert (event["at_s"], event["measured_s"]) == (console.clock(), None)
    assert "secret" not in console.outbox.newest(1)[0].shown


@pytest.mark.parametrize(
    ("form", "answer", "path"),
    [
        ("lineworks", b'{"code":200,"description":"success"}', ["body", "text"]),
        ("slack", b"ok", ["text"]),
        ("teams", b"", ["attachments", 0, "content", "body", 1, "text"]),
    ],
)
def test_formats_of_receivers(
    make_console: MakeConsole,
    hook: Receiver,
    form: str,
    answer: bytes,
    path: list[str | int],
) -> None:
    """LINE WORKS, Slack and Teams get the text where they show it."""
    hook.answer = answer
    console = make_console(rule(hook.url, f'format = "{form}"\nlanguage = "en"'))
    console.rise(4)
    console.step()
    (found,) = hook.bodies()
    assert "button" not in found  # there is no address
    for part in path:
        found = found[part]  # type: ignore[index]

    assert "Equivalent to level 4" in str(found)
    assert "w is cut: a flow may have occurred" in str(found)
    assert console.states() == ["delivered"]


@pytest.mark.parametrize(
    ("form", "name"),
    [("lineworks", "a<b>&c"), ("slack", "a&lt;b&gt;&amp;c"), ("teams", "a<b>&c")],
)
def test_formats_have_the_link_to_the_page_and_escape_what_slack_reads(
    make_console: MakeConsole, hook: Receiver, form: str, name: str
) -> None:
    """Slack takes < for the begin of a mention or of a link."""
    link = "https://console.city.example/"
    more = rule(hook.url, f'format = "{form}"')
    console = make_console(f'address = "{link}"\n{more}')
    console.sender.name_of = lambda _: "a<b>&c"
    console.rise(4)
    console.step()
    (body,) = hook.bodies()

    assert link in json.dumps(body)
    assert json.dumps(body).count(f" {name}") == 1  # in the title
    assert json.dumps(body).count(f"{name}  ") == 1  # in the text


@pytest.mark.parametrize("status", [302, 304, 404, 500])
def test_only_a_status_of_success_is_an_acceptance(
    make_console: MakeConsole, hook: Receiver, status: int
) -> None:
    """A redirection delivers nothing: a moved address is to be corrected."""
    hook.status = status
    console = make_console(rule(hook.url))
    console.rise(4)
    console.step()

    assert console.states() == ["waiting"]
    assert f"HTTP {status}" in console.outbox.attempts(1)[0]["outcome"]


def test_refusal_within_an_answer_of_lineworks_counts(
    make_console: MakeConsole, hook: Receiver
) -> None:
    """Its HTTP status is 200, the code within is not."""
    hook.answer = b'{"code":400,"description":"missing parameter"}'
    console = make_console(rule(hook.url, 'format = "lineworks"'))
    console.rise(4)
    console.step()

    assert console.states() == ["waiting"]
    assert "code 400" in console.outbox.attempts(1)[0]["outcome"]


def test_unreachable_receiver_is_tried_until_it_answers(
    make_console: MakeConsole,
) -> None:
    """At level 4 without end; each attempt is recorded, also over a restart."""
    port = free_port()
    more = rule(Receiver(port).url)
    console = make_console(more)
    console.rise(4)
    for _ in range(12):
        console.step(400)
    console.step(3 * 86_400)
    assert console.states() == ["waiting"]
    with receiver(port) as late:
        again = make_console(more)
        again.step(400)
        attempts = again.outbox.attempts(1)

    assert len(late.requests) == 1
    assert attempts[-1]["number"] == 14
    assert attempts[-1]["outcome"] == "delivered"
    assert "refused" in attempts[0]["outcome"]


def test_repetition_follows_after_seconds_and_later_after_minutes(
    make_console: MakeConsole, hook: Receiver
) -> None:
    """The time doubles from 5 seconds to 5 minutes, and no attempt is left out."""
    hook.status = 503
    console = make_console(rule(hook.url))
    number, waits_s = console.rise(4), []
    console.step()
    for _ in range(8):
        (waiting,) = console.outbox.of_event(number)
        waits_s.append(waiting.due_s - console.clock())
        console.step(waits_s[-1] - 1)
        requests = len(hook.requests)
        console.step(1)
        assert len(hook.requests) == requests + 1

    assert waits_s == [5, 10, 20, 40, 80, 160, 300, 300]


@pytest.mark.parametrize("is_created_ahead", [True, False])
def test_clock_set_back_delays_no_repetition(
    make_console: MakeConsole, *, is_created_ahead: bool
) -> None:
    """The clock was a month ahead when it was created, or only when it was tried."""
    month_s, port = 30 * 86_400.0, free_port()
    console = make_console(rule(Receiver(port).url))
    if is_created_ahead:
        console.clock.now_s += month_s
        console.rise(4)
        console.step(400)
    else:
        console.rise(4)
        console.step()
        console.step(month_s)
    with receiver(port) as late:
        console.step(-month_s)

    assert len(late.requests) == 1
    assert console.states() == ["delivered"]


def test_clock_set_back_delays_neither_the_next_message_nor_the_heartbeat(
    make_console: MakeConsole, hook: Receiver
) -> None:
    """The last ones were sent at a time that is yet to come."""
    with receiver(free_port()) as switch:
        console = make_console(f'heartbeat = "{switch.url}"\n{rule(hook.url)}')
        console.rise(4)
        console.step()
        console.rise(4, SLOPES[1].cell.token)
        console.step(1)
        assert len(hook.requests) == 1
        console.step(-3600)
        for after_s, pings in ((30, 2), (30, 3)):
            console.step(after_s)
            assert len(switch.requests) == pings

    assert len(hook.requests) == 2
    assert console.sender.heartbeat_at_s == console.clock()


def test_clock_set_back_leaves_the_time_between_attempts(
    make_console: MakeConsole,
) -> None:
    """A mail server may lock an account that logs in each second."""
    console = make_console(rule(Receiver(free_port()).url))
    console.clock.now_s += 86_400
    console.rise(4)
    console.step()
    console.step(-86_400)
    for _ in range(4):
        console.step(1)

    assert console.outbox.attempts(1)[-1]["number"] == 2


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("mailtos://duty:pa[ss@smtp.city.example?to=duty@city.example", "no service"),
        ("mailtos://duty:secret@?to=duty@city.example", "Invalid ~From~ email"),
        ("https://hook.example：8443/secret", "LocationParseError"),
        ("https://[h/secret", "LocationParseError"),
    ],
)
def test_address_that_becomes_wrong_is_reported_until_it_is_corrected(
    make_console: MakeConsole, hook: Receiver, tmp_path: Path, wrong: str, reason: str
) -> None:
    """It is in a file, which is read at each delivery; the console goes on."""
    file = tmp_path / "address"
    file.write_text(hook.url, encoding="utf-8")
    console = make_console(rule(str(file)))
    file.write_text(wrong, encoding="utf-8")
    number = console.rise(5)
    console.step()
    console.step(1)
    (stored,) = console.outbox.of_event(number)
    (attempt,) = console.outbox.attempts(stored.id)
    assert reason in attempt["outcome"]
    for shown in (attempt["outcome"], stored.shown):
        assert "secret" not in shown
        assert "pa[ss" not in shown
    file.write_text(hook.url, encoding="utf-8")
    console.step(400)

    assert console.states() == ["delivered"]


def test_address_that_is_removed_takes_none_from_another(
    make_console: MakeConsole, hook: Receiver
) -> None:
    """What waits for the others follows them, and they do not get that of the first."""
    dead, late = Receiver(free_port()).url, Receiver(free_port())
    console = make_console(rule_of(dead, hook.url, late.url))
    console.rise(5)
    console.step()
    with receiver(late.port) as again:
        console = make_console(rule_of(hook.url, late.url))
        console.step(600)

    assert (len(hook.requests), len(again.requests)) == (1, 1)
    assert console.states() == ["given_up", "delivered", "delivered"]


def test_last_address_of_a_rule_that_is_removed_stops_no_other(
    make_console: MakeConsole, hook: Receiver
) -> None:
    """What waits for it is given up."""
    console = make_console(rule_of(hook.url, Receiver(free_port()).url))
    console.rise(4)
    console.step()
    console = make_console(rule_of(hook.url))
    console.rise(5, SLOPES[1].cell.token)
    console.step(600)

    assert console.states() == ["delivered", "given_up", "delivered"]


def test_address_that_becomes_that_of_another_rule_gets_what_waits(
    make_console: MakeConsole, hook: Receiver
) -> None:
    """It is a correction: this rule has not had the address before."""
    dead, chief = Receiver(free_port()).url, rule(hook.url, name="chief")
    console = make_console(rule(dead) + chief)
    console.rise(5)
    console.step()
    assert console.states() == ["waiting", "delivered"]
    console = make_console(rule(hook.url) + chief)
    console.step(600)

    assert len(hook.requests) == 2
    assert console.states() == ["delivered", "delivered"]


def test_notification_of_an_exercise_is_none_of_the_duty(
    make_console: MakeConsole, hook: Receiver
) -> None:
    """Nor is one of the duty marked as an exercise: it waits until that has ended."""
    drill, duty = "exercise = true\n", rule(hook.url, "exercises = true")
    hook.status = 503
    for mode in (drill, ""):
        console = make_console(mode + duty)
        console.rise(5, CELL if mode else SLOPES[1].cell.token)
        console.step(60)
    hook.status = 200
    hook.requests.clear()
    make_console(drill + duty).step(600)
    assert hook.requests == []

    console = make_console(duty)
    console.step(600)
    (body,) = hook.bodies()

    assert SLOPES[1].cell.token in body["title"]
    assert "【訓練】" not in body["title"]
    assert console.states() == ["given_up", "delivered"]


def test_outbox_of_an_earlier_release_is_read(
    make_console: MakeConsole, hook: Receiver, tmp_path: Path
) -> None:
    """Without the digest of the address; what waits goes to its position."""
    console = make_console(rule(Receiver(free_port()).url))
    console.rise(4)
    console.step()
    (path,) = tmp_path.rglob("notifications.sqlite")
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for name in ("address", "exercise", "attempts", "reached"):
            db.execute(f"alter table notification drop column {name}")
    console = make_console(rule(hook.url))
    console.rise(4, SLOPES[1].cell.token)  # from now on the address is known
    console.step(600)

    assert (len(hook.requests), console.states()) == (1, ["delivered"] * 2)
    assert [each["number"] for each in console.outbox.attempts(1)] == [1, 2]


def test_attempts_that_never_end_are_counted_and_not_kept(
    make_console: MakeConsole, hook: Receiver, tmp_path: Path
) -> None:
    """Level 4 is tried for ever: a year is 100,000 attempts of each notification."""
    hook.status = 503
    console = make_console(rule(hook.url))
    console.rise(4)
    for _ in range(15):
        console.step(400)
    numbers = [each["number"] for each in console.outbox.attempts(1)]

    assert (len(hook.requests), numbers) == (15, list(range(6, 16)))
    (path,) = tmp_path.rglob("notifications.sqlite")
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("select count(*) from attempt").fetchone() == (10,)


def test_accepted_message_is_not_repeated_for_a_broken_answer(
    make_console: MakeConsole,
) -> None:
    """The status has said that it was accepted; the rest of the answer is lost."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
        console = make_console(rule(f"http://127.0.0.1:{port}/"))
        console.rise(5)
        console.sender.step()
        link, _ = server.accept()
        with link:
            link.recv(65536)
            link.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{}")
        wait_until(lambda: not console.sender.is_busy())

    assert console.states() == ["delivered"]


def test_slope_that_rises_twice_is_one_place(
    make_console: MakeConsole, hook: Receiver
) -> None:
    """After an outage a person must not look for a second slope."""
    hook.status = 503
    console = make_console(rule(hook.url))
    for level in (3, 4, 5):
        console.rise(level)
        console.step(30)
    hook.status = 200
    console.step(600)
    body = hook.bodies()[-1]

    assert "レベル5相当" in body["title"]
    assert "ほか" not in body["title"] + body["text"]
    assert "レベル4相当" not in body["text"]
    assert len(body["events"]) == 3


@pytest.mark.parametrize("slope", [CELL, SLOPES[1].cell.token])
def test_rise_after_an_outage_takes_with_it_what_waits(
    make_console: MakeConsole, hook: Receiver, slope: str
) -> None:
    """The rise to 4 came up to five minutes after the 5, and read as a fall."""
    hook.status = 503
    console = make_console(rule(hook.url))
    first = console.rise(4)
    console.step()
    for _ in range(10):
        console.step(400)
    hook.status = 200
    hook.requests.clear()
    last = console.rise(5, slope)
    console.step(1)
    (body,) = hook.bodies()

    assert "レベル5相当" in body["title"]
    named = [each for each in (4, 5) if f"レベル{each}相当" in body["text"]]
    assert named == ([5] if first == last else [4, 5])
    assert console.states() == ["delivered", "delivered"]


def test_late_message_says_that_an_event_is_over(
    make_console: MakeConsole, hook: Receiver
) -> None:
    """Hours after it, nobody must be sent to a slope that is quiet again."""
    hook.status = 503
    console = make_console(rule(hook.url))
    over = console.rise(4)
    console.rise(3, SLOPES[1].cell.token)
    console.step()
    ended_s = int(console.clock()) + 3600
    console.end(over, ended_s)
    hook.status = 200
    console.step(2 * 3600)
    body = hook.bodies()[-1]

    assert "に終息" in body["text"]
    assert "終息" not in body["title"]
    assert [each["over_s"] for each in body["events"]] == [ended_s, None]


@pytest.mark.parametrize("level_before", [3, 4, 5])
def test_event_in_force_is_named_before_one_of_its_slope_that_is_over(
    make_console: MakeConsole, hook: Receiver, level_before: int
) -> None:
    """After an outage both are one message; its title said that all was over."""
    console = make_console(rule(hook.url, 'language = "en"'))
    over = console.rise(level_before)
    console.end(over, NOW_S + 3600)
    console.clock.now_s += 2 * 3600
    console.rise(4)
    console.step()
    (body,) = hook.bodies()
    first, second = body["text"].split("\n\n")[:2]

    assert body["title"].startswith("大谷町 Equivalent to level 4")
    assert "more" not in body["title"] + body["text"]
    assert "level 4" in first
    assert when(int(console.clock())) in first
    assert "over since" not in first
    assert f"level {level_before}" in second
    assert "over since" in second


def test_message_names_no_time_ahead(
    make_console: MakeConsole, hook: Receiver, clock: Clock
) -> None:
    """The step of the level ends later, near midnight on the next day."""
    console = make_console(rule(hook.url, 'language = "en"'))
    now_s = clock.now_s
    console.services.events.add(sign(5, now_s + 540), now_s)
    console.step()
    (body,) = hook.bodies()

    assert f"since {when(now_s)} JST" in body["text"]


def test_message_with_a_rise_in_time_is_not_marked_as_late(
    make_console: MakeConsole, hook: Receiver
) -> None:
    """Its higher rise was measured a day before; the slope moves now, too."""
    console = make_console(rule(hook.url, 'language = "en"'))
    console.rise(4)
    late = replace(sign(5, NOW_S), measured_s=NOW_S - 86_400)
    console.services.events.add(late, NOW_S)
    console.step()
    (body,) = hook.bodies()

    assert "RECEIVED LATE" not in body["title"]
    assert "received late" in body["text"]


@pytest.mark.parametrize("language", ["en", "ja"])
def test_message_of_a_broken_link_says_when_it_was_measured(
    make_console: MakeConsole, hook: Receiver, language: str
) -> None:
    """A movement of Tuesday was notified on Friday as if it had just begun."""
    console = make_console(rule(hook.url, f'language = "{language}"'))
    late = sign(5, NOW_S)
    console.services.events.add(replace(late, measured_s=NOW_S - 54 * 3600), NOW_S)
    console.step()
    body = hook.bodies()[-1]

    title, line = {
        "en": ("[RECEIVED LATE]", " JST, received late"),
        "ja": ("【遅れて受信】", " の観測を遅れて受信"),
    }[language]
    assert body["title"].startswith(title)
    assert when(NOW_S - 54 * 3600) + line in body["text"]
    assert body["events"][0]["measured_s"] == NOW_S - 54 * 3600


def rise_on_many_with_reasons(console: Console, count: int, length: int) -> None:
    """Let many slopes rise to level 4, each with three reasons."""
    at = int(console.clock())
    reasons = tuple(f"reason {n} " + "x" * length for n in range(3))
    for number in range(count):
        rise = Sign(f"{number:04x}", None, 4, at, at, "", reasons)
        console.services.events.add(rise, console.clock())


@pytest.mark.parametrize("length", [100, 400])
def test_long_message_names_all_listed_places_and_counts_the_others(
    make_console: MakeConsole, hook: Receiver, length: int
) -> None:
    """It was cut within a reason: seven places of fourteen vanished uncounted."""
    console = make_console(rule(hook.url, 'language = "en"'))
    rise_on_many_with_reasons(console, 14, length)
    console.step()
    text = hook.bodies()[-1]["text"]
    lines = text.splitlines()

    assert len(text) <= channels.MAX_TEXT_LENGTH
    assert [line[:9] for line in lines if line.startswith("cell")] == [
        f"cell {number:04x}" for number in range(10)
    ]
    assert lines[-3:] == [
        "and 4 more",
        "",
        "Observations compared with criteria; no official warning.",
    ]
    reasons = [line for line in lines if line.startswith("- ")]
    assert reasons
    assert all(line.endswith("x" * length) for line in reasons)


def check_short(text: str, most: int) -> None:
    """Check a text about 14 slopes: whole lines, and the others are counted."""
    lines = text.splitlines()
    places = [line for line in lines[1:] if line.startswith("cell")]

    assert len(text) <= most
    assert "Equivalent to level 4 cell 0000 and 13 more" in lines[0]
    assert all(line.endswith("JST") for line in places)
    assert len(lines) == 1 or f"and {14 - len(places)} more" in lines


def test_text_has_at_most_the_length_that_is_asked(make_console: MakeConsole) -> None:
    """Of every length, and what has just that length is not shortened."""
    console = make_console("")
    rise_on_many_with_reasons(console, 4, 20)
    events, entries = (
        console.services.events,
        console.services.journal.read_after(0, "alert"),
    )
    rises = [
        Rise(event, entry, entry)
        for entry in entries
        if (event := events.event_of_entry(entry.id)) is not None
    ]
    texts = MessageTexts("en", "", "", exercise=False, escalated=False, name_of=str)
    within = texts.message("m", rises).within
    found = [within(most) for most in range(900)]

    assert found[-1].count("reason") == 12
    assert len(set(found)) > 12
    for most, text in enumerate(found):
        assert len(text) <= most
        assert within(len(text)) == text


EAGLE = "apprise.plugins.smseagle.NotifySMSEagle.body_maxlen"


@pytest.mark.parametrize("most", [1200, 1024, 160, 67])
def test_text_is_within_the_limit_of_a_service(
    make_console: MakeConsole,
    hook: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    most: int,
) -> None:
    """A gateway for SMS refused each repetition of a text of 2,000 characters."""
    monkeypatch.setattr(EAGLE, most)
    hook.answer = b'{"result": {"message_id": "1", "status": "ok"}}'
    eagle = f"smseagle://token@127.0.0.1:{hook.port}/15551234567"
    link = 'address = "https://console.city.example"\n'
    console = make_console(link + rule(eagle, 'language = "en"'))
    rise_on_many_with_reasons(console, 14, 200)
    console.step()
    (body,) = hook.bodies()

    assert set(console.states()) == {"delivered"}
    check_short(body["params"]["message"], most)


def test_address_with_overflow_split_gets_all_in_several_messages(
    make_console: MakeConsole, hook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each within the limit of the service, and no reason is left out."""
    monkeypatch.setattr(EAGLE, 160)
    rate = "apprise.plugins.smseagle.NotifySMSEagle.request_rate_per_sec"
    monkeypatch.setattr(rate, 0)  # otherwise it waits 5.5 s after each message
    hook.answer = b'{"result": {"message_id": "1", "status": "ok"}}'
    eagle = f"smseagle://token@127.0.0.1:{hook.port}/15551234567?overflow=split"
    console = make_console(rule(eagle, 'language = "en"'))
    rise_on_many_with_reasons(console, 2, 200)
    console.step()
    sent = [body["params"]["message"] for body in hook.bodies()]
    whole = "".join(sent)

    assert set(console.states()) == {"delivered"}
    assert max(map(len, sent)) <= 160
    assert whole.count("x") >= 2 * 3 * 200
    assert "cell 0001  Equivalent to level 4" in whole
    assert "no official warning." in whole


def test_text_for_twilio_is_as_long_as_it_accepts(
    make_console: MakeConsole, hook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,600 characters; Apprise states 160, those of one SMS."""
    url = "apprise.plugins.twilio.NotifyTwilio.notify_sms_url"
    monkeypatch.setattr(url, hook.url)
    address = f"twilio://AC{'a' * 32}:{'b' * 32}@15551231234/15551230000"
    console = make_console(rule(address, 'language = "en"'))
    rise_on_many_with_reasons(console, 14, 200)
    console.step()
    ((_, body),) = hook.requests
    (text,) = parse_qs(body.decode())["Body"]

    assert len(text) > 1000
    check_short(text, 1600)


def test_title_and_text_are_together_within_the_limit_of_discord(
    make_console: MakeConsole, hook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2,000 characters for both; it refused each repetition of 2,015."""
    url = "apprise.plugins.discord.NotifyDiscord.notify_url"
    monkeypatch.setattr(url, hook.url)
    link = "https://console.city.example/"
    address = f"discord://{'1' * 18}/{'a' * 60}"
    settings = rule(address, 'language = "en"')
    console = make_console(f'address = "{link}"\n{settings}')
    rise_on_many_with_reasons(console, 14, 50)
    console.step()
    (body,) = hook.bodies()
    text = body["content"].removesuffix(link)

    assert len(body["content"]) > len(text) > 1800
    check_short(text, 2000 - len(link))


def test_title_says_that_all_events_are_over(
    make_console: MakeConsole, hook: Receiver
) -> None:
    """It may be all that a telephone shows."""
    hook.status = 503
    console = make_console(rule(hook.url, 'language = "en"'))
    over = console.rise(4)
    console.step()
    console.end(over, NOW_S + 3600)
    hook.status = 200
    console.step(2 * 3600)
    body = hook.bodies()[-1]

    assert body["title"].startswith("[OVER]")
    assert "over since 2026-10-26 17:40 JST" in body["text"]


ENDS = {
    "ja": (
        "【終了】",
        "2026-10-26 22:40 に終了（緊急通報が6時間ない。危険が去ったとは限りません）",
        "2026-10-26 17:40 に終息",
    ),
    "en": (
        "[ENDED]",
        (
            "ended at 2026-10-26 22:40 JST (no message for 6 hours; "
            "this is no sign of safety)"
        ),
        "over since 2026-10-26 17:40 JST",
    ),
}


@pytest.mark.parametrize("language", ENDS)
def test_silence_of_a_node_outside_all_cells_is_not_called_calm(
    make_console: MakeConsole, hook: Receiver, language: str
) -> None:
    """Its event ends without a message; that of a cell beside it is judged calm."""
    mark, silence, calm = ENDS[language]
    hook.status = 503
    console = make_console(rule(hook.url, f'language = "{language}"'))
    message = replace(sign(5, NOW_S, "node:otani-9"), node="otani-9", key="b/1")
    console.services.events.add(message, NOW_S)
    judged = console.rise(4)
    console.step()
    (silent,) = console.services.events.select(EventFilter(text="otani-9"))
    console.end(silent.number, NOW_S + 6 * 3600)
    console.end(judged, NOW_S + 3600)
    hook.status = 200
    console.step(7 * 3600)
    body = hook.bodies()[-1]
    first, second = body["text"].split("\n\n")[:2]

    assert body["title"].startswith(mark)
    assert first.splitlines()[1] == silence
    assert second.splitlines()[1] == calm


def test_level_3_is_given_up_after_a_day(make_console: MakeConsole) -> None:
    """It is of no use any more."""
    console = make_console(rule(Receiver(free_port()).url))
    console.rise(3)
    console.step()
    console.step(86_500)

    assert console.states() == ["given_up"]
    assert [len(console.outbox.given_up(NOW_S + s)) for s in (0, 3600)] == [1, 0]


def test_escalation_of_level_3_is_tried_for_a_day(
    make_console: MakeConsole, hook: Receiver
) -> None:
    """The day begins when it is due, not when the slope rose."""
    hook.status = 503
    console = make_console(rule(hook.url, "from_level = 3\nunacknowledged_min = 1440"))
    console.rise(3)
    console.step()
    console.step(24 * 3600 + 1)

    assert (len(hook.requests), console.states()) == (1, ["waiting"])


def test_receiver_that_hangs_delays_no_other(
    make_console: MakeConsole, hook: Receiver
) -> None:
    """Each address has its own thread."""
    listener = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    silent = f"http://127.0.0.1:{listener.server_port}/"
    console = make_console(rule(silent, name="a") + rule(hook.url, name="b"))
    console.rise(5)
    console.sender.step()
    wait_until(lambda: hook.requests)
    listener.server_close()

    assert console.sender.is_busy()


def test_receivers_that_hang_delay_neither_another_nor_the_heartbeat(
    make_console: MakeConsole, hook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine of them held all threads, the dead man's switch's too, and raised its alarm.

    A rule has as many addresses as a city has districts.
    """
    monkeypatch.setattr(channels, "TIMEOUT_S", 600.0)
    with receiver(free_port()) as silent, receiver(free_port()) as switch:
        silent.may_answer.clear()
        hanging = "".join(rule(silent.url, name=f"a{n}") for n in range(12))
        more = f'heartbeat = "{switch.url}"\n{hanging}{rule(hook.url, name="b")}'
        console = make_console(more)
        console.rise(5)
        console.sender.step()
        wait_until(lambda: len(silent.requests) == 12)
        wait_until(lambda: hook.requests)
        wait_until(lambda: switch.requests)
        assert console.sender.is_busy()

        console.services.live_state.read_s = console.clock.now_s = (
            console.clock.now_s + 60
        )
        console.sender.step()
        wait_until(lambda: len(switch.requests) == 2)
        silent.may_answer.set()
        wait_until(lambda: not console.sender.is_busy())


@contextmanager
def silent_server() -> Iterator[tuple[int, list[socket.socket]]]:
    """Port of a server that accepts connections and says nothing, and those."""
    connected: list[socket.socket] = []

    def accept() -> None:
        with suppress(OSError):  # it is closed
            while True:
                connected.append(listener.accept()[0])

    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield listener.getsockname()[1], connected
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for each in connected:
                each.close()


def test_mail_servers_that_hang_delay_no_other_address(
    make_console: MakeConsole,
    hook: Receiver,
    mailbox: tuple[str, Mailbox],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Apprise has at most 32 threads of its own, and 6 on two processors.

    A delivery that never ends keeps its own address waiting, and ends the heartbeat.
    """
    monkeypatch.setattr(channels, "TIMEOUT_S", 600.0)
    address, box = mailbox
    with silent_server() as (port, connected):
        hanging = "".join(
            rule(f"mailto://127.0.0.1:{port}?from=c@x.example&to=d@x.example", "", name)
            for name in (f"a{n}" for n in range(40))
        )
        more = f'heartbeat = "{hook.url}"\n{hanging}{rule(address, name="b")}'
        console = make_console(more)
        number = console.rise(5)
        console.sender.step()
        wait_until(lambda: len(connected) == 40)
        wait_until(lambda: console.states().count("delivered") == 1)
        wait_until(lambda: hook.requests)

        console.services.live_state.read_s = console.clock.now_s = (
            console.clock.now_s + 700
        )
        console.sender.step()
        assert "no heartbeat: notifications are late" in caplog.text
        stored = console.outbox.of_event(number)
        attempts = [len(console.outbox.attempts(each.id)) for each in stored]
        assert (len(box.mails), attempts) == (1, [1] * 41)
        console.sender.close()
    wait_until(lambda: not console.sender.is_busy())
    assert len(hook.requests) == 1


def test_slow_mail_server_gets_each_mail_once(
    make_console: MakeConsole,
    mailbox: tuple[str, Mailbox],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It scans each mail, which takes longer in all than Apprise waits by default."""
    monkeypatch.setattr("apprise.AppriseAsset._service_timeout", 0.1)
    address, box = mailbox
    box.scan_s = 0.1
    names = [f"r{n}@x.example" for n in range(8)]
    console = make_console(rule(address.replace("duty@city.example", ",".join(names))))
    console.rise(4)
    console.step()
    assert console.states() == ["delivered"]
    console.step(300)

    assert sorted(box.accepted) == [[name] for name in names]


def test_delivery_that_ends_while_others_begin_is_not_repeated(
    make_console: MakeConsole, hook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is due was read before the end, and the time of the step is before it."""
    console = make_console(rule(hook.url))
    number = console.rise(4)
    outbox, read_due = console.outbox, console.outbox.due

    def due_before_the_end(now_s: float) -> list[StoredNotification]:
        rows = read_due(now_s)
        console.clock.now_s += 1
        hook.may_answer.set()
        wait_until(lambda: not console.sender.is_busy())
        return rows

    hook.may_answer.clear()
    console.sender.step()
    wait_until(lambda: hook.requests)
    monkeypatch.setattr(outbox, "due", due_before_the_end)
    console.sender.step()
    wait_until(lambda: not console.sender.is_busy())

    assert len(hook.requests) == 1
    (stored,) = outbox.of_event(number)
    assert [each["outcome"] for each in outbox.attempts(stored.id)] == ["delivered"]


def test_delivery_is_finished_when_the_console_stops(
    make_console: MakeConsole, hook: Receiver
) -> None:
    """The next step ended the process with a traceback, and the mail came twice."""
    heartbeat = f'heartbeat = "{Receiver(free_port()).url}"'
    hook.may_answer.clear()
    console = make_console(f"{heartbeat}\n{rule(hook.url)}")
    console.rise(4)
    console.sender.step()
    wait_until(lambda: hook.requests)
    console.sender.close()
    console.rise(5, SLOPES[1].cell.token)
    console.clock.now_s += 60.0  # a heartbeat is due, too
    console.sender.step()
    hook.may_answer.set()
    wait_until(lambda: console.states() == ["delivered"])
    again = make_console(rule(hook.url))
    again.step(MERGE_S)

    assert [body["events"][0]["level"] for body in hook.bodies()] == [4, 5]


def test_rises_meanwhile_are_one_message(
    make_console: MakeConsole, hook: Receiver
) -> None:
    """The first goes out at once, a thousand more together; the highest is named."""
    console = make_console(rule(hook.url, 'format = "slack"'))
    console.rise(3)
    console.step()
    rise_on_many(console, 1000)
    console.step(1)
    assert len(hook.requests) == 1
    console.step(MERGE_S)
    _, body = hook.bodies()

    assert "レベル4相当" in body["text"]
    assert "ほか 999 か所" in body["text"]
    assert set(console.states()) == {"delivered"}


def rise_on_many(console: Console, count: int) -> None:
    """Let many slopes rise to level 3 together, and the middle one to level 4."""
    with console.services.events.batch():
        for number in range(count):
            level, slope = 4 if number == count // 2 else 3, f"{number:04x}"
            at_s = console.clock()
            console.services.events.add(sign(level, at_s, slope), at_s)


def test_message_with_all_data_has_a_largest_size(
    make_console: MakeConsole, hook: Receiver
) -> None:
    """A receiver that refused a large one (413) never got anything again."""
    console = make_console(rule(hook.url))
    rise_on_many(console, 2 * MAX_EVENTS + 50)
    for _ in range(3):
        console.step(1)
    bodies = hook.bodies()

    counts = [len(body["events"]) for body in bodies]
    assert counts == [MAX_EVENTS, MAX_EVENTS, 50]
    assert bodies[0]["events"][0]["level"] == 4
    assert len({body["id"] for body in bodies}) == 3
    assert set(console.states()) == {"delivered"}


def test_more_than_one_message_waits_and_follows_at_once(
    make_console: MakeConsole, hook: Receiver
) -> None:
    """The first 200 were sent each second, and the others were never tried."""
    hook.status = 503
    console = make_console(rule(hook.url))
    rise_on_many(console, MAX_EVENTS + 50)
    for _ in range(30):
        console.step(1)
    counts = [len(body["events"]) for body in hook.bodies()]
    assert counts == 3 * [MAX_EVENTS, 50]

    hook.status = 200
    hook.requests.clear()
    console.rise(5)
    for _ in range(3):
        console.step(1)
    counts = [len(body["events"]) for body in hook.bodies()]

    assert counts == [1, MAX_EVENTS, 50]
    assert set(console.states()) == {"delivered"}
    assert console.outbox.overdue(console.clock()) == []


def test_rule_selects_by_level_place_and_exercise(
    make_console: MakeConsole, hook: Receiver, tmp_path: Path
) -> None:
    """An exercise notifies only where a rule says so, and the title says it."""
    wide = SLOPES[0].cell.parent(8).token
    other = SLOPES[2].cell.token
    console = make_console(
        "exercise = true\n"
        + rule(hook.url, "exercises = true\nfrom_level = 5", "high")
        + rule(hook.url, f'exercises = true\ncells = ["{wide}"]', "here")
        + rule(hook.url, f'exercises = true\ncells = ["{other}"]', "there")
        + rule(hook.url, 'exercises = true\ndistricts = ["大谷"]', "district")
        + rule(hook.url, "", "real")
    )
    write_places(tmp_path / "data", [Place(district="大谷", cells=(other,))])
    console.services.notifications.present = console.clock
    console.rise(4)
    console.step()

    assert [each.target.rule for each in console.outbox.newest(9)] == ["here"]
    assert hook.bodies()[0]["title"].startswith("【訓練】")


def test_districts_and_names_are_those_of_the_places(
    make_console: MakeConsole, hook: Receiver, tmp_path: Path
) -> None:
    """A change of the places is followed at once."""
    more = rule(hook.url, 'districts = ["大谷"]\nlanguage = "en"')
    console = make_console(more)
    console.rise(3)
    console.step()
    assert console.states() == []
    places = [Place(district="大谷", slope="東", cells=(CELL,))]
    write_places(tmp_path / "data", places)
    console.rise(5)
    console.step()

    assert hook.bodies()[0]["title"].endswith(
        "Equivalent to level 5 (a cut wire) 大谷 東"
    )


UNKNOWN = "districts of rule duty must be those of places, got 大谷地区"


def test_rule_of_unknown_districts_is_named_and_not_silent(
    make_console: MakeConsole,
    hook: Receiver,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A renamed district: level 5 reached nobody, and every check passed."""
    more = rule(hook.url, 'districts = ["大谷地区"]')
    old, new = (Place(district=name, cells=(CELL,)) for name in ("大谷地区", "大谷"))
    with receiver(free_port()) as pinged:
        console = make_console(f'heartbeat = "{pinged.url}"\n{more}')
        write_places(tmp_path / "data", [old, new])
        console.rise(3)
        console.step()
        assert len(pinged.requests) == 1
        write_places(tmp_path / "data", [new])
        console.rise(4, SLOPES[1].cell.token)
        console.step(60)
        assert len(pinged.requests) == 1
        write_places(tmp_path / "data", [old])
        console.rise(5, SLOPES[2].cell.token)
        console.step(60)
        assert len(pinged.requests) == 2

    assert [body["events"][0]["level"] for body in hook.bodies()] == [3, 4]
    named = [text for text in caplog.messages if UNKNOWN in text]
    assert len(named) == 2  # once of the rules, once of the heartbeat
    assert any("districts of all rules are known" in each for each in caplog.messages)


def test_rule_of_a_place_has_alarms_of_nodes_outside_all_cells(
    make_console: MakeConsole, hook: Receiver, tmp_path: Path
) -> None:
    """Of level 4 and more; whose slope it is is not known."""
    places = [Place(district="大谷", cells=(CELL,))]
    write_places(tmp_path / "data", places)
    more = f'cells = ["{CELL}"]\ndistricts = ["大谷"]'
    console = make_console(rule(hook.url, more))
    for level, node in ((3, "a-1"), (4, "b-1")):
        at = int(console.clock())
        alarm = replace(sign(level, at, f"node:{node}"), node=node)
        console.services.events.add(alarm, at)
    console.step()

    assert [each["level"] for each in hook.bodies()[0]["events"]] == [4]


def test_commands_and_page_name_unknown_districts(
    workspace: Workspace, hook: Receiver, clock: Clock
) -> None:
    """The test of the rules fails, and the load of other places says so."""
    more = rule(hook.url, 'districts = ["大谷地区"]')
    config = str(workspace.config(more))
    table = workspace.folder / "places.csv"
    table.write_text("地区名,緯度,経度\n大谷,33.575,133.5\n", encoding="utf-8")
    load = ["places", "load", "--config", config, str(table)]
    loaded = CliRunner().invoke(cli, load)
    test = ["console-notifications", "test", "--config", config]
    tested = CliRunner().invoke(cli, test)
    parts = make_test_services(workspace, clock, more)
    with serve_console(parts, workspace.port) as client:
        (shown,) = client.get("/api/notifications").json()["rules"]
    parts.notifications.close()

    assert loaded.exit_code == 0
    assert UNKNOWN in loaded.output
    assert tested.exit_code == 1
    assert UNKNOWN in tested.output
    assert shown["unknown_districts"] == ["大谷地区"]


def test_decision_stops_no_message_of_a_rule_without_escalation(
    make_console: MakeConsole, hook: Receiver
) -> None:
    """Its receivers know of nothing yet; the person in the console is not alone."""
    hook.status = 503
    console = make_console(rule(hook.url))
    number = console.rise(4)
    console.step()
    decision = {"state": "acknowledged", "text": ""}
    console.services.events.decide(number, "sato", console.clock(), decision)
    hook.status = 200
    console.step(60)

    assert console.states() == ["delivered"]


def test_escalation_that_falls_into_quiet_hours_waits_for_their_end(
    make_console: MakeConsole, hook: Receiver
) -> None:
    """It rose at 16:41 in Japan, before they began."""
    more = 'quiet = "17:00-06:00"\nunacknowledged_min = 60'
    console = make_console(rule(hook.url, more))
    console.rise(3)
    console.step()
    (waiting,) = console.outbox.newest(1)

    end = datetime.fromtimestamp(console.clock(), JST) + timedelta(days=1)
    end = end.replace(hour=6, minute=0, second=0, microsecond=0)
    assert waiting.due_s == end.timestamp()


def test_escalation_only_while_nobody_has_decided(
    make_console: MakeConsole, hook: Receiver
) -> None:
    """After its minutes; a decision in time makes it unnecessary."""
    console = make_console(rule(hook.url, "unacknowledged_min = 10"))
    first = console.rise(4)
    console.rise(4, SLOPES[1].cell.token)
    console.step()
    console.step(590)
    assert hook.requests == []
    decision = {"state": "acknowledged", "text": ""}
    console.services.events.decide(first, "sato", console.clock(), decision)
    console.step(20)

    assert sorted(console.states()) == ["delivered", "not_needed"]
    assert "【未対応】" in hook.bodies()[0]["title"]


@pytest.mark.parametrize(
    ("decisions", "states", "levels"),
    [
        (["acknowledged"], ["not_needed", "delivered"], [5]),
        (["acknowledged", "open"], ["delivered", "delivered"], [4, 5]),
        ([], ["delivered", "delivered"], [4, 5]),
    ],
)
def test_escalation_of_a_rise_that_was_decided_about_before_the_next_one(
    make_console: MakeConsole,
    hook: Receiver,
    decisions: list[str],
    states: list[str],
    levels: list[int],
) -> None:
    """Level 4 was called not acknowledged when 5 had opened its event again.

    Without a decision, or if the person took it back, nobody looks after level 4.
    """
    console = make_console(rule(hook.url, "unacknowledged_min = 10"))
    number = console.rise(4)
    console.step()
    for state in decisions:
        console.clock.now_s += 60
        decision = {"state": state, "text": ""}
        console.services.events.decide(number, "sato", console.clock(), decision)
    console.step(60)
    console.rise(5)
    console.step(60)
    for _ in range(12):
        console.step(60)

    assert console.states() == states
    assert [body["events"][0]["level"] for body in hook.bodies()] == levels


def test_escalation_states_the_level_that_its_event_has_reached_meanwhile(
    make_console: MakeConsole, hook: Receiver
) -> None:
    """The chief read level 3 while the slope was at 5 for ten minutes."""
    more = 'from_level = 3\nunacknowledged_min = 20\nlanguage = "en"'
    console = make_console(rule(hook.url, more))
    console.rise(3)
    console.step()
    console.clock.now_s += 600
    at = int(console.clock())
    higher = replace(sign(5, at), reasons=("crack: 9 mm",), reason_codes=())
    console.services.events.add(higher, at)
    console.step()
    console.step(600)
    (body,) = hook.bodies()

    assert "Equivalent to level 5" in body["title"]
    head, reason = body["text"].splitlines()[:2]
    assert "Equivalent to level 5" in head
    assert f"since {when(at)} JST" in head
    assert reason == "- crack: 9 mm"
    ((level, change),) = {(each["level"], each["change"]) for each in body["events"]}
    assert (level, change) == (3, body["events"][0]["event"])


@pytest.mark.parametrize(("level", "states"), [(3, ["waiting"]), (4, ["delivered"])])
def test_quiet_hours_never_hold_level_4(
    make_console: MakeConsole, hook: Receiver, level: int, states: list[str]
) -> None:
    """Level 3 waits for their end; the slopes' present is 16:41 in Japan."""
    console = make_console(rule(hook.url, 'quiet = "16:00-06:00"'))
    console.rise(level)
    console.step()
    assert console.states() == states
    console.step(14 * 3600)

    assert console.states() == ["delivered"]


@pytest.mark.parametrize(
    ("status", "states"),
    [(200, ["not_needed", "delivered"]), (503, ["delivered", "delivered"])],
)
def test_level_3_of_quiet_hours_does_not_follow_the_level_5_of_the_night(
    make_console: MakeConsole, hook: Receiver, status: int, states: list[str]
) -> None:
    """At their end it read as a fall; beside a level 5 that still waits it is sent."""
    console = make_console(rule(hook.url, 'quiet = "16:00-06:00"'))
    console.rise(3)
    console.step(40 * 60)
    console.rise(5)
    hook.status = status
    console.step(60)
    hook.status = 200
    console.step(14 * 3600)

    assert console.states() == states
    assert all("レベル5相当" in body["title"] for body in hook.bodies())
    assert all("レベル3相当" not in body["text"] for body in hook.bodies())


def test_event_that_opens_again_at_a_lower_level_is_notified_after_quiet_hours(
    make_console: MakeConsole, hook: Receiver
) -> None:
    """Level 5 had been delivered, and a person had called it a false alarm."""
    console = make_console(rule(hook.url, 'quiet = "16:00-06:00"'))
    number = console.rise(5)
    console.step()
    decision = {"state": "false_alarm", "text": ""}
    console.services.events.decide(number, "sato", console.clock(), decision)
    console.clock.now_s += 3600
    shocks = replace(sign(3, console.clock()), reasons=("s",), reason_codes=(SHOCKS,))
    console.services.events.add(shocks, console.clock())
    console.step()
    assert console.states() == ["delivered", "waiting"]
    console.step(14 * 3600)

    assert console.states() == ["delivered", "delivered"]


@pytest.mark.parametrize(
    ("hours", "clock", "end"),
    [
        ("22:00-06:00", "21:59", "21:59"),
        ("22:00-06:00", "22:00", "06:00"),
        ("22:00-06:00", "05:59", "06:00"),
        ("12:00-13:00", "12:30", "13:00"),
        ("12:00-13:00", "13:00", "13:00"),
    ],
)
def test_end_of_quiet_hours(hours: str, clock: str, end: str) -> None:
    """Also over midnight."""
    at = datetime.fromisoformat(f"2026-07-01T{clock}:00+09:00")
    found = datetime.fromtimestamp(QuietHours.parse(hours).end_s(at.timestamp()), JST)

    assert f"{found:%H:%M}" == end
    assert 0 <= (found - at).total_seconds() < 86_400


def test_quiet_hours_that_end_as_they_begin_are_refused() -> None:
    """They might mean no hours, or all of them."""
    with pytest.raises(FieldError, match="two times"):
        QuietHours.parse("22:00-22:00")


def test_heartbeat_ends_when_notifications_are_late(
    make_console: MakeConsole, hook: Receiver
) -> None:
    """Its receiver then raises the alarm."""
    more = f'heartbeat = "{hook.url}"\n{rule(Receiver(free_port()).url)}'
    console = make_console(more)
    console.step()
    console.step(60)
    assert len(hook.requests) == 2
    console.rise(4)
    console.step(60)
    console.step(700)

    assert len(hook.requests) == 3


def test_heartbeat_ends_when_the_tables_are_not_read(
    make_console: MakeConsole, hook: Receiver
) -> None:
    """Nothing is notified then, and nothing waits; it begins again with them."""
    console = make_console(f'heartbeat = "{hook.url}"\n')
    console.step()
    for late_s, requests in ((540, 2), (660, 2), (0, 3)):
        console.clock.now_s += 60
        console.services.live_state.read_s = console.clock() - late_s
        console.sender.step()
        wait_until(lambda: not console.sender.is_busy())
        assert len(hook.requests) == requests


def test_heartbeat_ends_when_no_cell_is_judged_any_more(
    make_console: MakeConsole,
    hook: Receiver,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The scoring job has ended, while the console still reads the tables."""
    console = make_console(f'heartbeat = "{hook.url}"\n')
    console.sender.is_judged = console.is_judged
    console.step()
    assert not hook.requests
    write_tables(Workspace(tmp_path, 1).data, SLOPES[:1], NOW_S)
    for after_s, requests in ((60, 1), (25 * 60, 2), (5 * 60, 2), (60, 2)):
        console.clock.now_s += after_s
        console.services.live_state.refresh()
        console.step()
        assert len(hook.requests) == requests
    reasons = [text for text in caplog.messages if "no heartbeat" in text]
    assert len(reasons) == 2
    assert "see backend-score" in reasons[-1]


def test_event_in_the_journal_is_notified_after_a_restart(
    make_console: MakeConsole, hook: Receiver
) -> None:
    """The program may end before anything is planned; then it is planned once."""
    make_console(rule(hook.url)).rise(4)
    again = make_console(rule(hook.url))
    again.step()
    third = make_console(rule(hook.url))
    third.step(60)

    assert len(hook.requests) == 1
    assert third.states() == ["delivered"]


def test_event_that_is_still_being_folded_is_planned_in_the_next_step(
    make_console: MakeConsole, hook: Receiver
) -> None:
    """Its entry is in the journal; what came before it is planned with it."""
    console = make_console(rule(hook.url))
    console.rise(4)
    newest = console.rise(5, SLOPES[1].cell.token)
    with pytest.MonkeyPatch.context() as folding:
        known = console.services.events.event_of_entry
        folding.setattr(
            console.services.events,
            "event_of_entry",
            lambda entry: None if entry == newest else known(entry),
        )
        console.step()
    assert console.states() == []
    console.step(1)

    assert console.states() == ["delivered", "delivered"]


def copy_database(path: Path, to: Path) -> None:
    """Copy a database in use, as a backup does."""
    with closing(sqlite3.connect(path)) as live, closing(sqlite3.connect(to)) as copy:
        live.backup(copy)


def replace_journal(path: Path, other: Path | None) -> None:
    """Put another journal in the place of one; None removes it."""
    for part in path.parent.glob("journal.sqlite*"):
        part.unlink()
    if other is not None:
        other.rename(path)


@pytest.mark.parametrize("is_restored", [True, False])
def test_journal_that_lost_its_newest_entries(
    make_console: MakeConsole, hook: Receiver, tmp_path: Path, *, is_restored: bool
) -> None:
    """It was restored from a backup, or begun anew; numbers are given a second time."""
    console, journal = (
        make_console(rule(hook.url)),
        tmp_path / "data/console/journal.sqlite",
    )
    console.rise(3)
    console.step()
    copy_database(journal, tmp_path / "older")
    hook.status = 503
    console.rise(4, SLOPES[1].cell.token)
    console.rise(4, SLOPES[2].cell.token)
    console.step(60)
    replace_journal(journal, tmp_path / "older" if is_restored else None)
    hook.status, before = 200, len(hook.requests)
    again = make_console(rule(hook.url))
    number = again.rise(5, SLOPES[3].cell.token)
    again.step(60)
    again.step(600)

    (body,) = hook.bodies()[before:]
    assert [(each["event"], each["level"]) for each in body["events"]] == [(number, 5)]
    assert [each.level for each in again.outbox.of_event(number)] == [5]
    assert again.states() == ["delivered", "given_up", "given_up", "delivered"]


def refuse_to_write(*_: object, **__: object) -> None:
    """Raise what SQLite raises on a full disk."""
    raise sqlite3.OperationalError("database or disk is full")


def notify_of_lost(
    make_console: MakeConsole, hook: Receiver, journal: Path, *levels: int | None
) -> None:
    """Send a rise, if any, with one whose record a restored journal does not have."""
    other, lost = levels
    hook.status, older = 503, journal.with_name("older")
    console = make_console(rule(hook.url))
    if other is not None:
        console.rise(other)
        console.step()
    copy_database(journal, older)
    for level in (3, lost):
        assert level is not None
        console.rise(level, SLOPES[1].cell.token)
    console.step(60)
    replace_journal(journal, older)
    hook.status = 200
    hook.requests.clear()
    again = make_console(rule(hook.url))
    again.rise(3, SLOPES[2].cell.token)  # gets the number of a lost one
    again.outbox.forget_after = refuse_to_write  # type: ignore[method-assign]
    with pytest.raises(sqlite3.OperationalError, match="is full"):
        again.step(400)
    wait_until(lambda: not again.sender.is_busy())


@pytest.mark.parametrize(("other", "lost"), [(None, 5), (4, 5), (5, 4)])
def test_level_whose_record_is_lost_is_sent_as_no_test(
    make_console: MakeConsole,
    hook: Receiver,
    tmp_path: Path,
    other: int | None,
    lost: int,
) -> None:
    """The journal was restored, and a full disk kept the outbox from being written."""
    journal = tmp_path / "data/console/journal.sqlite"
    notify_of_lost(make_console, hook, journal, other, lost)
    (body,) = hook.bodies()

    line = (
        f"レベル{lost}相当の通知"
        "（記録が失われたため詳細不明。コンソールで確認してください）"
    )
    known = f"レベル{other}相当（ワイヤーセンサーの切断）"
    titles = {
        None: line, 4: f"{line} ほか 1 か所", 5: f"{known} メッシュ {CELL} ほか 1 か所"
    }  # fmt: skip
    assert body["title"] == f"大谷町 {titles[other]}"
    assert body["text"].startswith(line)
    assert (known in body["text"]) == (other is not None)
    assert "ほか" not in body["text"]
    assert "試験" not in body["title"] + body["text"]


def test_exercise_with_old_tables_notifies_of_its_present(
    make_console: MakeConsole, hook: Receiver
) -> None:
    """Its present is that of the newest data, which may be years old."""
    more = rule(hook.url, "exercises = true")
    console = make_console(f"exercise = true\n{more}")
    console.sender.present = lambda: NOW_S
    console.rise(5)
    console.step(400 * 86_400)

    assert console.states() == ["delivered"]


def test_old_tables_notify_nobody(make_console: MakeConsole, hook: Receiver) -> None:
    """The console first reads them when they are older than a day."""
    console = make_console(rule(hook.url))
    console.rise(5)
    console.clock.now_s += 90_000
    console.step()

    assert console.states() == []


@contextmanager
def running_console(config: Path) -> Iterator[None]:
    """The program itself, ended by ``kill -9``."""
    command = [sys.executable, "-m", "backend_spark", "console", "--config"]
    process = subprocess.Popen([*command, str(config)], stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def test_console_killed_between_event_and_delivery_loses_nothing(
    workspace: Workspace, hook: Receiver
) -> None:
    """The program itself, with ``kill -9``; no page is open."""
    hook.status = 503
    config = workspace.config(rule(hook.url, "from_level = 5"))
    row = {"node": "otani-9", "boot": "b", "seq": 1, "pri": 5, "cell": CELL}
    row |= {"why": "wire", "received_at": int(time.time() * 1e6)}
    table = pa.Table.from_pylist([row], schema=MESSAGE_COLUMNS)
    write_deltalake(str(workspace.data / "tables" / "alerts"), table)
    with running_console(config):
        wait_until(lambda: hook.requests)
    before, hook.status = len(hook.requests), 200
    with running_console(config):
        wait_until(lambda: len(hook.requests) > before)
        outbox = make_services(read_settings(config)).notifications.outbox
        wait_until(lambda: outbox.newest(1)[0].state is NotificationState.DELIVERED)

    assert len(hook.requests) == before + 1
    assert {each["webhook-id"] for each, _ in hook.requests} == {
        hook.requests[0][0]["webhook-id"]
    }
    outcomes = [each["outcome"] for each in outbox.attempts(1)]
    assert outcomes[-1] == "delivered"
    assert len(outcomes) == before + 1


def test_page_lists_deliveries_and_sends_a_test(
    workspace: Workspace, clock: Clock, hook: Receiver
) -> None:
    """The chief may; the address is shown without its secret path."""
    elsewhere = 'cells = ["0001"]'  # no rise of the storm comes before the test
    more = f"{workspace.with_accounts()}\n{rule(hook.url, elsewhere)}"
    parts = make_test_services(workspace, clock, more)
    with serve_console(parts, workspace.port) as client:
        proof = log_in(client, "a-chief")
        body = {"rule": "duty"}
        view = client.post("/api/notifications/test", headers=proof, json=body).json()
        wrong = client.post(
            "/api/notifications/test", headers=proof, json={"rule": "x"}
        )
        proof = log_in(client, "a-analyst")
        refused = client.post("/api/notifications/test", headers=proof, json=body)
    parts.notifications.step()
    wait_until(lambda: hook.requests)
    parts.notifications.close()

    assert view["rules"][0]["name"] == "duty"
    assert view["notifications"][0]["to"] == "http://127.0.0.1/…"
    assert (wrong.status_code, refused.status_code) == (404, 403)
    assert "【試験】" in hook.bodies()[0]["title"]


def test_command_tests_each_address(workspace: Workspace, hook: Receiver) -> None:
    """Each result is one line; the status is 1 if one was not accepted."""
    dead = Receiver(free_port()).url
    config = workspace.config(rule(hook.url) + rule(dead, name="dead"))
    command = ["console-notifications", "test", "--config", str(config)]
    one = CliRunner().invoke(cli, [*command, "--rule", "duty"])
    both = CliRunner().invoke(cli, command)
    wrong = CliRunner().invoke(cli, [*command, "--rule", "x"])

    assert (one.exit_code, one.output) == (0, "duty: http://127.0.0.1/…: accepted\n")
    assert both.exit_code == 1
    assert "dead: http://127.0.0.1/…: " in both.output
    assert "secret" not in both.output
    assert "there is no rule 'x'; there are: duty, dead" in wrong.output


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (rule("foo://x"), "appriseit.com/services"),
        (rule("https://"), "https://… of a webhook"),
        (rule("https://[h/x"), "https://… of a webhook"),
        (rule("/nowhere/to"), "a readable text file"),
        (rule("https://h/x", 'key_file = "/nowhere/key"'), "a readable text file"),
        (rule("https://h/x") * 2, "a name of its own, got 'duty'"),
        (rule("https://h/x", 'quiet = "22-6"'), "22:00-06:00"),
        (rule("https://h/x", 'cells = ["otani"]'), "tokens of cells"),
        (rule("https://h/x", "from_level = 2"), "from_level must be between 3 and 5"),
        ('heartbeat = "ping"', "console.heartbeat must be https://"),
    ],
)
def test_invalid_rules_stop_the_console_at_its_start(
    workspace: Workspace, clock: Clock, more: str, message: str
) -> None:
    """The error names field and rule, and no secret."""
    with pytest.raises((SettingsError, FieldError), match=message):
        make_test_services(workspace, clock, more)
