"""Reasons in Japanese: the sentences of the judgement, translated by their form.

A sentence of another form is shown as it is: a reason is never hidden.

Names of levels for whom they leave the house to, in Japanese and English.

The municipality and the observatory issue warnings; what we compute is "equivalent
to" a level (レベルn相当), and never says that a level was issued.

Source: names in use from 2026-05-29.

Words of the mayor's page.
"""

import re
from collections.abc import Iterable
from typing import Final

_CRITERIA: Final = {
    "special-warning criterion": "特別警報基準",
    "warning criterion": "警報基準",
    "advisory criterion": "注意報基準",
}
_NOTES: Final = {
    None: "",
    " (assumed criteria)": "（基準値は仮の値）",
    " (assumed line)": "（CL は仮の線）",
    " (assumed criterion)": "（特別警報基準は仮の値）",
}
_RAIN: Final = re.compile(
    r"soil water index ([\d.]+) mm (>=|still near) (.+?) ([\d.]+) mm"
    r"( \(assumed (?:criteria|line|criterion)\)| \(set by .+ on [\d-]+\))?"
)
_SET: Final = re.compile(r" \(set by (.+) on ([\d-]+)\)")
_LINE: Final = re.compile(r"critical line at ([\d.]+) mm/h")
_TILT: Final = re.compile(r"(.+) tilts ([\d.]+) deg/h >= ([\d.]+)")
_WIRE: Final = re.compile(r"(.+) is cut: a flow may have occurred, (.+)")
_SHOCKS: Final = re.compile(r"(.+) (\d+) shocks in 10 min >= (\d+) of its own past")
_OLD: Final = {"more than 12 h ago": "12時間以上前"}
_CONFIRMED: Final = re.compile(r"confirmed by (.+)")
_SILENCE: Final = re.compile(r"no judgement of rain: no rain data (?:for (\d+) h|yet)")
_SPEED: Final = re.compile(r"(.+) moves (-?[\d.]+) mm/h >= ([\d.]+)(?: for (\d+) h)?")
_FAILURE: Final = re.compile(
    r"(.+) fails in (-?[\d.]+)±([\d.]+) h by inverse velocity \(R2 ([\d.]+)\)"
)
_AHEAD: Final = re.compile(
    r"in (\d+) min, if the rain of the last hour goes on: (.+)", re.DOTALL
)
_FORECAST: Final = re.compile(
    r"in (\d+) min, by (.+)'s forecast of ([\d-]+ [\d:]+ UTC): (.+)", re.DOTALL
)
_UNCONFIRMED: Final = re.compile(
    r"high, unconfirmed: level (\d) without suspect rain "
    r"\(soil water index ([\d.]+) mm\)"
)
_WET: Final = re.compile(
    r"(.+) (-?[\d.]+) (m3/m3|hPa) is at percentile (\d+) of its past, \+([\d.]+) "
    r"within 1 h, in rain of ([\d.]+) mm"
)
_PASSED: Final = re.compile(
    r"(.+) passed from suction to ([\d.]+) hPa, \+([\d.]+) within 1 h"
)
_SUSPECT: Final = re.compile(r"suspect: (.+) \((.+)\)")
_BOUND: Final = re.compile("soil water index is a lower bound: rain data were missing")


def both(reasons: Iterable[str]) -> list[dict[str, str]]:
    """Each reason in English, as gold has it, and in Japanese."""
    return [{"en": reason, "ja": japanese(reason)} for reason in reasons]


def japanese(reason: str) -> str:
    """A reason in Japanese; as it is when its form is not known."""
    for form, say in _FORMS:
        if found := form.fullmatch(reason):
            return say(found)
    return reason


def _rain(found: re.Match[str]) -> str:
    index, how, what, limit, note = found.groups()
    said = _SET.fullmatch(note or "")
    note = f"（{said[1]} が {said[2]} に設定）" if said else _NOTES[note]
    verb = "以上" if how == ">=" else "付近（まだ下がりきっていない）"
    return f"土壌雨量指数 {index} mm が{_criterion(what)} {limit} mm {verb}{note}"


def _tilt(found: re.Match[str]) -> str:
    return f"{found[1]} の傾斜の速さ {found[2]} °/h が {found[3]} °/h 以上"


def _wire(found: re.Match[str]) -> str:
    sure = _sure(found[2])
    return f"{found[1]} のワイヤーが切断：土石流が発生したおそれ（{sure}）"


def _shocks(found: re.Match[str]) -> str:
    return (
        f"{found[1]} の振動が10分間に {found[2]} 回（自身の過去による基準 {found[3]}）"
    )


def _silence(found: re.Match[str]) -> str:
    span = f"{found[1]} 時間" if found[1] else "まだ"
    return f"雨による判定なし：雨量データが{span}届いていません"


def _speed(found: re.Match[str]) -> str:
    lasting = f"（{found[4]} 時間継続）" if found[4] else ""
    return f"{found[1]} の変位の速さ {found[2]} mm/h が {found[3]} mm/h 以上{lasting}"


def _failure(found: re.Match[str]) -> str:
    sure = f"R² {found[4]}"
    return f"{found[1]} は逆速度法で {found[2]}±{found[3]} 時間後に崩壊の予測（{sure}）"


def _ahead(found: re.Match[str]) -> str:
    return f"1時間の平均の雨が続くと {found[1]} 分後：{japanese(found[2])}"


def _forecast(found: re.Match[str]) -> str:
    by = f"{found[2]} の予報（{found[3]} 発表）"
    return f"{by}では {found[1]} 分後：{japanese(found[4])}"


def _unconfirmed(found: re.Match[str]) -> str:
    without = f"疑わしい雨量を除くとレベル{found[1]}相当、指数 {found[2]} mm"
    return f"高いが未確認：{without}"


def _wet(found: re.Match[str]) -> str:
    sensor, value, unit, share, rise, rain = found.groups()
    where = f"{sensor} {value} {unit} は自身の過去の {share} パーセンタイル"
    return f"{where}で、雨（{rain} mm）の中で1時間に {rise} 上昇"


def _passed(found: re.Match[str]) -> str:
    return f"{found[1]} がサクションから正圧 {found[2]} hPa へ、1時間に {found[3]} 上昇"


def _suspect(found: re.Match[str]) -> str:
    return f"疑わしい値：{found[1]}（{found[2]}）"


def _bound(_found: re.Match[str]) -> str:
    return "雨量に欠測があるため、土壌雨量指数は下限値です"


def _criterion(what: str) -> str:
    if line := _LINE.fullmatch(what):
        return f"危険基準線（CL、60分雨量 {line[1]} mm）"
    return _CRITERIA.get(what, what)


def _sure(words: str) -> str:
    if found := _CONFIRMED.fullmatch(words):
        return f"{found[1]} でも確認"
    return _OLD.get(words, "ほかのセンサーでは未確認")


_FORMS: Final = (
    (_RAIN, _rain),
    (_TILT, _tilt),
    (_WIRE, _wire),
    (_SHOCKS, _shocks),
    (_SILENCE, _silence),
    (_BOUND, _bound),
    (_SPEED, _speed),
    (_FAILURE, _failure),
    (_AHEAD, _ahead),
    (_FORECAST, _forecast),
    (_UNCONFIRMED, _unconfirmed),
    (_SUSPECT, _suspect),
    (_WET, _wet),
    (_PASSED, _passed),
)


NAMES: Final = {
    5: ("レベル5相当（土砂災害特別警報の基準）", "equivalent to level 5"),
    4: ("レベル4相当（土砂災害危険警報の基準）", "equivalent to level 4"),
    3: ("レベル3相当（土砂災害警報の基準）", "equivalent to level 3"),
    2: ("レベル2相当（土砂災害注意報の基準）", "equivalent to level 2"),
    1: ("レベル1相当", "equivalent to level 1"),
}
NO_JUDGEMENT: Final = ("判定なし", "no judgement")
SILENT: Final = ("データなし", "no data")


def level_name(level: int | None, *, is_silent: bool = False) -> tuple[str, str]:
    """A level in Japanese and in English; nothing known has a name too."""
    if level is None:
        return SILENT if is_silent else NO_JUDGEMENT
    return NAMES[level]


WORDS: Final = {
    "ja": {
        "title": "土砂災害 状況報告",
        "now": "作成時刻",
        "data": "データの時刻",
        "none": "なし",
        "exercise": "訓練・再生：過去のデータを現在として扱っています",
        "highest": "最も高いレベル",
        "level": "レベル{}相当",
        "missing": "データなし",
        "unjudged": "判定なし",
        "cells": "レベル別メッシュ数",
        "where": "注意が必要なメッシュ",
        "nothing": "基準に達したメッシュはありません。",
        "more": "ほか {} メッシュ（コンソールで確認してください）",
        "at": "時刻",
        "why": "理由",
        "swi": "土壌雨量指数",
        "r60": "60分雨量",
        "open": "未確認の警報",
        "notes": "引き継ぎメモ",
        "nodes": "観測点",
        "well": "正常",
        "late": "遅れ",
        "clock": "時計未同期",
        "suspect": "値が疑わしい",
        "silent": "途絶",
        "limits": "この報告の限界",
        "assumed": "基準値は仮の値です。県の基準表に置き換えるまで、"
        "判断の根拠にしないでください。",
        "bounded": "雨量の欠測により、指数が下限値のメッシュが {} あります。",
        "blind": "データのないメッシュは安全という意味ではありません。",
        "law": "本報告は観測値と基準の比較であり、警報や避難情報ではありません。"
        "避難情報は市町村が発令します。",
        "print": "印刷するか PDF に保存できます",
    },
    "en": {
        "title": "Landslide situation report",
        "now": "Made at",
        "data": "Data of",
        "none": "none",
        "exercise": "Exercise or replay: data of the past stand for the present",
        "highest": "Highest level",
        "level": "Equivalent to level {}",
        "missing": "No data",
        "unjudged": "No judgement",
        "cells": "Cells by level",
        "where": "Cells that need attention",
        "nothing": "No cell has reached a criterion.",
        "more": "and {} more cells: see the console",
        "at": "Time",
        "why": "Reasons",
        "swi": "Soil water index",
        "r60": "60-min rain",
        "open": "Alerts nobody has acknowledged",
        "notes": "Hand-over notes",
        "nodes": "Nodes",
        "well": "well",
        "late": "late",
        "clock": "clock unset",
        "suspect": "suspect",
        "silent": "silent",
        "limits": "What this report cannot say",
        "assumed": "Criteria are assumed: decide nothing on them before the "
        "prefecture's table has replaced them.",
        "bounded": "In {} of these cells rain data were missing: the index is a lower "
        "bound.",
        "blind": "A cell without data is not a safe cell.",
        "law": "This compares observations with criteria. It is no warning and no "
        "evacuation information, which the municipality issues.",
        "print": "Print it, or save it as PDF",
    },
}

MEANINGS: Final = {
    "ja": {
        5: "土砂災害特別警報の基準に相当（市町村の避難情報では「緊急安全確保」の段階）",
        4: "土砂災害危険警報の基準に相当（市町村の避難情報では「避難指示」の段階）",
        3: "土砂災害警報の基準に相当（市町村の避難情報では「高齢者等避難」の段階）",
        2: "土砂災害注意報の基準に相当",
        1: "基準に達していない",
    },
    "en": {
        5: 'special-warning criterion (the stage of "emergency safety measures")',
        4: 'danger-warning criterion (the stage of "evacuation order")',
        3: 'warning criterion (the stage of "evacuation of the elderly")',
        2: "advisory criterion",
        1: "no criterion reached",
    },
}
