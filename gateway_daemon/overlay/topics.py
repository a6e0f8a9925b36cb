"""Topics of the overlay, on gateways' own brokers.

/overlay/node/<id>                    a frame for a gateway
/overlay/name/<id>                    a gateway's name in the overlay, retained
"""

from typing import Final

from spatial_mqtt.topics import check_node_id

OVERLAY_NAMES: Final = "/overlay/name/"
OVERLAY_NAME_FILTER: Final = f"{OVERLAY_NAMES}+"


def overlay_topic(gateway: str) -> str:
    """Where frames for a gateway are published, on its broker.

    Raises:
        TopicError: The gateway's id cannot be a topic level.
    """
    return f"/overlay/node/{check_node_id(gateway)}"


def overlay_name_topic(gateway: str) -> str:
    """Where a gateway retains its name.

    Raises:
        TopicError: The gateway's id cannot be a topic level.
    """
    return OVERLAY_NAMES + check_node_id(gateway)
