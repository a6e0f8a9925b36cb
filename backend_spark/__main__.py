"""Entry of ``backend-spark`` and ``python -m backend_spark``.

Exit codes: 0 done; 65 bad input data; 70 unexpected error; 75 another process is
running, a replay is unfinished, executors do not see the data, a database does not
answer, or a disk is full; 77 a file that rights forbid; 78 bad settings, on which
systemd does not restart.
"""

import sys
from typing import NoReturn

import click

from backend_spark.cli import cli
from backend_spark.errors import (
    BackupError,
    CalibrationError,
    CriteriaTableError,
    DamagedDatabaseError,
    FullDiskError,
    PostgisSetupError,
    PostgisUnavailableError,
    RainTableError,
    SupersededError,
    UnfinishedReplayError,
    UnsharedFolderError,
)
from service_runtime.errors import AlreadyRunningError
from service_runtime.lifecycle import (
    EXIT_BUSY,
    EXIT_CONFIG,
    EXIT_USAGE_DATA,
    explaining_denied,
    report_settings_error,
)
from service_runtime.settings import SettingsError
from spatial_mqtt.reading_table import ReadingTableError

PROGRAM = "backend-spark"


def main() -> None:
    """Run the command line."""
    try:
        with explaining_denied(PROGRAM):
            cli(prog_name=PROGRAM)
    except SettingsError as error:
        sys.exit(report_settings_error(PROGRAM, error))
    except CriteriaTableError as error:
        _fail(EXIT_CONFIG, f"\n{PROGRAM}: ".join(str(error).splitlines()))
    except PostgisSetupError as error:
        _fail(EXIT_CONFIG, str(error))
    except (
        BackupError,
        DamagedDatabaseError,
        RainTableError,
        ReadingTableError,
        CalibrationError,
    ) as error:
        _fail(EXIT_USAGE_DATA, str(error))
    except (
        AlreadyRunningError,
        FullDiskError,
        PostgisUnavailableError,
        SupersededError,
        UnfinishedReplayError,
        UnsharedFolderError,
    ) as error:
        _fail(EXIT_BUSY, str(error))


def _fail(code: int, message: str) -> NoReturn:
    click.echo(f"{PROGRAM}: {message}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
