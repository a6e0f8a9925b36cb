"""Entry point of ``gateway-daemon`` and ``python -m gateway_daemon``."""

from gateway_daemon.cli import cli
from service_runtime.cli import run_command_line


def main() -> None:
    """Run the command line."""
    run_command_line("gateway-daemon", cli)


if __name__ == "__main__":
    main()
