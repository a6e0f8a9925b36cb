"""The node's image, from power-on to the first message in the archive."""

import pytest
from conftest import wait_until
from image.conftest import BOOT_S, NodeSetup
from image.forms import is_long, record

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.image]


@pytest.mark.skipif(is_long(), reason="the long form begins with the same")
def test_fresh_card_boots_and_reports_tips(setup: NodeSetup) -> None:
    """With the settings on the card, tips arrive in the archive."""
    setup.pi.on()
    wait_until(setup.backbone.archived, BOOT_S)
    record(power_on_to_archive_cpu_s=setup.pi.cpu_s())
    setup.pi.tip(3)
    wait_until(lambda: setup.backbone.count() == 3, 120)
    assert max(setup.backbone.archived().values()) == 5
