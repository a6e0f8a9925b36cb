"""Reasons in Japanese: the sentences of the judgement, translated by their form.

A sentence of another form is shown as it is: a reason is never hidden.
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
