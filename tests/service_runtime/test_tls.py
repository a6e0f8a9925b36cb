"""Broker endpoints, and the error when a broker cannot be reached."""

import pytest
from conftest import free_port

from service_runtime.errors import FieldError
from service_runtime.tls import Endpoint
from spatial_mqtt.client import fetch_retained
from spatial_mqtt.errors import BrokerError


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("mqtt://h:1884", Endpoint("h", 1884)),
        ("mqtt://h", Endpoint("h", 1883)),
        ("mqtts://h", Endpoint("h", 8883, tls=True)),
        ("mqtts://gw.example.jp:8884/", Endpoint("gw.example.jp", 8884, tls=True)),
        ("mqtt://192.0.2.1:1", Endpoint("192.0.2.1", 1)),
        ("mqtt://[::1]:1883", Endpoint("::1", 1883)),
    ],
)
def test_broker_url_is_parsed(url: str, endpoint: Endpoint) -> None:
    """The scheme selects TLS and the default port."""
    assert Endpoint.parse(url) == endpoint


@pytest.mark.parametrize(
    "url",
    [
        "",
        "h",
        "h:1883",
        "http://h",
        "mqtt://",
        "mqtt://:1883",
        "mqtt://h:x",
        "mqtt://h:99999",
        "mqtt://h:-1",
        "mqtt://h/topic",
        "mqtt://[::1",
        "mqtt:h",
    ],
)
def test_invalid_broker_url_is_refused(url: str) -> None:
    """The error shows the expected form."""
    with pytest.raises(FieldError, match="broker url must be mqtt://host:port or"):
        Endpoint.parse(url)


@pytest.mark.parametrize("url", ["mqtt://h:0", "mqtt://u:secret@h", "mqtt://h?tls=1"])
def test_url_with_unused_parts_is_refused(url: str) -> None:
    """No part of a URL is ignored silently."""
    with pytest.raises(FieldError, match="broker url must be"):
        Endpoint.parse(url)


def test_endpoint_is_formatted_as_host_and_port() -> None:
    """The operator reads the address that the socket connects to."""
    assert str(Endpoint("h", 8883, tls=True)) == "h:8883"


def test_unreachable_broker_is_reported_with_the_reason() -> None:
    """The error holds the operating system's message."""
    endpoint = Endpoint("127.0.0.1", free_port())
    with pytest.raises(
        BrokerError, match=rf"^connecting to {endpoint} failed: .*refused within 0\.3 s"
    ) as caught:
        fetch_retained(endpoint, "/info", "a", timeout_s=0.3)
    assert caught.value.endpoint == str(endpoint)
