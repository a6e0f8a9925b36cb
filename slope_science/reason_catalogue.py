"""The sentences of all reasons, in English and Japanese.

A template names parameters in braces; a part in square brackets is left out where one
of its parameters is absent. Of several templates the first counts whose parameters
outside brackets are all given. ``{name_s}`` is the plural "s" of a whole number;
``{name_minus}``, which is empty, is given for a negative number.

The English is stored in tables and sent by nodes: changing it changes data. The
Japanese has the words of JMA and the prefectures.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from slope_science.reason_codes import ReasonCode


class SentenceTemplates(NamedTuple):
    """Templates of a code: one in each language, or several.

    Attributes:
        en: English.
        ja: Japanese.
    """

    en: str | tuple[str, ...]
    ja: str | tuple[str, ...]


CATALOGUE: Final[Mapping[ReasonCode, SentenceTemplates]] = {
    ReasonCode.SOIL_WATER: SentenceTemplates(
        en=(
            "[{sensor} ]soil water index {index_mm} mm {how} {criterion}[ at {r60_mm} "
            "mm/h] {limit_mm} mm[ ({basis})]"
        ),
        ja=(
            "[{sensor} の]土壌雨量指数 {index_mm} mm が{criterion}[（CL、60分雨量 "
            "{r60_mm} mm）] {limit_mm} mm {how}[（{basis}）]"
        ),
    ),
    ReasonCode.TILT: SentenceTemplates(
        en=(
            (
                "{sensor} {deg_per_h}±{sigma_deg_per_h} deg/h {how} {limit_deg_per_h} "
                "({points} points[, {window_h} h])"
            ),
            "{sensor} tilts {deg_per_h} deg/h {how} {limit_deg_per_h}",
        ),
        ja=(
            (
                "{sensor} の傾斜の速さ {deg_per_h}±{sigma_deg_per_h} °/h が "
                "{limit_deg_per_h} °/h {how}（測定 {points} 回[、{window_h} 時間]）"
            ),
            "{sensor} の傾斜の速さ {deg_per_h} °/h が {limit_deg_per_h} °/h {how}",
        ),
    ),
    ReasonCode.SPEED: SentenceTemplates(
        en=(
            (
                "{sensor} {mm_per_h}±{sigma_mm_per_h} mm/h {how} {limit_mm_per_h}[ "
                "for {lasted_h} h]"
            ),
            "{sensor} moves {mm_per_h} mm/h {how} {limit_mm_per_h}[ for {lasted_h} h]",
        ),
        ja=(
            "{sensor} の変位の速さ {mm_per_h}[±{sigma_mm_per_h}] mm/h が"
            "[{mm_per_h_minus}、大きさで] {limit_mm_per_h} mm/h {how}"
            "[（{lasted_h} 時間継続）]"
        ),
    ),
    ReasonCode.DISPLACEMENT_STEP: SentenceTemplates(
        en="{sensor} step of {step_mm} mm >= {limit_mm}",
        ja="{sensor} の変位が急に {step_mm} mm 変化（基準 {limit_mm} mm 以上）",
    ),
    ReasonCode.DISPLACEMENT_DAYS: SentenceTemplates(
        en="{sensor} {before_mm}, {today_mm} mm in two days >= {limit_mm} each",
        ja=(
            "{sensor} の変位が前日 {before_mm} mm、この24時間 {today_mm} mm（2日連続で"
            " {limit_mm} mm 以上）"
        ),
    ),
    ReasonCode.FAILURE_TIME: SentenceTemplates(
        en=(
            (
                "{sensor} failure in {earliest_h} to {latest_h} h by inverse velocity "
                "(best fit {left_h}±{half_width_h} h, R2 {r2}, {mm_per_h} mm/h)"
            ),
            (
                "{sensor} failure in {left_h}±{half_width_h} h by inverse velocity "
                "(R2 {r2}, {mm_per_h} mm/h)"
            ),
            (
                "{sensor} fails in {left_h}±{half_width_h} h by inverse velocity (R2 "
                "{r2})"
            ),
        ),
        ja=(
            (
                "{sensor} は逆速度法で {earliest_h}～{latest_h} 時間後（最も確からしい"
                "のは {left_h} 時間後）に崩壊の予測（R² {r2}[、現在 {mm_per_h} mm/h]）"
            ),
            (
                "{sensor} は逆速度法で {left_h}±{half_width_h} 時間後に崩壊の予測（R² "
                "{r2}[、現在 {mm_per_h} mm/h]）"
            ),
        ),
    ),
    ReasonCode.SHOCKS: SentenceTemplates(
        en="{sensor} {count} shocks in 10 min >= {limit} of its own past",
        ja=(
            "{sensor} の振動が10分間に {count} 回（自身の過去による基準 {limit} "
            "回以上）"
        ),
    ),
    ReasonCode.WIRE_CUT: SentenceTemplates(
        en=(
            "{sensor} is cut: a flow may have occurred[, it flaps: {cuts_per_h} cuts "
            "in 1 h]"
        ),
        ja=(
            "{sensor} のワイヤーが切断：土石流が発生したおそれ[（断続：1時間に "
            "{cuts_per_h} 回）]"
        ),
    ),
    ReasonCode.SOIL_WET: SentenceTemplates(
        en=(
            (
                "{sensor} {water_content} m3/m3 is at percentile {percentile} of its "
                "past, +{rise} within 1 h, in rain of {rain_mm} mm"
            ),
            "{sensor} {water_content} >= {high}, +{rise} in 1 h, rain {rain_mm} mm",
        ),
        ja=(
            (
                "{sensor} {water_content} m3/m3 は自身の過去の {percentile} パーセンタ"
                "イルで、雨（{rain_mm} mm）の中で1時間に {rise} m3/m3 上昇"
            ),
            (
                "{sensor} の体積含水率 {water_content} m3/m3 が {high} m3/m3 以上で、"
                "雨（60分雨量 {rain_mm} mm）の中で1時間に {rise} m3/m3 上昇"
            ),
        ),
    ),
    ReasonCode.PORE_TURNED: SentenceTemplates(
        en=(
            "{sensor} passed from suction to {pressure_hpa} hPa, +{rise_hpa} within 1 h"
        ),
        ja=(
            "{sensor} がサクションから正圧 {pressure_hpa} hPa へ、1時間に {rise_hpa} "
            "hPa 上昇"
        ),
    ),
    ReasonCode.PORE_POSITIVE: SentenceTemplates(
        en="{sensor} {pressure_kpa} kPa >= 0, +{rise_kpa} in 1 h",
        ja=(
            "{sensor} の間隙水圧がサクションから正圧 {pressure_kpa} kPa へ、1時間に "
            "{rise_kpa} kPa 上昇"
        ),
    ),
    ReasonCode.PORE_HIGH: SentenceTemplates(
        en=(
            "{sensor} {pressure_hpa} hPa is at percentile {percentile} of its past, "
            "+{rise_hpa} within 1 h, in rain of {rain_mm} mm"
        ),
        ja=(
            "{sensor} {pressure_hpa} hPa は自身の過去の {percentile} パーセンタイルで"
            "、雨（{rain_mm} mm）の中で1時間に {rise_hpa} hPa 上昇"
        ),
    ),
    ReasonCode.WATER_LEVEL_STEP: SentenceTemplates(
        en="{sensor} {step_m} m in {minutes} min >= {limit_m}",
        ja="{sensor} の水位が{minutes}分間に {step_m} m 急変（基準 {limit_m} m 以上）",
    ),
    ReasonCode.LIMIT: SentenceTemplates(
        en="{sensor} {value} {side} {limit} for {lasted_s} s",
        ja="{sensor} の値 {value} が設定値 {limit} {side}（{lasted_s} 秒継続）",
    ),
    ReasonCode.HELD: SentenceTemplates(
        en="{because} (a while ago)", ja="{because}（少し前に検知、保持中）"
    ),
    ReasonCode.CONFIRMED: SentenceTemplates(
        en="{because}, confirmed by {by}", ja="{because}（{by} でも確認）"
    ),
    ReasonCode.UNCONFIRMED: SentenceTemplates(
        en="{because}, unconfirmed", ja="{because}（ほかのセンサーでは未確認）"
    ),
    ReasonCode.UNCONFIRMED_LONG: SentenceTemplates(
        en="{because}, unconfirmed for {hours} h, so notices are of level {level}",
        ja="{because}（{hours} 時間未確認のため、通知はレベル{level}）",
    ),
    ReasonCode.MAYBE_WARMTH: SentenceTemplates(
        en=(
            "{because}, which may be the warmth of the day until it exceeds "
            "{range_deg} deg, as the sensor's thermal tilt is not yet known"
        ),
        ja=(
            "{because}（温度による傾斜が未学習のため、{range_deg} ° を超えるまでは"
            "日変化の可能性あり）"
        ),
    ),
    ReasonCode.LONG_AGO: SentenceTemplates(
        en="{because}, more than 12 h ago", ja="{because}（12時間以上前）"
    ),
    ReasonCode.NODE_LEVEL: SentenceTemplates(
        en="{node} judged level {level}: {because}",
        ja="{node} の判定はレベル{level}相当：{because}",
    ),
    ReasonCode.NODE_LEVEL_LOWERED: SentenceTemplates(
        en="{node} judged level {level}, here {to_level} ({doubts}): {because}",
        ja=(
            "{node} の判定はレベル{level}相当、この区画ではレベル{to_level}として扱う"
            "（{doubts}）：{because}"
        ),
    ),
    ReasonCode.RULE: SentenceTemplates(
        en="{rule}[ {number}][ (level {level})]: {because}",
        ja="{rule}[ {number}][（レベル{level}相当）]：{because}",
    ),
    ReasonCode.AHEAD_SAME_RAIN: SentenceTemplates(
        en="in {minutes} min, if the rain of the last hour goes on: {because}",
        ja="1時間の平均の雨が続くと {minutes} 分後：{because}",
    ),
    ReasonCode.AHEAD_FORECAST: SentenceTemplates(
        en="in {minutes} min, by {source}'s forecast of {issued_s}: {because}",
        ja="{source} の予報（{issued_s} 発表）では {minutes} 分後：{because}",
    ),
    ReasonCode.GRID_SOIL_WATER: SentenceTemplates(
        en="analysed by {source} for {at_s}: {because}",
        ja="{source} の解析（{at_s}）では：{because}",
    ),
    ReasonCode.DOUBTFUL_RAIN: SentenceTemplates(
        en="{because}, with doubtful rain", ja="{because}（疑わしい雨量を含む）"
    ),
    ReasonCode.ASSUMED_CRITERIA: SentenceTemplates(
        en="assumed criteria", ja="基準値は仮の値"
    ),
    ReasonCode.ASSUMED_LINE: SentenceTemplates(en="assumed line", ja="CL は仮の線"),
    ReasonCode.ASSUMED_CRITERION: SentenceTemplates(
        en="assumed criterion", ja="特別警報基準は仮の値"
    ),
    ReasonCode.SET_BY: SentenceTemplates(
        en="set by {person} on {day}", ja="{person} が {day} に設定"
    ),
    ReasonCode.NOT_JUDGED: SentenceTemplates(
        en="rain: the prefecture does not judge level {levels} here",
        ja="雨による判定：この場所はレベル{levels}の判定対象外（県の基準表）",
    ),
    ReasonCode.NO_RAIN_DATA: SentenceTemplates(
        en=(
            "no judgement of rain: no rain data for {hours} h",
            "no judgement of rain: no rain data yet",
        ),
        ja=(
            "雨による判定なし：雨量データが{hours} 時間届いていません",
            "雨による判定なし：雨量データがまだ届いていません",
        ),
    ),
    ReasonCode.LEVEL_HELD: SentenceTemplates(
        en=(
            (
                "level {level} is held: no data of {sensor} since {known_until_s}[ "
                "(last: {because})]"
            ),
            (
                "level {level} is held: no rain data since {known_until_s}[ (last: "
                "{because})]"
            ),
        ),
        ja=(
            (
                "判定不能（最終 レベル{level}相当 {known_until_s}、以後 {sensor} の"
                "データなし）[：{because}]"
            ),
            (
                "判定不能（最終 レベル{level}相当 {known_until_s}、以後雨量データなし）"
                "[：{because}]"
            ),
        ),
    ),
    ReasonCode.HOLD_ENDED: SentenceTemplates(
        en="unknown: level {level} was last judged at {known_until_s}, held no longer",
        ja="判定不能（最終 レベル{level}相当 {known_until_s}、保持を終了）",
    ),
    ReasonCode.RAIN_FROM_GAUGE: SentenceTemplates(
        en="own rain is missing: rain of {node}, {km} km away",
        ja="雨量が欠測のため、{km} km 離れた {node} の雨量で代用",
    ),
    ReasonCode.RAIN_FROM_FORECAST: SentenceTemplates(
        en="own rain is missing: rain by {source}'s forecast of {issued_s}",
        ja="雨量が欠測のため、{source} の予報（{issued_s} 発表）の雨量で代用",
    ),
    ReasonCode.RAIN_FROM_GRID: SentenceTemplates(
        en="own rain is missing: analysed rain of {source}",
        ja="雨量が欠測のため、{source} の解析雨量で代用",
    ),
    ReasonCode.LOWER_BOUND: SentenceTemplates(
        en="soil water index is a lower bound: rain data were missing",
        ja="雨量に欠測があるため、土壌雨量指数は下限値です",
    ),
    ReasonCode.SUSPECT_RAIN: SentenceTemplates(
        en=(
            "high, unconfirmed: level {level} without suspect rain (soil water index "
            "{index_mm} mm)"
        ),
        ja="高いが未確認：疑わしい雨量を除くとレベル{level}相当、指数 {index_mm} mm",
    ),
    ReasonCode.SUSPECT: SentenceTemplates(
        en=(
            "suspect: {sensors} ({because})",
            "suspect: {sensors} (suspect)",
        ),
        ja=(
            "疑わしい値：{sensors}（{because}）",
            "疑わしい値：{sensors}",
        ),
    ),
    ReasonCode.COUNTED_AFTER_REVIEW: SentenceTemplates(
        en="counted after a person's review: {sensors}",
        ja="人の確認により正常値として使用：{sensors}",
    ),
    ReasonCode.RANGE: SentenceTemplates(
        en="range: {value} is not within {low} to {high}",
        ja="範囲：{value} は {low}～{high} の外",
    ),
    ReasonCode.RAIN_RANGE: SentenceTemplates(
        en="range: {rain_mm} mm within {minutes} min > {limit_mm} mm",
        ja="範囲：{minutes} 分間に {rain_mm} mm は {limit_mm} mm を超過",
    ),
    ReasonCode.SPIKE: SentenceTemplates(
        en="spike: {size} there and back > {limit}",
        ja="スパイク：前後との差 {size} が {limit} を超過",
    ),
    ReasonCode.STEP: SentenceTemplates(
        en="step: {size} > {limit}", ja="急変：差 {size} が {limit} を超過"
    ),
    ReasonCode.RATE: SentenceTemplates(
        en="rate: {per_h} an hour > {limit}",
        ja="変化率：1時間に {per_h} は {limit} を超過",
    ),
    ReasonCode.FLAT: SentenceTemplates(
        en="flat: {value} for {hours} h", ja="変化なし：{hours} 時間 {value} のまま"
    ),
    ReasonCode.CLOCK_NOT_SET: SentenceTemplates(
        en="clock: not set, the time is receipt less the wait",
        ja="時計：未設定のため、時刻は受信時刻から待ち時間を引いたもの",
    ),
    ReasonCode.CLOCK_IMPLAUSIBLE: SentenceTemplates(
        en="clock: the time is not believable beside its receipt",
        ja="時計：受信時刻に照らして信じられない時刻",
    ),
    ReasonCode.NODE_FLAG: SentenceTemplates(
        en="node: {flag}", ja="観測局の品質判定：{flag}"
    ),
    ReasonCode.NODE_FLAG_UNKNOWN: SentenceTemplates(
        en="node: flag {flag} has no meaning", ja="観測局の品質判定：未定義の値 {flag}"
    ),
    ReasonCode.NO_NUMBER: SentenceTemplates(
        en="missing: no number", ja="欠測：数値なし"
    ),
    ReasonCode.COUNTER_BACK: SentenceTemplates(
        en="counter: went back from {before_mm} to {after_mm} mm",
        ja="積算値：{before_mm} mm から {after_mm} mm に減少",
    ),
    ReasonCode.COUNTER_REGAINED: SentenceTemplates(
        en="counter: back from {before_mm} to {after_mm} mm, as before it fell",
        ja="積算値：減少の前の値以上に復帰、{before_mm} mm から {after_mm} mm",
    ),
    ReasonCode.RELEASED: SentenceTemplates(
        en="released: {rain_mm} mm at once between two dry hours",
        ja="詰まりの解消：前後1時間に雨がなく、一度に {rain_mm} mm",
    ),
    ReasonCode.CLOGGED: SentenceTemplates(
        en="clogged: dry for {hours} h while another saw {other_mm} mm",
        ja="詰まり：{hours} 時間雨量なし、ほかの雨量計は {other_mm} mm",
    ),
    ReasonCode.ALONE: SentenceTemplates(
        en="alone: {rain_mm} mm in {hours} h, another saw {other_mm} mm",
        ja="単独の大雨：{hours} 時間に {rain_mm} mm、ほかの雨量計は {other_mm} mm",
    ),
    ReasonCode.EXTREME: SentenceTemplates(
        en="extreme: {rain_mm} mm within {minutes} min, and no other gauge confirms it",
        ja="極端な雨：{minutes} 分間に {rain_mm} mm、ほかの雨量計では未確認",
    ),
    ReasonCode.UNDERCATCH: SentenceTemplates(
        en="undercatch: {rain_mm} mm in {hours} h, another saw {other_mm} mm",
        ja="捕捉不足：{hours} 時間に {rain_mm} mm、ほかの雨量計は {other_mm} mm",
    ),
    ReasonCode.BURSTS: SentenceTemplates(
        en="bursts: {count} short spells of heavy rain between dry pauses",
        ja="断続：無降水をはさむ短い強雨が {count} 回",
    ),
    ReasonCode.BOUNCE: SentenceTemplates(
        en="bounce: {count} closures too fast for rain",
        ja="チャタリング：雨としては速すぎる接点閉が {count} 回",
    ),
    ReasonCode.CLOCK_LAG: SentenceTemplates(
        en="clock: {lag_h} h slow, by the times of receipt",
        ja="時計：受信時刻に対して {lag_h} 時間の遅れ",
    ),
    ReasonCode.CATCH_UP: SentenceTemplates(
        en="the rain of {hours} h came as one sum and is spread evenly over them",
        ja="{hours} 時間分の雨量がまとめて届いたため、その間に均等に配分",
    ),
    ReasonCode.FROST: SentenceTemplates(
        en="frost: air at {air_cel} Cel", ja="凍結：気温 {air_cel} °C"
    ),
    ReasonCode.GRID_EXCESS: SentenceTemplates(
        en=(
            "{rain_mm} mm in {hours} h, {factor} times the {grid_mm} mm of analysed "
            "rain up to {at_s}"
        ),
        ja=(
            "{hours} 時間に {rain_mm} mm：解析雨量 {grid_mm} mm（{at_s} まで）の "
            "{factor} 倍"
        ),
    ),
    ReasonCode.GRID_DEFICIT: SentenceTemplates(
        en=(
            "{rain_mm} mm in {hours} h, the {grid_mm} mm of analysed rain up to {at_s} "
            "are {factor} times as much"
        ),
        ja=(
            "{hours} 時間に {rain_mm} mm：解析雨量は {grid_mm} mm（{at_s} まで）で "
            "{factor} 倍"
        ),
    ),
    ReasonCode.SOURCE_FLAG: SentenceTemplates(
        en="source: flag {flag}", ja="発表元の品質判定：{flag}"
    ),
    ReasonCode.MARKED_BAD: SentenceTemplates(
        en="marked as bad by {person} on {day}", ja="{person} が {day} に異常値と判定"
    ),
    ReasonCode.DOUBT_REJECTED: SentenceTemplates(
        en="doubt rejected by {person} on {day}",
        ja="{person} が {day} に正常値と判定（自動の品質判定を取り消し）",
    ),
    ReasonCode.FORECAST_STALE: SentenceTemplates(
        en="stale: issued {age_h} h before, {max_h} h at most",
        ja="古い予報：発表から {age_h} 時間（{max_h} 時間まで有効）",
    ),
    ReasonCode.FORECAST_SHORT: SentenceTemplates(
        en="short: it tells {minutes} of the {of_minutes} minutes",
        ja="短い予報：{of_minutes} 分のうち {minutes} 分まで",
    ),
    ReasonCode.FORECAST_FAILED: SentenceTemplates(en="failed", ja="不良"),
    ReasonCode.DEFAULT_CRITERIA: SentenceTemplates(
        en="criteria: planning defaults, not the prefecture's table",
        ja="基準値：県の基準表ではなく、計画用の仮の値",
    ),
    ReasonCode.DEFAULT_LINE: SentenceTemplates(
        en="critical line: planning default", ja="危険基準線（CL）：計画用の仮の線"
    ),
    ReasonCode.DEFAULT_SPECIAL: SentenceTemplates(
        en="special-warning criterion: 1.25 of the critical line at no rain",
        ja="特別警報基準：無降雨時の CL の1.25倍",
    ),
    ReasonCode.DRY_START: SentenceTemplates(
        en="soil: dry when the data began {days} days before",
        ja="土壌：{days} 日前のデータ開始時に乾燥と仮定",
    ),
    ReasonCode.NO_FORECAST: SentenceTemplates(
        en="rain to come: no official forecast is used",
        ja="今後の雨：公式の予報は使われていません",
    ),
    ReasonCode.FEW_SPEEDS: SentenceTemplates(
        en="{points} speeds of 8", ja="速度が {points} 個（8個必要）"
    ),
    ReasonCode.SPEED_IN_NOISE: SentenceTemplates(
        en="a speed is within 3 sigma of its noise", ja="誤差（3σ）以内の速度がある"
    ),
    ReasonCode.LOW_R2: SentenceTemplates(en="R2 {r2} < 0.9", ja="R² {r2} が 0.9 未満"),
    ReasonCode.FAILURE_PASSED: SentenceTemplates(
        en="the time it gives has passed", ja="予測された時刻は過ぎている"
    ),
    ReasonCode.FAILURE_FAR: SentenceTemplates(
        en="{left_h} h ahead, {max_h} h at most",
        ja="{left_h} 時間先（{max_h} 時間まで有効）",
    ),
    ReasonCode.NO_TERTIARY_CREEP: SentenceTemplates(
        en="a movement without failure fits about as well",
        ja="崩壊に至らない動きでも同程度に説明できる",
    ),
    ReasonCode.LATE_READINGS: SentenceTemplates(
        en=(
            "{count} late readings of {node} from {first_s} to {last_s}, up to "
            "{age_h} h old when they came"
        ),
        ja=(
            "{node} の遅れて届いた測定値 {count} 個（{first_s}～{last_s}、遅れは最大 "
            "{age_h} 時間）"
        ),
    ),
    ReasonCode.READINGS: SentenceTemplates(
        en="readings of {node}", ja="{node} の測定値"
    ),
    ReasonCode.READINGS_REVIEWED: SentenceTemplates(
        en="review of readings by {person}", ja="{person} による測定値の確認"
    ),
    ReasonCode.RULE_NEEDS_PAST: SentenceTemplates(
        en="rule {rule} cannot be used yet: it needs {hours} h of its own past",
        ja="判定（{rule}）はまだ使えません：自身の過去 {hours} 時間が必要",
    ),
    ReasonCode.SOIL_NEEDS_PAST: SentenceTemplates(
        en=(
            "rule saturation cannot be used yet: it needs 14 days of its own past, or "
            "high_vwc"
        ),
        ja=(
            "判定（土壌水分）はまだ使えません：自身の過去14日間か、しきい値の設定が必要"
        ),
    ),
    ReasonCode.RULE_IN_NOISE: SentenceTemplates(
        en=(
            "rule {rule} cannot be used for level {level}: noise hides "
            "{limit_deg_per_h} deg/h"
        ),
        ja=(
            "判定（{rule}）はレベル{level}に使えません：{limit_deg_per_h} °/h はノイズ"
            "に隠れます"
        ),
    ),
    ReasonCode.RAIN_NOT_COUNTED: SentenceTemplates(
        en="rule rain {rain_mm} mm failed its range and are not counted",
        ja="判定（雨量）：{rain_mm} mm は範囲外のため数えません",
    ),
    ReasonCode.SAFE_MODE: SentenceTemplates(
        en="safe mode: {mistakes} mistake{mistakes_s} in the settings",
        ja="セーフモード：設定に {mistakes} か所の誤り",
    ),
    ReasonCode.DISK_FAILED: SentenceTemplates(
        en=(
            "the disk cannot be written, {count} message{count_s} in memory only so "
            "far: replace the SD card"
        ),
        ja=(
            "ディスクに書き込めません（これまでに {count} 件が未保存）："
            "メモリーカードを交換してください"
        ),
    ),
    ReasonCode.QUEUE_MISPLACED: SentenceTemplates(
        en=(
            "queue.path cannot be written, {count} message{count_s} in memory only so "
            "far: correct it or the owner of its folder"
        ),
        ja=(
            "送信待ちのファイルに書き込めません（これまでに {count} 件が未保存）："
            "設定またはフォルダーの所有者を直してください"
        ),
    ),
    ReasonCode.TEXT: SentenceTemplates(en="{text}", ja="{text}"),
}
"""Templates of each code."""

CHOICES: Final[Mapping[str, tuple[str, str]]] = {
    "reached": (">=", "以上"),
    "near": ("still near", "付近（まだ下がりきっていない）"),
    "above": (">=", "以上"),
    "below": ("<=", "以下"),
    "special": ("special-warning criterion", "特別警報基準"),
    "line": ("critical line", "危険基準線"),
    "warning": ("warning criterion", "警報基準"),
    "advisory": ("advisory criterion", "注意報基準"),
    "rain": ("rain", "雨量"),
    "tilt": ("tilt", "傾斜"),
    "displacement": ("displacement", "変位"),
    "wire": ("wire", "ワイヤーセンサー"),
    "vibration": ("vibration", "振動"),
    "saturation": ("saturation", "土壌水分"),
    "pore": ("pore", "間隙水圧"),
    "water_level": ("water_level", "水位"),
    "limit": ("limit", "設定値"),
    "suspect": ("suspect", "疑わしい"),
    "failed": ("failed", "不良"),
    "missing": ("missing", "欠測"),
}
"""Words of each choice of any parameter: English, Japanese."""
