"""Contrast of a page's text, computed from the styles in force.

Source: WCAG 2.1, success criterion 1.4.3 and its definitions of relative luminance,
contrast ratio and large text.
"""

from pathlib import Path
from typing import Any

from selenium.webdriver import Chrome

SCRIPT = """
const channel = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const parts = (c) => c.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) =>
  0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const over = (top, under) => {
  const a = top.length > 3 ? top[3] : 1;
  return [0, 1, 2].map((n) => top[n] * a + under[n] * (1 - a));
};
const ground = (element) => {
  const layers = [];
  for (let at = element; at; at = at.parentElement) {
    const style = getComputedStyle(at);
    if (style.backgroundImage !== "none") return null;  // a picture below words
    layers.push(parts(style.backgroundColor));
    if (layers.at(-1).length === 3) break;
  }
  return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255]);
};
const ratio = (a, b) => {
  const [low, high] = [light(a), light(b)].sort((x, y) => x - y);
  return (high + 0.05) / (low + 0.05);
};
const found = [];
const judge = (element, words, style, ink) => {
  const under = ground(element);
  const px = parseFloat(style.fontSize);
  const large = px >= 24 || (px >= 18.66 && Number(style.fontWeight) >= 700);
  const value = under ? ratio(over(parts(ink), under), under) : 0;
  found.push({words: words.slice(0, 40), value, least: large ? 3 : 4.5,
              where: element.className || element.tagName});
};
for (const element of document.querySelectorAll("body *")) {
  if (!element.checkVisibility() || element.disabled) continue;
  const own = [...element.childNodes].filter((n) => n.nodeType === 3)
    .map((n) => n.data.trim()).join("");
  const style = getComputedStyle(element);
  const svg = element instanceof SVGElement;
  if (own) judge(element, own, style, svg ? style.fill : style.color);
  for (const side of ["::before", "::after"]) {
    const put = getComputedStyle(element, side);
    const words = put.content.replaceAll('"', "").trim();
    if (!words || ["none", "normal"].includes(words)) continue;
    const plate = parts(put.backgroundColor);
    if (plate.length > 3 && plate[3] === 0) judge(element, words, put, put.color);
    else found.push({words, value: ratio(parts(put.color), plate), least: 4.5,
                     where: element.className + side});
  }
}
return found;
"""


def hard_to_read(driver: Chrome) -> list[dict[str, Any]]:
    """Texts with a contrast below level AA: text, place, ratio and minimum."""
    found: list[dict[str, Any]] = driver.execute_script(SCRIPT)
    assert found, "no text on the page"
    return [each for each in found if each["value"] < each["least"]]


WEB = Path(__file__).parents[1] / "backend_spark/console/web"
AXE = WEB / "node_modules/axe-core/axe.min.js"
RUN_AXE = """
const done = arguments[arguments.length - 1];
axe.run({resultTypes: ["violations"]}).then(
  (found) => done(found.violations.map(
    ({id, help, nodes}) => [id, help, ...nodes.map(({html}) => html.slice(0, 200))])),
  (error) => done([String(error)]));
"""
IS_WIDER = "return document.documentElement.scrollWidth > innerWidth"


def violations(driver: Chrome) -> list[object]:
    """What axe-core and the check of contrast find on the screen, and its width."""
    driver.set_script_timeout(60)
    driver.execute_script(AXE.read_text(encoding="utf-8"))
    problems = [*driver.execute_async_script(RUN_AXE), *hard_to_read(driver)]
    if driver.execute_script(IS_WIDER):
        problems.append("wider than the screen")
    return problems
