# SPDX-License-Identifier: GPL-2.0-only
"""No link in a Markdown file of the repository leads nowhere.

Relative links only, with their anchors as GitHub makes them of headings; addresses of other
hosts are not looked up.
"""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from lab.paths import ROOT

PARSER = MarkdownIt("commonmark").enable("table")
TARGETS = {"a": "href", "img": "src"}


def markdown_files(root: Path) -> list[Path]:
    """Every Markdown file that belongs to the repository at ROOT."""
    ours = [path for path in root.iterdir() if path.name != "build" and path.name[0] != "."]
    nested = (file for path in ours if path.is_dir() for file in path.rglob("*.md"))
    return sorted([*nested, *(path for path in ours if path.suffix == ".md")])


def _inline(text: str) -> Iterator[Token]:
    for token in PARSER.parse(text):
        yield from token.children or ()


def links(text: str) -> list[str]:
    """Where the links and images of a Markdown text lead."""
    found = (token.attrGet(TARGETS[token.tag]) for token in _inline(text) if token.tag in TARGETS)
    return [str(target) for target in found if target is not None]


def anchors(text: str) -> set[str]:
    """The anchors of a Markdown text's headings."""
    tokens = PARSER.parse(text)
    titles = [
        "".join(child.content for child in inline.children or ())
        for opened, inline in pairwise(tokens)
        if opened.type == "heading_open"
    ]
    seen: Counter[str] = Counter()
    found = set()
    for title in titles:
        slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


def wrong_with(file: Path, target: str, root: Path) -> str | None:
    """Why a link in FILE leads nowhere, None if it does not."""
    address = urlsplit(target)
    if address.scheme or address.netloc:
        return None
    path = unquote(address.path)
    aim = (file.parent / path).resolve() if path else file
    if not aim.is_relative_to(root):
        return "leaves the repository"
    if aim.is_relative_to(root / "build"):
        return "leads into build/, which is not in the repository"
    if not aim.exists():
        return "there is no such file"
    if address.fragment and aim.suffix == ".md":
        return None if address.fragment in anchors(aim.read_text()) else "there is no such heading"
    return None


def dead_links(root: Path) -> list[str]:
    """A line for each link below ROOT that leads nowhere."""
    found = (
        (file, target, wrong_with(file, target, root))
        for file in markdown_files(root)
        for target in links(file.read_text())
    )
    return [f"{file.relative_to(root)}: {target}: {why}" for file, target, why in found if why]


def test_every_link_leads_somewhere() -> None:
    assert dead_links(ROOT.resolve()) == []


def test_there_is_something_to_check() -> None:
    names = {file.name for file in markdown_files(ROOT)}
    assert {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "design.md"} <= names
    assert len(links((ROOT / "README.md").read_text())) > 20


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "x").touch()
    (tmp_path / "docs" / "b.md").write_text("# The `b`: a file\n\n## Twice\n\n## Twice\n")
    return tmp_path.resolve()


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("docs/b.md", None),
        ("docs/", None),
        ("docs/b.md#the-b-a-file", None),
        ("docs/b.md#twice-1", None),
        ("#here", None),
        ("https://example.org/none#x", None),
        ("docs/c.md", "there is no such file"),
        ("docs/b.md#twice-2", "there is no such heading"),
        ("#there", "there is no such heading"),
        ("../other", "leaves the repository"),
        ("build/x", "leads into build/, which is not in the repository"),
    ],
)
def test_what_is_noticed(root: Path, target: str, why: str | None) -> None:
    (root / "a.md").write_text(f"# Here\n\n| a |\n|---|\n| [text]({target}) |\n")
    assert dead_links(root) == ([f"a.md: {target}: {why}"] if why else [])


def test_code_is_no_link(root: Path) -> None:
    (root / "a.md").write_text("`[a](none)`\n\n    [b](none)\n\n![c](none.png)\n")
    assert dead_links(root) == ["a.md: none.png: there is no such file"]
