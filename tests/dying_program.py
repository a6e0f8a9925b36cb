"""A program whose decoder has a fault: some payloads end the process.

``python -P dying_program.py <module> <arguments>`` runs the real program.
"""

import os
import runpy
import signal
import sys
from typing import Any

from spatial_mqtt import batching, senml

KILLS = b"kills the program"
"""As the kernel kills a process that uses too much memory."""

RAISES = b"fills the memory"
"""The decoder runs out of memory."""


def _decode(payload: bytes) -> Any:  # noqa: ANN401 - as the real one
    if KILLS in payload:
        os.kill(os.getpid(), signal.SIGKILL)
    if RAISES in payload:
        bytearray(1 << 62)
    return _sound(payload)


# The batch around a message is decoded by the sound decoder.
assert batching.decode_cbor is senml.decode_cbor
_sound = senml.decode_cbor
senml.decode_cbor = _decode

if __name__ == "__main__":
    module, *sys.argv[1:] = sys.argv[1:]
    runpy.run_module(module, run_name="__main__", alter_sys=False)
