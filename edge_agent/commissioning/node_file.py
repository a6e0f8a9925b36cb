"""A node's settings as the text of a TOML file."""

import json
from collections.abc import Iterator, Mapping
from typing import Any


def node_toml(id_: str, table: Mapping[str, Any]) -> str:
    """The file: sections, then a ``[[sensor]]`` for each sensor."""
    return "\n".join(_lines(id_, table)) + "\n"


def _lines(id_: str, table: Mapping[str, Any]) -> Iterator[str]:
    yield f"# Node {id_}, made by 'edge-agent provision'."
    for section, keys in table.items():
        if section != "sensor":
            yield f"\n[{section}]"
            yield from _keys(keys)
    for sensor in table.get("sensor", []):
        yield "\n[[sensor]]"
        yield from _keys(sensor)


def _keys(keys: Mapping[str, Any]) -> Iterator[str]:
    for key, value in keys.items():
        # What JSON writes for texts, numbers, truths and lists is TOML as well.
        yield f"{key} = {json.dumps(value, ensure_ascii=False)}"
