"""Another machine takes over the tables, and the one before comes back."""

from pathlib import Path

import pytest

from backend_spark.ingest.log import REPLACED_FILE, check_not_replaced
from backend_spark.streaming.checkpoint import check_folder, claim_for_folder
from service_runtime.settings import SettingsError

REMEDY = "stop the backend there, delete .*/replaced and start it here"


def run_job(tables: Path, checkpoints: Path) -> None:
    """Start a job until it runs."""
    check_folder(tables, checkpoints)
    claim_for_folder(tables, checkpoints)


def test_start_that_fails_replaces_no_machine(tmp_path: Path) -> None:
    """As of a spare machine with a wrong setting, which is then switched off."""
    tables, old, spare = (tmp_path / name for name in ("tables", "old", "spare"))
    run_job(tables, old)
    check_folder(tables, spare)

    run_job(tables, old)


def test_replaced_machine_does_not_take_the_tables_back(tmp_path: Path) -> None:
    """Not even with each restart; the new machine goes on, until a person decides."""
    tables, old, new = (tmp_path / name for name in ("tables", "old", "new"))
    for each in (old, old, new):
        run_job(tables, each)
    for _ in range(2):
        with pytest.raises(SettingsError, match=REMEDY):
            run_job(tables, old)
    run_job(tables, new)
    check_not_replaced(new)
    with pytest.raises(SettingsError, match=REMEDY):
        check_not_replaced(old)

    (old / REPLACED_FILE).unlink()
    run_job(tables, old)
    check_not_replaced(old)
    with pytest.raises(SettingsError, match=REMEDY):
        run_job(tables, new)


def test_takeover_that_a_power_cut_interrupted_is_completed(tmp_path: Path) -> None:
    """The tables name a folder whose own file is missing."""
    tables, old, new = (tmp_path / name for name in ("tables", "old", "new"))
    run_job(tables, old)
    run_job(tables, new)
    for path in new.iterdir():
        path.unlink()
    run_job(tables, new)
    run_job(tables, new)

    with pytest.raises(SettingsError, match=REMEDY):
        run_job(tables, old)


def test_tables_that_name_no_machine_are_claimed(tmp_path: Path) -> None:
    """As those that were copied to another place."""
    run_job(tmp_path / "tables", tmp_path / "old")
    run_job(tmp_path / "moved", tmp_path / "old")
    run_job(tmp_path / "moved", tmp_path / "new")

    with pytest.raises(SettingsError, match=REMEDY):
        run_job(tmp_path / "moved", tmp_path / "old")
