"""The one thread on which lgpio tells of edges: when it dies, every pin is dumb."""

from collections.abc import Mapping


def tells_of_edges(modules: Mapping[str, object]) -> bool:
    """Whether lgpio's thread lives; also true where lgpio is not in use.

    An exception in any callback ends it, and the process looks healthy.

    Args:
        modules: What the process has imported.
    """
    thread = getattr(modules.get("lgpio"), "_notify_thread", None)
    return thread is None or bool(thread.is_alive())
