"""Where a broker listens, and what is said when it does not."""

import pytest
from conftest import free_port

from service_runtime.errors import FieldError
from service_runtime.tls import Endpoint
from spatial_mqtt.errors import BrokerError
from spatial_mqtt.retained import fetch_retained


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
def test_url_of_a_broker_is_taken_apart(url: str, endpoint: Endpoint) -> None:
    """The scheme tells TLS and the usual port."""
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
def test_url_of_no_broker_is_refused(url: str) -> None:
    """The error shows the form that is wanted."""
    with pytest.raises(FieldError, match="broker url must be mqtt://host:port or"):
        Endpoint.parse(url)


@pytest.mark.parametrize("url", ["mqtt://h:0", "mqtt://u:secret@h", "mqtt://h?tls=1"])
def test_url_that_says_more_than_is_used_is_refused(url: str) -> None:
    """No part of a URL is dropped in silence."""
    with pytest.raises(FieldError, match="broker url must be"):
        Endpoint.parse(url)


def test_endpoint_is_shown_as_host_and_port() -> None:
    """What an operator reads is what a socket connects to."""
    assert str(Endpoint("h", 8883, tls=True)) == "h:8883"


def test_broker_out_of_reach_is_told_with_its_reason() -> None:
    """The error carries what the network said."""
    endpoint = Endpoint("127.0.0.1", free_port())
    with pytest.raises(
        BrokerError, match=rf"^connecting to {endpoint} failed: .*refused within 0\.3 s"
    ) as caught:
        fetch_retained(endpoint, "/info", "a", timeout_s=0.3)
    assert caught.value.endpoint == str(endpoint)
