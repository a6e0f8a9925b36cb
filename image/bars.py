"""Prints an image's weight and speed beside the bars; status 1 when one is missed."""

import argparse
import json
import sys
from pathlib import Path

OUT = Path(__file__).parents[1] / "out/image"
BARS = {"image_mb_xz": 100.0, "power_on_to_archive_s": 90.0, "whole_s": 480.0}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, required=True, help="whole test")
    given = parser.parse_args()
    packed = next((OUT / "node").glob("*.img.xz"))
    measured = {
        "image_mb_xz": round(packed.stat().st_size / 1e6, 1),
        **json.loads((OUT / "test.json").read_text()),
        "whole_s": given.seconds,
    }
    missed = False
    for name, bar in BARS.items():
        is_missed = measured[name] > bar
        missed |= is_missed
        print(f"{name:24}{measured[name]:8} bar {bar:g}{' MISSED' * is_missed}")
    sys.exit(missed)


if __name__ == "__main__":
    main()
