"""Links without TLS to another machine are refused before their first byte."""

import socket
from typing import Any

import pytest
from conftest import wait_until

from backend_spark.config import BackendSettings
from edge_agent.config import NodeSections
from gateway_daemon.config import (
    AnnouncedBrokerSettings,
    GatewaySettings,
    ManagerSettings,
    SignerSettings,
)
from service_runtime.errors import FieldError
from service_runtime.settings import SettingsError, build_settings
from service_runtime.tls import Endpoint, TlsFiles, check_link
from spatial_mqtt.client import Client
from spatial_mqtt.connection import Connection
from spatial_mqtt.transport import BaseConnectionHandler, Session

AWAY = "mqtt://gw.example:1883"
NODE = {"id": "n1", "latitude": 33.5, "longitude": 133.5}
GATEWAY = {"id": "g", "broker": "mqtt://localhost", "managers": ["mqtt://127.0.0.1"]}
MANAGER = {"broker": "mqtt://[::1]:1883"}
ANNOUNCED = {"id": "d", "local": "mqtt://localhost", "areas": ["/"]}


@pytest.mark.parametrize(
    ("form", "table", "field"),
    [
        (NodeSections, {"node": NODE, "uplink": {"gateway": AWAY}}, "uplink.gateway"),
        (
            NodeSections,
            {"node": NODE, "uplink": {"managers": [AWAY]}},
            "uplink.managers",
        ),
        (GatewaySettings, {"gateway": {**GATEWAY, "broker": AWAY}}, "gateway.broker"),
        (
            GatewaySettings,
            {"gateway": {**GATEWAY, "managers": ["mqtt://localhost", AWAY]}},
            "gateway.managers",
        ),
        (
            GatewaySettings,
            {"gateway": GATEWAY, "overlay": {"peers": [AWAY]}},
            "overlay.peers",
        ),
        (ManagerSettings, {"manager": {"broker": AWAY}}, "manager.broker"),
        (
            ManagerSettings,
            {"manager": {**MANAGER, "id": "m", "peers": [AWAY]}},
            "manager.peers",
        ),
        (
            ManagerSettings,
            {"manager": MANAGER, "broker": [{"topic": "/", "url": AWAY}]},
            "broker.url",
        ),
        (SignerSettings, {"signer": {"broker": AWAY}}, "signer.broker"),
        (
            AnnouncedBrokerSettings,
            {"broker": {**ANNOUNCED, "managers": [AWAY]}},
            "broker.managers",
        ),
        (
            BackendSettings,
            {"backend": {"data": "d"}, "ingest": {"broker": AWAY}},
            "ingest.broker",
        ),
        (
            BackendSettings,
            {"backend": {"data": "d"}, "notify": {"brokers": [AWAY]}},
            "notify.brokers",
        ),
    ],
)
def test_settings_with_a_plain_link_are_refused_unless_they_allow_it(
    form: type, table: dict[str, Any], field: str
) -> None:
    """The error names the key, the rule, the value and the remedy."""
    rule = f"^{field} must be mqtts:// towards another machine, got '{AWAY}'; give"
    with pytest.raises(SettingsError, match=rule):
        build_settings(form, table)
    build_settings(form, {**table, "tls": {"allow_plain_mqtt": True}})


@pytest.mark.parametrize(
    ("host", "is_own"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost.example", False),
        ("127.0.0.1.example", False),
        ("10.8.0.1", False),
        ("0.0.0.1", False),
        ("::ffff:10.8.0.1", False),
    ],
)
def test_loopback_is_told_from_other_hosts(host: str, is_own: bool) -> None:
    """By the text alone: names are resolved by the network."""
    assert Endpoint(host, 1883).is_loopback is is_own


@pytest.mark.attack("mqtt:// to another machine", "sent in plain text")
def test_plain_link_to_an_address_learnt_later_sends_nothing() -> None:
    """A gateway list or a broker table may contain any address.

    127.1 is resolved to the loopback, but could be any name.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = Endpoint("127.1", server.getsockname()[1])
        connection = Connection(endpoint, Session("n1"), BaseConnectionHandler())
        connection.start()
        wait_until(lambda: "towards another machine" in connection.last_reason)
        connection.stop()
        server.settimeout(0.1)
        with pytest.raises(TimeoutError, match="timed out"):
            server.accept()

        allowed = TlsFiles(allow_plain_mqtt=True)
        check_link(endpoint, allowed)
        connection = Connection(
            endpoint, Session("n1"), BaseConnectionHandler(), allowed
        )
        connection.start()
        server.settimeout(10)
        server.accept()[0].close()
        connection.stop()


def test_client_library_refuses_a_plain_manager() -> None:
    """Also a program outside this project should not send in plain text."""
    with pytest.raises(FieldError, match="mqtts:// towards another machine"):
        Client([AWAY], "analyst")
