"""The box that an installer photographs."""

from edge_agent.commissioning.link_check import GatewayResult, LinkReport, ManagerResult
from edge_agent.commissioning.sensor_check import (
    BOX_WIDTH,
    CheckReport,
    NodeIdentification,
)

MACHINE = NodeIdentification(
    "kochi-0001", 33.5588, 133.5312, "/1/2", "2026-11-21T10:00:00+00:00", False,
    {"yamamori": "0.1.0", "board": "Raspberry Pi 4 Model B Rev 1.4 " * 3},
)  # fmt: skip
SERVING = GatewayResult(
    "10.8.0.7:1883", "/1/2", 0.09, 0.088, 1.4, True, "kochi-0001:ab:1", 4000, 0.8
)


def text(report: CheckReport) -> str:
    return "\n".join(report.format_box())


def test_passed_link_is_told_in_full() -> None:
    """Managers, gateway and area, round trip, rate, receipt."""
    link = LinkReport([ManagerResult("10.8.0.1:1883", 0.147, 2)], [SERVING], 7793)
    report = CheckReport(MACHINE, (), link)

    assert report.is_passed
    for words in (
        "| PASS  kochi-0001", "(clock is not set)", "about 7793 bytes used",
        "manager 10.8.0.1:1883: 2 areas in 147 ms",
        "gateway 10.8.0.7:1883 (area /1/2)", "round trip 88 ms",
        "rate 5000 bytes/s (4000 bytes)", "receipted: on the gateway's",
    ):  # fmt: skip
        assert words in text(report)


def test_gateway_that_fails_and_no_other_fails_the_check() -> None:
    """And says why."""
    lost = GatewayResult(
        "10.8.0.7:1883", "/1/2", problem="cannot be reached: timed out"
    )
    report = CheckReport(MACHINE, None, LinkReport([], [lost], 900))

    assert not report.is_passed
    assert "FAIL cannot be reached: timed out" in text(report)
    assert report.to_dict()["verdict"] == "fail"
    assert CheckReport(MACHINE, None, LinkReport([], [lost, SERVING], 900)).is_passed


def test_no_gateway_at_all_fails_with_a_remedy() -> None:
    """A Manager that knows nobody, or none that answers."""
    report = CheckReport(MACHINE, None, LinkReport([], [], 900))

    assert not report.is_passed
    assert "start a Manager, or give uplink.gateway" in text(report)


def test_box_has_straight_sides_whatever_is_in_it() -> None:
    """Long words are broken, and nothing sticks out."""
    problems = ["a problem " * 30, "x" * 200]
    box = CheckReport(MACHINE, None, None, {}, problems).format_box()

    assert {len(line) for line in box} == {BOX_WIDTH + 2}
