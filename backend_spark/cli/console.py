"""Commands ``console``, ``report`` and ``console-account``."""

import secrets
from pathlib import Path

import click

from backend_spark.cli import config_option
from backend_spark.config import read_settings
from backend_spark.console import auth
from service_runtime.errors import FieldError
from service_runtime.lifecycle import log_to_stderr


@click.command()
@config_option
def console(config_path: Path) -> None:
    """Show the tables as web pages for analysts; until SIGTERM."""
    settings = read_settings(config_path)
    log_to_stderr()
    from backend_spark.console import app  # noqa: PLC0415 - pyarrow and FastAPI

    app.run(settings)


@click.command()
@config_option
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    help="File to write (HTML); self-contained, prints on one page.",
)
@click.option(
    "--language",
    type=click.Choice(["ja", "en"]),
    help="Default: console.language.",
)
def report(config_path: Path, out: Path, language: str | None) -> None:
    """Write a one-page situation report: levels, reasons, missing data."""
    settings = read_settings(config_path)
    from backend_spark.console import app  # noqa: PLC0415 - pyarrow and FastAPI

    page = app.render_report(settings, language or settings.console.language)
    out.write_text(page, encoding="utf-8")


@click.group("console-account")
def console_account() -> None:
    """Add, list and remove console accounts."""


accounts_file = click.argument("accounts_file", type=click.Path(path_type=Path))


@console_account.command()
@accounts_file
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(auth.ROLES),
    default="analyst",
    show_default=True,
    help="viewer reads; analyst acknowledges and notes; chief changes thresholds.",
)
@click.password_option(help="Prompted for if absent.")
def add(accounts_file: Path, name: str, role: str, password: str) -> None:
    """Add an account, or set its password and role."""
    try:
        accounts = auth.read_accounts(accounts_file) if accounts_file.exists() else {}
        secret = auth.hash_password(password, secrets.token_bytes)
        account = auth.Account(auth.check_account_name(name), role, secret)
        auth.write_accounts(accounts_file, accounts | {name: account})
    except FieldError as error:
        raise click.UsageError(str(error)) from error
    click.echo(f"{name} ({role}) is in {accounts_file}; restart the console to use it")


@console_account.command()
@accounts_file
@click.argument("name")
def remove(accounts_file: Path, name: str) -> None:
    """Remove an account."""
    accounts = _read_accounts(accounts_file)
    if name not in accounts:
        names = ", ".join(accounts) or "none"
        raise click.UsageError(f"there is no account {name!r}; there are: {names}")
    auth.write_accounts(accounts_file, {k: a for k, a in accounts.items() if k != name})


@console_account.command("list")
@accounts_file
def list_accounts(accounts_file: Path) -> None:
    """List the accounts and their roles."""
    for account in _read_accounts(accounts_file).values():
        click.echo(f"{account.name}\t{account.role}")


def _read_accounts(path: Path) -> dict[str, auth.Account]:
    try:
        return auth.read_accounts(path)
    except FieldError as error:
        raise click.UsageError(str(error)) from error
