# SPDX-License-Identifier: GPL-2.0-only
"""Figures in sentences: of documents, and of the changelogs in series/.

docs/figures.toml quotes each sentence with its figures in brackets, and has a query for each
figure. A figure agrees if the result of the query, rounded to as many digits, is the same.
"""

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from lab.core.errors import LabError
from lab.core.paths import ROOT
from lab.page import figures, query
from lab.results.sources import Sources

FIGURE = re.compile(r"\[(\d[\d,.]*)\]")


def plain(text: str) -> str:
    """TEXT in one line, as sentences are compared."""
    return " ".join(text.split())


def agrees(figure: str, value: float) -> bool:
    """Whether VALUE, rounded as FIGURE is, is FIGURE."""
    said = Decimal(figure.replace(",", ""))
    # The unit of the last significant digit; zeros before the decimal point are not significant.
    step = said if "." in figure else said.normalize()
    # Half of that unit, and a little more, since binary fractions are not exact.
    return abs(float(said) - value) <= 10.0 ** int(step.as_tuple().exponent) * (0.5 + 1e-9)


def wrong_with(pattern: str, claim: Mapping[str, Any], found: Sources, root: Path) -> Iterator[str]:
    """A line for each figure of a sentence that is not the reference's. pattern: of the page.

    LabError: the page does not say this, or the reference has no such figure.
    """
    pages, said = list(root.glob(pattern)), claim["says"]
    if len(pages) != 1:
        raise LabError(f"{figures.SPECIFICATION}: {pattern} names {len(pages)} files, not one")
    page, name = pages[0], pages[0].relative_to(root)
    if plain(FIGURE.sub(r"\1", said)) not in plain(page.read_text()):
        raise LabError(f"{name}: no longer says '{said}'; see {figures.SPECIFICATION}")
    shown = FIGURE.findall(said)
    if len(shown) != len(claim["of"]):
        raise LabError(f"{figures.SPECIFICATION}: '{said}' has another number of figures")
    for figure, text in zip(shown, claim["of"], strict=True):
        value = query.number(f"{claim.get('common', '')} {text}", found) * claim.get("times", 1)
        if not agrees(figure, value):
            yield f"{name}: says {figure} where the reference has {value:.4g}: '{said}'"


def wrong(root: Path = ROOT) -> list[str]:
    found, spec = figures.reference(root), figures.specification(root)
    asked = [(page, claim) for page, claims in spec["claim"].items() for claim in claims]
    chosen = [(page, claim, figures.chosen(claim, spec, found)) for page, claim in asked]
    return [line for page, claim, mine in chosen for line in wrong_with(page, claim, mine, root)]
