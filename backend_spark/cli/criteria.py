"""Command ``criteria``: checks tables of criteria and counts what they judge."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from backend_spark.config import read_settings
from backend_spark.criteria.tables import (
    CriteriaFile,
    CriteriaRow,
    CriteriaTable,
    combine_files,
    find_tables,
)
from backend_spark.errors import CriteriaTableError
from service_runtime.lifecycle import EXIT_USAGE_DATA
from slope_science.criteria import (
    DEFAULT_CRITERIA,
    JUDGED_LEVELS,
    LINE_LEVEL,
    SPECIAL_LEVEL,
)

MAX_EXAMPLES = 5


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path),
    help="Settings file (TOML): checks its criteria.file when no PATHS are given.",
)
def criteria(paths: tuple[Path, ...], config_path: Path | None) -> None:
    """Check tables of criteria: files as published, or folders of them.

    Prints how many meshes each table has and how many of them it judges at level 5,
    and every row that cannot be read. Nothing is changed: the tables are used as they
    are, with `criteria.file` in the settings.
    """
    files: list[CriteriaFile] = []
    is_wrong = False
    for path in _sources(paths, config_path):
        try:
            files += [CriteriaFile.read(table) for table in find_tables(path)]
        except CriteriaTableError as error:
            is_wrong = True
            click.echo(str(error), err=True)
    for each in files:
        for line in describe_file(each):
            click.echo(line)
        for problem in each.table.problems:
            is_wrong = True
            click.echo(f"{each.table.path}: {problem}", err=True)
    is_wrong |= not _together(files)
    if is_wrong:
        sys.exit(EXIT_USAGE_DATA)


def _sources(paths: Sequence[Path], config_path: Path | None) -> Sequence[Path]:
    if paths:
        return paths
    file = read_settings(config_path).criteria.file if config_path else None
    if file is None:
        raise click.UsageError("give PATHS, or --config with criteria.file set in it")
    return (Path(file),)


def _together(files: Sequence[CriteriaFile]) -> bool:
    """Print what several files judge together; whether they fit."""
    if len(files) < 2:  # noqa: PLR2004 - one file was described already
        return True
    try:
        table: CriteriaTable = combine_files(files, DEFAULT_CRITERIA)
    except CriteriaTableError as error:
        click.echo(str(error), err=True)
        return False
    meshes = list(table.by_mesh.values())
    click.echo(f"together: {len(meshes)} meshes; {_level_5(meshes)}")
    click.echo(f"  {_levels(meshes)}")
    return True


def describe_file(file: CriteriaFile) -> Iterator[str]:
    """Lines about a file: meshes, levels that it judges, and what was left out."""
    rows, table = file.rows, file.table
    kind = "cells" if file.by_token and not file.by_mesh else "meshes"
    total = len(rows) + file.failed
    yield f"{table.path.name}: {len(rows)} {kind} of {total} read; {_level_5(rows)}"
    yield f"  {table.encoding}; {_levels(rows)}"
    if table.title:
        yield f"  title: {table.title.strip()}"
    if table.notes:
        shown = [f'line {at} "{text}"' for at, text in table.notes.items()]
        yield f"  lines without a mesh, left out: {_examples(shown)}"
    if file.differing:
        yield (
            "  given twice with different criteria, the lower counts: "
            f"{_examples(sorted(file.differing))}"
        )


def _level_5(rows: Sequence[CriteriaRow]) -> str:
    judged = sum(SPECIAL_LEVEL not in row.criteria().not_judged for row in rows)
    return (
        f"{judged} judged at level 5, {len(rows) - judged} not judged at level 5 by "
        "the prefecture"
    )


def _levels(rows: Sequence[CriteriaRow]) -> str:
    """How many rows judge each level, and what is assumed."""
    made = [row.criteria() for row in rows]
    counts = [
        f"{level}: {sum(level not in each.not_judged for each in made)}"
        for level in JUDGED_LEVELS
    ]
    notes = []
    if any(each.special_assumed for each in made):
        notes.append("level 5 by 1.25 of the critical line without rain (assumed)")
    if any(not each.line and LINE_LEVEL not in each.not_judged for each in made):
        notes.append("level 4 by the planning line (assumed)")
    return "; ".join([f"judged at level {', '.join(counts)}", *notes])


def _examples(texts: Sequence[str]) -> str:
    more = len(texts) - MAX_EXAMPLES
    tail = f" and {more} more" if more > 0 else ""
    return ", ".join(texts[:MAX_EXAMPLES]) + tail
