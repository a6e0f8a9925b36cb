"""The printed box of the check report."""

from edge_agent.cli.link_check import GatewayResult, LinkReport, ManagerResult
from edge_agent.cli.sensor_check import (
    BOX_WIDTH,
    CheckReport,
    NodeIdentification,
)

NODE = NodeIdentification(
    "kochi-0001", 33.5588, 133.5312, "/1/2", "2026-11-21T10:00:00+00:00", False,
    {"yamamori": "0.1.0", "board": "Raspberry Pi 4 Model B Rev 1.4 " * 3},
)  # fmt: skip
PASSED_GATEWAY = GatewayResult(
    "10.8.0.7:1883", "/1/2", 0.09, 0.088, 1.4, True, "kochi-0001:ab:1", 4000, 0.8
)


def format_report(report: CheckReport) -> str:
    return "\n".join(report.format_box())


def test_passed_link_is_reported_in_full() -> None:
    """Managers, gateway and area, round trip, rate, receipt."""
    link = LinkReport(
        [ManagerResult("10.8.0.1:1883", 0.147, 2)], [PASSED_GATEWAY], 7793
    )
    report = CheckReport(NODE, (), link)

    assert report.is_passed
    for expected in (
        "| PASS  kochi-0001", "(clock is not set)", "about 7793 bytes used",
        "manager 10.8.0.1:1883: 2 areas in 147 ms",
        "gateway 10.8.0.7:1883 (area /1/2)", "round trip 88 ms",
        "rate 5000 bytes/s (4000 bytes)", "receipted: on the gateway's",
    ):  # fmt: skip
        assert expected in format_report(report)


def test_check_fails_when_every_gateway_fails() -> None:
    """One gateway that works is enough to pass."""
    failed = GatewayResult(
        "10.8.0.7:1883", "/1/2", problem="cannot be reached: timed out"
    )
    report = CheckReport(NODE, None, LinkReport([], [failed], 900))

    assert not report.is_passed
    assert "FAIL cannot be reached: timed out" in format_report(report)
    assert report.to_dict()["verdict"] == "fail"
    assert CheckReport(
        NODE, None, LinkReport([], [failed, PASSED_GATEWAY], 900)
    ).is_passed


def test_check_without_a_gateway_fails_with_a_remedy() -> None:
    """No Manager answers, or none has a gateway."""
    report = CheckReport(NODE, None, LinkReport([], [], 900))

    assert not report.is_passed
    assert "start a Manager, or give uplink.gateway" in format_report(report)


def test_all_lines_of_the_box_have_the_same_width() -> None:
    """Long words are broken to the width of the box."""
    problems = ["a problem " * 30, "x" * 200]
    box = CheckReport(NODE, None, None, {}, problems).format_box()

    assert {len(line) for line in box} == {BOX_WIDTH + 2}
