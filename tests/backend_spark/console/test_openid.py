"""Sign-in by a real OpenID provider, and attacks on it."""

import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest
from attack_table import timed
from conftest import free_port
from console_workspace import (
    HTTP_ONLY,
    Workspace,
    log_in,
    make_test_services,
    serve,
)
from openid_provider import TestProvider, run_provider, sign_in_at
from soak.disk import fill, mounted

from backend_spark.config import read_settings
from backend_spark.console.auth import SESSION_COOKIE, SIGN_IN_COOKIE
from backend_spark.console.dependencies import ConsoleServices
from service_runtime.settings import SettingsError

NO_SIGN_IN = "no such sign-in"


@dataclass
class RealClock:
    """The clock of the provider, which tests put forward."""

    ahead_s: float = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


@dataclass
class Site:
    """A console and its provider."""

    workspace: Workspace
    provider: TestProvider
    services: ConsoleServices
    clock: RealClock

    @property
    def address(self) -> str:
        """Of the console's pages."""
        return f"http://127.0.0.1:{self.workspace.port}"

    def browser(self) -> httpx.Client:
        """A browser without cookies."""
        return httpx.Client(base_url=self.address, timeout=30, verify=HTTP_ONLY)

    def to_callback(self, browser: httpx.Client, user: str, **more: str) -> str:
        """Sign in at the provider; returns where it sends the browser."""
        begun = browser.get("/oidc/login")
        assert begun.status_code == 303
        url = begun.headers["location"]
        assert url.startswith(self.provider.issuer), url
        return sign_in_at(browser, url + ("&" + urlencode(more) if more else ""), user)

    def sign_in(self, browser: httpx.Client, user: str) -> str:
        """Sign in; returns where the console sends the browser."""
        return browser.get(self.to_callback(browser, user)).headers["location"]


def role(browser: httpx.Client) -> str | None:
    found: str | None = browser.get("/api/session").json().get("role")
    return found


def check_refused(site: Site, browser: httpx.Client, went: str, reason: str) -> None:
    assert went == f"{site.address}?login={reason}"
    assert browser.get("/api/session").json()["user"] is None
    assert browser.get("/api/cells").status_code == 401


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site for all tests; its provider is put right after each."""
    folder = tmp_path_factory.mktemp("openid")
    workspace, clock = Workspace(folder, free_port()), RealClock()
    with run_provider(workspace.port, folder / "provider.log") as provider:
        more = f"{workspace.with_accounts()}\n"
        more += provider.settings(folder, workspace.port)
        services = make_services_at(workspace, clock, more)
        with serve(services, workspace.port):
            yield Site(workspace, provider, services, clock)


def make_services_at(
    workspace: Workspace, clock: RealClock, more: str
) -> ConsoleServices:
    return make_test_services(workspace, clock, more)  # type: ignore[arg-type]


@pytest.fixture
def site(shared: Site) -> Iterator[Site]:
    """The site, put right after the test."""
    yield shared
    shared.provider.damage()
    shared.clock.ahead_s = 0.0


def test_user_signs_in_with_the_role_of_the_claim(site: Site) -> None:
    """The session is one like any other, and the journal has who it is."""
    with site.browser() as browser:
        callback = browser.get(site.to_callback(browser, "chief"))
        assert callback.headers["location"] == site.address
        cookie = next(
            each
            for each in callback.headers.get_list("set-cookie")
            if each.startswith(SESSION_COOKIE)
        )
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie

        session = browser.get("/api/session").json()
        assert (session["user"], session["role"]) == ("chief", "chief")
        entry = site.services.journal.read("login", limit=1)[0]
        assert entry.who == "chief"
        assert entry.body["issuer"] == site.provider.issuer
        assert entry.body["subject"] == "chief"

        proof = {"X-Yamamori-Proof": session["proof"]}
        assert browser.get("/api/accounts").status_code == 200
        old_and_new = {"old": "x", "new": "a new password"}
        answer = browser.post("/api/password", json=old_and_new, headers=proof)
        assert answer.status_code == 409
        assert browser.post("/api/logout", headers=proof).status_code == 200
        browser.cookies.set(SESSION_COOKIE, cookie.split("=")[1].split(";")[0])
        assert role(browser) is None


def test_session_ends_after_a_shift(site: Site) -> None:
    """As a session by password."""
    with site.browser() as browser:
        site.sign_in(browser, "viewer")
        assert role(browser) == "viewer"
        site.clock.ahead_s = 12 * 3600 + 60
        assert role(browser) is None


@pytest.mark.attack("console: an ID token with a wrong claim", NO_SIGN_IN)
@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://login.evil.example"},
        {"iss": None},
        {"aud": "other"},
        {"aud": ["console", "other"]},
        {"aud": None},
        {"azp": "other"},
        {"nonce": "of another sign-in"},
        {"nonce": None},
        {"exp": 1_700_000_000},
        {"exp": None},
        {"exp": "soon"},
        {"iat": None},
        {"iat": 9_000_000_000},
        {"nbf": 9_000_000_000},
        {"sub": None},
        {"sub": ""},
    ],
    ids=str,
)
def test_token_with_a_wrong_claim_is_refused(
    site: Site, claims: dict[str, object]
) -> None:
    """The provider itself signs it: for another, too late, in another sign-in."""
    site.provider.damage(claims=claims)
    with site.browser() as browser:
        check_refused(site, browser, site.sign_in(browser, "chief"), "invalid")


def test_nonce_in_a_list_is_refused(site: Site) -> None:
    """A provider that repeats all nonces that it was sent binds the token to none."""
    with site.browser() as browser:
        begun = browser.get("/oidc/login").headers["location"]
        nonce = parse_qs(urlsplit(begun).query)["nonce"][0]
        site.provider.damage(claims={"nonce": ["another", nonce]})
        callback = sign_in_at(browser, begun, "chief")
        went = browser.get(callback).headers["location"]
        check_refused(site, browser, went, "invalid")


@pytest.mark.attack("console: an ID token that another has signed", NO_SIGN_IN)
@pytest.mark.parametrize("signer", ["none", "stranger", "embedded", "secret"])
def test_token_that_another_has_signed_is_refused(site: Site, signer: str) -> None:
    """No signature, another key of the same name, one in the header, an HMAC."""
    site.provider.damage(signer=signer)
    with site.browser() as browser:
        check_refused(site, browser, site.sign_in(browser, "chief"), "invalid")


@pytest.mark.attack("console: a sign-in's answer is repeated", NO_SIGN_IN)
def test_answer_is_accepted_once(site: Site) -> None:
    """Also with the cookie of the sign-in, which a thief has not."""
    with site.browser() as browser, site.browser() as thief:
        callback = site.to_callback(browser, "chief")
        pending = browser.cookies[SIGN_IN_COOKIE]
        assert browser.get(callback).headers["location"] == site.address
        assert SIGN_IN_COOKIE not in browser.cookies
        thief.cookies.set(SIGN_IN_COOKIE, pending)
        went = thief.get(callback).headers["location"]
        check_refused(site, thief, went, "refused")


@pytest.mark.attack("console: a stolen code in another sign-in", NO_SIGN_IN)
def test_code_of_another_browser_is_refused(site: Site) -> None:
    """A stolen code in one's own sign-in lacks the verifier (PKCE)."""
    with site.browser() as chief, site.browser() as thief:
        stolen = parse_qs(urlsplit(site.to_callback(chief, "chief")).query)["code"][0]
        own = httpx.URL(site.to_callback(thief, "viewer"))
        went = thief.get(own.copy_set_param("code", stolen)).headers["location"]
        check_refused(site, thief, went, "refused")


@pytest.mark.attack("console: a link that logs somebody in", NO_SIGN_IN)
def test_answer_in_another_browser_is_refused(site: Site) -> None:
    """Nobody is logged in as somebody else by a link (CSRF of the callback)."""
    with site.browser() as attacker, site.browser() as victim:
        link = site.to_callback(attacker, "viewer")
        check_refused(site, victim, victim.get(link).headers["location"], "late")
        victim.get("/oidc/login")
        check_refused(site, victim, victim.get(link).headers["location"], "late")


def test_sign_in_ends_after_ten_minutes(site: Site) -> None:
    """An answer that lay in a browser's history is too late."""
    with site.browser() as browser:
        callback = site.to_callback(browser, "chief")
        site.clock.ahead_s = 601
        went = browser.get(callback).headers["location"]
        check_refused(site, browser, went, "late")


def test_forged_cookie_of_the_sign_in_is_refused(site: Site) -> None:
    """It is signed with a key that only the console has."""
    with site.browser() as browser:
        callback = site.to_callback(browser, "chief")
        head, body, _ = browser.cookies[SIGN_IN_COOKIE].split(".")
        for forged in (f"{head}.{body}.", "e30.e30.", "x", "\x7f"):
            browser.cookies.clear()
            browser.headers["Cookie"] = f"{SIGN_IN_COOKIE}={forged}"
            went = browser.get(callback).headers["location"]
            check_refused(site, browser, went, "late")


def test_answer_of_another_provider_is_refused(site: Site) -> None:
    """Its name in the answer, iss, must be right (RFC 9207)."""
    with site.browser() as browser:
        callback = httpx.URL(site.to_callback(browser, "chief"))
        another = callback.copy_set_param("iss", "https://login.evil.example")
        went = browser.get(another).headers["location"]
        check_refused(site, browser, went, "invalid")
    with site.browser() as browser:
        callback = httpx.URL(site.to_callback(browser, "chief"))
        went = browser.get(callback.copy_remove_param("iss")).headers["location"]
        check_refused(site, browser, went, "invalid")


@pytest.mark.attack("console: a sign-in that leads elsewhere", NO_SIGN_IN)
def test_requests_cannot_choose_where_the_browser_goes(site: Site) -> None:
    """Neither by a parameter, nor by a header (open redirect)."""
    evil = "https://evil.example/"
    names = ("next", "redirect", "redirect_uri", "return_to", "login")
    params = dict.fromkeys(names, evil)
    headers = {"Host": "evil.example", "X-Forwarded-Host": "evil.example"}
    with site.browser() as browser:
        begun = browser.get("/oidc/login", params=params, headers=headers)
        query = parse_qs(urlsplit(begun.headers["location"]).query)
        assert begun.headers["location"].startswith(site.provider.issuer)
        assert query["redirect_uri"] == [f"{site.address}/oidc/callback"]

        callback = httpx.URL(sign_in_at(browser, begun.headers["location"], "chief"))
        for each in names:
            callback = callback.copy_set_param(each, evil)
        # The cookie is for the address of the console.
        headers["Cookie"] = f"{SIGN_IN_COOKIE}={browser.cookies[SIGN_IN_COOKIE]}"
        went = browser.get(callback, headers=headers).headers["location"]
        assert went == site.address
        refused = browser.get("/oidc/callback", params=params, headers=headers)
        assert refused.headers["location"].startswith(f"{site.address}?login=")


@pytest.mark.attack("console: a user of the provider chooses the role", NO_SIGN_IN)
def test_user_cannot_choose_the_role(site: Site) -> None:
    """By the request to the provider, by the answer, by a claim of one's own."""
    asked = '{"id_token":{"roles":{"value":"landslide-chief","essential":true}}}'
    with site.browser() as browser:
        more = {"claims": asked, "roles": "landslide-chief", "acr_values": "chief"}
        callback = httpx.URL(site.to_callback(browser, "viewer", **more))
        for name in ("role", "roles"):
            callback = callback.copy_set_param(name, "landslide-chief")
        assert browser.get(callback).headers["location"] == site.address
        assert role(browser) == "viewer"  # nickname is landslide-chief


@pytest.mark.parametrize(
    "roles",
    [
        [],
        None,
        "not-landslide-chief",
        "staff landslide-chief",
        {"landslide-chief": True},
        [["landslide-chief"]],
        True,
    ],
    ids=str,
)
def test_user_without_a_listed_role_is_refused(site: Site, roles: object) -> None:
    """There is no default, and no part of a value counts."""
    site.provider.damage(claims={"roles": roles})
    with site.browser() as browser:
        check_refused(site, browser, site.sign_in(browser, "chief"), "role")


@pytest.mark.parametrize("name", ["a-chief", "", "x" * 65, "a\nb", None, ["chief"]])
def test_name_of_an_account_or_no_name_is_refused(site: Site, name: object) -> None:
    """Whoever chooses a name at the provider does not become that account."""
    site.provider.damage(claims={"preferred_username": name})
    with site.browser() as browser:
        check_refused(site, browser, site.sign_in(browser, "viewer"), "name")


def test_provider_changes_its_keys(site: Site) -> None:
    """The new ones are read when a token has one of them."""
    with site.browser() as browser:
        site.sign_in(browser, "viewer")
        site.provider.change_keys()
        site.clock.ahead_s = 31  # keys are read again every 30 s at most
        assert site.sign_in(browser, "viewer") == site.address


def test_user_who_declines_is_back_at_the_form(site: Site) -> None:
    """With an error of the provider, whose text is not shown."""
    with site.browser() as browser:
        begun = browser.get("/oidc/login").headers["location"]
        state = parse_qs(urlsplit(begun).query)["state"][0]
        params = {"state": state, "error": "access_denied", "iss": site.provider.issuer}
        params["error_description"] = "<script>"
        went = browser.get("/oidc/callback", params=params).headers["location"]
        check_refused(site, browser, went, "refused")


def test_failures_are_in_the_journal(site: Site) -> None:
    """As those by password: an administrator sees the attempts."""
    site.clock.ahead_s = 3600  # at a limited rate
    before = len(site.services.journal.read("login_failed"))
    with site.browser() as browser:
        browser.get("/oidc/callback?code=x&state=y")
    assert len(site.services.journal.read("login_failed")) == before + 1


def test_failures_that_anyone_can_cause_do_not_fill_the_log(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """One line for each reason in a minute, with the number of failures."""
    with site.browser() as browser:
        for _ in range(20):
            browser.get("/oidc/callback?code=x&state=y")

    lines = [r for r in caplog.records if "sign-in by the" in r.getMessage()]
    assert len(lines) <= 1


def test_account_of_the_same_name_ends_the_session(site: Site) -> None:
    """So a chief shuts a user of the provider out at once."""
    with site.browser() as user, site.browser() as chief:
        site.sign_in(user, "viewer")
        proof = log_in(chief, "a-chief")
        account = {"name": "viewer", "role": "viewer", "password": "a long password"}
        answer = chief.post("/api/accounts", json=account, headers=proof)
        assert answer.status_code == 200
        try:
            assert role(user) is None
            check_refused(site, user, site.sign_in(user, "viewer"), "name")
        finally:
            site.workspace.with_accounts()


def test_other_settings_of_the_provider_end_sessions(site: Site) -> None:
    """Roles of the old settings would remain otherwise, also after a restart."""
    with site.browser() as browser:
        site.sign_in(browser, "chief")
        session = browser.cookies[SESSION_COOKIE]
    house = site.workspace
    accounts = f'accounts = "{house.folder / "accounts"}"\n'
    same = site.provider.settings(house.folder, house.port)
    other = same.replace("chiefs =", "analysts =")
    for settings, expected in ((same, "chief"), (other, None), ("", None)):
        services = make_services_at(house, site.clock, accounts + settings)
        account = services.auth.logins.account_of(session, site.clock())
        assert (account.role if account else None) == expected


def test_provider_that_is_away_hinders_nobody_else(tmp_path: Path, site: Site) -> None:
    """In a disaster: sessions go on, and accounts log in."""
    port = free_port()
    workspace = Workspace(tmp_path, port)
    with run_provider(port, tmp_path / "provider.log") as provider:
        more = f"{workspace.with_accounts()}\n{provider.settings(tmp_path, port)}"
        services = make_services_at(workspace, RealClock(), more)
        with serve(services, port):
            own = Site(workspace, provider, services, RealClock())
            with own.browser() as user, own.browser() as other:
                own.sign_in(user, "viewer")
                callback = own.to_callback(other, "chief")
                provider.stop()
                assert role(user) == "viewer"
                went = other.get(callback).headers["location"]
                check_refused(own, other, went, "away")
                log_in(other, "a-chief")
                assert role(other) == "chief"


def test_sign_in_that_cannot_be_recorded_is_refused(tmp_path: Path) -> None:
    """The page is back at its form, and says that the disk is full."""
    port = free_port()
    workspace = Workspace(tmp_path, port)
    workspace.data.mkdir()
    with (
        mounted(workspace.data / "console", "4m") as disk,
        run_provider(port, tmp_path / "provider.log") as provider,
    ):
        if disk is None:
            pytest.skip("only root may mount a small disk")
        more = f"{workspace.with_accounts()}\n{provider.settings(tmp_path, port)}"
        services = make_services_at(workspace, RealClock(), more)
        own = Site(workspace, provider, services, RealClock())
        with serve(services, port), own.browser() as browser:
            filler = fill(disk)
            check_refused(own, browser, own.sign_in(browser, "chief"), "full")
            filler.unlink()
            own.sign_in(browser, "chief")
            assert role(browser) == "chief"


@pytest.mark.attack("console: the provider hangs", NO_SIGN_IN)
def test_provider_that_hangs_hinders_no_login(
    tmp_path: Path, report: Callable[..., None]
) -> None:
    """Sign-ins wait in a lane of their own, and only so many."""
    workspace = Workspace(tmp_path, free_port())
    with closing(socket.create_server(("127.0.0.1", 0), backlog=100)) as silent:
        port = silent.getsockname()[1]
        more = (
            f'{workspace.with_accounts()}\naddress = "http://127.0.0.1"\n'
            f'[console.oidc]\nissuer = "http://127.0.0.1:{port}"\n'
            'client_id = "console"\nchiefs = ["x"]\n'
        )
        clock = RealClock()
        services = make_services_at(workspace, clock, more)
        with serve(services, workspace.port) as client:
            links = [
                socket.create_connection(("127.0.0.1", workspace.port))
                for _ in range(60)
            ]
            for link in links:
                link.sendall(b"GET /oidc/login HTTP/1.1\r\nHost: x\r\n\r\n")
            report(bystander_s=timed(lambda: log_in(client, "a-chief"), 5))
            assert client.get("/oidc/login").headers["location"].endswith("=away")
            for link in links:
                link.close()


def test_document_of_another_issuer_is_refused(site: Site, tmp_path: Path) -> None:
    """The settings name the issuer; nobody else can take its place."""
    more = site.provider.settings(tmp_path, site.workspace.port)
    more = more.replace("//localhost", "//127.0.0.1")
    house = Workspace(tmp_path, free_port())
    services = make_services_at(house, site.clock, f"{house.with_accounts()}\n{more}")
    with serve(services, house.port) as client:
        assert client.get("/oidc/login").headers["location"].endswith("login=away")


def test_console_without_a_provider_has_no_sign_in(tmp_path: Path) -> None:
    """The routes answer as if it were away."""
    house = Workspace(tmp_path, free_port())
    with serve(make_services_at(house, RealClock(), ""), house.port) as client:
        assert client.get("/api/session").json()["provider"] is None
        assert client.get("/oidc/login").headers["location"] == "/?login=away"
        answer = client.get("/oidc/callback?code=x&state=x")
        assert answer.headers["location"] == "/?login=away"


HTTPS = 'accounts = "x"\naddress = "https://c.example/"\n'
OIDC = '[console.oidc]\nissuer = "https://login.city.example"\nclient_id = "console"\n'
CHIEFS = 'chiefs = ["x"]\n'


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (f'address = "https://c.example/"\n{OIDC}{CHIEFS}', "accounts must be"),
        (f'accounts = "x"\n{OIDC}{CHIEFS}', "address must be https"),
        (HTTPS.replace("s://", "://") + OIDC + CHIEFS, "address must be https"),
        (HTTPS + OIDC, "chiefs must be"),
        (HTTPS + OIDC.replace("s://", "://") + CHIEFS, "issuer: url must be https"),
        (HTTPS + OIDC.replace("login", "[") + CHIEFS, "issuer: url must be https"),
        (HTTPS + OIDC.replace("login", "me@login") + CHIEFS, "url must be https"),
        (f'{HTTPS}{OIDC}{CHIEFS}scopes = ["profile"]', "a list with openid"),
    ],
)
def test_settings_that_are_not_safe_are_refused(
    tmp_path: Path, settings: str, words: str
) -> None:
    """Before anybody relies on them."""
    with pytest.raises(SettingsError, match=words):
        read_settings(Workspace(tmp_path, 8088).config(settings))


@pytest.mark.parametrize("name", ["client_secret_file", "ca"])
def test_file_that_is_missing_is_named(tmp_path: Path, name: str) -> None:
    """At the start, not at the first sign-in."""
    house = Workspace(tmp_path, free_port())
    missing = tmp_path / "missing"
    more = f'{house.with_accounts()}\naddress = "https://c.example/"\n{OIDC}'
    more += f'chiefs = ["x"]\n{name} = "{missing}"\n'
    with pytest.raises(SettingsError, match=f"console.oidc.{name} must be"):
        make_services_at(house, RealClock(), more)
    shutil.rmtree(house.data)
