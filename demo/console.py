"""The console of the demo: its settings, its account, and a query of its content."""

import json
import os
import secrets
import urllib.request
from dataclasses import dataclass
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from backend_spark.console import accounts
from backend_spark.console.auth import PROOF_HEADER
from demo.terrain import PACK, overlay_files

NAME = "demo"
READY = "Uvicorn running"


@dataclass(frozen=True)
class Console:
    """Address and credentials of the console.

    Attributes:
        folder: Folder of the demo.
        port: TCP port.
        password: Password of the account `NAME`, which has all rights.
    """

    folder: Path
    port: int
    password: str

    @classmethod
    def made(cls, folder: Path, port: int) -> "Console":
        """Create the account, with a password for this run only."""
        password = secrets.token_urlsafe(9)
        secret = accounts.hash_password(password, os.urandom)
        account = accounts.Account(NAME, "chief", secret)
        accounts.write_accounts(folder / "accounts", {NAME: account})
        return cls(folder, port, password)

    @property
    def address(self) -> str:
        """URL of the pages."""
        return f"http://127.0.0.1:{self.port}/"

    def toml(self) -> str:
        """Return its section of the backend's settings."""
        return (
            f'\n[console]\nport = {self.port}\nplace = "大谷町"\nexercise = true\n'
            f'accounts = "{self.folder}/accounts"\n'
            f'map_packs = ["{self.folder}/{PACK}"]\n'
        )

    def add_overlays(self) -> None:
        """Upload the overlays of the map, as a chief does."""
        opener = self._logged_in()
        with opener.open(f"{self.address}api/session", timeout=30) as answer:
            opener.addheaders.append((PROOF_HEADER, json.load(answer)["proof"]))
        for title, kind, content in overlay_files():
            query = urlencode({"title": title, "kind": kind})
            address = f"{self.address}api/overlays?{query}"
            opener.open(address, content, timeout=30).close()

    def _logged_in(self) -> urllib.request.OpenerDirector:
        cookies = urllib.request.HTTPCookieProcessor(CookieJar())
        opener = urllib.request.build_opener(cookies)
        login = json.dumps({"name": NAME, "password": self.password}).encode()
        opener.open(f"{self.address}api/login", login, timeout=30).close()
        return opener

    def ask(self) -> dict[str, Any]:
        """Return what an analyst would see: cells, events and the highest level."""
        opener = self._logged_in()
        with opener.open(f"{self.address}api/cells", timeout=30) as answer:
            cells = json.load(answer)["tokens"]
        with opener.open(f"{self.address}api/events", timeout=30) as answer:
            events = json.load(answer)["events"]
        return {
            "cells": len(cells),
            "events": len(events),
            "highest_level": max((e["peak"] for e in events), default=None),
        }
