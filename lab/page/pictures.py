# SPDX-License-Identifier: GPL-2.0-only
"""Plots as SVG: by matplotlib, without dates, the same bytes for the same figures.

Colours are those of Okabe and Ito, which people with any colour vision can tell apart; each
curve has a marker and a dash pattern of its own as well.
"""

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from lab.results.notation import OFF

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Names of colours for texts of the page.
COLOURS = {
    "paper": "#fffffe",
    "ink": "#1b1f24",
    "grid": "#c9cdd2",
    "lazy": "#d55e00",
    "first-write": "#e69f00",
    "eager": "#0072b2",
    "ungated": "#009e73",
    "enable": "#f0e442",
    "clear": "#cc79a7",
    "disable": "#56b4e8",
    "bits": "#cc79a8",
    "bits-lazy": "#56b4e9",
}
INK, GRID, PAPER = (COLOURS[name] for name in ("ink", "grid", "paper"))
# Not GET: it is too short to be visible next to the CLEAR that follows it.
BANDS = ("enable", "clear", "disable")
WIDTH = 9.0
# Settings of all pictures, including the committed one.
LOOKS: Any = {"axes.spines.top": False, "axes.spines.right": False, "grid.color": GRID}
IN_INK = ("axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "text.color")
LOOKS_OF_REPORT = dict.fromkeys((*IN_INK, "xtick.color", "ytick.color"), INK) | {
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "grid.linewidth": 0.6,
    "figure.facecolor": PAPER,
    "legend.frameon": False,
}


@dataclass(frozen=True)
class Style:
    """How a curve looks. colour: a name in COLOURS."""

    label: str
    colour: str
    marker: str
    dashes: str = "-"
    hollow: bool = False

    def words(self) -> dict[str, Any]:
        colour = COLOURS[self.colour]
        return {
            "label": self.label,
            "color": colour,
            "marker": self.marker,
            "linestyle": self.dashes,
            "markersize": 9 if self.hollow else 5.5,
            "markerfacecolor": PAPER if self.hollow else colour,
            "linewidth": 1.6,
        }


# N of the unpatched kernel.
LAZY = Style("unpatched, N: lazy", "lazy", "x", ":")
FIRST_WRITE = Style("N: on the first write", "first-write", "o")
# Drawn first, and with larger markers: the curve of the series often lies exactly on it.
UNGATED = Style("ungated, Y", "ungated", "s", "--", hollow=True)
UNPATCHED = replace(UNGATED, label="unpatched, Y")
# Styles of the kernels that are compared with the series.
BASELINE = {"peer": UNGATED, "base": UNPATCHED}
EAGER = Style("Y: eager", "eager", "D")
BITS = Style("Y, Dirty bits", "bits", "^", "-.")
BITS_LAZY = Style("N, Dirty bits", "bits-lazy", "v", ":")
ASKED = Style("Y, as QEMU asks", "ungated", "v", ":")
# Styles of ways to log, in pictures that only show Y.
PROTECTED = Style("write protection", "eager", "D")
HARVESTED = Style("Dirty bits", "bits", "^", "-.")

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Panel:
    """A pair of axes of a plot, and its curves.

    x_zero: the x axis begins with 0, and is logarithmic from 1 on.
    """

    title: str
    x_label: str
    curves: Mapping[Style, Points]
    x_zero: bool = False


Record = Mapping[str, Any]


def by_bits(record: Record) -> bool:
    """Whether pages were logged by Dirty bits. Lines without that key: no."""
    return bool(record.get("dirty_harvest", OFF) != OFF)


def style_of(record: Record) -> Style:
    """The style of a run, or of a migration."""
    if record["kernel"] == "peer":
        return UNGATED
    if by_bits(record):
        return ASKED if record["dirty_harvest"] == "qemu" else BITS
    if record["eager"]:
        return EAGER
    return LAZY if record["kernel"] == "base" else FIRST_WRITE


@dataclass(frozen=True)
class Timeline:
    """The timeline of a run or a migrated guest.

    windows: its record "timeline". host: the records of what the host did meanwhile, with times in
    microseconds from the first window on: the phases of a run, or the whole of a migration.
    """

    style: Style
    windows: Record
    host: Sequence[Record]

    @property
    def window_ms(self) -> float:
        return float(self.windows["window_us"]) / 1e3

    def stairs(self, axes: "Axes", values: Sequence[float], width: float, label: str = "") -> None:
        """Draw VALUES, one for each window, as stairs."""
        edges = [i * self.window_ms for i in range(len(values) + 1)]
        colour = COLOURS[self.style.colour]
        axes.stairs(values, edges, baseline=None, color=colour, linewidth=width, label=label)

    def rates(self, axes: "Axes", kind: str, width: float, label: str = "") -> None:
        """Draw the accesses per millisecond of a KIND of vCPUs, without the last, short window."""
        counts = self.windows[f"{kind}_accesses"][:-1]
        self.stairs(axes, [count / self.window_ms for count in counts], width, label)
        # If no value is given, a second call switches the grid off.
        axes.grid(True, axis="y")


@cache
def _set_up() -> None:
    """Set up the looks of all pictures. Imports matplotlib late, since that takes a second."""
    import matplotlib

    matplotlib.rcdefaults()
    matplotlib.rcParams.update(LOOKS | LOOKS_OF_REPORT)


def _grid(
    rows: int,
    columns: int,
    height: float,
    *,
    sharex: bool = False,
    sharey: bool | Literal["col"] = True,
) -> tuple["Figure", Any]:
    """A picture of HEIGHT inches, and its axes by row and column. sharey: as in matplotlib."""
    from matplotlib.figure import Figure

    _set_up()
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots(rows, columns, sharex=sharex, sharey=sharey, squeeze=False)


def to_svg(figure: "Figure", name: str) -> str:
    """The finished picture as SVG. Its ids are made unique by NAME."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    stream = io.StringIO()
    unset = {"Date": None, "Creator": None}
    canvas: Any = FigureCanvasSVG(figure)
    with rc_context({"svg.hashsalt": name}):
        # Do not use Figure.savefig(): it draws everything twice, which only other formats need.
        canvas.print_svg(stream, metadata=unset)
    return stream.getvalue()


def _plain(value: float, _: object = None) -> str:
    """VALUE as text without an exponent."""
    return f"{value:.0f}" if value >= 1 else f"{value:.9f}".rstrip("0").rstrip(".")


def _log_axis(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(numticks=12))
    axis.set_major_formatter(FuncFormatter(_plain))
    axis.set_minor_formatter(NullFormatter())


def _x_axis(axes: "Axes", panel: Panel) -> None:
    """Set ticks where something was measured."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_xlabel(panel.x_label)
    seen = sorted({x for points in panel.curves.values() for x, _ in points})
    if panel.x_zero:
        axes.set_xscale("symlog", linthresh=1)
        # With larger labels, 50 and 100 would touch.
        axes.tick_params(axis="x", labelsize=8)
    else:
        axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(seen))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(_plain))
    axes.margins(x=0.09)


def _legend(figure: "Figure", axes: Iterable["Axes"]) -> None:
    """Draw one legend for all axes, above them."""
    found: dict[str, Any] = {}
    for one in axes:
        for handle, label in zip(*one.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    figure.legend(
        found.values(), found.keys(), loc="outside upper center", ncols=len(found), fontsize=10
    )


def _limits(panels: Iterable[Panel]) -> tuple[float, float]:
    """The limits of an axis: those of all values, or a power of ten if one is near."""
    seen = [y for panel in panels for points in panel.curves.values() for _, y in points if y > 0]
    low, high = min(seen) / 1.6, max(seen) * 1.6
    below, above = 10.0 ** math.floor(math.log10(low)), 10.0 ** math.ceil(math.log10(high))
    return below if low < 2 * below else low, above if high > above / 2 else high


def curves(
    name: str, rows: Sequence[Sequence[Panel]], y_label: str, whole: float | None = None
) -> str:
    """Draw panels in rows and columns. Their y axes are logarithmic, or go from 0 to WHOLE."""
    figure, grid = _grid(len(rows), len(rows[0]), 0.5 + 2.9 * len(rows))
    limits = (0, whole) if whole else _limits(panel for row in rows for panel in row)
    for drawn, row in zip(grid, rows, strict=True):
        for axes, panel in zip(drawn, row, strict=True):
            axes.set_title(panel.title)
            for style, points in panel.curves.items():
                axes.plot(*zip(*points, strict=True), **style.words())
            if whole is None:
                axes.set_yscale("log")
                _log_axis(axes.yaxis)
            axes.set_ylim(*limits)
            axes.grid(axis="y")
            _x_axis(axes, panel)
        drawn[0].set_ylabel(y_label)
    _legend(figure, grid.flat)
    return to_svg(figure, name)


def _timeline(axes: "Axes", timeline: Timeline, kind: str) -> None:
    """Shade what the host does, and draw the rates of a KIND of vCPUs over it."""
    for one in timeline.host:
        if one["phase"] in BANDS:
            colour, begin = COLOURS[one["phase"]], one["begin_us"]
            end = (begin + one["seconds"] * 1e6) / 1e3
            # With an edge, actions that are shorter than a pixel stay visible.
            axes.axvspan(begin / 1e3, end, facecolor=colour, alpha=0.45, edgecolor="none")
            axes.axvline(begin / 1e3, color=colour, linewidth=1.0)
    axes.margins(y=0.08)
    timeline.rates(axes, kind, 1.3)
    axes.set_ylim(bottom=0)


def timelines(name: str, found: Sequence[Timeline]) -> str:
    """Draw a row for each run: accesses per millisecond of writers, and of readers."""
    from matplotlib.patches import Patch

    figure, grid = _grid(len(found), 2, 0.7 + 1.9 * len(found), sharex=True, sharey="col")
    for (left, right), timeline in zip(grid, found, strict=True):
        _timeline(left, timeline, "writer")
        _timeline(right, timeline, "reader")
        left.set_title(f"{timeline.style.label}; writers", loc="left")
        right.set_title(f"{timeline.style.label}; reader of unmapped pages", loc="left")
        left.set_ylabel("accesses per ms")
    for axes in grid[-1]:
        axes.set_xlabel("ms since the baseline began, simulated")
        axes.set_xlim(0, max((len(t.windows["writer_accesses"]) - 1) * t.window_ms for t in found))
    handles = [Patch(facecolor=COLOURS[name], alpha=0.55, label=name) for name in BANDS]
    figure.legend(
        handles=handles, loc="outside upper center", ncols=len(handles), title="the host meanwhile"
    )
    return to_svg(figure, name)


def _events(axes: "Axes", migration: Record) -> None:
    """Draw lines where a migration begins, where its passes begin, and where it stops the guest."""
    for end in (migration["begin_us"], migration["stop_us"]):
        axes.axvline(end / 1e3, color=INK, linewidth=1.0)
    for each in migration["pass_us"]:
        axes.axvline(each / 1e3, color=INK, linewidth=0.7, linestyle=":")


def _migration_timeline(left: "Axes", right: "Axes", timeline: Timeline) -> None:
    """Draw the requests of each window, and the longest request that began in it, if any."""
    style, window_ms = timeline.style, timeline.window_ms
    timeline.stairs(left, timeline.windows["requests"], 1.0)
    left.set_ylim(bottom=0)
    left.set_title(f"{style.label}; requests per {window_ms:g} ms", loc="left")
    longest = [us / 1e3 or math.nan for us in timeline.windows["longest_request_us"]]
    begins = [i * window_ms for i in range(len(longest))]
    colour = COLOURS[style.colour]
    right.plot(begins, longest, color=colour, marker=".", markersize=2.5, linestyle="")
    right.set_yscale("log")
    _log_axis(right.yaxis)
    right.set_title(f"{style.label}; longest request, ms", loc="left")
    for axes in (left, right):
        _events(axes, *timeline.host)
        axes.grid(axis="y")


def migration_timelines(name: str, found: Sequence[Timeline], simulated: bool) -> str:
    """Draw a row for each migration: the requests that the guest served, and how long they took."""
    figure, grid = _grid(len(found), 2, 0.5 + 2.1 * len(found), sharex=True, sharey="col")
    for (left, right), timeline in zip(grid, found, strict=True):
        _migration_timeline(left, right, timeline)
    for axes in grid[-1]:
        axes.set_xlabel(f"ms since the guest began to work{', simulated' if simulated else ''}")
        axes.set_xlim(left=0)
    return to_svg(figure, name)


def stalls(name: str, panels: Sequence[Panel]) -> str:
    """Draw for each kind of vCPU the share of accesses that took as long as x, or longer.

    Curves are over seconds. Both axes are logarithmic.
    """
    from matplotlib.ticker import EngFormatter

    figure, grid = _grid(1, len(panels), 3.9)
    for axes, panel in zip(grid.flat, panels, strict=True):
        axes.set_title(panel.title)
        for style, points in panel.curves.items():
            words = style.words() | {"marker": "", "linewidth": 2.6 if style.hollow else 1.6}
            axes.plot(*zip(*points, strict=True), drawstyle="steps-pre", **words)
            end = style.words() | {"linestyle": "", "label": "_"}
            axes.plot(*points[-1], **end)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(panel.x_label)
        _log_axis(axes.yaxis)
        _log_axis(axes.xaxis)
        axes.xaxis.set_major_formatter(EngFormatter(unit="s"))
        axes.grid()
    grid[0][0].set_ylabel("share of accesses that took as long")
    _legend(figure, grid.flat)
    return to_svg(figure, name)
