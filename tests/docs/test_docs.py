"""Settings, examples, links and numbers in the docs match the code."""

import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path

import click
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from backend_spark.config import BackendSettings
from backend_spark.exports.sql import JointSettings
from docs.demo_picture import draw_terminal
from docs.settings_page import page
from edge_agent.cli.provision import (
    SETTINGS_KEYS,
    make_fleet_nodes,
    parse_fleet_lines,
)
from edge_agent.config import parse_node_settings
from edge_agent.sensors.base import Health
from edge_agent.sensors.registry import SENSOR_KINDS
from edge_agent.triage.settings import TriageSection
from gateway_daemon.config import (
    AnnouncedBrokerSettings,
    GatewaySettings,
    ManagerSettings,
    SignerSettings,
)
from service_runtime.settings import (
    SettingsError,
    build_settings,
    describe_settings,
    parse_toml,
)

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(path: Path, language: str) -> list[str]:
    text = path.read_text(encoding="utf-8")
    found = re.findall(
        rf"^( *)```{language}\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE
    )
    return [
        re.sub(rf"^{indent}", "", body, flags=re.MULTILINE) for indent, body in found
    ]


def test_settings_reference_matches_the_code() -> None:
    """Run scripts/write-reference after a change of settings."""
    written = (ROOT / "docs/reference/settings.md").read_text(encoding="utf-8")

    assert written.rstrip("\n") == "\n".join(page())


def test_example_of_a_node_is_valid() -> None:
    """An installer can copy it from the how-to."""
    example, *variants = map(parse_toml, blocks(ROOT / "docs/how-to/node.md", "toml"))
    node = parse_node_settings(example)

    assert [sensor.name for sensor in node.sensors] == ["rain", "soil", "tilt", "span"]
    assert variants
    for variant in variants:
        parse_node_settings({**example, **variant})


def test_guide_lists_every_health_of_a_sensor() -> None:
    """Each health that the check prints is in the table of remedies."""
    guide = (ROOT / "docs/how-to/commissioning.md").read_text(encoding="utf-8")

    assert [h for h in Health if f"| `{h.value}` |" not in guide] == []


def test_guide_shows_the_wiring_of_every_kind_of_sensor() -> None:
    """An installer finds each kind in the guide."""
    guide = (ROOT / "docs/how-to/commissioning.md").read_text(encoding="utf-8")
    wiring = guide.partition("## Wiring")[2].partition("## What the check")[0]

    assert [kind for kind in SENSOR_KINDS if f"`{kind}`" not in wiring] == []


def test_example_of_a_fleet_is_valid() -> None:
    (example,) = blocks(ROOT / "docs/reference/fleet.md", "csv")
    lines, problems = parse_fleet_lines(example, SETTINGS_KEYS)

    assert problems == []
    assert [each.id for each in make_fleet_nodes(lines)] == ["kochi-0001", "kochi-0002"]


def test_examples_of_gateway_and_manager_are_valid() -> None:
    """An operator can copy them from the how-to."""
    examples = blocks(ROOT / "docs/how-to/gateway.md", "toml")
    manager, gateway, broker = map(parse_toml, examples)

    assert build_settings(ManagerSettings, manager).broker[0].topic == "/"
    assert build_settings(GatewaySettings, gateway).gateway.id == "gw-otani"
    assert build_settings(AnnouncedBrokerSettings, broker).broker.id == "d1"


def test_examples_of_several_managers_are_valid() -> None:
    """Each Manager has its own id and lists the others as peers."""
    examples = blocks(ROOT / "docs/how-to/managers.md", "toml")
    first, second = (
        build_settings(ManagerSettings, parse_toml(text)) for text in examples[:2]
    )

    assert first.manager.id != second.manager.id
    assert (len(first.manager.peers), len(second.manager.peers)) == (1, 1)


@pytest.mark.parametrize("page", ["how-to/autoscale.md", "reference/metrics.md"])
def test_additions_to_a_managers_settings_are_valid(page: str) -> None:
    """An operator can append them to the example of the how-to."""
    manager, *_ = blocks(ROOT / "docs/how-to/gateway.md", "toml")
    for text in blocks(ROOT / "docs" / page, "toml"):
        assert build_settings(
            ManagerSettings, {**parse_toml(manager), **parse_toml(text)}
        )


@pytest.mark.parametrize(
    "program", ["edge_agent", "gateway_daemon", "backend_spark", "spatial_mqtt"]
)
def test_every_command_is_listed_with_what_it_does(program: str) -> None:
    cli = import_module(f"{program}.__main__").cli
    commands = cli.list_commands(click.Context(cli))
    page = (ROOT / "docs/README.md").read_text(encoding="utf-8")

    assert commands
    assert [name for name in commands if not re.search(rf"\b{name}\b", page)] == []


def accepting_readers(example: dict[str, object]) -> list[str]:
    """Readers of settings that accept a table."""
    node, *_ = map(parse_toml, blocks(ROOT / "docs/how-to/node.md", "toml"))
    bases: dict[Callable[..., object], dict[str, object]] = {
        parse_node_settings: node,
        partial(build_settings, GatewaySettings): {
            "gateway": {"id": "g", "broker": "mqtts://a", "managers": ["mqtts://a"]}
        },
        partial(build_settings, ManagerSettings): {"manager": {"broker": "mqtts://a"}},
        partial(build_settings, SignerSettings): {"signer": {"broker": "mqtts://a"}},
        partial(build_settings, AnnouncedBrokerSettings): {
            "broker": {
                "id": "d",
                "local": "mqtts://a",
                "managers": ["mqtts://a"],
                "areas": ["/"],
            }
        },
        partial(build_settings, BackendSettings): {"backend": {"data": "d"}},
        partial(build_settings, JointSettings): {},
    }
    found = []
    for reader, base in bases.items():
        with suppress(SettingsError):
            reader(merged(base, example))
            found.append(str(reader))
    return found


def merged(base: dict[str, object], more: dict[str, object]) -> dict[str, object]:
    """A table updated recursively with the keys of another."""
    both = {**base, **more}
    for key in base.keys() & more.keys():
        old, new = base[key], more[key]
        if isinstance(old, dict) and isinstance(new, dict):
            both[key] = merged(old, new)
    return both


@pytest.mark.parametrize("page_path", PAGES, ids=lambda p: p.name)
def test_every_example_of_settings_is_accepted_by_a_program(
    page_path: Path, tmp_path: Path
) -> None:
    """An unknown key would prevent the daemon from starting."""
    public_key = tmp_path / "notices.pub"
    key = Ed25519PrivateKey.generate().public_key()
    public_key.write_bytes(
        key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    for text in blocks(page_path, "toml"):
        table = parse_toml(text.replace("/etc/yamamori/notices.pub", str(public_key)))
        if page_path.name != "topology.md":  # tested with its command
            assert accepting_readers(table), text


@pytest.mark.parametrize("page_path", PAGES, ids=lambda p: p.name)
def test_links_between_pages_resolve(page_path: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", page_path.read_text(encoding="utf-8"))
    local = [link for link in links if "://" not in link]

    assert [link for link in local if not (page_path.parent / link).exists()] == []


def test_triage_reference_lists_every_rule_with_its_default() -> None:
    text = (ROOT / "docs/reference/triage.md").read_text(encoding="utf-8")
    parts = re.split(r"^## `\[triage\.rules\.(\w+)\]`", text, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    missing = []
    for row in describe_settings(TriageSection):
        if row.path.startswith("rules.") and not row.path.endswith(".used"):
            _, rule, name = row.path.split(".")
            shown = "absent" if row.default == "None" else f"`{row.default}`"
            lines = [
                line for line in sections[rule].splitlines() if f"`{name}`" in line
            ]
            missing += [row.path] * (not any(shown in line for line in lines))
    assert missing == []


def test_examples_of_triage_are_valid() -> None:
    """An operator can add them to the example of a node."""
    example, *_ = map(parse_toml, blocks(ROOT / "docs/how-to/node.md", "toml"))
    (rules,) = map(parse_toml, blocks(ROOT / "docs/how-to/triage.md", "toml"))
    node = parse_node_settings({**example, **rules})

    assert node.settings.triage.rules.wire.alone_level == 3
    assert node.settings.criteria.criteria().critical_line_mm(40.0) == 177.5


def test_index_links_to_every_page() -> None:
    """Except decisions, which are found by their folder."""
    index = ROOT / "docs/README.md"
    links = re.findall(r"\]\(([^)#]+)", index.read_text(encoding="utf-8"))
    linked = {(index.parent / link).resolve() for link in links}
    pages = {page for page in PAGES if page.parent.name != "decisions"}

    assert pages - linked - {index} == set()


@pytest.mark.parametrize("page_path", PAGES, ids=lambda p: p.name)
def test_experiments_that_a_page_names_exist(page_path: Path) -> None:
    """Each published number must be reproducible."""
    text = page_path.read_text(encoding="utf-8")
    named = [
        ROOT / "experiments" / name.replace(".", "/")
        for name in re.findall(r"python -m experiments\.(\w+(?:\.\w+)*)", text)
    ]

    assert [
        path
        for path in named
        if not (path.with_suffix(".py").exists() or (path / "__main__.py").exists())
    ] == []


def test_numbers_of_the_papers_page_are_on_the_linked_page() -> None:
    """A new measurement must be updated on both pages."""
    page = ROOT / "docs/explanation/papers.md"
    for row in page.read_text(encoding="utf-8").splitlines()[5:12]:
        if not row.startswith("| **"):
            continue
        ours, link = row.split("|")[4], re.search(r"\]\((\S+?)#", row)
        assert link is not None
        linked = (page.parent / link[1]).read_text(encoding="utf-8").replace(",", "")
        numbers = re.findall(r"\d+(?:\.\d+)?", ours.replace(",", ""))
        assert [n for n in numbers if n not in linked] == [], row


def test_picture_of_the_demo_loads_nothing_and_names_no_machine() -> None:
    """A password that a demo printed does not belong in the docs, nor a web font."""
    lines = ["logs and data: /tmp/x", "console: http://h/ password p", "2 sent, 0 lost"]
    for svg in (draw_terminal(lines), (ROOT / "docs/images/demo.svg").read_text()):
        shown = svg.replace("&#160;", " ")
        assert "0 lost" in shown
        assert "password" not in shown
        assert "logs and data" not in shown
        assert "url(http" not in shown
