"""Time-based one-time passwords (RFC 6238): the second factor of a login."""

import base64
import hmac
import re
from collections.abc import Callable
from typing import Final
from urllib.parse import quote

STEP_S: Final = 30
DIGITS: Final = 6
SECRET_BYTES: Final = 20
"""Length that RFC 4226 recommends; 32 letters in base32."""

WINDOW: Final = (0, -1, 1)
"""Steps around the present whose codes are accepted: clocks differ."""

_CODE: Final = re.compile(r"[0-9]{6}")


def one_time_code(key: bytes, step: int, digits: int = DIGITS) -> str:
    """Code of a step (RFC 4226 with SHA-1, which authenticator apps support)."""
    digest = hmac.digest(key, step.to_bytes(8, "big"), "sha1")
    offset = digest[-1] & 0xF
    number = int.from_bytes(digest[offset : offset + 4], "big") & 0x7FFFFFFF
    return f"{number % 10**digits:0{digits}d}"


def matching_step(secret: str, code: str, now_s: float) -> int | None:
    """Step whose code was given; None if it belongs to no step near the present.

    Args:
        secret: In base32.
        code: As typed; spaces are ignored.
        now_s: Unix time.
    """
    typed = code.replace(" ", "")
    if not _CODE.fullmatch(typed):
        return None
    key, present = base64.b32decode(secret), int(now_s // STEP_S)
    for step in (present + offset for offset in WINDOW):
        if hmac.compare_digest(one_time_code(key, step), typed):
            return step
    return None


def make_secret(random: Callable[[int], bytes]) -> str:
    """A new secret in base32."""
    return base64.b32encode(random(SECRET_BYTES)).decode("ascii")


def provisioning_uri(secret: str, name: str) -> str:
    """Address with which an authenticator app adds the account, also as a QR code."""
    return (
        f"otpauth://totp/Yamamori:{quote(name, safe='')}?secret={secret}"
        f"&issuer=Yamamori&algorithm=SHA1&digits={DIGITS}&period={STEP_S}"
    )
