"""Routes of the sign-in by an OpenID provider: to the provider, and back.

Both only redirect: to the provider, or to `console.address`, never to an address that a
request contains.
"""

import logging

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from backend_spark.console.auth import (
    SESSION_COOKIE,
    SIGN_IN_COOKIE,
    client_address,
)
from backend_spark.console.dependencies import ConsoleServices, Services
from backend_spark.console.http import set_cookie
from backend_spark.console.openid import PENDING_S, SignInError
from backend_spark.console.openid_settings import BEGIN, CALLBACK

log = logging.getLogger(__name__)

router = APIRouter()


@router.get(f"/{BEGIN}")
async def begin(request: Request, services: Services) -> Response:
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


@router.get(f"/{CALLBACK}")
async def finish(request: Request, services: Services) -> Response:
    """Open a session for the user whom the provider names, and show the pages."""
    cookie = request.cookies.get(SIGN_IN_COOKIE, "")
    address, now_s = client_address(request), services.clock()
    try:
        session = await services.auth.logins.finish_sign_in(
            request.query_params, cookie, address, now_s
        )
    except SignInError as error:
        answer = _failed(services, error)
    else:
        answer = _redirect(services.settings.console.address)
        set_cookie(answer, request, SESSION_COOKIE, session)
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
