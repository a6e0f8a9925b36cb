"""Entry of ``edge-agent`` and ``python -m edge_agent``."""

from edge_agent.cli import cli


def main() -> None:
    """Run the command line."""
    cli(prog_name="edge-agent")


if __name__ == "__main__":
    main()
