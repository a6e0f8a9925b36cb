"""The image from power-on to the archive."""

import pytest
from conftest import wait_until
from image.conftest import BOOT_S, Slope
from image.forms import is_long, note

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.image]


@pytest.mark.skipif(is_long(), reason="the long form begins with the same")
def test_flash_power_done(slope: Slope) -> None:
    """From a fresh card to tips in the archive, with the settings of the card."""
    slope.pi.on()
    wait_until(slope.office.archived, BOOT_S)
    note(power_on_to_archive_cpu_s=slope.pi.cpu_s())
    slope.pi.tip(3)
    wait_until(lambda: slope.office.count() == 3, 120)
    assert max(slope.office.archived().values()) == 5
