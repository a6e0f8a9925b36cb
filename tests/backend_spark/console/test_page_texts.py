"""Texts of the console's pages, evaluated from their source by Node.js."""

import json
import re
import subprocess
import sys
from itertools import combinations, product
from pathlib import Path
from typing import Any

from backend_spark.i18n import RAIN_CRITERIA, level_meaning
from slope_science.levels import Cause

I18N = Path(__file__).parents[3] / "backend_spark/console/web/src/i18n.ts"
NODE = str(Path(sys.executable).with_name("node"))
"""That of the environment: Debian's is too old for TypeScript."""

CALL = """
globalThis.document = { documentElement: {} };
globalThis.localStorage = { setItem() {} };
const [path, name, calls] = process.argv.slice(1);
const i18n = await import(path);
const texts = JSON.parse(calls).map(([language, ...values]) => {
  i18n.setLanguage(language);
  return i18n[name](...values);
});
console.log(JSON.stringify(texts));
"""


def page_texts(name: str, calls: list[tuple[Any, ...]]) -> list[str]:
    """What a function of the page gives for each language and arguments."""
    command = (NODE, "--input-type=module", "--eval", CALL, str(I18N), name)
    done = subprocess.run(
        (*command, json.dumps(calls)), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    texts: list[str] = json.loads(done.stdout)
    return texts


def test_page_and_report_give_a_level_the_same_meaning() -> None:
    """Above the lowest, by one cause, by two and by none, in both languages."""
    causes = [(), *combinations(Cause, 1), *combinations(Cause, 2)]
    calls = list(product(("ja", "en"), RAIN_CRITERIA, causes))

    assert page_texts("levelMeaning", list(calls)) == [
        level_meaning(level, of, language) for language, level, of in calls
    ]


def test_limit_may_be_reached_from_above() -> None:
    """A water level that fell below its limit exceeds nothing."""
    assert level_meaning(3, [Cause.LIMIT], "ja").startswith("設定値への到達による（")


def test_municipality_issues_nothing_at_level_2() -> None:
    """Its evacuation information begins at level 3; an advisory is of JMA."""
    assert level_meaning(2, [Cause.RAIN], "ja") == (
        "土砂災害注意報の基準に相当"
        "（市町村の避難情報はなく、住民が避難行動を確認する段階）"
    )
    assert level_meaning(2, [Cause.TILT], "en") == (
        "by tilt (no evacuation information; residents check their evacuation routes)"
    )
    assert level_meaning(3, [Cause.RAIN], "ja") == (
        "土砂災害警報の基準に相当（市町村の避難情報では「高齢者等避難」の段階）"
    )


def test_long_name_is_shortened_on_the_map() -> None:
    """One of 50 characters covered the cells around; no sign is cut in two."""
    calls = [("ja", "谷" * 20, 20), ("ja", "谷" * 21, 20), ("ja", "𠮷" * 20, 20)]

    assert page_texts("shortened", calls) == ["谷" * 20, "谷" * 19 + "…", "𠮷" * 20]


def test_roles_have_japanese_names() -> None:
    """A municipality knows no viewer, analyst or chief."""
    keys = ("role_viewer", "role_analyst", "role_chief")
    needed = ("needsAnalyst", "needsChief", "reviewNeedsChief")
    texts = page_texts("t", [("ja", key) for key in (*keys, *needed)])

    assert texts[: len(keys)] == ["閲覧者", "担当者", "責任者"]
    assert all("責任者" in text for text in texts[3:])
    assert not [text for text in texts if re.search("[A-Za-z]", text)]
