"""Entry point of ``gateway-daemon`` and ``python -m gateway_daemon``."""

from gateway_daemon.cli import cli
from service_runtime.lifecycle import explaining_denied


def main() -> None:
    """Run the command line."""
    with explaining_denied("gateway-daemon"):
        cli(prog_name="gateway-daemon")


if __name__ == "__main__":
    main()
