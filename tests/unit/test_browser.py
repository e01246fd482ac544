# SPDX-License-Identifier: GPL-2.0-only
"""The report in a browser: Chromium, driven by Playwright.

Without Chromium (lab/setup.sh browser installs it) all of it is skipped, which the summary of the
test run says.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from lab.core.paths import ROOT
from lab.page import command, comparison, figures, render
from lab.results import compare, jsonl
from tests.rows import for_each_row
from tests.unit import quick_data
from tests.unit import report_data as data
from tests.unit.fake_kvm_host import Host, furnish

WIDTHS = (1400, 800, 400)
# Of a page.
MOST_BYTES = 3_000_000
# How long to wait for a page, on a machine that is busy.
PATIENCE_MS = 120_000
# Pixels that boxes of texts may share: they are higher than the letters in them.
SHARED = 3
NO_BROWSER = "there is no Chromium to look at the report with: lab/setup.sh browser installs it"
KINDS = (
    *("everything", "one run", "two bases", "reference", "real host", "split-bench.sh"),
    *("nothing", "comparison"),
)
# Those that have pictures.
PICTURED = tuple(kind for kind in KINDS if kind != "nothing")


def _host(directory: Path) -> list[Path]:
    """Results of a host: one paging mode and one kernel, N and Y."""
    found = [one for one in quick_data.measurements() if one.kernel == "series" and one.ept]
    mine = [one for one in found if one.pml and not one.tdp_mmu and one.pattern == "pages"]
    jsonl.write(directory / "host.jsonl", [replace(one, machine="epyc") for one in mine])
    return [directory / "host.jsonl"]


def _split_bench(directory: Path) -> list[Path]:
    """What split-bench.sh writes, with several numbers of vCPUs, on a fake host."""
    root = directory / "root"
    root.mkdir()
    of = {"PATH": os.environ["PATH"], "SPLIT_BENCH_ROOT": str(root), "TMPDIR": str(root / "tmp")}
    host = Host(root, ["dash"], of)
    furnish(host)
    words = ("--vcpus", "2 4 8", "--dirty-bits", "off on", "--machine", "epyc-9654-rack-7")
    tracked = ("--tracked", "--vcpus", "2", "--bytes", "8M", "--machine", "epyc-9654-rack-7")
    for given in (words, tracked):
        host.run(*given, "--output", str(directory / "results.jsonl")).check_returncode()
    return [directory / "results.jsonl"]


def _results(kind: str, directory: Path) -> list[Path]:
    directory.mkdir()
    plain = directory / "20260101T000000Z-vmx-bochs.jsonl"
    if kind == "everything":
        others = data.write_all(directory)[1:]
        jsonl.write(plain, quick_data.measurements())
        return [plain, *others]
    if kind == "real host":
        return _host(directory)
    if kind == "split-bench.sh":
        return _split_bench(directory)
    if kind == "reference":
        return sorted((ROOT / figures.REFERENCE).glob("*/*.jsonl"))
    if kind == "nothing":
        return []
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
Checks = Iterable[tuple[str, Any]]


@pytest.fixture
def said() -> list[str]:
    """What pages have said on the console, and what they have asked for beside themselves."""
    return []


@pytest.fixture
def opened(browser: Browser, report: Callable[[str], Path], said: list[str]) -> Iterator[Open]:
    """Opens the report of a kind. It says nothing on the console, and asks for nothing else."""
    pages: list[Page] = []

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


# By how many pixels the page is wider than the window.
TOO_WIDE = """() => {
  const wider = document.documentElement.scrollWidth - innerWidth;
  return wider > 0 ? [`the page is ${wider} pixels too wide`] : [];
}"""
# All texts of each picture that is shown, as boxes within it: pairs that share more than SHARED
# pixels both ways, texts that the picture cuts off, and texts of less than SMALLEST pixels.
TEXTS = """([shared, smallest]) => [...document.querySelectorAll(".chart svg")].flatMap(svg => {
  const outer = svg.getBoundingClientRect();
  if (!outer.width) return [];
  const scale = outer.width / svg.viewBox.baseVal.width, found = [], name = svg.parentElement.id;
  const shown = [...svg.querySelectorAll("text")].filter(t => t.textContent.trim()
    && getComputedStyle(t).opacity > 0);
  for (const t of shown) {
    const size = parseFloat(getComputedStyle(t).fontSize) * scale;
    if (size < smallest) found.push(`${name}: ${t.textContent} has ${size} pixels`);
  }
  const texts = shown.map(t => [t.textContent, t.getBoundingClientRect()]);
  texts.forEach(([text, a], i) => {
    if (a.left < outer.left - 1 || a.right > outer.right + 1
        || a.top < outer.top - 1 || a.bottom > outer.bottom + 1)
      found.push(`${name}: ${text} is cut off`);
    for (const [other, b] of texts.slice(i + 1)) {
      const x = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const y = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (x > shared * scale && y > shared * scale)
        found.push(`${name}: ${text} overlaps ${other}`);
    }
  });
  return found;
})"""
SMALLEST = 10
# Pictures without anything that shows a figure: a bar, a curve or a point.
EMPTY = """() => [...document.querySelectorAll(".chart")].filter(chart =>
  ![...chart.querySelectorAll(".mark-rect path, .mark-line path, .mark-symbol path")].some(
    mark => mark.closest(".role-mark") && (mark.getAttribute("d") || "").length > 8)
).map(chart => `${chart.id} is empty`)"""
# Pictures without a heading, a sentence, the file that they were drawn from, or a table of their
# figures, which the keyboard and screen readers reach.
UNEXPLAINED = """() => [...document.querySelectorAll("figure")].flatMap(figure => {
  const found = [], words = one => one ? one.textContent.trim() : "";
  const caption = figure.querySelector("figcaption");
  if (!words(caption.querySelector("h3"))) found.push("has no heading");
  if (!words(caption.querySelector("p")).endsWith(".")) found.push("has no sentence");
  const links = [...figure.querySelectorAll(":scope > small a")];
  if (!links.length || !links.every(link => words(link) && link.hash)) found.push("has no source");
  for (const panel of figure.querySelectorAll(".panel"))
    if (!panel.querySelector("table tbody td")) found.push("has no table");
  return found.map(what => `${figure.id} ${what}`);
})"""
# Links that lead nowhere, or away.
DEAD = """() => [...document.querySelectorAll("a")].flatMap(link => {
  const to = link.getAttribute("href") || "";
  const there = to.startsWith("#") && document.getElementById(decodeURIComponent(to.slice(1)));
  return there ? [] : [`${link.textContent} leads to ${to || "nothing"}`];
})"""
# Texts with a contrast of less than CONTRAST to what is behind them, as the WCAG 2 define it. The
# signs of a legend are no text: names stand beside them.
FAINT = """least => {
  const channels = colour => (colour.match(/[\\d.]+/g) || []).map(Number);
  const light = colour => channels(colour).slice(0, 3).map(c => c / 255)
    .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const opaque = colour => { const [,,, a = 1] = channels(colour); return a > 0; };
  const behind = one => {
    while (one && !opaque(getComputedStyle(one).backgroundColor)) one = one.parentElement;
    return getComputedStyle(one || document.body).backgroundColor;
  };
  const found = new Set();
  for (const one of document.querySelectorAll("body *")) {
    const text = [...one.childNodes].filter(n => n.nodeType === 3).map(n => n.data).join("").trim();
    if (!text || one.matches("script, style, option, .legend span") || !one.checkVisibility())
      continue;
    const style = getComputedStyle(one);
    const [a, b] = [one.closest("svg") ? style.fill : style.color, behind(one)].map(light);
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const said = `${text.slice(0, 40)} has a contrast of ${contrast.toFixed(1)}`;
    if (contrast < least) found.add(said);
  }
  return [...found];
}"""
CONTRAST = 4.5


# What is checked, and with which argument. The second ones say the same at every width.
OF_WIDTH = ((TOO_WIDE, None), (TEXTS, [SHARED, SMALLEST]))
OF_PAGE = ((EMPTY, None), (UNEXPLAINED, None), (DEAD, None), (FAINT, CONTRAST))


def complaints(page: Page, checks: Checks = (*OF_WIDTH, *OF_PAGE)) -> list[str]:
    """Whatever is wrong with a page, at the width that it has."""
    return [one for check, given in checks for one in page.evaluate(check, given)]


def unfold(page: Page) -> None:
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_legible_at_every_width(opened: Open, kind: str) -> None:
    page = opened(kind)
    assert Path(page.url.removeprefix("file://")).stat().st_size < MOST_BYTES
    assert bool(page.locator(".chart").count()) == (kind in PICTURED)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        assert complaints(page, OF_WIDTH) == []
    assert complaints(page) == []
    # The browser draws the same when it is asked to answer.
    for chart in page.locator(".chart").all():
        chart.dispatch_event("pointerenter")
    page.wait_for_function(
        "[...document.querySelectorAll('.chart')].every(c => c.matches('.vega-embed'))"
    )
    unfold(page)
    assert complaints(page) == []
    page.emulate_media(color_scheme="dark")
    assert complaints(page) == []


@for_each_row(
    "broken, complaint",
    ("one => { one.style.width = '3000px'; }", "pixels too wide"),
    (
        "one => one.querySelectorAll('text').forEach(t => { t.style.fontSize = '40px'; })",
        "overlaps",
    ),
    ("one => { one.querySelector('text').setAttribute('x', -900); }", "is cut off"),
    ("one => { one.querySelector('text').style.fontSize = '5px'; }", "pixels"),
    ("one => one.querySelectorAll('.role-mark').forEach(mark => mark.remove())", "is empty"),
    ("one => one.querySelector('figcaption h3').remove()", "has no heading"),
    ("one => one.querySelector('figcaption p').remove()", "has no sentence"),
    ("one => one.querySelector(':scope > small a').remove()", "has no source"),
    ("one => one.querySelector('.panel table').remove()", "has no table"),
    ("one => { one.querySelector('small a').href = '#nowhere'; }", "leads to #nowhere"),
    ("one => { one.querySelector('small a').href = 'https://e.org/'; }", "leads to https"),
    ("one => { one.querySelector('h3').style.color = '#ccc'; }", "has a contrast of 1.6"),
)
def test_a_page_that_is_broken_is_noticed(opened: Open, broken: str, complaint: str) -> None:
    page = opened("one run")
    assert complaints(page) == []
    page.locator("#figure-calls").evaluate(broken)
    found = complaints(page)
    assert any(complaint in one for one in found), found


def test_what_a_page_says_is_noticed(opened: Open, said: list[str]) -> None:
    page = opened("one run")
    page.evaluate("console.warn('one')")
    with page.expect_event("pageerror"):
        page.evaluate("setTimeout(() => { throw Error('two'); })")
    with page.expect_console_message(lambda one: "Failed to load" in one.text):
        page.evaluate("document.body.append(Object.assign(new Image(), {src: 'three.png'}))")
    for words in ("one", "two", "three.png"):
        assert any(words in one for one in said), said
    said.clear()


def test_the_three_answers_are_on_the_first_screen(opened: Open) -> None:
    page = opened("everything")
    boxes = [box.bounding_box() for box in page.locator(".answers .chart").all()]
    headings = page.locator(".answers h3").all_inner_texts()
    assert [one for one in headings if one.endswith("?")] == headings and len(headings) == 3
    assert boxes and all(box and box["y"] < 900 for box in boxes)


def test_all_can_be_reached_by_the_keyboard(opened: Open) -> None:
    """Tab goes through links, tables and the choice of a mode, and shows where it is."""
    page = opened("everything", 800)
    where = """() => {
      const one = document.activeElement, style = getComputedStyle(one);
      const seen = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
      return [one.tagName, one.className || one.id, seen];
    }"""
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        tag, name, seen = page.evaluate(where)
        assert seen, (tag, name)
        reached.add(name if name in ("mode", "scroll") else tag)
    assert {"A", "SUMMARY", "mode", "scroll"} <= reached
    # The table behind a picture opens by the keyboard.
    summary = page.locator("#figure-calls summary")
    summary.focus()
    page.keyboard.press("Enter")
    assert page.locator("#figure-calls table").is_visible()


def test_a_printed_page_has_its_tables_within_the_paper(opened: Open) -> None:
    # A4, less margins of a centimetre.
    page = opened("everything", 718)
    page.emulate_media(media="print")
    assert page.evaluate(TOO_WIDE) == []
    wide = "all => all.filter(one => one.getBoundingClientRect().right > innerWidth).length"
    assert page.locator("#phases table").evaluate_all(wide) == 0
    # Lines of results, to which paper has no links, are left out. Pictures stand side by side.
    assert not page.locator("#phases .from:visible").count()
    heads = page.locator("#phases thead th:visible").all_inner_texts()
    assert "first writes" in heads and "lines" not in heads
    tops = "all => all.slice(0, 2).map(one => one.getBoundingClientRect().top)"
    first, second = page.locator("#figure-calls-by-mode .panel").evaluate_all(tops)
    assert first == second


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
