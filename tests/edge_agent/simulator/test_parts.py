import sys
from pathlib import Path

import pytest
from slope_bench import START_S, opened

from edge_agent.simulator.board import find_part_connector

MODULE = """
class Part:
    faults = frozenset()
    def __init__(self, settings, bench):
        self.moved = 0
    def move(self, state):
        self.moved += 1
"""


def test_part_of_another_package_is_found_by_its_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package provides a driver and a part by two entry points."""
    (tmp_path / "their_part.py").write_text(MODULE)
    info = tmp_path / "their_part-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-part\n")
    (info / "entry_points.txt").write_text(
        "[yamamori.parts]\ntheir-kind = their_part:Part\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    found = find_part_connector("their-kind")
    assert found is sys.modules["their_part"].Part


def test_kind_without_a_part_stays_unconnected() -> None:
    """The simulated board leaves such a sensor unconnected."""
    assert find_part_connector("nobody-knows") is None


def test_board_lists_the_faults_of_a_part() -> None:
    """The faults that can be injected."""
    board, _ = opened({"kind": "wire", "name": "span", "pin": 27})
    assert {fault.value for fault in board.faults("span")} == {"dead", "stuck"}
    with pytest.raises(LookupError, match="no sensor with name 'spam'; the board has"):
        board.faults("spam")
    assert board.advance(START_S).wire_cut is False
