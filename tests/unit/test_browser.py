# SPDX-License-Identifier: GPL-2.0-only
"""The report in a browser: Chromium, driven by Playwright.

Without Chromium (lab/setup.sh browser installs it) all of it is skipped, which the summary of the
test run says.
"""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from lab.page import command, comparison, render
from lab.results import compare, jsonl
from tests.unit import quick_data
from tests.unit import report_data as data

WIDTHS = (1400, 800, 400)
# Of a page.
MOST_BYTES = 3_000_000
# How long to wait for a page, on a machine that is busy.
PATIENCE_MS = 120_000
# Pixels that boxes of texts may share: they are higher than the letters in them.
SHARED = 3
NO_BROWSER = "there is no Chromium to look at the report with: lab/setup.sh browser installs it"
KINDS = ("everything", "one run", "two bases", "real host", "comparison")


def _host(directory: Path) -> list[Path]:
    """Results of a host: one paging mode and one kernel, N and Y."""
    found = [one for one in quick_data.measurements() if one.kernel == "series" and one.ept]
    mine = [one for one in found if one.pml and not one.tdp_mmu and one.pattern == "pages"]
    jsonl.write(directory / "host.jsonl", [replace(one, machine="epyc") for one in mine])
    return [directory / "host.jsonl"]


def _results(kind: str, directory: Path) -> list[Path]:
    directory.mkdir()
    plain = directory / "20260101T000000Z-vmx-bochs.jsonl"
    if kind == "everything":
        others = data.write_all(directory)[1:]
        jsonl.write(plain, quick_data.measurements())
        return [plain, *others]
    if kind == "real host":
        return _host(directory)
    found = list(quick_data.measurements())
    if kind == "one run":
        found = [one for one in found if one.vcpus == 2 and one.kernel == "series" and one.eager]
    jsonl.write(plain, found)
    if kind == "one run":
        return [plain]
    jsonl.write(directory / "newer.jsonl", quick_data.measurements("7.3.4"))
    return [plain, directory / "newer.jsonl"]


def _compare(directory: Path) -> None:
    """A page of what moved: some figures each way."""
    found = list(quick_data.measurements())
    files = [directory / name for name in ("a.jsonl", "b.jsonl")]
    factors = {"dirty": 2.0, "clear": 0.4}
    moved = [
        replace(one, seconds=one.seconds * factors.get(one.phase, 1)) if one.vcpus == 2 else one
        for one in found
    ]
    for file, measured in zip(files, (found, moved), strict=True):
        jsonl.write(file, measured)
    before, after = (compare.load([file]) for file in files)
    found_moves = compare.compare(before, after)
    comparison.write(found_moves, before, after, files, directory / "out")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = shutil.which("chromium")
    if not found:
        pytest.skip(NO_BROWSER)
    with sync_playwright() as playwright:
        # Root, as in CI, has no sandbox.
        words = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=found, args=words, timeout=PATIENCE_MS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes the report of a kind of results, once, and returns its page."""
    made: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind not in made:
            directory = tmp_path_factory.mktemp("browser")
            if kind == "comparison":
                _compare(directory)
            else:
                command.write(_results(kind, directory / "in"), directory / "out")
            made[kind] = directory / "out" / render.HTML
        return made[kind]

    return make


Open = Callable[..., Page]


@pytest.fixture
def opened(browser: Browser, report: Callable[[str], Path]) -> Iterator[Open]:
    """Opens the report of a kind. It says nothing on the console, and asks for nothing else."""
    pages: list[Page] = []
    said: list[str] = []

    def open_page(kind: str, width: int = WIDTHS[0], scheme: str = "light") -> Page:
        file = report(kind).as_uri()
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.set_default_timeout(PATIENCE_MS)
        page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda one: said.append(one.url) if one.url != file else None)
        page.goto(file)
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.close()
    assert said == []


# All texts of each picture that is shown, as boxes within it: pairs that share more than SHARED
# pixels both ways, and texts that the picture cuts off.
OVERLAPS = """shared => [...document.querySelectorAll(".chart svg")].flatMap(svg => {
  const outer = svg.getBoundingClientRect();
  if (!outer.width) return [];
  const scale = outer.width / svg.viewBox.baseVal.width, found = [];
  const texts = [...svg.querySelectorAll("text")].filter(t => t.textContent.trim()
    && getComputedStyle(t).opacity > 0).map(t => [t.textContent, t.getBoundingClientRect()]);
  texts.forEach(([text, a], i) => {
    if (a.left < outer.left - 1 || a.right > outer.right + 1
        || a.top < outer.top - 1 || a.bottom > outer.bottom + 1)
      found.push(`${svg.parentElement.id}: ${text} is cut off`);
    for (const [other, b] of texts.slice(i + 1)) {
      const x = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const y = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (x > shared * scale && y > shared * scale)
        found.push(`${svg.parentElement.id}: ${text} / ${other}`);
    }
  });
  return found;
})"""
# Pictures without anything that shows a figure: a bar, a curve or a point.
EMPTY = """() => [...document.querySelectorAll(".chart")].filter(chart =>
  ![...chart.querySelectorAll(".mark-rect path, .mark-line path, .mark-symbol path")].some(
    mark => mark.closest(".role-mark") && (mark.getAttribute("d") || "").length > 8)
).map(chart => chart.id)"""


def too_wide(page: Page) -> int:
    """By how many pixels the page is wider than the window."""
    found = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert isinstance(found, int)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_pictures_are_legible_at_every_width(opened: Open, kind: str) -> None:
    page = opened(kind)
    assert Path(page.url.removeprefix("file://")).stat().st_size < MOST_BYTES
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        assert too_wide(page) <= 0
        assert page.evaluate(OVERLAPS, SHARED) == []
        assert page.evaluate(EMPTY) == []
    # The browser draws the same when it is asked to answer.
    for chart in page.locator(".chart").all():
        chart.dispatch_event("pointerenter")
    page.wait_for_function(
        "[...document.querySelectorAll('.chart')].every(c => c.matches('.vega-embed'))"
    )
    assert too_wide(page) <= 0
    assert page.evaluate(OVERLAPS, SHARED) == []
    assert page.evaluate(EMPTY) == []


def test_a_printed_page_has_its_tables_within_the_paper(opened: Open) -> None:
    # A4, less margins of a centimetre.
    page = opened("everything", 718)
    page.emulate_media(media="print")
    assert too_wide(page) <= 0
    wide = "all => all.filter(one => one.getBoundingClientRect().right > innerWidth).length"
    assert page.locator("#phases table").evaluate_all(wide) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_every_picture_has_a_sentence_and_a_source(opened: Open, kind: str) -> None:
    page = opened(kind)
    figures = page.locator("figure").all()
    assert figures
    for figure in figures:
        assert figure.locator("figcaption p").inner_text().endswith(".")
        links = figure.locator(":scope > small a").all()
        names = [(link.get_attribute("href") or "")[1:] for link in links]
        assert names and all(page.locator(f"[id='{name}']").count() == 1 for name in names)


def test_a_link_to_a_line_unfolds_it(opened: Open) -> None:
    page = opened("everything")
    link = page.locator("#phases tr td.from a").first
    target = page.locator(f"[id='{(link.get_attribute('href') or '')[1:]}']")
    assert not target.is_visible()
    link.click()
    assert target.is_visible() and '"seconds"' in target.inner_text()
    # A term leads to the glossary.
    term = page.locator("a.term").first
    term.click()
    assert "#term-" in page.url and page.locator(":target").is_visible()


def test_hovering_shows_the_value_and_its_line(opened: Open) -> None:
    page = opened("everything")
    chart = page.locator("#chart-calls")
    chart.hover()
    page.wait_for_selector("#chart-calls.vega-embed .mark-rect.role-mark path")
    chart.locator(".mark-rect.role-mark path").first.hover()
    tip = page.locator("#vg-tooltip-element")
    tip.wait_for(state="visible")
    said = tip.inner_text()
    assert tip.evaluate(
        "tip => [...tip.querySelectorAll('td')].every(c => c.scrollWidth <= c.clientWidth)"
    )
    assert "enabling" in said and "0.5 ms" in said and "vmx-bochs.jsonl, line " in said


def test_a_paging_mode_can_be_picked(opened: Open) -> None:
    page = opened("everything")
    rows = page.locator("#phases tr[data-mode]:visible")
    names = "all => all.map(row => row.dataset.mode)"
    assert {"ept", "shadow-paging", "ept-tdp-mmu"} <= {*rows.evaluate_all(names)}
    page.select_option("#mode", "shadow-paging")
    assert {*rows.evaluate_all(names)} == {"shadow-paging"}
    page.select_option("#mode", "")
    assert len({*rows.evaluate_all(names)}) == 5


def test_tables_scroll_in_their_own_box_with_the_labels_in_view(opened: Open) -> None:
    page = opened("everything", 400)
    box = page.locator("#phases .scroll").first
    label = box.locator("tbody th").first
    before = label.bounding_box()
    box.evaluate("box => { box.scrollLeft = box.scrollWidth; }")
    after = label.bounding_box()
    assert box.evaluate("box => box.scrollLeft") > 0
    assert before and after and before["x"] == pytest.approx(after["x"], abs=1)
    assert box.get_attribute("tabindex") == "0" and box.get_attribute("aria-label")


def test_a_dark_page_has_light_text_in_pictures_too(opened: Open) -> None:
    """Contrast of text and paper, by the sum of the three channels."""
    colour = """selector => {
      const style = getComputedStyle(document.querySelector(selector));
      const shown = selector === "body" ? style.backgroundColor : style.fill;
      return shown.match(/\\d+/g).slice(0, 3).reduce((sum, each) => sum + Number(each), 0);
    }"""
    for scheme, lighter in (("light", "body"), ("dark", "#chart-calls svg text")):
        page = opened("everything", 800, scheme)
        shown = {one: page.evaluate(colour, one) for one in ("body", "#chart-calls svg text")}
        assert max(shown, key=lambda one: shown[one]) == lighter
        assert abs(shown["body"] - shown["#chart-calls svg text"]) > 400
