# SPDX-License-Identifier: GPL-2.0-only
"""No link in a Markdown file of the repository leads nowhere, and no make target is missing.

Relative links only, with their anchors as GitHub makes them of headings; addresses of other
hosts are not looked up. A make target is what follows make in code, at the beginning of a line
or behind a semicolon or an ampersand.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from lab.core.paths import ROOT
from tests.rows import for_each_row
from tests.unit.files import write

PARSER = MarkdownIt("commonmark").enable("table")
TARGETS = {"a": "href", "img": "src"}
CODE = ("code_inline", "code_block", "fence")
MAKE = re.compile(r"(?:^|[;&]) *make +([a-z][\w-]*)(?: +WHAT=(\w+))?", re.MULTILINE)
RULE = re.compile(r"^([a-z][\w -]*):(?!=)", re.MULTILINE)
KNOWN = re.compile(r"^([A-Z]+)_WHAT := (.*)$", re.MULTILINE)


def markdown_files(root: Path) -> list[Path]:
    """Every Markdown file that belongs to the repository at ROOT."""
    ours = [path for path in root.iterdir() if path.name != "build" and path.name[0] != "."]
    nested = (file for path in ours if path.is_dir() for file in path.rglob("*.md"))
    return sorted([*nested, *(path for path in ours if path.suffix == ".md")])


def _inline(text: str) -> Iterator[Token]:
    for token in PARSER.parse(text):
        yield from token.children or ()


def links(text: str) -> list[str]:
    found = (token.attrGet(TARGETS[token.tag]) for token in _inline(text) if token.tag in TARGETS)
    return [str(target) for target in found if target is not None]


def anchors(text: str) -> set[str]:
    titles = [
        "".join(child.content for child in inline.children or ())
        for opened, inline in pairwise(PARSER.parse(text))
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


def make_calls(text: str) -> set[tuple[str, str]]:
    """The make targets, and the WHAT of each if any, that the code in a Markdown text names."""
    tokens = (*PARSER.parse(text), *_inline(text))
    return {pair for one in tokens if one.type in CODE for pair in MAKE.findall(one.content)}


def missing_targets(root: Path) -> list[str]:
    """A line for each target, or WHAT, that a file below ROOT names and ROOT's Makefile has not."""
    makefile = (root / "Makefile").read_text()
    known = {goal: {""} for goals in RULE.findall(makefile) for goal in goals.split()}
    for goal, words in KNOWN.findall(makefile):
        known.setdefault(goal.lower(), set()).update(words.split())
    return [
        f"{file.relative_to(root)}: make {goal}{f' WHAT={what}' if what else ''}: there is no such"
        for file in markdown_files(root)
        for goal, what in sorted(make_calls(file.read_text()))
        if what not in known.get(goal, ())
    ]


@pytest.mark.parametrize("wrong", [dead_links, missing_targets])
def test_what_documents_name_exists(wrong: Callable[[Path], list[str]]) -> None:
    assert wrong(ROOT.resolve()) == []


def test_there_is_something_to_check() -> None:
    names = {file.name for file in markdown_files(ROOT)}
    assert {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "design.md"} <= names
    readme = (ROOT / "README.md").read_text()
    assert "docs/operators.md" in links(readme)
    assert "developing.md" in links((ROOT / "docs" / "README.md").read_text())
    assert {"bench", "test", "tree", "deb", "help"} <= {goal for goal, _ in make_calls(readme)}
    assert ("bench", "live") in make_calls((ROOT / "docs" / "README.md").read_text())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path / "build/x", "")
    write(tmp_path / "docs/b.md", "# The `b`: a file\n\n## Twice\n\n## Twice\n")
    return tmp_path.resolve()


@for_each_row(
    "target, why",
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
)
def test_what_is_noticed(root: Path, target: str, why: str | None) -> None:
    (root / "a.md").write_text(f"# Here\n\n| a |\n|---|\n| [text]({target}) |\n")
    assert dead_links(root) == ([f"a.md: {target}: {why}"] if why else [])


def test_code_is_no_link(root: Path) -> None:
    (root / "a.md").write_text("`[a](none)`\n\n    [b](none)\n\n![c](none.png)\n")
    assert dead_links(root) == ["a.md: none.png: there is no such file"]


MAKEFILE = "BENCH_WHAT := a b\nthere also-there: x\nx-y:\n\tz:\nbench test: x\n"
NAMES_TARGETS = """
`make there`, make a, `make x-y ARGS=z`

```
make b   to make it
cd . && make -C d z
true; make e
make bench WHAT=a; make bench WHAT=c; make test WHAT=a
```

| a |
|---|
| `make f` |
"""


def test_missing_make_targets_are_noticed(root: Path) -> None:
    (root / "Makefile").write_text(MAKEFILE)
    (root / "docs" / "c.md").write_text(NAMES_TARGETS)
    missing = ("b", "bench WHAT=c", "e", "f", "test WHAT=a")
    assert missing_targets(root) == [f"docs/c.md: make {one}: there is no such" for one in missing]
