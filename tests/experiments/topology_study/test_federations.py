from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from experiments.topology_study.centrality import TopologyError
from experiments.topology_study.evaluation import (
    evaluate_federation,
    rank_topologies,
    share_lost_without,
)
from experiments.topology_study.federations import TOPOLOGIES, make_federation
from gateway_daemon.cli import cli
from gateway_daemon.overlay.keys import publication_areas, subscription_area
from spatial_mqtt.errors import TopicError

DISCONNECTED = """
[[broker]]
name = "a"
publishers = 1
[[broker]]
name = "b"
subscribers = 1
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["topology", *arguments])


@pytest.mark.parametrize(
    ("name", "placement", "inbound", "outbound"),
    [
        ("single", "even", ["1"], ["1"]),
        ("A", "even", ["1"] * 4, ["1/4"] * 4),
        ("B", "even", ["1/4"] * 4, ["1/4"] * 4),
        ("C", "even", ["1"] * 4, ["7/16", "13/48", "13/48", "13/48"]),
        ("C", "leaves", ["1"] * 4, ["1/6", "13/36", "13/36", "13/36"]),
        ("D", "even", ["1"] * 4, ["13/48", "17/48", "17/48", "13/48"]),
        ("E", "even", ["1"] * 4, ["5/16"] * 4),
    ],
)
def test_topologies_of_the_paper_exactly(
    name: str, placement: str, inbound: list[str], outbound: list[str]
) -> None:
    """Twelve publishers and twelve subscribers, four brokers."""
    loads = evaluate_federation(make_federation(name, 12, 12, placement)).loads.values()

    assert [load.inbound for load in loads] == [Fraction(x) for x in inbound]
    assert [load.outbound for load in loads] == [Fraction(x) for x in outbound]


def test_duplicates_of_a_mesh_are_counted() -> None:
    """Each broker forwards its first copy to all but the sender."""
    loads = evaluate_federation(
        make_federation("E", 12, 12), has_duplicates=True
    ).loads.values()

    assert {(x.inbound, x.outbound) for x in loads} == {
        (Fraction(5, 2), Fraction(13, 16))
    }


@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from(["C", "D"]))
def test_tree_has_no_duplicates(publishers: int, subscribers: int, name: str) -> None:
    """If every broker has subscribers, both counts are equal."""
    federation = make_federation(name, publishers, subscribers + 4)

    assert evaluate_federation(federation) == evaluate_federation(
        federation, has_duplicates=True
    )


def test_share_lost_when_a_broker_fails() -> None:
    """The hub of a star disconnects nearly all; in a mesh only its own clients."""
    hub = share_lost_without(make_federation("C", 12, 12), "b1")
    leaf = share_lost_without(make_federation("C", 12, 12), "b2")

    assert (hub, leaf) == (Fraction(13, 16), Fraction(7, 16))
    assert share_lost_without(make_federation("E", 12, 12), "b1") == Fraction(7, 16)
    assert share_lost_without(make_federation("A", 12, 12), "b1") == Fraction(1, 4)
    assert share_lost_without(make_federation("single", 12, 12), "b1") == 1


def test_advice_lists_the_best_topology_first() -> None:
    """Clients connected to all brokers are best; of bridged topologies, the mesh."""
    names = [each.name for each in rank_topologies(TOPOLOGIES, 12, 12, "even")]

    assert names[0] == "B"
    assert [name for name in names if name in "CDE"] == ["E", "D", "C"]
    assert names[-1] == "single"


def test_command_evaluates_a_file(tmp_path: Path) -> None:
    """A broker without clients is a hub; each link is listed once."""
    path = tmp_path / "kochi.toml"
    path.write_text(
        '[[broker]]\nname = "hub"\n'
        '[[broker]]\nname = "west"\nlinks = ["hub"]\npublishers = 2\n'
        '[[broker]]\nname = "east"\nlinks = ["hub"]\nsubscribers = 3\n'
    )
    done = run("evaluate", str(path))

    assert done.exit_code == 0
    assert "hub       1.0000    0.3333    1.0000" in done.output


@pytest.mark.parametrize(
    ("text", "message", "code"),
    [
        ("", "broker must be at least one [[broker]]", 64),
        (
            DISCONNECTED,
            "graph must be a way from a to b",
            64,
        ),
        ('[[broker]]\nname = "a"\nlinks = ["x"]\n', "broker.links must be another", 64),
        ('[[broker]]\nname = "a"\nlinks = ["a"]\n', "broker.links must be another", 64),
        ('[[broker]]\nname = "a"\n[[broker]]\nname = "a"\n', "a name of its own", 64),
        ('[[broker]]\nname = "a"\n', "clients must be publishers and subscribers", 64),
        (
            '[[broker]]\nname = "a"\npublishers = -1\n',
            "broker[1].publishers must be",
            65,
        ),
        ('[[broker]]\nnam = "a"\n', "broker[1].nam is not", 65),
        ("[[broker", "TOML", 65),
    ],
)
def test_error_in_a_file_is_reported(
    tmp_path: Path, text: str, message: str, code: int
) -> None:
    """The message has the field, the rule and the value, but no traceback."""
    path = tmp_path / "federation.toml"
    path.write_text(text)
    done = run("evaluate", str(path))

    assert message in done.output
    assert done.exit_code == code


def test_command_rejects_unknown_files_and_topologies_and_zero_clients() -> None:
    """Each error names the wrong value."""
    assert "no.toml" in run("evaluate", "no.toml").output
    assert "a file or one of single, A" in run("evaluate", "F").output
    assert (
        "publishers must be at least 1"
        in run("evaluate", "C", "--publishers", "0").output
    )
    assert (
        "subscribers must be at least 1" in run("advise", "--subscribers", "0").output
    )
    with pytest.raises(TopologyError, match="subscribers must be at least 1, got 0"):
        make_federation("E", 3, 0)


def test_json_contains_exact_fractions() -> None:
    assert '"out_exact": "5/16"' in run("evaluate", "E", "--json").output
    assert '"topology": "B"' in run("advise", "--json").output


def test_empty_topic_and_priority_0_are_refused() -> None:
    """The overlay has no topic range for an empty topic, and no plan for priority 0."""
    with pytest.raises(TopicError, match="topic must be 1 to 65535 bytes"):
        publication_areas("")
    done = CliRunner().invoke(cli, ["overlay", "simulate", "--priority", "0"])
    assert (done.exit_code, "0 is not in the range 1<=x<=5" in done.output) == (2, True)
    assert subscription_area("#") == subscription_area("+/1") == "/"
    assert publication_areas("/3/1/2/0/1") == ("/", "/3/1/2/0")


@pytest.mark.parametrize("nodes", [2**10 - 1, 2**10, 2**10 + 1])
def test_overlay_sizes_around_a_power_of_two_are_simulated(nodes: int) -> None:
    """Support nodes are on a grid of the next power of two."""
    done = CliRunner().invoke(
        cli,
        ["overlay", "simulate", "--method", "psg", "--pattern", "alpha", "--nodes",
         str(nodes), "--trials", "1", "--json"],
    )  # fmt: skip

    assert done.exit_code == 0
    assert '"path_hops"' in done.output
