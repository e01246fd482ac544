# SPDX-License-Identifier: GPL-2.0-only
"""The picture of README.md: throughput of a guest while dirty logging begins.

It is drawn from the live runs of the reference, ept=Y, all vCPUs that write, by the code that draws
the report. It is committed, so it is kept small: letters are text, and it shows nothing that the
sentence below it does not name.
"""

import re
from pathlib import Path

from lab.core.errors import LabError
from lab.page import pictures
from lab.page.live import runs
from lab.page.pictures import EAGER, FIRST_WRITE, LAZY, PAPER
from lab.results.sources import Sources

PICTURE = Path("docs") / "cliff.svg"
LICENCE = "SPDX-License-Identifier: GPL-2.0-only"
SIZE = (760, 270)
STYLES = (LAZY, FIRST_WRITE, EAGER)


def draw(sources: Sources) -> str:
    """The picture as SVG, the same bytes for the same figures.

    LabError: the reference lacks a run that it shows.
    """
    if "live" not in sources:
        raise LabError("the reference has no live.jsonl")
    found = {run.style: run.drawn for run in runs(sources["live"], True)}
    if missing := [style.label for style in STYLES if style not in found]:
        raise LabError(f"live.jsonl has no timeline with ept=Y of '{missing[0]}'")
    timelines = [found[style] for style in STYLES]
    chart = pictures.throughput("", timelines, "writer", size=SIZE, legend=True)
    svg = pictures.to_svg(chart.spec | {"background": PAPER})
    svg = re.sub(r"<svg ([^>]*)>", rf"<svg \1>\n<!-- {LICENCE} -->\n", svg, count=1)
    return re.sub(r"(?<=>)(?=<(?:g|path|text)\b)", "\n", svg)
