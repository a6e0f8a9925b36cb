"""Labels for the boxes of a fleet: one HTML page for A4 that needs no network."""

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import segno

_STYLE = """
@page { size: A4; margin: 10mm }
* { box-sizing: border-box }
body { margin: 0; font-family: "Noto Sans CJK JP", "Hiragino Sans", "Yu Gothic",
  "DejaVu Sans", Arial, sans-serif; color: #000; background: #fff }
.sheet { display: grid; grid-template-columns: 93mm 93mm; gap: 2mm 4mm }
.label { width: 93mm; height: 53mm; border: 0.3mm dashed #777; padding: 3mm;
  display: grid; grid-template-columns: 34mm 1fr; column-gap: 3mm;
  break-inside: avoid; overflow: hidden }
.label svg { width: 34mm; height: 34mm; display: block }
.id { font-size: 13pt; font-weight: bold; line-height: 1.1; overflow-wrap: anywhere }
.long { font-size: 9pt }
.place { font-size: 10pt; line-height: 1.15; margin: 0.6mm 0 }
.mono { font-family: "DejaVu Sans Mono", Consolas, monospace; font-size: 7.5pt }
.cell { font-size: 5.5pt; margin-top: 1mm; overflow-wrap: anywhere }
table { border-collapse: collapse; margin-top: 1mm; font-size: 7pt }
td { padding: 0 2mm 0 0; vertical-align: top; line-height: 1.15 }
td:nth-child(2) { white-space: nowrap }
td:last-child { padding: 0; overflow-wrap: anywhere }
@media screen { body { padding: 10mm; width: 210mm } }
"""

MAX_SENSORS = 10
LONG_ID = 20


@dataclass(frozen=True)
class Label:
    """Content of one label.

    Attributes:
        id: Id of the node.
        place: Name of its place for people; may be empty.
        latitude: In degrees.
        longitude: In degrees.
        cell: Topic of its S2 cell.
        sensors: Name, kind and wiring of each.
    """

    id: str
    place: str
    latitude: float
    longitude: float
    cell: str
    sensors: Sequence[tuple[str, str, str]]


def make_qr_payload(label: Label) -> str:
    """Content of the QR code: a position that a phone's map opens, with the node's id.

    Source:
        RFC 5870 (geo URI); ``q`` with a name in brackets as map programs read it.
    """
    place = f"{label.latitude:.6f},{label.longitude:.6f}"
    return f"geo:{place}?q={place}({label.id})"


def format_label_sheet(labels: Sequence[Label]) -> str:
    """Make the page, ten labels to a sheet of A4."""
    return "\n".join(_page(labels)) + "\n"


def _page(labels: Sequence[Label]) -> Iterator[str]:
    yield '<!doctype html>\n<html lang="ja">\n<head>\n<meta charset="utf-8">'
    yield f"<title>Labels of {len(labels)} nodes</title>"
    yield f"<style>{_STYLE}</style>\n</head>\n<body>"
    yield '<div class="sheet">'
    for label in labels:
        yield from _label(label)
    yield "</div>\n</body>\n</html>"


def _label(label: Label) -> Iterator[str]:
    code = segno.make(make_qr_payload(label), error="m", micro=False)
    position = f"{label.latitude:.6f}, {label.longitude:.6f}"
    kind = "id long" if len(label.id) > LONG_ID else "id"
    more = len(label.sensors) - MAX_SENSORS
    rest = [(f"and {more} more", "", "")] if more > 0 else []
    yield '<div class="label">'
    yield f"<div>{code.svg_inline(border=2, omitsize=True)}"
    yield f'<div class="mono cell">{html.escape(label.cell)}</div></div>'
    yield f'<div><div class="{kind}">{html.escape(label.id)}</div>'
    yield f'<div class="place">{html.escape(label.place)}</div>'
    yield f'<div class="mono">{position}</div><table>'
    for row in [*label.sensors[:MAX_SENSORS], *rest]:
        cells = "".join(f"<td>{html.escape(text)}</td>" for text in row)
        yield f"<tr>{cells}</tr>"
    yield "</table></div></div>"
