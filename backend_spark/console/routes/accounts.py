"""Routes of login and accounts: sessions, one's own password, accounts for chiefs.

Both routes of the OpenID provider only redirect: to it, or to `console.address`, never
to an address that a request contains.
"""

import logging
import math
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, HTTPException, Request, Response
from fastapi.responses import RedirectResponse

from backend_spark.console.accounts import (
    MAX_PASSWORD_LENGTH,
    ROLES,
    Account,
    Accounts,
    check_account_name,
    hash_password,
)
from backend_spark.console.auth import (
    DEVICE_COOKIE,
    DEVICE_S,
    SESSION_COOKIE,
    SIGN_IN_COOKIE,
    CodeMissingError,
    LoginAttempt,
    Visitor,
    WrongLoginError,
    client_address,
)
from backend_spark.console.dependencies import (
    Chief,
    ConsoleServices,
    Services,
    Viewer,
    editor,
)
from backend_spark.console.http import json_body, json_response, set_cookie
from backend_spark.console.logins import TooManyAttemptsError
from backend_spark.console.openid import PENDING_S, SignInError
from backend_spark.console.routes.map import pack_descriptions
from backend_spark.console.settings import BEGIN, CALLBACK
from service_runtime.errors import FieldError

log = logging.getLogger(__name__)

Password = Annotated[str, msgspec.Meta(max_length=MAX_PASSWORD_LENGTH)]
Name = Annotated[str, msgspec.Meta(max_length=64)]

router = APIRouter(prefix="/api")
provider = APIRouter()


class Login(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a login."""

    name: Name
    password: Password
    code: Annotated[str, msgspec.Meta(max_length=16)] = ""


@router.get("/session")
def session(request: Request, services: Services) -> Response:
    """Settings of the page and the account that is logged in, if any."""
    console = services.settings.console
    page = {
        "place": console.place,
        "language": console.language,
        "tiles": console.tiles,
        "exercise": console.exercise,
        "now_s": services.clock(),
        "provider": _provider(services),
    }
    visitor = services.auth.visitor(request)
    if visitor is None:
        return json_response(page | {"user": None})
    user = {
        "user": visitor.account.name,
        "role": visitor.account.role,
        "proof": services.auth.logins.proof(visitor.session),
        "until_s": services.auth.logins.sessions.until_s(visitor.session),
        "packs": pack_descriptions(services.packs),
    }
    return json_response(page | user)


def _provider(services: Services) -> dict[str, str] | None:
    """Name of the OpenID provider, and where a sign-in by it begins."""
    sign_in = services.auth.logins.provider
    if sign_in is None:
        return None
    return {"name": sign_in.provider.section.title, "url": sign_in.begin_url}


@router.post("/login")
async def log_in(
    request: Request,
    login: Annotated[Login, Depends(json_body(Login))],
    services: Services,
) -> Response:
    """Open a session; 401 for a wrong password, 429 for too many of them."""
    device = request.cookies.get(DEVICE_COOKIE, "")
    attempt = LoginAttempt(
        login.name, login.password, login.code, client_address(request), device
    )
    try:
        opened = await services.auth.logins.log_in(attempt, services.clock())
    except TooManyAttemptsError as error:
        raise _too_many(error) from error
    except CodeMissingError as error:
        return json_response({"detail": str(error), "needs": "code"}, 401)
    except WrongLoginError as error:
        raise HTTPException(401, str(error)) from error
    answer = json_response({})
    set_cookie(answer, request, SESSION_COOKIE, opened.session)
    set_cookie(answer, request, DEVICE_COOKIE, opened.device, round(DEVICE_S))
    return answer


def _too_many(error: TooManyAttemptsError) -> HTTPException:
    wait = {"Retry-After": f"{math.ceil(error.wait_s)}", "Cache-Control": "no-store"}
    return HTTPException(429, str(error), wait)


@router.post("/logout")
def log_out(
    visitor: Annotated[Visitor, Depends(editor("viewer"))], services: Services
) -> Response:
    """End the session."""
    services.auth.logins.log_out(visitor, services.clock())
    answer = json_response({})
    answer.delete_cookie(SESSION_COOKIE)
    return answer


@provider.get(f"/{BEGIN}")
async def begin_by_provider(request: Request, services: Services) -> Response:
    """Send the browser to the provider."""
    try:
        begun = await services.auth.logins.begin_sign_in(services.clock())
    except SignInError as error:
        return _failed(services, error)
    answer = _redirect(begun.url)
    # Strict cookies are not sent when the provider sends the browser back.
    answer.set_cookie(
        SIGN_IN_COOKIE,
        begun.cookie,
        max_age=round(PENDING_S),
        httponly=True,
        samesite="lax",
        secure=request.url.scheme == "https",
    )
    return answer


@provider.get(f"/{CALLBACK}")
async def finish_by_provider(request: Request, services: Services) -> Response:
    """Open a session for the user whom the provider names, and show the pages."""
    cookie = request.cookies.get(SIGN_IN_COOKIE, "")
    address, now_s = client_address(request), services.clock()
    try:
        opened = await services.auth.logins.finish_sign_in(
            request.query_params, cookie, address, now_s
        )
    except SignInError as error:
        answer = _failed(services, error)
    else:
        answer = _redirect(services.settings.console.address)
        set_cookie(answer, request, SESSION_COOKIE, opened)
    answer.delete_cookie(SIGN_IN_COOKIE)
    return answer


def _failed(services: ConsoleServices, error: SignInError) -> Response:
    """Show the login page with the reason; details are for the log."""
    sign_in = services.auth.logins.provider
    if sign_in and (count := sign_in.log_limit.count(error.reason)) is not None:
        log.warning("sign-in by the OpenID provider failed %d times: %s", count, error)
    address = services.settings.console.address or "/"
    return _redirect(f"{address}?login={error.reason}")


def _redirect(url: str) -> Response:
    return RedirectResponse(url, 303, {"Cache-Control": "no-store"})


class PasswordBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a change of one's own password."""

    old: Password
    new: Password


class NewAccountBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a new account."""

    name: Name
    role: str
    password: Password


class AccountBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a change of an account; what is absent stays.

    Attributes:
        name: Of the account.
        role: The new role.
        locked: Whether nobody may use it.
        password: The new password, for somebody who has forgotten it.
    """

    name: Name
    role: str | None = None
    locked: bool | None = None
    password: Password | None = None


@router.post("/password")
async def change_password(
    request: Request,
    visitor: Annotated[Visitor, Depends(editor("viewer"))],
    body: Annotated[PasswordBody, Depends(json_body(PasswordBody))],
    services: Services,
) -> Response:
    """Change one's own password; other sessions of the account end."""
    name = visitor.account.name
    if not visitor.account.password_hash or visitor.session == f"proxy {name}":
        raise HTTPException(409, "the password must be that of an account of this page")
    attempt = LoginAttempt(name, body.old, "", client_address(request), "")
    logins, now_s = services.auth.logins, services.clock()
    try:
        await logins.change_password(attempt, visitor.session, body.new, now_s)
    except TooManyAttemptsError as error:
        raise _too_many(error) from error
    except WrongLoginError as error:
        # 401 would end the session in the page.
        raise HTTPException(403, "old must be the present password") from error
    except FieldError as error:
        raise HTTPException(422, str(error)) from error
    return json_response({})


@router.get("/accounts")
def accounts(visitor: Viewer, services: Services) -> Response:
    """All accounts, without their secrets."""
    if not visitor.account.has_role("chief"):
        raise HTTPException(403, "the account must have the role chief")
    return json_response(_rows(services))


@router.post("/accounts")
def add_account(
    chief: Chief,
    body: Annotated[NewAccountBody, Depends(json_body(NewAccountBody))],
    services: Services,
) -> Response:
    """Add an account."""

    def edit(known: Accounts) -> Accounts:
        name = check_account_name(body.name)
        if name in known:
            rule, remedy = "a name without an account", "change the account"
            raise FieldError("name", rule, name, remedy)
        secret = hash_password(body.password, os.urandom)
        return known | {name: Account(name, _role(body.role), secret)}

    return _edit(services, chief, edit)


@router.post("/accounts/change")
def change_account(
    chief: Chief,
    body: Annotated[AccountBody, Depends(json_body(AccountBody))],
    services: Services,
) -> Response:
    """Change role, lock or password of somebody else's account."""

    def edit(known: Accounts) -> Accounts:
        if body.name not in known:
            raise FieldError("name", "that of an account", body.name)
        if body.name == chief.account.name:
            rule, remedy = "another account", "ask another chief"
            raise FieldError("name", rule, body.name, remedy)
        changes: dict[str, Any] = {}
        if body.role is not None:
            changes["role"] = _role(body.role)
        if body.locked is not None:
            changes["is_locked"] = body.locked
        if body.password is not None:
            changes["password_hash"] = hash_password(body.password, os.urandom)
        return known | {body.name: replace(known[body.name], **changes)}

    return _edit(services, chief, edit)


def _edit(
    services: ConsoleServices, chief: Visitor, edit: Callable[[Accounts], Accounts]
) -> Response:
    try:
        services.auth.logins.accounts.change(edit, chief.account.name)
    except FieldError as error:
        raise HTTPException(422, str(error)) from error
    return json_response(_rows(services))


def _role(text: str) -> str:
    if text not in ROLES:
        raise FieldError("role", f"one of {', '.join(ROLES)}", text)
    return text


def _rows(services: ConsoleServices) -> list[dict[str, Any]]:
    known = services.auth.logins.accounts.by_name
    return [
        {
            "name": each.name,
            "role": each.role,
            "locked": each.is_locked,
            "second_factor": bool(each.totp_secret),
            "token": bool(each.token_digest),
        }
        for each in sorted(known.values(), key=lambda each: each.name)
    ]
