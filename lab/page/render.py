# SPDX-License-Identifier: GPL-2.0-only
"""Render sections as an HTML page that contains everything, and as a Markdown page with pictures.

Without JavaScript, and in print, the HTML page shows the same pictures: its script only makes the
one that the reader points at answer.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from lab.core import complete
from lab.page import glossary, pictures
from lab.page.model import Block, Grid, Picture, Section, lines_of, ranges
from lab.page.phases import MET, MISSED
from lab.page.pictures import COLOURS, DARK
from lab.results.sources import Line, Source, Sources

TEMPLATES = Path(__file__).parent / "templates"
HTML = "index.html"
MARKDOWN = "report.md"
TITLE = "Eager page splitting for KVM's shadow MMU: report"
# Decimals of a number from the third on.
DECIMALS = re.compile(r"(?<=\d)(\.\d\d)\d+")
MARKS = {MET: "met", MISSED: "missed"}


@dataclass(frozen=True)
class Used:
    """A file of results, and those of its lines that the page shows at its end."""

    source: Source
    lines: list[Line]

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.source.data).hexdigest()

    @cached_property
    def common(self) -> dict[str, Any]:
        """The keys that all of its lines have, with the same value."""
        records = [line.record for line in self.lines]
        first = records[0] if len(records) > 1 else {}
        return {
            key: value
            for key, value in first.items()
            if all(key in record and record[key] == value for record in records)
        }

    @property
    def common_text(self) -> str:
        return json.dumps(self.common)

    def text(self, line: Line) -> str:
        """A line without the keys that all have in common."""
        own = {key: value for key, value in line.record.items() if key not in self.common}
        return json.dumps(own, separators=(",", ":"))

    @property
    def facts(self) -> str:
        """The machines and kernel versions that the lines of the file name."""
        found: list[str] = []
        for name in ("machine", "kernel_version"):
            seen = dict.fromkeys(str(o.record[name]) for o in self.source.lines if name in o.record)
            found += seen
        return ", ".join(found)


def on_paper(svg: str) -> str:
    """A picture's SVG for a file: with paper behind it, as viewers of Markdown may be dark."""
    paper = f'<rect width="100%" height="100%" fill="{COLOURS["paper"]}"/>'
    return re.sub("<svg [^>]*>", lambda begin: f"{begin[0]}{paper}", svg, count=1)


def inline(svg: str, name: str) -> Markup:
    """A picture's SVG for use inside a page, with ids of its own and as wide as there is room."""
    svg = svg[svg.index("<svg") :]
    # Tables have the same figures for screen readers, which do not see the picture.
    svg = re.sub(r' (?:aria-[a-z]+|role|font-family|pointer-events)="[^"]*"', "", svg)
    # Nor does it need what is so anyway, or is not seen.
    svg = re.sub(r' (?:opacity|stroke-width)="1"|<path class="background" [^>]*/>', "", svg)
    # A hundredth of a pixel is less than can be seen.
    svg = re.sub(r' (?:d|transform)="[^"]*"', lambda place: DECIMALS.sub(r"\1", place[0]), svg)
    svg = re.sub(r'\bid="|href="#|url\(#', rf"\g<0>{name}-", svg)
    for size in ("height", "width"):
        svg = re.sub(rf'<svg ([^>]*?)\b{size}="[^"]*" ?', r"<svg \1", svg, count=1)
    return Markup(svg.replace("<svg ", '<svg aria-hidden="true" ', 1))


def _escape(text: object) -> object:
    return text.replace("<", "&lt;") if isinstance(text, str) else text


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _marked(text: str) -> Markup:
    """A cell, with its marks for goals as elements."""
    html = str(escape(text))
    for mark, name in MARKS.items():
        label = f'<span class="{name}" title="goal {name}">{mark}</span>'
        html = html.replace(mark, label)
    return Markup(html)


def _tone(text: str) -> str:
    """The class of a cell that says whether something got better."""
    return "worse" if "slower" in text else ""


def _code(text: str) -> Markup:
    """TEXT, with what is between backticks as code."""
    return Markup(re.sub("`(.*?)`", r"<code>\1</code>", str(escape(text))))


def _terms(text: str, linked: set[str]) -> Markup:
    """TEXT with links to the glossary, for terms that are not LINKED yet."""
    return Markup(glossary.link(str(escape(text)), linked))


def _raw(text: str) -> Markup:
    """TEXT between tags. Quotes stay as they are, which saves a fifth of the page."""
    return Markup(text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))


def _slug(text: str) -> str:
    return re.sub(r"\W+", "-", text).strip("-").lower()


def _environment(html: bool) -> Environment:
    found = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=html,
        finalize=None if html else _escape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    filters: dict[str, Callable[..., Any]] = {
        "ranges": ranges,
        "cell": _cell,
        "marked": _marked,
        "tone": _tone,
        "code": _code,
    }
    filters |= {"terms": _terms, "slug": _slug, "inline": inline, "raw": _raw}
    found.filters.update(filters)
    found.globals["fresh"] = set
    for name, kind in {"grid": Grid, "picture": Picture}.items():
        found.tests[name] = lambda value, kind=kind: isinstance(value, kind)
    return found


def _notes_once(section: Section) -> Section:
    """The section without notes that an earlier table of it has.

    Tables of other files keep their notes on where they are from.
    """
    said: set[str] = set()
    blocks: list[Block] = []
    for block in section.blocks:
        if isinstance(block, Grid):
            notes = [note for note in block.table.notes if note not in said]
            block = replace(block, table=replace(block.table, notes=notes))
            said.update(notes)
        blocks.append(block)
    return replace(section, blocks=blocks)


def _pictures(sections: Iterable[Section]) -> dict[str, pictures.Chart]:
    """All charts by the names of their files."""
    blocks = (block for section in sections for block in section.blocks)
    shown = (block for block in blocks if isinstance(block, Picture))
    return {name: chart for picture in shown for name, chart in picture.files.items()}


def _modes(sections: Iterable[Section]) -> list[str]:
    """The paging modes that can be picked."""
    found: list[str] = []
    for block in (block for section in sections for block in section.blocks):
        if isinstance(block, Grid):
            found += block.modes
        elif isinstance(block, Picture):
            found += [chart.mode for chart in block.charts]
    return [mode for mode in dict.fromkeys(found) if mode]


def pages(sources: Sources, sections: Sequence[Section], title: str = TITLE) -> dict[str, str]:
    """Both pages, by the names of their files."""
    lines = lines_of(sections)
    used = [Used(one, [i for i in lines if i.file == one.name]) for one in sources.values()]
    shown = {
        "title": title,
        "sections": [_notes_once(section) for section in sections],
        "used": used,
        "terms": glossary.TERMS,
        "styles": COLOURS,
        "dark": DARK,
        "modes": _modes(sections),
        "shared": Markup(pictures.as_text(pictures.SHARED)),
        "font": Markup(pictures.FONT),
        "places": {one.source.name: f"L{n}" for n, one in enumerate(used)},
    }
    text = _environment(False).get_template(f"{MARKDOWN}.j2").render(shown)
    # Jinja leaves several empty lines in a row.
    text = re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"
    html = _environment(True).get_template(f"{HTML}.j2")
    script = Markup(pictures.script()) if _pictures(sections) else ""
    return {MARKDOWN: text, HTML: html.render(shown, script=script)}


def files(sources: Sources, sections: Sequence[Section], title: str = TITLE) -> dict[str, bytes]:
    """All files of a report, by their names."""
    found = {name: text.encode() for name, text in pages(sources, sections, title).items()}
    drawn = _pictures(sections)
    found |= {name: on_paper(chart.svg).encode() for name, chart in drawn.items()}
    return found | {source.name: source.data for source in sources.values()}


def replace_directory(directory: Path, contents: Mapping[str, bytes]) -> None:
    """Make DIRECTORY contain exactly CONTENTS. It is replaced when all is written."""
    with complete.directory(directory) as fresh:
        for name, data in contents.items():
            (fresh / name).write_bytes(data)
