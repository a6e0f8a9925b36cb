"""``python -m experiments.bench.surge_load``: nodes of two valleys, and an analyst.

All nodes publish at the same rate; then the rate of one valley rises. The analyst
subscribes at the same gateway, so each delay covers the whole path: node, gateway,
distributed broker, gateway, analyst.
"""

import json
import time
from pathlib import Path

import click
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

NODES = 10
SURGE_TOPICS = tuple(f"/3/1/{n // 4}/{n % 4}" for n in range(NODES))
OTHER_TOPICS = tuple(f"/3/2/{n // 4}/{n % 4}" for n in range(NODES))
PAYLOAD_BYTES = 150
DRAIN_S = 60.0


@click.command()
@click.option("--port", type=int, required=True)
@click.option("--rate", type=float, required=True, help="Of each node, 1/s.")
@click.option("--factor", type=float, required=True, help="Of the hot valley.")
@click.option("--before", "before_s", type=float, required=True)
@click.option("--surge", "surge_s", type=float, required=True)
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(  # noqa: PLR0917 - one for each option
    port: int, rate: float, factor: float, before_s: float, surge_s: float, out: Path
) -> None:
    """Publish, and record when each message was sent and when it arrived."""
    arrived: dict[int, float] = {}

    def on_message(_client: paho.Client, _: object, message: paho.MQTTMessage) -> None:
        arrived.setdefault(int(message.payload.split()[0]), time.time())

    analyst, nodes = _client("analyst", port), _client("nodes", port)
    analyst.on_message = on_message
    analyst.subscribe("/3/#", 1)
    time.sleep(3.0)  # the gateway subscribes at the distributed broker
    began_s = time.time()
    sent: list[float] = []
    for factors, duration_s in (((1.0, 1.0), before_s), ((factor, 1.0), surge_s)):
        _publish(nodes, sent, [rate * f for f in factors], duration_s)
    deadline_s = time.time() + DRAIN_S
    while len(arrived) < len(sent) and time.time() < deadline_s:
        time.sleep(0.2)
    times = [(at_s, arrived.get(number)) for number, at_s in enumerate(sent)]
    out.write_text(json.dumps({"began_s": began_s, "times": times}))


def _publish(
    nodes: paho.Client, sent: list[float], rates: list[float], duration_s: float
) -> None:
    """Publish for the nodes of both valleys in turn, at even intervals."""
    began_s = time.time()
    counts = [0, 0]
    while (now_s := time.time()) - began_s < duration_s:
        for valley, topics in enumerate((SURGE_TOPICS, OTHER_TOPICS)):
            due = int((now_s - began_s) * rates[valley] * NODES)
            for number in range(counts[valley], due):
                payload = f"{len(sent)} ".ljust(PAYLOAD_BYTES, ".")
                topic = f"/forward{topics[number % NODES]}/pri2"
                sent.append(time.time())
                nodes.publish(topic, payload, qos=1)
            counts[valley] = due
        time.sleep(0.005)


def _client(name: str, port: int) -> paho.Client:
    client = paho.Client(CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv5)
    client.max_inflight_messages_set(1000)
    client.connect("127.0.0.1", port)
    client.loop_start()
    return client


if __name__ == "__main__":
    main()
