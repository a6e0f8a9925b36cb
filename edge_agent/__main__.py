"""Entry of ``edge-agent`` and ``python -m edge_agent``."""

from edge_agent.cli import cli
from service_runtime.cli import run_command_line


def main() -> None:
    """Run the command line."""
    run_command_line("edge-agent", cli)


if __name__ == "__main__":
    main()
