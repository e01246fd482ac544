# SPDX-License-Identifier: GPL-2.0-only
"""Both pages, from one list of sections.

The HTML page needs nothing beside it: pictures are SVG inside of it, there is no script, and
nothing is loaded. The Markdown page has its pictures, and the files of results, beside it.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from lab.core import space
from lab.page.model import Block, Grid, Missing, Picture, Section, lines_of, ranges
from lab.page.pictures import COLOURS
from lab.results.sources import Line, Source, Sources

TEMPLATES = Path(__file__).parent / "templates"
HTML = "index.html"
MARKDOWN = "report.md"
TITLE = "Eager page splitting for KVM's shadow MMU"


@dataclass(frozen=True)
class Used:
    """A file of results at the end of the page, with those of its lines that are shown."""

    source: Source
    lines: list[Line]

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.source.data).hexdigest()

    @property
    def facts(self) -> str:
        """Machines and kernel versions in it, as far as its lines name them."""
        found: list[str] = []
        for name in ("machine", "kernel_version"):
            seen = dict.fromkeys(str(o.record[name]) for o in self.source.lines if name in o.record)
            found += seen
        return ", ".join(found)


def inline(picture: Picture) -> Markup:
    """A picture's SVG for use inside a page: ids of its own, and colours that the page sets."""
    svg = picture.svg[picture.svg.index("<svg") :]
    svg = re.sub(r'\bid="|href="#|url\(#', rf"\g<0>{picture.name}-", svg)
    for name, (colour, _) in COLOURS.items():
        svg = svg.replace(colour, f"var(--{name})")
    for size in ("height", "width"):
        svg = re.sub(rf'<svg ([^>]*?){size}="[^"]*" ?', r"<svg \1", svg, count=1)
    # The figures are in the tables, too; the text is made of outlines.
    return Markup(svg.replace("<svg ", '<svg role="img" aria-hidden="true" ', 1))


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _environment(html: bool) -> Environment:
    found = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=html,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.filters.update(inline=inline, ranges=ranges, cell=_escape)
    kinds = {"grid": Grid, "picture": Picture, "missing": Missing, "text": str}
    for name, kind in kinds.items():
        found.tests[name] = lambda value, kind=kind: isinstance(value, kind)
    return found


def _notes_once(section: Section) -> Section:
    """The section, with what tables have in common said at the first of them only.

    Tables from elsewhere, beside ours, keep saying where they are from.
    """
    said: set[str] = set()
    blocks: list[Block] = []
    for block in section.blocks:
        if isinstance(block, Grid) and not block.beside:
            block = replace(block, notes=[note for note in block.notes if note not in said])
            said.update(block.notes)
        blocks.append(block)
    return replace(section, blocks=blocks)


def page(template: str, sources: Sources, sections: Sequence[Section]) -> str:
    """One page: TEMPLATE is HTML or MARKDOWN."""
    environment, lines = _environment(template == HTML), lines_of(sections)
    used = [Used(one, [i for i in lines if i.file == one.name]) for one in sources.values()]
    text = environment.get_template(f"{template}.j2").render(
        title=TITLE,
        sections=[_notes_once(section) for section in sections],
        used=used,
        colours=COLOURS,
    )
    # What Jinja leaves of empty lines in a row.
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def files(sources: Sources, sections: Sequence[Section]) -> dict[str, bytes]:
    """Everything that a report consists of: name -> bytes."""
    found = {name: page(name, sources, sections).encode() for name in (HTML, MARKDOWN)}
    for section in sections:
        for block in section.blocks:
            if isinstance(block, Picture):
                found[f"{block.name}.svg"] = block.svg.encode()
    return found | {source.name: source.data for source in sources.values()}


def replace_directory(directory: Path, contents: Mapping[str, bytes]) -> None:
    """Make DIRECTORY hold exactly CONTENTS; it gets its name when all is written."""
    with space.filling(directory) as fresh:
        for name, data in contents.items():
            (fresh / name).write_bytes(data)
