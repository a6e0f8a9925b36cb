"""Routes of the session: to log in and out, by the OpenID provider too, and its data.

Both routes of the provider only redirect: to the provider, or to `console.address`,
never to an address that a request contains.
"""

import logging
import math
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, HTTPException, Request, Response
from fastapi.responses import RedirectResponse

from backend_spark.console.accounts import MAX_PASSWORD_LENGTH
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
from backend_spark.console.dependencies import ConsoleServices, Services, editor
from backend_spark.console.http import json_body, json_response, set_cookie
from backend_spark.console.openid import PENDING_S, SignInError
from backend_spark.console.openid_settings import BEGIN, CALLBACK
from backend_spark.console.routes.map import pack_descriptions
from backend_spark.console.throttle import TooManyAttemptsError

log = logging.getLogger(__name__)

router = APIRouter(prefix="/api")
provider = APIRouter()


class Login(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a login."""

    name: Annotated[str, msgspec.Meta(max_length=64)]
    password: Annotated[str, msgspec.Meta(max_length=MAX_PASSWORD_LENGTH)]
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
        answer = json_response({"detail": str(error)}, 429)
        answer.headers["Retry-After"] = f"{math.ceil(error.wait_s)}"
        return answer
    except CodeMissingError as error:
        return json_response({"detail": str(error), "needs": "code"}, 401)
    except WrongLoginError as error:
        raise HTTPException(401, str(error)) from error
    answer = json_response({})
    set_cookie(answer, request, SESSION_COOKIE, opened.session)
    set_cookie(answer, request, DEVICE_COOKIE, opened.device, round(DEVICE_S))
    return answer


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
