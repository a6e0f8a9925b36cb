"""Prints an image's size and times with their limits; exit code 1 if it is too large.

A missed time is only printed: the machine may be slow or busy.
"""

import argparse
import json
import os
import sys
from pathlib import Path

OUT = Path(os.environ.get("IMAGE_OUT", Path(__file__).parents[1] / "out/image"))
BARS = {
    "node": {"image_mb_xz": 100.0, "power_on_to_archive_s": 90.0, "whole_s": 480.0},
    "gateway": {"image_mb_xz": 100.0, "gateway_power_on_to_archive_s": 90.0},
}


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--role", choices=BARS, required=True)
    parser.add_argument("--seconds", type=float, required=True, help="whole test")
    given = parser.parse_args()
    packed = next((OUT / given.role).glob("*.img.xz"))
    measured = {
        "image_mb_xz": round(packed.stat().st_size / 1e6, 1),
        **json.loads((OUT / "test.json").read_text()),
        "whole_s": given.seconds,
    }
    for name, value in measured.items():
        bar = BARS[given.role].get(name)
        is_missed = bar is not None and value > bar
        comparison = f"bar {bar:g}{' MISSED' * is_missed}" if bar else ""
        print(f"{name:30}{value:8} {comparison}".rstrip())
    sys.exit(measured["image_mb_xz"] > BARS[given.role]["image_mb_xz"])


if __name__ == "__main__":
    main()
