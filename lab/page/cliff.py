# SPDX-License-Identifier: GPL-2.0-only
"""The picture of README.md: throughput of a guest while dirty logging begins.

It is drawn from the live runs of the reference, ept=Y, all vCPUs that write. It is committed, so it
is kept small: letters are text, and it shows nothing that the sentence below it does not name.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.core.errors import LabError
from lab.page import pictures
from lab.page.pictures import EAGER, FIRST_WRITE, GRID, LAZY, Record, Style, Timeline
from lab.results.sources import Sources

PICTURE = Path("docs") / "cliff.svg"
LICENCE = "SPDX-License-Identifier: GPL-2.0-only"
INCHES = (8.0, 2.9)
NAMES = {"enable": "logging on", "clear": "CLEAR", "disable": "off"}
# By kernel and eager_page_split.
CURVES = {("base", False): LAZY, ("series", False): FIRST_WRITE, ("series", True): EAGER}
FONT = {"svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10}


def _timeline(sources: Sources, kernel: str, eager: bool, style: Style) -> Timeline:
    """The timeline of a run, and the actions of the host. LabError: the reference has none."""
    if "live" not in sources:
        raise LabError("the reference has no live.jsonl")
    wanted = (kernel, True, False, eager)
    records = (line.record for line in sources["live"].lines)
    keys = ("kernel", "ept", "tdp_mmu", "eager")
    mine = [one for one in records if tuple(map(one.get, keys)) == wanted]
    timelines = [one for one in mine if one["record"] == "timeline"]
    if len(timelines) != 1:
        raise LabError(f"live.jsonl has no timeline of the kernel {kernel} with ept=Y")
    phases = [one for one in mine if one.get("kind") == "writer" and one.get("phase") in NAMES]
    return Timeline(style, timelines[0], phases)


def _phases(axes: Any, records: Sequence[Record]) -> None:
    """Where the host switches logging on and off, and clears the log."""
    for one in records:
        at = one["begin_us"] / 1e3
        axes.axvline(at, color=GRID, linewidth=1)
        axes.annotate(NAMES[one["phase"]], (at, 1.02), xycoords=("data", "axes fraction"))


def _figure(sources: Sources) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=INCHES, layout="constrained", facecolor=pictures.PAPER)
    axes = figure.subplots()
    for (kernel, eager), style in CURVES.items():
        timeline = _timeline(sources, kernel, eager, style)
        timeline.rates(axes, "writer", 1.8, style.label)
    _phases(axes, timeline.host)
    axes.set_xlabel("milliseconds, simulated")
    axes.set_ylabel("accesses per ms")
    axes.set_ylim(bottom=0)
    axes.set_xlim(0, len(timeline.windows["writer_accesses"]) * timeline.window_ms)
    axes.legend(frameon=False, loc="center left")
    return figure


def draw(sources: Sources) -> str:
    """The picture as SVG, the same bytes for the same figures."""
    from matplotlib import style

    # Reset settings of other pictures that this process has drawn.
    with style.context(pictures.LOOKS | FONT, after_reset=True):
        svg = pictures.to_svg(_figure(sources), PICTURE.stem)
    # Break lines between parts of the picture only: otherwise each point of a curve has a line.
    svg = re.sub(r"\s*\n(?! ?<|\Z)\s*", " ", svg)
    return svg.replace("\n", f"\n<!-- {LICENCE} -->\n", 1)
