# SPDX-License-Identifier: GPL-2.0-only
"""Render sections as a Markdown page, and that as an HTML page that contains its pictures."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from lab.core import complete
from lab.page.model import Block, Grid, Picture, Section, lines_of, ranges
from lab.page.pictures import COLOURS
from lab.results.sources import Line, Source, Sources

TEMPLATES = Path(__file__).parent / "templates"
HTML = "index.html"
MARKDOWN = "report.md"
# Matches links to a file of results, or to lines of it.
LINK = re.compile(r'href="([^"#]+)(?:#L(\d+)[^"]*)?"')
TITLE = "Eager page splitting for KVM's shadow MMU"


@dataclass(frozen=True)
class Used:
    """A file of results, and those of its lines that the page shows at its end."""

    source: Source
    lines: list[Line]

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.source.data).hexdigest()

    @property
    def facts(self) -> str:
        """The machines and kernel versions that the lines of the file name."""
        found: list[str] = []
        for name in ("machine", "kernel_version"):
            seen = dict.fromkeys(str(o.record[name]) for o in self.source.lines if name in o.record)
            found += seen
        return ", ".join(found)


def inline(picture: Picture) -> str:
    """A picture's SVG for use inside a page, with ids of its own."""
    svg = picture.svg[picture.svg.index("<svg") :]
    svg = re.sub(r'\bid="|href="#|url\(#', rf"\g<0>{picture.name}-", svg)
    for size in ("height", "width"):
        svg = re.sub(rf'<svg ([^>]*?){size}="[^"]*" ?', r"<svg \1", svg, count=1)
    # Hide the picture from screen readers: its text is outlines, and tables have the same figures.
    named = f'<svg id="figure-{picture.name}" role="img" aria-hidden="true" '
    return svg.replace("<svg ", named, 1)


def _escape(text: object) -> object:
    return text.replace("<", "&lt;") if isinstance(text, str) else text


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


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
    found.filters.update(ranges=ranges, cell=_cell)
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


def _pictures(sections: Iterable[Section]) -> dict[str, Picture]:
    """All pictures by the names of their files."""
    blocks = (block for section in sections for block in section.blocks)
    return {f"{block.name}.svg": block for block in blocks if isinstance(block, Picture)}


def _body(markdown: str, pictures: Mapping[str, Picture]) -> Markup:
    """The Markdown page as HTML that contains its pictures, with links to lines in the page."""
    parser = MarkdownIt("commonmark").enable("table")

    def image(_: object, tokens: Sequence[Token], index: int, *__: object) -> str:
        return inline(pictures[str(tokens[index].attrs["src"])])

    def within(found: re.Match[str]) -> str:
        return f'href="#{found[1]}{f"-{found[2]}" if found[2] else ""}"'

    parser.add_render_rule("image", image)
    return Markup(LINK.sub(within, parser.render(markdown)))


def pages(sources: Sources, sections: Sequence[Section]) -> dict[str, str]:
    """Both pages, by the names of their files."""
    lines = lines_of(sections)
    used = [Used(one, [i for i in lines if i.file == one.name]) for one in sources.values()]
    shown = {"title": TITLE, "sections": [_notes_once(section) for section in sections]}
    text = _environment(False).get_template(f"{MARKDOWN}.j2").render(shown, used=used)
    # Jinja leaves several empty lines in a row.
    text = re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"
    parts = {"title": TITLE, "colours": COLOURS, "body": _body(text, _pictures(sections))}
    return {
        MARKDOWN: text,
        HTML: _environment(True).get_template(f"{HTML}.j2").render(parts, used=used),
    }


def files(sources: Sources, sections: Sequence[Section]) -> dict[str, bytes]:
    """All files of a report, by their names."""
    found = {name: text.encode() for name, text in pages(sources, sections).items()}
    found |= {name: picture.svg.encode() for name, picture in _pictures(sections).items()}
    return found | {source.name: source.data for source in sources.values()}


def replace_directory(directory: Path, contents: Mapping[str, bytes]) -> None:
    """Make DIRECTORY contain exactly CONTENTS. It is replaced when all is written."""
    with complete.directory(directory) as fresh:
        for name, data in contents.items():
            (fresh / name).write_bytes(data)
