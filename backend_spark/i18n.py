"""Texts in English and Japanese: reasons, names of levels, texts of the report.

The municipality and the observatory issue warnings. A level computed here is
"equivalent to" theirs (レベルn相当); no text claims that a level was issued.

Source of the names of levels: in use from 2026-05-29.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from slope_science.levels import LOWEST, Cause
from slope_science.reason_compat import parse_or_text, parse_why
from slope_science.reasons import Reason, ReasonError, reason_from_json, render_english
from slope_science.reasons import render_japanese as japanese_of


def render_both(reasons: Iterable[Reason | str]) -> list[dict[str, str]]:
    """Each reason, or English sentence of one, in English and in Japanese."""
    return [
        {"en": _english(reason), "ja": render_japanese(reason)} for reason in reasons
    ]


def render_japanese(reason: Reason | str) -> str:
    """A reason in Japanese; an unrecognised sentence is returned unchanged."""
    return japanese_of(parse_or_text(reason) if isinstance(reason, str) else reason)


def reasons_of(
    codes: Sequence[str] | None, sentences: Sequence[str]
) -> tuple[Reason, ...]:
    """The reasons of a row that has sentences, and codes unless it is old.

    Args:
        codes: Column `reason_codes`; None or empty in a row of an earlier program.
        sentences: Column `reasons`. One stands in for a code that is damaged or
            unknown to this version.
    """
    known: Sequence[str | None] = codes or ()
    if len(known) != len(sentences):
        known = [None] * len(sentences)
    pairs = zip(known, sentences, strict=True)
    return tuple(_loaded(code) or parse_or_text(text) for code, text in pairs)


def message_reasons(codes: Sequence[str] | None, why: str) -> tuple[Reason, ...]:
    """The reasons of an urgent message: its codes, else those that `why` states."""
    known = [_loaded(code) for code in codes or ()]
    reasons = tuple(reason for reason in known if reason)
    return reasons if reasons and len(reasons) == len(known) else parse_why(why)


def _english(reason: Reason | str) -> str:
    """A reason in English; a sentence is returned unchanged."""
    return reason if isinstance(reason, str) else render_english(reason)


def _loaded(code: str | None) -> Reason | None:
    try:
        reason = reason_from_json(code) if code else None
    except ReasonError:
        return None
    return reason if reason and reason.is_known else None


RAIN_CRITERIA: Final = {
    5: ("土砂災害特別警報の基準", "special-warning criterion"),
    4: ("土砂災害危険警報の基準", "danger-warning criterion"),
    3: ("土砂災害警報の基準", "warning criterion"),
    2: ("土砂災害注意報の基準", "advisory criterion"),
}
"""Official criteria, which only rain reaches; in Japanese and English."""

CAUSES: Final = {
    Cause.TILT: ("傾斜の変化", "tilt"),
    Cause.DISPLACEMENT: ("地表の変位", "displacement"),
    Cause.WIRE: ("ワイヤーセンサーの切断", "a cut wire"),
    Cause.VIBRATION: ("振動", "vibration"),
    Cause.SATURATION: ("土壌水分の上昇", "soil moisture"),
    Cause.PORE: ("間隙水圧の上昇", "pore pressure"),
    Cause.WATER_LEVEL: ("水位の急変", "a sudden water level"),
    Cause.LIMIT: ("設定値への到達", "a set limit"),
    Cause.OTHER: ("観測値", "observations"),
}
STAGES: Final = {
    5: (
        "市町村の避難情報では「緊急安全確保」の段階",
        'the stage of "emergency safety measures"',
    ),
    4: ("市町村の避難情報では「避難指示」の段階", 'the stage of "evacuation order"'),
    3: (
        "市町村の避難情報では「高齢者等避難」の段階",
        'the stage of "evacuation of the elderly"',
    ),
    2: (
        "市町村の避難情報はなく、住民が避難行動を確認する段階",
        "no evacuation information; residents check their evacuation routes",
    ),
}
"""The stage of a level; the municipality issues evacuation information from 3 on."""

CALM: Final = ("基準に達していません", "no criterion reached")
NO_JUDGEMENT: Final = ("判定なし", "no judgement")
NO_DATA: Final = ("データなし", "no data")


def level_name(
    level: int | None,
    causes: Sequence[Cause] = (),
    *,
    is_silent: bool = False,
    is_held: bool = False,
) -> tuple[str, str]:
    """Name of a level in Japanese and English; also held or without a level.

    Args:
        level: 1 to 5; None without one.
        causes: Its causes; without them none is named.
        is_silent: Whether there are no data.
        is_held: Whether the level is held.
    """
    if level is None:
        return NO_DATA if is_silent else NO_JUDGEMENT
    if is_held:
        return f"判定不能（最終 レベル{level}相当）", f"unknown (last level {level})"
    if level == LOWEST:
        return CALM
    japanese, english = cause_names(level, causes)
    why = f"（{japanese}）" if japanese else ""
    of = f" ({english})" if english else ""
    return f"レベル{level}相当{why}", f"equivalent to level {level}{of}"


def cause_names(level: int, causes: Sequence[Cause]) -> tuple[str, str]:
    """Causes of a level in Japanese and English; of rain the official criterion."""
    pairs = [RAIN_CRITERIA[level] if c == Cause.RAIN else CAUSES[c] for c in causes]
    return "、".join(ja for ja, _ in pairs), " and ".join(en for _, en in pairs)


def level_meaning(level: int, causes: Sequence[Cause], language: str) -> str:
    """What a level is equivalent to: its causes and the stage of evacuation."""
    if level == LOWEST:
        return CALM[language != "ja"]
    japanese, english = cause_names(level, causes)
    stage_ja, stage_en = STAGES[level]
    if language == "ja":
        by_rain = Cause.RAIN in causes
        what = f"{japanese}に相当" if by_rain else f"{japanese or '観測値'}による"
        return f"{what}（{stage_ja}）"
    by = "" if Cause.RAIN in causes else "by "
    return f"{by}{english or 'observations'} ({stage_en})"


REPORT_WORDS: Final = {
    "ja": {
        "title": "土砂災害 状況報告",
        "level_column": "レベル",
        "now": "作成時刻",
        "data": "データの時刻",
        "none": "なし",
        "exercise": "訓練・再生：過去のデータを現在として扱っています",
        "highest": "最も高いレベル",
        "level": "レベル{}相当",
        "missing": "データなし",
        "unjudged": "判定なし",
        "held": "判定不能（最終 レベル{}相当）",
        "held_since": "判定不能（最終 レベル{}相当 {}、以後データなし）",
        "calm": "基準に達していない",
        "since": "{}から（{}）",
        "days": "{}日{}時間",
        "hours": "{}時間{:02d}分",
        "minutes": "{}分",
        "no_judgement_now": "現在の状況は判定できません。",
        "last_data": "最後のデータは {}（{}前）です。",
        "no_data_yet": "データがまだありません。",
        "some_unknown": "基準に達したと判定された区画はありません。"
        "判定できない区画が{}区画、途絶した観測点が{}か所あります。",
        "cells": "レベル別の区画数",
        "where": "注意が必要な区画",
        "place": "場所",
        "households": "{}世帯",
        "shelter": "避難所",
        "contact": "連絡先",
        "districts": "地区別",
        "next": "次のレベルまで",
        "nothing": "基準に達した区画はありません。",
        "more": "ほか {} 区画（コンソールで確認してください）",
        "why": "理由",
        "swi": "土壌雨量指数",
        "r60": "60分雨量",
        "waiting": "未対応の事象 {} 件、最高 {}",
        "none_waiting": "未対応の事象はありません。",
        "notes": "引き継ぎメモ",
        "nodes": "観測点",
        "well": "正常",
        "late": "遅れ",
        "clock": "時計未同期",
        "suspect": "異常の疑い",
        "silent": "途絶",
        "limits": "この報告の限界",
        "assumed": "基準値は仮の値です。県の基準表に置き換えるまで、"
        "判断の根拠にしないでください。",
        "bounded": "雨量の欠測により、指数が下限値の区画が{}区画あります。",
        "blind": "データのない区画は安全という意味ではありません。",
        "law": "本報告は観測値と基準の比較であり、警報や避難情報ではありません。"
        "避難情報は市町村が発令します。",
        "print": "印刷するか PDF に保存できます",
    },
    "en": {
        "title": "Landslide situation report",
        "level_column": "Level",
        "now": "Created at",
        "data": "Data as of",
        "none": "none",
        "exercise": "Exercise or replay: past data shown as current",
        "highest": "Highest level",
        "level": "Equivalent to level {}",
        "missing": "No data",
        "unjudged": "No judgement",
        "held": "Unknown (last level {})",
        "held_since": "Unknown (last judged level {} at {}, no data since)",
        "calm": "No criterion reached",
        "since": "since {} ({})",
        "days": "{} d {} h",
        "hours": "{} h {:02d} min",
        "minutes": "{} min",
        "no_judgement_now": "The present state cannot be judged.",
        "last_data": "The last data are of {} ({} ago).",
        "no_data_yet": "There are no data yet.",
        "some_unknown": "No judged cell has reached a criterion. Cells that cannot be "
        "judged: {}; silent nodes: {}.",
        "cells": "Cells by level",
        "where": "Cells that need attention",
        "place": "Place",
        "households": "{} households",
        "shelter": "Shelter",
        "contact": "Contact",
        "districts": "By district",
        "next": "To the next level",
        "nothing": "No cell has reached a criterion.",
        "more": "and {} more cells: see the console",
        "why": "Reasons",
        "swi": "Soil water index",
        "r60": "60-min rain",
        "waiting": "{} open events, highest: {}",
        "none_waiting": "No event is open.",
        "notes": "Hand-over notes",
        "nodes": "Nodes",
        "well": "well",
        "late": "late",
        "clock": "clock unset",
        "suspect": "suspect",
        "silent": "silent",
        "limits": "Limits of this report",
        "assumed": "Criteria are assumed: do not base decisions on them until "
        "the prefecture's table replaces them.",
        "bounded": "In {} of these cells rain data were missing: the index is a lower "
        "bound.",
        "blind": "A cell without data is not a safe cell.",
        "law": "This compares observations with criteria. It is neither a warning nor "
        "evacuation information; the municipality issues those.",
        "print": "Print it, or save it as PDF",
    },
}

HELD_MEANING: Final = {
    "ja": "最後の判定を保持しています。現在の状況は分かりません",
    "en": "the last judgement is held: the present state is not known",
}

EVENT_STATES: Final = {
    "open": ("未対応", "open"),
    "acknowledged": ("確認済み", "acknowledged"),
    "checked": ("現地確認済み", "checked on site"),
    "false_alarm": ("誤報", "false alarm"),
    "slope_failed": ("崩壊を確認", "slope failed"),
    "closed": ("対応終了", "closed"),
}
"""States of an event in Japanese and English."""

_HANDOVER: Final = {
    "title": ("引き継ぎ資料", "Hand-over"),
    "open": ("未対応の事象", "Open events"),
    "decided": ("{} 以降に対応した事象", "Decided since {}"),
    "notes": ("{} 以降のメモ", "Notes since {}"),
    "place": ("場所", "Place"),
    "time": ("時刻", "Time"),
    "why": ("理由", "Reasons"),
    "state": ("状態", "State"),
    "from_time": ("{} から", "since {}"),
    "peak": ("{} にレベル{}相当", "{}: level {}"),
    "lost": (
        "現在は判定不能（最後の判定 {}）",
        "cannot be judged now (last judged {})",
    ),
    "last_seen": ("最終受信 {}", "last seen {}"),
    "colon": ("：", ": "),
    "over": ("{} に終息", "over at {}"),
    "quiet": (
        "{} に終了（緊急通報が6時間ない。危険が去ったとは限りません）",
        "ended at {} (no message for 6 hours; this is no sign of safety)",
    ),
    "lasts": ("継続中", "goes on"),
    "messages": ("緊急通報 {} 件", "{} urgent messages"),
    "late_notifications": ("未送信の通知", "Notifications not delivered"),
    "more": (
        "ほか {} 件（コンソールで確認してください）",
        "and {} more: see the console",
    ),
}

HANDOVER_WORDS: Final = {
    language: REPORT_WORDS[language]
    | {name: texts[at] for name, texts in _HANDOVER.items()}
    | {f"state_{name}": texts[at] for name, texts in EVENT_STATES.items()}
    for at, language in enumerate(("ja", "en"))
}
"""Texts of the hand-over page."""
