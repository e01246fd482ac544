# SPDX-License-Identifier: GPL-2.0-only
"""The picture of README.md: throughput of a guest while dirty logging begins, lazy and eager.

Drawn of the reference's live runs, ept=Y, all vCPUs that write. Small enough to be committed:
letters stay text, and nothing is drawn that the sentence below the picture does not name.
"""

import io
import re
from pathlib import Path
from typing import Any

from lab.core.errors import LabError
from lab.page import pictures
from lab.page.pictures import COLOURS, EAGER, GRID, LAZY, Style
from lab.results.sources import Line, Sources

PICTURE = Path("docs") / "cliff.svg"
LICENCE = "SPDX-License-Identifier: GPL-2.0-only"
INCHES = (8.0, 2.9)
NAMES = {"enable": "logging on", "clear": "CLEAR", "disable": "off"}


def _records(sources: Sources, eager: bool) -> tuple[dict[str, Any], list[Line]]:
    """The timeline of a run and what the host did. LabError: the reference has it not."""
    if "live" not in sources:
        raise LabError("the reference has no live.jsonl")
    wanted = ("series", True, False, eager)
    mine = [
        line
        for line in sources["live"].lines
        if tuple(line.record.get(n) for n in ("kernel", "ept", "tdp_mmu", "eager")) == wanted
    ]
    timelines = [line.record for line in mine if line.record["record"] == "timeline"]
    if len(timelines) != 1:
        raise LabError("live.jsonl has no timeline of the series with ept=Y")
    phases = [line for line in mine if line.record.get("kind") == "writer"]
    return dict(timelines[0]), [line for line in phases if line.record.get("phase") in NAMES]


def _curve(axes: Any, record: dict[str, Any], style: Style) -> None:
    """Accesses per millisecond; the last window ends before its time."""
    counts, window_ms = record["writer_accesses"][:-1], record["window_us"] / 1e3
    edges = [i * window_ms for i in range(len(counts) + 1)]
    rates = [count / window_ms for count in counts]
    colour = COLOURS[style.colour][0]
    axes.stairs(rates, edges, baseline=None, color=colour, linewidth=1.8, label=style.label)


def _phases(axes: Any, lines: list[Line]) -> None:
    """Where the host switches logging on and off, and clears the log."""
    for line in lines:
        at = line.record["begin_us"] / 1e3
        axes.axvline(at, color=GRID, linewidth=1)
        axes.annotate(NAMES[line.record["phase"]], (at, 1.02), xycoords=("data", "axes fraction"))


def _figure(sources: Sources) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=INCHES, layout="constrained", facecolor=pictures.PAPER)
    axes = figure.subplots()
    for eager, style in ((False, LAZY), (True, EAGER)):
        record, phases = _records(sources, eager)
        _curve(axes, record, style)
    _phases(axes, phases)
    axes.set_xlabel("milliseconds, simulated")
    axes.set_ylabel("accesses per ms")
    axes.set_ylim(bottom=0)
    axes.set_xlim(0, len(record["writer_accesses"]) * record["window_us"] / 1e3)
    axes.grid(axis="y")
    axes.legend(frameon=False, loc="center left")
    return figure


def _set_up() -> None:
    """The looks, whatever another picture of this process has set."""
    import matplotlib

    matplotlib.rcdefaults()
    matplotlib.rcParams.update(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": PICTURE.stem,
            "font.family": "sans-serif",
            "font.size": 10,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "grid.color": GRID,
        }
    )


def draw(sources: Sources) -> str:
    """The picture as SVG, the same bytes for the same figures."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    stream = io.StringIO()
    with matplotlib.rc_context():
        _set_up()
        canvas: Any = FigureCanvasSVG(_figure(sources))
        canvas.print_svg(stream, metadata={"Date": None, "Creator": None})
    # A line for each part of the picture; otherwise each corner of a curve has one.
    svg = re.sub(r"\s*\n(?! {0,3}<|\Z)\s*", " ", stream.getvalue())
    return svg.replace("\n", f"\n<!-- {LICENCE} -->\n", 1)
