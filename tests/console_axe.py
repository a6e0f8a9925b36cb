"""axe-core on the page in the browser, with the checks that it leaves undecided."""

from pathlib import Path

from console_contrast import hard_to_read
from selenium.webdriver import Chrome

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


def find_violations(driver: Chrome) -> list[object]:
    """Violations of axe-core, text that is hard to read, a page that is too wide."""
    driver.set_script_timeout(60)
    driver.execute_script(AXE.read_text(encoding="utf-8"))
    problems: list[object] = [
        *driver.execute_async_script(RUN_AXE),
        *hard_to_read(driver),
    ]
    if driver.execute_script(IS_WIDER):
        problems.append("wider than the screen")
    return problems
