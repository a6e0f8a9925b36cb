"""The container that all tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from machine import Machine

HERE = Path(__file__).parent
TWO_LOOPS = """[Service]
Type=notify
ExecStart=/opt/yamamori/bin/python /opt/two_loops.py
Restart=always
RestartSec=1
WatchdogSec=2
FileDescriptorStoreMax=4
RuntimeDirectory=two-loops
RuntimeDirectoryPreserve=yes
"""


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A booted machine with our units installed, none of them started."""
    made = Machine(tmp_path_factory.mktemp("machine"))
    made.put("/opt/two_loops.py", (HERE / "two_loops.py").read_text())
    made.put("/etc/systemd/system/two-loops.service", TWO_LOOPS)
    made.boot()
    yield made
    made.power_off()
