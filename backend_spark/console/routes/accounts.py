"""Routes of the accounts: one's own password, and for chiefs the accounts of others."""

import math
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, HTTPException, Request, Response

from backend_spark.console.accounts import (
    MAX_PASSWORD_LENGTH,
    ROLES,
    Account,
    Accounts,
    check_account_name,
    hash_password,
)
from backend_spark.console.auth import (
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
from backend_spark.console.http import json_body, json_response
from backend_spark.console.throttle import TooManyAttemptsError
from service_runtime.errors import FieldError

Password = Annotated[str, msgspec.Meta(max_length=MAX_PASSWORD_LENGTH)]
Name = Annotated[str, msgspec.Meta(max_length=64)]

router = APIRouter(prefix="/api")


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
        wait = {"Retry-After": f"{math.ceil(error.wait_s)}"}
        raise HTTPException(429, str(error), wait) from error
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
