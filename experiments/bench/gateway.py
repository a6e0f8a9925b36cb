"""Start of a real gateway daemon with its brokers."""

import json
from typing import Any

from experiments.bench.net import Net
from experiments.bench.site import Site

BROKER_PORT = 1883
"""Port of the gateway's own broker, where nodes publish."""

REMOTE_PORT = 1885
"""Port of the distributed broker to which the gateway delivers."""

NO_LIMITS = ("max_queued_messages 0", "max_inflight_messages 0")


SUBSCRIPTION_LOG = (
    "log_dest topic",
    "log_dest stderr",
    "log_type information",
    "log_type subscribe",
    "log_type unsubscribe",
    "log_type notice",
)
"""Options that make a gateway's own broker log subscriptions for the daemon."""

LOW_DELAY = ("set_tcp_nodelay true",)


def start_gateway(site: Site[Net], *broker_options: str) -> None:
    """Start both brokers and the daemon, all on the far side of the link.

    Args:
        site: Where the programs run.
        broker_options: Additional lines of the own broker's configuration.
    """
    far = site.net.far
    site.mosquitto("broker", far, BROKER_PORT, *NO_LIMITS, *broker_options)
    site.mosquitto("remote", far, REMOTE_PORT, *NO_LIMITS)
    start_daemon(site, far, BROKER_PORT, ("127.0.0.1", REMOTE_PORT))


def start_daemon(
    site: Site[Any],
    namespace: str | None,
    own_port: int,
    remote: tuple[str, int],
    uplink: str = "",
    *,
    gateway: str = "",
) -> None:
    """Start a gateway daemon beside its broker, and wait until both links are up.

    Args:
        site: Where the programs run.
        namespace: Network namespace of the gateway.
        own_port: Port of its own broker.
        remote: Host and port of the one distributed broker.
        uplink: Lines of its ``[uplink]``.
        gateway: Additional lines of its ``[gateway]``.
    """
    data = site.folder / "gateway"
    data.mkdir()
    broker = {"host": remote[0], "port": remote[1]}
    broker_table = {"version": 1, "brokers": [{"topic": "/", "broker_info": broker}]}
    (data / "broker-table.json").write_text(json.dumps(broker_table))
    config = site.folder / "gateway.toml"
    config.write_text(
        f'[gateway]\nid = "bench"\nbroker = "mqtt://127.0.0.1:{own_port}"\n'
        f'managers = []\ndata = "{data}"\n{gateway}\n[uplink]\n{uplink}\n'
        "[tls]\nallow_plain_mqtt = true\n"
    )
    site.python("gateway", namespace, "gateway_daemon", "run", "--config", config)
    site.wait_for_words("gateway", "is up on")
    site.wait_for_words("gateway", f"uplink to {remote[0]}:{remote[1]} is up")
