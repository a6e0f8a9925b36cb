"""Guessing passwords must neither lock honest people out nor slow the pages down."""

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from attack_table import timed
from console_workspace import HTTP_ONLY, PASSWORD, Clock, Workspace, log_in

from backend_spark.config import read_settings
from backend_spark.console import accounts
from backend_spark.console.auth import DEVICE_S, MAX_WAITING, LoginLane
from backend_spark.console.logins import (
    GLOBAL_RATE,
    NAME_RATE,
    SITE_RATE,
    AttemptRate,
    LoginThrottle,
    TooManyAttemptsError,
    site_of,
)
from service_runtime.settings import SettingsError

OpenApp = Callable[..., httpx.Client]
THIEF, OWNER = "203.0.113.9", "198.51.100.7"
WRONG = "wrong password"


def attempt(
    client: httpx.Client, name: str, site: str, password: str = PASSWORD
) -> int:
    """Status of a login behind the proxy."""
    login, headers = {"name": name, "password": password}, {"X-Forwarded-For": site}
    return client.post("/api/login", json=login, headers=headers).status_code


def stranger(client: httpx.Client) -> httpx.Client:
    """A browser without cookies."""
    return httpx.Client(base_url=client.base_url, timeout=30, verify=HTTP_ONLY)


@pytest.mark.attack(
    "console: six wrong passwords under different names",
    "everyone behind the proxy locked out",
)
def test_wrong_names_behind_the_proxy_lock_nobody_out(
    open_app: OpenApp, workspace: Workspace, report: Callable[..., None]
) -> None:
    """Neither elsewhere nor at the same address."""
    client = open_app(workspace.with_accounts())
    for n in range(8):
        assert attempt(client, f"name-{n}", THIEF, WRONG) == 401

    statuses = []
    waits_s = timed(lambda: statuses.append(attempt(client, "a-chief", OWNER)), 5)
    assert statuses == [200] * 5
    with stranger(client) as other:
        assert attempt(other, "a-analyst", THIEF) == 200
    report(bystander_s=waits_s)


def test_guesses_at_a_name_stop_the_guesser_only(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """Its owner logs in from another address, also for the first time."""
    client = open_app(workspace.with_accounts())
    statuses = [attempt(client, "a-chief", THIEF, WRONG) for _ in range(6)]
    assert statuses == [401] * 5 + [429]

    assert attempt(client, "a-chief", OWNER) == 200


@pytest.mark.attack(
    "console: guesses at a name",
    "its owner locked out",
)
def test_known_device_logs_in_while_its_name_is_guessed_from_everywhere(
    open_app: OpenApp,
    workspace: Workspace,
    clock: Clock,
    report: Callable[..., None],
) -> None:
    """A new device must wait; a device is known for its own name, for 30 days."""
    client = open_app(workspace.with_accounts())
    statuses, waits_s = [attempt(client, "a-chief", OWNER)], []
    with stranger(client) as thief:
        for n in range(NAME_RATE.burst):
            assert attempt(thief, "a-chief", f"203.0.113.{n}", WRONG) == 401
            waits_s += timed(lambda: statuses.append(attempt(client, "a-chief", OWNER)))
        assert attempt(thief, "a-chief", "203.0.113.99") == 429
        assert attempt(thief, "a-analyst", OWNER) == 200
        device = dict(thief.cookies)

    statuses.append(attempt(client, "a-chief", OWNER))
    assert set(statuses) == {200}
    report(bystander_s=waits_s)
    with stranger(client) as other:
        other.cookies.update(device)
        assert attempt(other, "a-chief", "198.51.100.8") == 429, "of another name"
        other.cookies.set("yamamori-device", "x" * 43)
        assert attempt(other, "a-chief", "198.51.100.9") == 429, "invented"
    clock.now_s += DEVICE_S
    assert attempt(client, "a-chief", OWNER, WRONG) == 401


def test_known_device_is_throttled_by_itself(
    open_app: OpenApp, workspace: Workspace, clock: Clock
) -> None:
    """A stolen browser has five guesses, too; others are not delayed by it."""
    client = open_app(workspace.with_accounts())
    log_in(client, "a-chief")
    statuses = [attempt(client, "a-chief", OWNER, WRONG) for _ in range(6)]
    assert statuses == [401] * 5 + [429]
    with stranger(client) as other:
        assert attempt(other, "a-chief", OWNER) == 200

    clock.now_s += 5
    assert attempt(client, "a-chief", OWNER) == 200


def test_forwarded_address_of_an_unlisted_sender_is_ignored(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """A new address in each request does not evade the throttle."""
    client = open_app('proxies = ["10.9.9.9"]\n' + workspace.with_accounts())
    statuses = [attempt(client, "a-chief", f"192.0.2.{n}", WRONG) for n in range(6)]

    assert statuses == [401] * 5 + [429]


def test_only_the_address_that_the_proxy_added_counts(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """A client may send the header, too; the proxy appends to it."""
    client = open_app(workspace.with_accounts())
    sites = [f"192.0.2.{n}, {THIEF}" for n in range(6)]

    assert [attempt(client, "a-chief", s, WRONG) for s in sites] == [401] * 5 + [429]


def test_names_of_proxies_are_refused(workspace: Workspace) -> None:
    """Each of `proxies` is an address or a network."""
    with pytest.raises(SettingsError, match=r"proxies must be addresses or networks"):
        read_settings(workspace.config('proxies = ["*"]'))


@pytest.mark.attack(
    "console: many guesses at once",
    "16 guessers: pages 57 ms in the median, nobody else logs in",
)
def test_hashes_delay_neither_pages_nor_known_devices(
    open_app: OpenApp, workspace: Workspace, report: Callable[..., None]
) -> None:
    """While logins of new devices wait for slow hashes."""
    more = workspace.with_accounts()
    add_slow_account(workspace.folder / "accounts")
    client = open_app(more)
    log_in(client, "a-analyst")
    with ThreadPoolExecutor(8) as pool, stranger(client) as thief:
        guesses = [
            pool.submit(attempt, thief, "slow", f"203.0.113.{n}") for n in range(6)
        ]
        seen: list[int] = []
        waits_s = timed(lambda: seen.append(client.get("/api/cells").status_code), 5)
        waits_s += timed(lambda: seen.append(attempt(client, "a-analyst", OWNER)))
        waiting = sum(not guess.done() for guess in guesses)

        assert seen == [200] * 6
        assert waiting, f"the hashes were too quick to show it: {sum(waits_s):.1f} s"
        report(bystander_s=waits_s)
        assert [guess.result(60) for guess in guesses] == [401] * 6


def add_slow_account(path: Path) -> None:
    """An account whose hash takes about a fifth of a second, and fits no password."""
    good = accounts.hash_password(PASSWORD, os.urandom)
    slow = good.replace("$16384$8$1$", "$16384$8$4$")
    account = accounts.Account("slow", "viewer", slow)
    accounts.write_accounts(path, accounts.read_accounts(path) | {"slow": account})


def test_waiting_logins_are_bounded() -> None:
    """Beyond `MAX_WAITING` the answer comes at once."""
    ended = threading.Event()

    async def run() -> None:
        lane = LoginLane()
        tasks = []
        for _ in range(MAX_WAITING):
            lane.check_room()
            tasks.append(asyncio.create_task(lane.run(lambda: ended.wait(30))))
            await asyncio.sleep(0)
        with pytest.raises(TooManyAttemptsError, match="wait 1 s"):
            lane.check_room()
        ended.set()
        assert await asyncio.gather(*tasks) == [True] * MAX_WAITING
        lane.check_room()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("name", "site", "rate"),
    [
        ("name", "2001:db8:{n}::1", NAME_RATE),
        ("name-{n}", "2001:db8:1:{n}::1", SITE_RATE),
        ("name-{n}", "2001:db8:{n}::1", GLOBAL_RATE),
    ],
)
def test_rates_of_failed_logins(name: str, site: str, rate: AttemptRate) -> None:
    """By name, by site and in all; a device that is known is not delayed."""
    throttle = LoginThrottle()

    def count(n: int, now_s: float, device: str | None = None) -> None:
        throttle.count(name.format(n=n), site.format(n=f"{n:x}"), device, now_s)

    for n in range(rate.burst):
        count(n, 1000.0)
    with pytest.raises(TooManyAttemptsError, match="wait") as refused:
        count(rate.burst, 1000.0)
    assert refused.value.wait_s == pytest.approx(rate.interval_s)
    count(rate.burst, 1000.0, device="d")
    count(rate.burst, 1000.0 + rate.interval_s)


def test_successful_logins_spend_no_budget() -> None:
    """A school of browsers may log in at once from one address."""
    throttle = LoginThrottle()
    for n in range(500):
        counted = throttle.count(f"name-{n % 40}", OWNER, None, 1000.0)
        throttle.forgive(counted, 1000.0)


def test_pauses_end_when_the_clock_is_set_back() -> None:
    """A pause is at most 15 minutes, also when a day is repeated."""
    throttle = LoginThrottle()
    for _ in range(5):
        throttle.count("a", OWNER, None, 100_000.0)
    with pytest.raises(TooManyAttemptsError, match="wait 5 s"):
        throttle.count("a", OWNER, None, 100_000.0)
    throttle.count("a", OWNER, None, 13_600.0)


@pytest.mark.attack(
    "console: guesses at a name that arrive together",
    "each counted as the first one",
)
def test_guesses_that_overtake_one_another_are_counted() -> None:
    """One that came in a moment earlier looked as if the clock had been set back."""
    throttle = LoginThrottle()
    passed = 0
    for n in range(300):
        try:
            throttle.count("a-chief", f"10.0.0.{n}", None, 1000.0 + n / 10 - n % 2)
        except TooManyAttemptsError:
            continue
        passed += 1

    assert passed <= NAME_RATE.burst + 30 / NAME_RATE.interval_s


def test_addresses_of_one_site_count_as_one() -> None:
    """A /48 of IPv6, and an IPv4 address in either form."""
    assert site_of("2001:db8:1:2::3") == site_of("2001:db8:1:ffff::")
    assert site_of("2001:db8:1::") != site_of("2001:db8:2::")
    assert site_of("::ffff:192.0.2.1") == site_of("192.0.2.1")
    assert site_of("x" * 9999) == site_of("") == "unknown"


@pytest.mark.attack(
    "console: cookie over http",
    "neither Secure nor HSTS behind a proxy",
)
def test_cookies_are_secure_behind_https(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """And browsers are told to stay with https; only a listed proxy can say so."""
    login = {"name": "a-chief", "password": PASSWORD}
    https = {"X-Forwarded-Proto": "https"}
    client = open_app(workspace.with_accounts())
    secure = client.post("/api/login", json=login, headers=https).headers
    cookies = secure.get_list("set-cookie")
    assert len(cookies) == 2
    assert all("Secure" in cookie and "HttpOnly" in cookie for cookie in cookies)
    assert secure["strict-transport-security"] == "max-age=31536000"

    plain = client.post("/api/login", json=login).headers
    assert "Secure" not in plain["set-cookie"]
    assert "strict-transport-security" not in plain
