# SPDX-License-Identifier: GPL-2.0-only
"""Figures that are typed into a page, or into the changelog of a mail, and not bound to anything.

A figure is bound if a table makes it (lab.page.figures) or a claim compares it (lab.page.claims).
docs/figures.toml quotes the others: "given" has settings, limits and definitions, "unbound" what
was measured and cannot be compared yet.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.core.errors import LabError
from lab.core.paths import ROOT
from lab.page import claims, figures

PAGES = ("CHANGELOG.md", *figures.PAGES, "Documentation/**/*.rst", "series/*.patch")
UNITS = "ms|us|ns|k/s|instructions|accesses|(?:page )?faults|requests|cycles|times|%|percent"
# A number with a unit of what is measured, one with a decimal point, and one of at least 1,000.
FIGURE = re.compile(
    rf"(?<![\w.,-])(?:\d[\d,]*(?:\.\d+)?\s?(?:{UNITS})(?!\w)|\d{{1,3}}(?:,\d{{3}})+(?!\w|\.\d)"
    r"|\d+\.\d+(?!\w|\.\d))"
)
CODE = r"``?[^`]+``?"
# Of the bases, of QEMU and Python in Debian 12, and of this project: not figures.
VERSIONS = ("6.12", "7.3", "7.2", "3.11", "1.0")
# How much of the text is shown on both sides of a figure, characters.
AROUND = 40
LISTS = ("given", "unbound")


def _prose(page: Path) -> str:
    """The text of a page in one line, without tables that are made, code, and diffs."""
    text = page.read_text()
    if page.suffix == ".patch":
        text = text.partition("\n---\n")[0]
    else:
        made = f"^{re.escape(figures.BEGIN)}.*?^{re.escape(figures.END)}"
        for pattern in (made, r"^```.*?^```", CODE):
            text = re.sub(pattern, " ", text, flags=re.MULTILINE | re.DOTALL)
    return claims.plain(text)


def _without(text: str, quoted: str, name: str) -> str:
    """TEXT without a sentence. LabError: it does not have it."""
    plain = claims.plain(quoted)
    if plain not in text:
        raise LabError(f"{name}: no longer says '{plain}'; see {figures.SPECIFICATION}")
    return text.replace(plain, " ")


def _by_page(root: Path, section: Mapping[str, Sequence[Any]]) -> dict[Path, list[Any]]:
    """The entries of a section of docs/figures.toml, by the pages that its patterns name."""
    found: dict[Path, list[Any]] = defaultdict(list)
    for pattern, entries in section.items():
        for page in root.glob(pattern):
            found[page] += entries
    return found


def _typed_in(
    page: Path, name: str, claimed: Sequence[Mapping[str, Any]], quoted: Sequence[str]
) -> Iterator[str]:
    text = _prose(page)
    for claim in claimed:
        said = claims.FIGURE.sub(r"\1", claim["says"])
        text = text.replace(claims.plain(re.sub(CODE, " ", said)), " ")
    for sentence in quoted:
        text = _without(text, sentence, name)
    for match in FIGURE.finditer(text):
        if match[0] not in VERSIONS:
            around = text[max(0, match.start() - AROUND) : match.end() + AROUND]
            yield f"{name}: '{match[0]}' is not bound to a figure of the reference: ...{around}..."


def typed(root: Path = ROOT) -> list[str]:
    """A line for each figure that a page has of its own.

    LabError: docs/figures.toml quotes what no page says.
    """
    spec = figures.specification(root)
    for listed in LISTS:
        for pattern in spec.get(listed, {}):
            if not any(root.glob(pattern)):
                raise LabError(f"{figures.SPECIFICATION}: {listed}: there is no {pattern}")
    claimed = _by_page(root, spec.get("claim", {}))
    quoted = [_by_page(root, spec.get(listed, {})) for listed in LISTS]
    pages = dict.fromkeys(page for pattern in PAGES for page in sorted(root.glob(pattern)))
    return [
        line
        for page in pages
        for line in _typed_in(
            page,
            page.relative_to(root).as_posix(),
            claimed[page],
            [sentence for section in quoted for sentence in section[page]],
        )
    ]
