"""The programs accept the commands that are written in sentences and tables."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest

import backend_spark.cli
import edge_agent.cli
import gateway_daemon.cli
import spatial_mqtt.__main__

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *(p for p in sorted((ROOT / "docs").rglob("*.md")) if p.parent.name != "decisions"),
]
PROGRAMS = {
    "edge-agent": edge_agent.cli.cli,
    "gateway-daemon": gateway_daemon.cli.cli,
    "backend-spark": backend_spark.cli.cli,
    "spatial-mqtt": spatial_mqtt.__main__.cli,
}
CODE = re.compile(r"(?<!`)`([a-z][^`\n|]+)`")


def codes(path: Path) -> list[str]:
    """Inline code of a page, without code blocks."""
    text = re.sub(
        r"^ *```.*?^ *```$", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    return CODE.findall(text)


def rejected_word(program: str, words: list[str]) -> str | None:
    """The first word that a program rejects or lacks; None if it accepts all.

    A command without values of options may be a mention, which needs no arguments.
    """
    command: click.Command = PROGRAMS[program]
    has_values, given = False, 0
    while words and words[0] not in {"...", "…"}:
        word = words.pop(0)
        name, _, value = word.partition("=")
        options = {opt: p for p in command.params for opt in p.opts}
        if name.startswith("-") and name != "--help":
            if name not in options:
                return word
            if not getattr(options[name], "is_flag", False):
                has_values = True
                del words[: 0 if value else 1]
        elif isinstance(command, click.Group):
            found = command.get_command(click.Context(command), word)
            if found is None:
                return word
            command = found
        else:
            given += 1
    arguments = [p for p in command.params if isinstance(p, click.Argument)]
    lacking = [p.human_readable_name for p in arguments[given:] if p.required]
    return lacking[0] if has_values and lacking and not words else None


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_commands_in_sentences_are_accepted(path: Path) -> None:
    """Finds commands and options that have been removed or renamed."""
    wrong = []
    for code in codes(path):
        program, *words = shlex.split(code.replace("'", ""), comments=True)
        if program in PROGRAMS and (word := rejected_word(program, words)):
            wrong.append(f"{code}: no {word}")
    assert wrong == []


def missing(words: list[str]) -> list[str]:
    """Targets of make, or units, that do not exist here."""
    if words[0] == "make":
        makefile = (ROOT / "Makefile").read_text("utf-8")
        return [w for w in words[1:] if "=" not in w and f"\n{w}:" not in makefile]
    units = [word for word in words[2:] if word[0] != "-" and word != "mosquitto"]
    files = {
        path.name for name in ("systemd", "image") for path in (ROOT / name).rglob("*")
    }
    names = {unit: re.sub(r"@[^.]*", "@", unit) for unit in units}
    return [u for u, name in names.items() if not files & {name, f"{name}.service"}]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_targets_and_units_in_sentences_exist(path: Path) -> None:
    """Make targets and systemd units that sentences name."""
    found = [code.split() for code in codes(path)]
    commands = [words for words in found if words[0] in {"make", "systemctl"}]

    assert [words for words in commands if missing(words)] == []


def test_commands_are_found_in_sentences() -> None:
    """Checks that the pattern matches."""
    found = [code.split()[0] for path in PAGES for code in codes(path)]

    assert all(found.count(name) > 5 for name in (*PROGRAMS, "make", "systemctl"))


DROP_INS = {
    "docs/how-to/certificates.md": "gateway-signer.service",
    "docs/how-to/systemd.md": "gateway-daemon.service",
}
"""Units by the page that has a drop-in for them."""


def test_every_page_with_a_drop_in_is_listed() -> None:
    pages = [
        str(p.relative_to(ROOT))
        for p in PAGES
        if "```ini\n[Service]" in p.read_text("utf-8")
    ]

    assert sorted(pages) == sorted(DROP_INS)


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze"
)
@pytest.mark.parametrize("page", DROP_INS)
def test_drop_in_of_a_page_is_valid(page: str, tmp_path: Path) -> None:
    """For systemd, appended to the unit, and for the program that it starts."""
    (drop_in,) = re.findall(
        r"^```ini\n(\[Service\].*?)^```",
        (ROOT / page).read_text("utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    unit = (ROOT / "systemd" / DROP_INS[page]).read_text("utf-8") + drop_in
    copy = tmp_path / DROP_INS[page]
    # Our commands need not be installed where the tests run.
    copy.write_text(re.sub(r"ExecStart=\S+", "ExecStart=/bin/true", unit))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(copy)],
        capture_output=True,
        text=True,
        check=False,
    )
    starts = re.findall(r"^ExecStart=/usr/bin/(\S+) (.*)$", drop_in, re.MULTILINE)

    assert (done.stdout, done.stderr) == ("", "")
    assert [s for s in starts if rejected_word(s[0], s[1].split())] == []
