# SPDX-License-Identifier: GPL-2.0-only
"""Put tables with figures of the reference into README.md and docs/*.md.

docs/figures.toml has the queries of each table, in the language of lab.page.query. How a page says
which table belongs where is in docs/measuring.md: "The reference". This module also draws the one
picture that is committed.
"""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from lab.core.errors import LabError
from lab.core.paths import ROOT
from lab.page import cliff, query
from lab.results import notation, sources
from lab.results.sources import Bases, Sources

REFERENCE = Path("docs") / "reference"
SPECIFICATION = Path("docs") / "figures.toml"
PAGES = ("README.md", "docs/**/*.md")
# What stands before and after the name of a table, and at its end.
BEGIN, BEHIND, END = "<!-- figures: ", " -->\n", "<!-- end -->\n"
# The value of "base" for a table that shows all bases side by side.
EACH = "each"


def _percent(value: float) -> str:
    # With two digits, a share below one percent still says something.
    return f"{value:.{0 if value >= 9.95 else 1}f}%" if value >= 0.95 else f"{value:.2g}%"


def _share(value: float) -> str:
    return "0" if abs(value) < 0.0005 else f"{100 * value:.1f}%"


# Formats of figures: the values of "as" of a column.
STYLES: Mapping[str, Callable[[float], str]] = {
    "ms": lambda value: notation.milliseconds(value / 1e3) if value else "0",
    "ratio": lambda value: notation.ratio(value, 1),
    "count": lambda value: f"{value:,.0f}",
    "percent": _percent,
    "share": _share,
    "rest": lambda value: _share(1 - value),
}


@dataclass(frozen=True)
class Grid:
    """A table of a page. columns[0] is the title above the labels of the rows.

    base: the base of all figures; empty if the titles of columns name it.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    base: str = ""

    def markdown(self) -> str:
        """The table. The title of the first column names the base."""
        first = f"Linux {self.base}: {self.columns[0]}" if self.base else self.columns[0]
        rule = ["---", *(["---:"] * (len(self.columns) - 1))]
        lines = [f"| {' | '.join(row)} |" for row in [(first, *self.columns[1:]), *self.rows]]
        return "\n".join([lines[0], f"|{'|'.join(rule)}|", *lines[1:], ""])


def specification(root: Path = ROOT) -> dict[str, Any]:
    """The content of docs/figures.toml. LabError: it cannot be read, or names no default base."""
    try:
        found = tomllib.loads((root / SPECIFICATION).read_text())
    except (OSError, ValueError) as error:
        raise LabError(f"{SPECIFICATION}: {error}") from error
    if "base" not in found:
        raise LabError(f"{SPECIFICATION}: has no `base`, i.e. no default base")
    return found


def reference(root: Path = ROOT) -> Bases:
    """The committed results, a directory for each base.

    LabError: there are none, one cannot be read, or lies in the directory of another base.
    """
    files = sorted((root / REFERENCE).glob("*/*.jsonl"))
    if not files:
        raise LabError(f"{REFERENCE} has no results: run `make reference`")
    found = {}
    for base in dict.fromkeys(file.parent.name for file in files):
        found[base] = sources.load_all(file for file in files if file.parent.name == base)
        if wrong := [one.name for one in found[base].values() if one.base != base]:
            raise LabError(f"{REFERENCE}/{base}/{wrong[0]} is of another base")
    return sources.newest_first(found)


def chosen(entry: Mapping[str, Any], spec: Mapping[str, Any], found: Bases) -> Sources:
    """The reference that an entry of the specification is about: of its base, or the default one.

    LabError: there is no reference of that base.
    """
    base = entry.get("base", spec["base"])
    if base not in found:
        raise LabError(f"{REFERENCE} has no results of {base}: run `make reference BASE={base}`")
    return found[base]


def _asked(common: str, row: Mapping[str, str], column: Mapping[str, str]) -> str:
    """The query of a figure: the words of the table, the row and the column."""
    sides = column["of"].split(" / ")
    return " / ".join(f"{common} {row['of']} {side}" for side in sides)


def _cell(common: str, row: Mapping[str, str], column: Mapping[str, str], found: Sources) -> str:
    if row["name"] in column.get("not", ()):
        return notation.NOTHING
    text, sides = _asked(common, row, column), column["of"].split(" / ")
    style = column.get("as", "ratio" if len(sides) > 1 else "ms")
    return STYLES[style](query.number(text, found))


def _rows(table: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """All rows. An entry with "for" makes a row for each of these values."""
    for row in table["rows"]:
        for value in row.get("for", [""]):
            name, figure = value if isinstance(value, list) else (value, value)
            yield {key: row[key].format(name, figure) for key in ("name", "of")}


def cells(table: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str, str], str]]:
    """What each figure is called, and its query: names of the row, the column, and "over".

    "over" says what only the first side of a ratio is.
    """
    for row, column in product(_rows(table), table["columns"]):
        if row["name"] not in column.get("not", ()):
            names = (row["name"], column["name"], column.get("over", ""))
            yield names, _asked(table["common"], row, column)


def grid(table: Mapping[str, Any], spec: Mapping[str, Any], found: Bases) -> Grid:
    """The table of SPEC: of one base, or with base = "each" of all bases with results of its kind.

    LabError: the reference lacks a figure that it needs.
    """
    names, kind = [column["name"] for column in table["columns"]], table["common"].split()[0]
    base = table.get("base", spec["base"])
    if base == EACH:
        sides = {base: mine for base, mine in found.items() if kind in mine}
        names = [f"{base} {name}" for base in sides for name in names]
    else:
        sides = {base: chosen(table, spec, found)}
    asked = list(product(sides.values(), table["columns"]))
    rows = [
        [row["name"], *(_cell(table["common"], row, column, mine) for mine, column in asked)]
        for row in _rows(table)
    ]
    return Grid((table["rows_are"], *names), rows, "" if base == EACH else base)


def replaced(text: str, grids: Mapping[str, Grid]) -> str:
    """TEXT of a page with current tables. LabError: a marker has an unknown name, or no end."""
    pattern = f"^{re.escape(BEGIN)}(.*?){re.escape(BEHIND)}(.*?)^{re.escape(END)}"

    def made(found: re.Match[str]) -> str:
        name = found[1]
        if name not in grids or BEGIN in found[2]:
            raise LabError(f"figures: {name}: no such table, or its end is missing")
        return f"{BEGIN}{name}{BEHIND}{grids[name].markdown()}{END}"

    new, count = re.subn(pattern, made, text, flags=re.MULTILINE | re.DOTALL)
    if count != len(re.findall(f"^{re.escape(BEGIN)}", text, re.MULTILINE)):
        raise LabError(f"a table that begins with '{BEGIN.strip()}' has no '{END.strip()}'")
    return new


def pages(root: Path) -> Iterator[Path]:
    for pattern in PAGES:
        yield from sorted(root.glob(pattern))


def stale(root: Path = ROOT) -> dict[Path, str]:
    """The pages, and the picture, that are not up to date; and what they should contain.

    LabError names the page.
    """
    found, spec = reference(root), specification(root)
    grids = {name: grid(table, spec, found) for name, table in spec["table"].items()}
    wrong = {}
    for page in pages(root):
        text = page.read_text()
        try:
            new = replaced(text, grids)
        except LabError as error:
            raise LabError(f"{page.relative_to(root)}: {error}") from error
        if new != text:
            wrong[page] = new
    picture, drawn = root / cliff.PICTURE, cliff.draw(chosen({}, spec, found))
    if not picture.exists() or picture.read_text() != drawn:
        wrong[picture] = drawn
    return wrong


def refresh(root: Path = ROOT) -> list[Path]:
    """Put the figures of the reference into the pages; returns those that changed."""
    wrong = stale(root)
    for page, text in wrong.items():
        page.write_text(text)
    return list(wrong)
