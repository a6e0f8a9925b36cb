"""Entry of ``edge-agent`` and ``python -m edge_agent``."""

from edge_agent.cli import cli
from service_runtime.lifecycle import explaining_denied


def main() -> None:
    """Run the command line."""
    with explaining_denied("edge-agent"):
        cli(prog_name="edge-agent")


if __name__ == "__main__":
    main()
