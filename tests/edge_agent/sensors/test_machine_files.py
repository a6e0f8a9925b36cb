import pytest

from edge_agent.sensors import machine

SEEN = {"under-voltage-seen", "throttled-seen"}


def test_files_of_a_raspberry_pi() -> None:
    """Each as the kernel writes it."""
    stat = " 5821 1480 512345 9000 12000 800 204800 70000 0 60000 79000 0 0 0 0\n"
    meminfo = "MemTotal:   1000000 kB\nMemFree:  1 kB\nMemAvailable:  250000 kB\n"
    assert machine.parse_temp_c("48312\n") == 48.312
    assert machine.parse_written_bytes(stat) == 204800 * 512
    assert machine.parse_uptime_s("35021.88 68000.12\n") == 35021.88
    assert machine.parse_memory_free(meminfo) == 0.25
    assert machine.parse_load("0.42 0.30 0.20 1/123 4567\n") == 0.42


@pytest.mark.parametrize(
    ("text", "true"),
    [
        ("0\n", set()),
        ("50005\n", {"under-voltage", "throttled"} | SEEN),
        ("50000\n", SEEN),
        ("4", {"throttled"}),
        ("0x1", {"under-voltage"}),
        ("80008\n", set()),
    ],
)
def test_throttling_bits(text: str, true: set[str]) -> None:
    """Bits 0 and 2 are current, 16 and 18 since the start; the others concern heat."""
    seen = machine.parse_throttling(text)
    assert {name for name, value in seen.items() if value} == true


@pytest.mark.parametrize(
    ("text", "used"), [("0x01 0x02\n", 0.2), ("0x0a 0x01", 1.0), ("0x0b 0x0b", 1.1)]
)
def test_flash_lifetime_is_that_of_the_worse_area(text: str, used: float) -> None:
    """Tenths of the lifetime used; the larger of two areas."""
    assert machine.parse_life_used(text) == used


def test_undefined_flash_lifetime_is_an_error() -> None:
    """Zero is not defined by the standard."""
    with pytest.raises(ValueError, match="1 to 11 tenths, got '0x00 0x00'"):
        machine.parse_life_used("0x00 0x00")
