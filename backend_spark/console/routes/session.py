"""Routes to log in and out, and for the session data that pages load first."""

import math
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, HTTPException, Request, Response

from backend_spark.console.accounts import MAX_PASSWORD_LENGTH
from backend_spark.console.auth import (
    DEVICE_COOKIE,
    DEVICE_S,
    SESSION_COOKIE,
    CodeMissingError,
    LoginAttempt,
    Visitor,
    WrongLoginError,
    client_address,
)
from backend_spark.console.dependencies import Services, editor
from backend_spark.console.http import json_body, json_response, set_cookie
from backend_spark.console.routes.map import pack_descriptions
from backend_spark.console.throttle import TooManyAttemptsError

router = APIRouter(prefix="/api")


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
