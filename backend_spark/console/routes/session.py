"""Logging in and out, and what a page must know first."""

from typing import Final, TypeVar

import msgspec
from fastapi import APIRouter, Request, Response

from backend_spark.config import ConsoleSettings
from backend_spark.console.auth import COOKIE, Gate, address_of
from backend_spark.console.http import json, refuse

MOST_BODY_BYTES: Final = 64 * 1024

T = TypeVar("T")


class Login(msgspec.Struct, forbid_unknown_fields=True):
    """What the form sends."""

    name: str
    password: str


async def body_of(request: Request, form: type[T]) -> T:
    """The JSON of a request as a form has it.

    Raises:
        HTTPException: 413 too much, 422 something else than the form.
    """
    raw = b""
    async for part in request.stream():
        raw += part
        if len(raw) > MOST_BODY_BYTES:
            raise refuse(413, f"a request must be at most {MOST_BODY_BYTES} bytes")
    try:
        return msgspec.json.decode(raw, type=form)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise refuse(422, f"the request must be a {form.__name__}: {error}") from error


def visit_routes(settings: ConsoleSettings, gate: Gate) -> APIRouter:
    """Routes of a visit."""
    routes = APIRouter(prefix="/api")

    @routes.get("/session")
    def session(request: Request) -> Response:
        told = {
            "place": settings.place,
            "language": settings.language,
            "tiles": settings.tiles,
            "exercise": settings.exercise,
        }
        visitor = gate.visitor(request)
        if visitor is None:
            return json(told | {"user": None})
        return json(
            told
            | {
                "user": visitor.account.name,
                "role": visitor.account.role,
                "proof": gate.doors.proof(visitor.session),
            }
        )

    @routes.post("/login")
    async def login(request: Request) -> Response:
        form = await body_of(request, Login)
        return _login(request, form, gate)

    @routes.post("/logout")
    def logout(request: Request) -> Response:
        visitor = gate.change(request, "viewer")
        gate.doors.leave(visitor.session)
        answer = json({})
        answer.delete_cookie(COOKIE)
        return answer

    return routes


def _login(request: Request, form: Login, gate: Gate) -> Response:
    now_s, address = gate.clock(), address_of(request)
    wait_s = gate.doors.wait_s(form.name, address, now_s)
    if wait_s > 0:
        answer = json({"detail": f"too many tries: wait {wait_s:.0f} s"}, 429)
        answer.headers["Retry-After"] = f"{wait_s:.0f}"
        return answer
    session = gate.doors.enter(form.name, form.password, address, now_s)
    if session is None:
        raise refuse(401, "name or password is wrong")
    answer = json({})
    answer.set_cookie(
        COOKIE,
        session,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return answer
