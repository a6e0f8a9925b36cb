"""Prints the settings reference from the forms that check the settings."""

from collections.abc import Iterator

from backend_spark.config import BackendSettings
from backend_spark.exports.sql import JointSettings
from edge_agent.config import NodeSections
from edge_agent.sensors.registry import SENSOR_KINDS, find_sensor_kind
from gateway_daemon.config import (
    AnnouncedBrokerSettings,
    GatewaySettings,
    ManagerSettings,
    SignerSettings,
)
from service_runtime.settings import KeyRow, describe_settings

PROGRAMS = {
    "A gateway (`gateway-daemon run`)": GatewaySettings,
    "A Manager (`gateway-daemon manager`)": ManagerSettings,
    "A distributed broker that announces itself (`gateway-daemon broker`)": (
        AnnouncedBrokerSettings
    ),
    "The signer of certificates (`gateway-daemon ca sign`)": SignerSettings,
    "The backend (`backend-spark`)": BackendSettings,
    "A joint view of several backends (`backend-spark joint`)": JointSettings,
}
COLUMNS = "| key | value | bounds | default | meaning |\n|---|---|---|---|---|"
HEAD = """# Settings

Every key of every file, made from the code by `scripts/write-reference`.
Unknown keys are errors."""


def page() -> Iterator[str]:
    """Lines of the page."""
    yield HEAD
    yield from _section("A node (`edge-agent`)", describe_settings(NodeSections))
    for kind in sorted(SENSOR_KINDS):
        rows = describe_settings(find_sensor_kind(kind).settings)
        yield from _section(f'A sensor: `[[sensor]]` with `kind = "{kind}"`', rows)
    for title, form in PROGRAMS.items():
        yield from _section(title, describe_settings(form))


def _section(title: str, rows: Iterator[KeyRow]) -> Iterator[str]:
    yield f"\n## {title}\n\n{COLUMNS}"
    for row in rows:
        rule = row.rule
        bounds = [f"{x:g}" if x is not None else "" for x in (rule.low, rule.high)]
        span = " to ".join(bounds).strip() if any(bounds) else ""
        if rule.choices:
            span = ", ".join(f"`{choice}`" for choice in rule.choices)
        unit = f" ({rule.unit})" if rule.unit else ""
        kind, default = f"{row.kind}{unit}", f"{_default(row)}"
        yield f"| `{row.path}` | {kind} | {span} | {default} | {rule.doc} |"


def _default(row: KeyRow) -> str:
    """The default as it would stand in the file."""
    words = {"None": "absent", "required": "**required**"}
    toml = row.default.replace("'", '"').replace("(", "[").replace(",)", "]")
    return words.get(row.default, f"`{toml.replace(')', ']')}`")


if __name__ == "__main__":
    print("\n".join(page()))  # noqa: T201 - a page for a file
