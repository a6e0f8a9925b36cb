"""A real gateway daemon of an experiment, with its brokers."""

import json
from typing import Any

from experiments.bench.net import Net
from experiments.bench.site import Site

BROKER_PORT = 1883
"""The gateway's own broker, where nodes publish."""

REMOTE_PORT = 1885
"""The distributed broker that the gateway delivers to."""

NO_LIMITS = ("max_queued_messages 0", "max_inflight_messages 0")


TELLS = (
    "log_dest topic",
    "log_dest stderr",
    "log_type information",
    "log_type subscribe",
    "log_type unsubscribe",
    "log_type notice",
)
"""Options by which a gateway's own broker tells who listens."""

LOW_DELAY = ("set_tcp_nodelay true",)


def start_gateway(site: Site[Net], *broker_options: str) -> None:
    """Start both brokers and the daemon, all on the far side of the link.

    Args:
        site: Where.
        broker_options: More lines for the configuration of the gateway's own broker.
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
        site: Where.
        namespace: Of the gateway.
        own_port: Of its broker.
        remote: Host and port of the one distributed broker.
        uplink: Lines of its ``[uplink]``.
        gateway: More lines of its ``[gateway]``.
    """
    data = site.folder / "gateway"
    data.mkdir()
    broker = {"host": remote[0], "port": remote[1]}
    known = {"version": 1, "brokers": [{"topic": "/", "broker_info": broker}]}
    (data / "broker-table.json").write_text(json.dumps(known))
    config = site.folder / "gateway.toml"
    config.write_text(
        f'[gateway]\nid = "bench"\nbroker = "mqtt://127.0.0.1:{own_port}"\n'
        f'managers = []\ndata = "{data}"\n{gateway}\n[uplink]\n{uplink}\n'
    )
    site.python("gateway", namespace, "gateway_daemon", "run", "--config", config)
    site.wait_for_words("gateway", "is up on")
    site.wait_for_words("gateway", f"uplink to {remote[0]}:{remote[1]} is up")
