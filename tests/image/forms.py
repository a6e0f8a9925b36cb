"""The short form for every `make test`, the long one for `make image-test`."""

import json
import os
from pathlib import Path

import pytest

OUT = Path(os.environ.get("IMAGE_OUT", Path(__file__).parents[2] / "out/image"))
NOTES = OUT / "test.json"


def is_long() -> bool:
    """Whether `make image-test` runs."""
    return os.environ.get("IMAGE_TEST") == "long"


only_long = pytest.mark.skipif(
    not is_long(), reason="minutes of QEMU: run make image-test"
)


def note(**numbers: float) -> None:
    """Keep what was measured, in out/image/test.json."""
    NOTES.parent.mkdir(parents=True, exist_ok=True)
    before = json.loads(NOTES.read_text()) if NOTES.exists() else {}
    NOTES.write_text(json.dumps({**before, **numbers}, indent=1) + "\n")
