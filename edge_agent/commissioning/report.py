"""What came of a check, for a program and, boxed, for a photograph."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edge_agent.commissioning.link import LinkReport
from edge_agent.commissioning.look import Look

BOX_WIDTH = 76


@dataclass(frozen=True)
class Machine:
    """Which node it is, where and on what.

    Attributes:
        node: Its id.
        latitude: In degrees.
        longitude: In degrees.
        cell: Topic of its S2 cell.
        time: ISO, and whether a time server has set the clock.
        is_synchronised: Whether one has.
        versions: Of our program and of what it runs on, by name.
    """

    node: str
    latitude: float
    longitude: float
    cell: str
    time: str
    is_synchronised: bool
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Report:
    """Everything that a check found.

    Attributes:
        machine: The node.
        looks: At its sensors; None when they were left alone.
        link: Of the link test; None without one.
        moves: How often each sensor did something in a live check; empty without.
        problems: What is wrong beside sensors and link.
    """

    machine: Machine
    looks: Sequence[Look] | None
    link: LinkReport | None = None
    moves: Mapping[str, int] = field(default_factory=dict)
    problems: Sequence[str] = ()

    @property
    def is_passed(self) -> bool:
        """Whether the installer may leave."""
        are_well = all(look.is_well for look in self.looks or ())
        is_linked = self.link is None or self.link.is_passed
        return are_well and is_linked and not self.problems

    def told(self) -> dict[str, Any]:
        """The same for a program, in JSON's types."""
        looks = None if self.looks is None else [look.told() for look in self.looks]
        return {
            "verdict": "pass" if self.is_passed else "fail",
            **vars(self.machine),
            "sensors": looks,
            "moves": dict(self.moves),
            "link": self.link and self.link.told(),
            "problems": list(self.problems),
        }

    def box(self) -> list[str]:
        """The summary, for a photograph."""
        rule = "+" + "-" * BOX_WIDTH + "+"
        return [rule, *(f"| {row:<{BOX_WIDTH - 2}} |" for row in self._rows()), rule]

    def _rows(self) -> Iterator[str]:
        verdict = "PASS" if self.is_passed else "FAIL"
        machine = self.machine
        yield f"{verdict}  {machine.node}".ljust(
            BOX_WIDTH - 22
        ) + "yamamori check".rjust(20)
        clock = "" if machine.is_synchronised else "  (clock is not set)"
        yield f"time      {machine.time}{clock}"
        yield f"position  {machine.latitude:.6f} {machine.longitude:.6f}"
        yield from _wrapped(f"cell      {machine.cell}")
        words = ", ".join(
            f"{name} {version}" for name, version in machine.versions.items()
        )
        yield from _wrapped(f"versions  {words}")
        yield from self._sensors()
        if self.link is None:
            yield "link      not tested; use --link"
        else:
            for line in self.link.lines():
                yield from _wrapped(line)
        for problem in self.problems:
            yield from _wrapped(f"!! {problem}")

    def _sensors(self) -> Iterator[str]:
        if self.looks is None:
            yield "sensors   not looked at"
            return
        good = sum(look.is_well for look in self.looks)
        yield f"sensors   {good} of {len(self.looks)} well"
        for look in self.looks:
            moves = self.moves.get(look.name, 0)
            moved = f", moved {moves}x" if moves else ""
            read = str(look.shown[0]) if look.shown else "no reading"
            mark = "ok  " if look.is_well else "FAIL"
            health = "" if look.is_well else f" ({look.health})"
            line = f"  {mark} {look.name}{health}: {read}{moved}"
            yield from _wrapped(f"{line} [{', '.join(look.wiring)}]")


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(line, BOX_WIDTH - 2, subsequent_indent=" " * 10)
