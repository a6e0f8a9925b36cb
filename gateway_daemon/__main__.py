"""Entry point of ``gateway-daemon`` and ``python -m gateway_daemon``."""

from gateway_daemon.cli import cli


def main() -> None:
    """Run the command line."""
    cli(prog_name="gateway-daemon")


if __name__ == "__main__":
    main()
