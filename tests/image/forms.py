"""Selects the short form (`make test`) or the long one (`make image-test`)."""

import json
import os
from pathlib import Path

import pytest

OUT = Path(os.environ.get("IMAGE_OUT", Path(__file__).parents[2] / "out/image"))
RECORDS = OUT / "test.json"


def is_long() -> bool:
    """Whether `make image-test` runs."""
    return os.environ.get("IMAGE_TEST") == "long"


only_long = pytest.mark.skipif(
    not is_long(), reason="minutes of QEMU: run make image-test"
)


def record(**numbers: float) -> None:
    """Store measurements in out/image/test.json."""
    RECORDS.parent.mkdir(parents=True, exist_ok=True)
    before = json.loads(RECORDS.read_text()) if RECORDS.exists() else {}
    RECORDS.write_text(json.dumps({**before, **numbers}, indent=1) + "\n")
