"""``python -m experiments.bench.idle_subscriber``: paho client without processing.

Subscribes with QoS 1, lets paho acknowledge, and counts: the upper bound for any Python
program that uses plain paho.
"""

import json
import time
from pathlib import Path
from typing import Any

import click
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion


@click.command()
@click.option("--port", type=int, required=True)
@click.option("--filter", "filter_", required=True)
@click.option("--count", type=int, required=True)
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(port: int, filter_: str, count: int, out: Path) -> None:
    """Count messages until all have arrived."""
    client = paho.Client(CallbackAPIVersion.VERSION2, "idle", protocol=paho.MQTTv5)
    received = 0

    def on_message(*_: Any) -> None:  # noqa: ANN401 - paho's
        nonlocal received
        received += 1
        if received == count:
            out.write_text(
                json.dumps({"last_s": time.monotonic(), "received": received})
            )
            client.disconnect()

    client.on_message = on_message
    client.on_subscribe = lambda *_: print("ready", flush=True)
    client.connect("127.0.0.1", port)
    client.subscribe(filter_, 1)
    client.loop_forever()


if __name__ == "__main__":
    main()
