"""Server-sent events: what changed, each second, to every page that is open."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import msgspec

EVERY_S: Final = 1.0

Sleep = Callable[[float], Any]
State = Callable[[], dict[str, Any]]


def changes(before: dict[str, Any] | None, now: dict[str, Any]) -> dict[str, Any]:
    """What a page must take over; everything when cells are new to it."""
    same = before is not None and before["geometry"] == now["geometry"]
    if before is None or not same or before["begin_s"] != now["begin_s"]:
        return {"kind": "all", **now}
    pairs = zip(before["levels"], now["levels"], strict=True)
    moved = [[at, new] for at, (old, new) in enumerate(pairs) if old != new]
    lists = {"levels", "flags", "seen_s"}
    rest = {name: value for name, value in now.items() if name not in lists}
    return {"kind": "some", "moved": moved, **rest}


async def events(state: State, sleep: Sleep = asyncio.sleep) -> AsyncIterator[bytes]:
    """The stream of one page; it ends when the page goes."""
    before: dict[str, Any] | None = None
    while True:
        now = await asyncio.to_thread(state)
        told = changes(before, now)
        before = now
        yield b"event: now\ndata: " + msgspec.json.encode(told) + b"\n\n"
        await sleep(EVERY_S)
