"""Messages of `edge-agent send`: JSON lines to drafts of the queue."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from edge_agent.clock import Clock
from edge_agent.queue.base import MessageDraft
from edge_agent.sampler import make_draft
from service_runtime.errors import FieldError
from spatial_mqtt.cells import Cell
from spatial_mqtt.errors import EnvelopeError, PriorityError
from spatial_mqtt.priority import LADDER
from spatial_mqtt.senml import MessageId, Pack, decode_pack

KEYS = frozenset({"pri", "e", "why"})


def parse_drafts(
    lines: Iterable[str], node: str, cell: Cell, clock: Clock
) -> Iterator[MessageDraft | str]:
    """Yield a draft for each good line, an error for each bad one; skip blank ones."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield make_draft(_pack(line, node, clock), cell)
        except FieldError as error:
            yield f"line {number}: {error}"


def _pack(line: str, node: str, clock: Clock) -> Pack:
    message = _object(line)
    records = message.get("e")
    if not isinstance(records, list) or not records or not isinstance(records[0], dict):
        raise EnvelopeError("e", "a list of SenML records", records)
    try:
        priority = LADDER.check(message.get("pri", LADDER.default))
    except PriorityError as error:
        raise EnvelopeError("pri", error.rule, error.value) from error
    head = {
        "bn": f"{node}/",
        "bt": clock.wall_s(),
        "boot": "-",
        "seq": 0,
        "pri": priority,
    }
    if "why" in message:
        head["why"] = message["why"]
    # The decoder checks every record, so that the next store can read the pack.
    pack = decode_pack(json.dumps([head | records[0], *records[1:]]).encode())
    return Pack(
        MessageId(node, "-", 0),
        priority,
        pack.time_s,
        pack.readings,
        clock.is_synchronised(),
        round(clock.mono_s(), 3),
        pack.why,
    )


def _object(line: str) -> Mapping[str, Any]:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise EnvelopeError("line", f"a JSON object ({error})", line.strip()) from error
    if not isinstance(message, dict):
        raise EnvelopeError("line", "a JSON object", message)
    unknown = message.keys() - KEYS
    if unknown:
        known = ", ".join(sorted(KEYS))
        raise EnvelopeError(
            "keys", f"among {known}", sorted(unknown), "remove the others"
        )
    return message
