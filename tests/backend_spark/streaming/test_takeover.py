"""Another machine takes over the tables, and the one before comes back."""

from pathlib import Path

import pytest

from backend_spark.ingest.log import REPLACED_FILE, check_not_replaced
from backend_spark.streaming.checkpoint import claim_for_folder
from service_runtime.settings import SettingsError

REMEDY = "stop the backend there, delete .*/replaced and start it here"


def test_replaced_machine_does_not_take_the_tables_back(tmp_path: Path) -> None:
    """Not even with each restart; the new machine goes on, until a person decides."""
    tables, old, new = (tmp_path / name for name in ("tables", "old", "new"))
    for each in (old, old, new):
        claim_for_folder(tables, each)
    for _ in range(2):
        with pytest.raises(SettingsError, match=REMEDY):
            claim_for_folder(tables, old)
    claim_for_folder(tables, new)
    check_not_replaced(new)
    with pytest.raises(SettingsError, match=REMEDY):
        check_not_replaced(old)

    (old / REPLACED_FILE).unlink()
    claim_for_folder(tables, old)
    check_not_replaced(old)
    with pytest.raises(SettingsError, match=REMEDY):
        claim_for_folder(tables, new)


def test_takeover_that_a_power_cut_interrupted_is_completed(tmp_path: Path) -> None:
    """The tables name a folder whose own file is missing."""
    tables, old, new = (tmp_path / name for name in ("tables", "old", "new"))
    claim_for_folder(tables, old)
    claim_for_folder(tables, new)
    for path in new.iterdir():
        path.unlink()
    claim_for_folder(tables, new)
    claim_for_folder(tables, new)

    with pytest.raises(SettingsError, match=REMEDY):
        claim_for_folder(tables, old)


def test_tables_that_name_no_machine_are_claimed(tmp_path: Path) -> None:
    """As those that were copied to another place."""
    claim_for_folder(tmp_path / "tables", tmp_path / "old")
    claim_for_folder(tmp_path / "moved", tmp_path / "old")
    claim_for_folder(tmp_path / "moved", tmp_path / "new")

    with pytest.raises(SettingsError, match=REMEDY):
        claim_for_folder(tmp_path / "moved", tmp_path / "old")
