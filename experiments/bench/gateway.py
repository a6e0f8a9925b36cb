"""A real gateway daemon of an experiment, with its brokers."""

import json

from experiments.bench.site import Site

BROKER_PORT = 1883
"""The gateway's own broker, where nodes publish."""

REMOTE_PORT = 1885
"""The distributed broker that the gateway delivers to."""

NO_LIMITS = ("max_queued_messages 0", "max_inflight_messages 0")


def start_gateway(site: Site, *broker_options: str) -> None:
    """Start both brokers and the daemon, all on the far side of the link.

    Args:
        site: Where.
        broker_options: More lines for the configuration of the gateway's own broker.
    """
    far = site.net.far
    site.mosquitto("broker", far, BROKER_PORT, *NO_LIMITS, *broker_options)
    site.mosquitto("remote", far, REMOTE_PORT, *NO_LIMITS)
    data = site.folder / "gateway"
    data.mkdir()
    broker = {"host": "127.0.0.1", "port": REMOTE_PORT}
    known = {"version": 1, "brokers": [{"topic": "/", "broker_info": broker}]}
    (data / "broker-table.json").write_text(json.dumps(known))
    config = site.folder / "gateway.toml"
    config.write_text(
        f'[gateway]\nid = "bench"\nbroker = "mqtt://127.0.0.1:{BROKER_PORT}"\n'
        f'managers = []\ndata = "{data}"\n'
    )
    site.python("gateway", far, "gateway_daemon", "run", "--config", config)
    site.wait_for_words("gateway", "is up on")
    site.wait_for_words("gateway", f"uplink to 127.0.0.1:{REMOTE_PORT} is up")
