import pytest

from edge_agent.sensors.base import MissingPackageError, import_library
from edge_agent.sensors.linux import LinuxBuses


def test_missing_package_is_reported_with_a_remedy() -> None:
    """The error says what to install."""
    with pytest.raises(
        MissingPackageError,
        match=r"^I2C needs the package smbus9; install it with pip install 'yamamori",
    ) as caught:
        import_library("I2C", "smbus9", "smbus9")
    assert caught.value.package == "smbus9"


def test_disabled_bus_is_an_os_error() -> None:
    """The kernel's message names the device; other sensors are still read."""
    pytest.importorskip("smbus2")
    with pytest.raises(FileNotFoundError, match="i2c-99"):
        LinuxBuses().i2c(99)
