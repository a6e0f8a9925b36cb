"""The console of the demo: its settings, its one account, and what it tells."""

import json
import os
import secrets
import urllib.request
from dataclasses import dataclass
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

from backend_spark.console import auth

NAME = "demo"
READY = "Uvicorn running"


@dataclass(frozen=True)
class Console:
    """Where it is and how to come in.

    Attributes:
        folder: Of the demo.
        port: Where it listens.
        password: Of the account `TABLE`, which may change everything.
    """

    folder: Path
    port: int
    password: str

    @classmethod
    def made(cls, folder: Path, port: int) -> "Console":
        """With an account of its own; the password is of this run only."""
        password = secrets.token_urlsafe(9)
        secret = auth.hash_password(password, os.urandom)
        account = auth.Account(NAME, "chief", secret)
        auth.write_accounts(folder / "accounts", {NAME: account})
        return cls(folder, port, password)

    @property
    def address(self) -> str:
        """URL of the pages."""
        return f"http://127.0.0.1:{self.port}/"

    def toml(self) -> str:
        """Its part of the backend's settings; the storm's time is the present."""
        return (
            f'\n[console]\nport = {self.port}\nplace = "大谷町"\nexercise = true\n'
            f'accounts = "{self.folder}/accounts"\n'
        )

    def ask(self) -> dict[str, Any]:
        """What an analyst would see: cells, their highest level, and alerts."""
        cookies = urllib.request.HTTPCookieProcessor(CookieJar())
        opener = urllib.request.build_opener(cookies)
        login = json.dumps({"name": NAME, "password": self.password}).encode()
        opener.open(f"{self.address}api/login", login, timeout=30).close()
        with opener.open(f"{self.address}api/cells", timeout=30) as answer:
            cells = json.load(answer)["tokens"]
        with opener.open(f"{self.address}api/log", timeout=30) as answer:
            alerts = json.load(answer)["alerts"]
        return {
            "cells": len(cells),
            "alerts": len(alerts),
            "highest_level": max((a["level"] for a in alerts), default=None),
        }
