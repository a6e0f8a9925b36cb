"""Routes to log in and out, and for the session data that pages load first."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, HTTPException, Request, Response

from backend_spark.console.auth import (
    SESSION_COOKIE,
    TooManyAttemptsError,
    Visitor,
    client_address,
)
from backend_spark.console.dependencies import Services, editor
from backend_spark.console.http import json_body, json_response

router = APIRouter(prefix="/api")


class Login(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a login."""

    name: str
    password: str


@router.get("/session")
def session(request: Request, services: Services) -> Response:
    """Settings of the page and the account that is logged in, if any."""
    console = services.settings.console
    page = {
        "place": console.place,
        "language": console.language,
        "tiles": console.tiles,
        "exercise": console.exercise,
    }
    visitor = services.auth.visitor(request)
    if visitor is None:
        return json_response(page | {"user": None})
    user = {
        "user": visitor.account.name,
        "role": visitor.account.role,
        "proof": services.auth.logins.proof(visitor.session),
    }
    return json_response(page | user)


@router.post("/login")
def log_in(
    request: Request,
    login: Annotated[Login, Depends(json_body(Login))],
    services: Services,
) -> Response:
    """Open a session; 401 for a wrong password, 429 for too many of them."""
    address, now_s = client_address(request), services.clock()
    try:
        session = services.auth.logins.log_in(
            login.name, login.password, address, now_s
        )
    except TooManyAttemptsError as error:
        answer = json_response({"detail": str(error)}, 429)
        answer.headers["Retry-After"] = f"{error.wait_s:.0f}"
        return answer
    if session is None:
        raise HTTPException(401, "name or password is wrong")
    answer = json_response({})
    answer.set_cookie(
        SESSION_COOKIE,
        session,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return answer


@router.post("/logout")
def log_out(
    visitor: Annotated[Visitor, Depends(editor("viewer"))], services: Services
) -> Response:
    """End the session."""
    services.auth.logins.log_out(visitor.session)
    answer = json_response({})
    answer.delete_cookie(SESSION_COOKIE)
    return answer
