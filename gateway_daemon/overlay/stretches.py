"""Which stretches of the overlay a filter listens to and a message goes to.

A filter with wildcards cannot be a key: its gateway subscribes to the area that holds
all it takes, and drops what nobody wants. A message goes to every area around its
topic. Areas have few depths, so that a message has few stretches: the world, and S2
levels 3, 7 and 11 (about 1000, 70 and 5 km).
"""

from spatial_mqtt.topics import areas_around, check_area, check_publishable, fixed_part

WORLD = "/"
DEPTHS = (4, 8, 12)


def stretch_of(filter_: str) -> str:
    """The stretch where a filter's gateway subscribes.

    Raises:
        TopicError: Its fixed part is no area.
    """
    areas = areas_around(check_area(fixed_part(filter_)))
    return next((areas[d - 1] for d in reversed(DEPTHS) if d <= len(areas)), WORLD)


def stretches_for(topic: str) -> tuple[str, ...]:
    """The stretches whose subscribers may want a message, the widest first.

    Raises:
        TopicError: Nobody may publish on that topic.
    """
    areas = areas_around(check_publishable(topic))
    return (WORLD, *(areas[depth - 1] for depth in DEPTHS if depth <= len(areas)))
