# SPDX-License-Identifier: GPL-2.0-only
"""Pictures of results: specifications in Vega-Lite, drawn as SVG here, and by the reader's browser.

The same figures give the same bytes. Colours are those of Okabe and Ito, which people with any
colour vision can tell apart, and each means the same in all pictures; each curve over vCPUs has a
marker and a dash pattern of its own as well. A
chart is as wide as a telephone, so that its text stays legible there: pages put several of them
beside each other.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import groupby
from typing import Any, NamedTuple

from lab.results.notation import OFF
from lab.results.sources import Line

# Names of colours for texts of the page.
COLOURS = {
    "paper": "#fffffe",
    "ink": "#1b1f24",
    "grid": "#c9cdd2",
    "lazy": "#d55e00",
    "first-write": "#e69f00",
    "eager": "#0072b2",
    "ungated": "#009e73",
    "unpatched": "#525252",
    "host": "#f0e442",
    "bits": "#cc79a7",
    "bits-lazy": "#56b4e9",
    "asked": "#9911ee",
}
# The same names on a dark page. Those that are missing are the same there.
DARK = {
    "paper": "#14181d",
    "ink": "#e6e9ed",
    "grid": "#4a525c",
    "eager": "#4a8af0",
    "unpatched": "#bebebe",
    "bits-lazy": "#7cc8f5",
}
INK, GRID, PAPER = (COLOURS[name] for name in ("ink", "grid", "paper"))
# What people call these colours.
WORDS = {
    "lazy": "red",
    "first-write": "orange",
    "eager": "blue",
    "ungated": "green",
    "unpatched": "grey",
    "host": "yellow",
    "bits": "pink",
    "bits-lazy": "light blue",
    "asked": "violet",
    "ink": "black",
}
GLYPHS = {
    "cross": "\N{HEAVY GREEK CROSS}",
    "circle": "\N{BLACK CIRCLE}",
    "square": "\N{BLACK SQUARE}",
    "diamond": "\N{BLACK DIAMOND}",
    "triangle-up": "\N{BLACK UP-POINTING TRIANGLE}",
    "triangle-down": "\N{BLACK DOWN-POINTING TRIANGLE}",
}
# Pixels.
WIDTH, HEIGHT, BAR, GAP, LINE = 360, 220, 13, 9, 12
# The widest characters of fonts that browsers may take instead, at the size of labels.
LETTER = 6.9
# The first font is that which vl-convert has, and measures text by.
FONT = "Liberation Sans, Arial, Helvetica, sans-serif"
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
VERSION = "6.4"
# What the padding and the ends of an axis take beside the plot.
MARGIN = 24
LONGEST_TITLE = 26
# The name of layers that only serve for hovering: pictures that are drawn here leave them out.
HOVER = "hover"

Spec = dict[str, Any]
CONFIG: Spec = {
    "font": FONT,
    "background": None,
    "view": {"stroke": None},
    "axis": {
        "labelColor": INK,
        "titleColor": INK,
        "domainColor": GRID,
        "tickColor": GRID,
        "gridColor": GRID,
        "titleFontWeight": "normal",
        "labelFontSize": 11,
        "titleFontSize": 11,
    },
    # Fonts that browsers may take instead have wider digits.
    "axisY": {"minExtent": 34, "titlePadding": 9},
    "text": {"color": INK, "fontSize": 11},
}


@dataclass(frozen=True)
class Style:
    """How a curve looks. colour: a name in COLOURS. shape: of its markers, as Vega calls it."""

    label: str
    colour: str
    shape: str
    dashes: tuple[int, ...] = ()
    hollow: bool = False

    @property
    def glyph(self) -> str:
        """Its marker as a character."""
        return GLYPHS[self.shape]

    @property
    def seen(self) -> str:
        """Its colour and marker in words."""
        return f"{WORDS[self.colour]} {self.shape}".replace("-", " ")

    @property
    def short(self) -> str:
        """The label for a place without room."""
        return self.label.partition(":")[0].removesuffix(", N")


# N of the unpatched kernel.
LAZY = Style("unpatched, N: lazy", "lazy", "cross", (2, 2))
FIRST_WRITE = Style("N: on the first write", "first-write", "circle")
# Drawn first, and with larger markers: the curve of the series often lies exactly on it.
UNGATED = Style("ungated, Y", "ungated", "square", (6, 3), hollow=True)
UNPATCHED = replace(UNGATED, label="unpatched, Y", colour="unpatched")
# Styles of the kernels that are compared with the series.
BASELINE = {"peer": UNGATED, "base": UNPATCHED}
EAGER = Style("Y: eager", "eager", "diamond")
BITS = Style("Y, Dirty bits", "bits", "triangle-up", (8, 2, 2, 2))
BITS_LAZY = Style("N, Dirty bits", "bits-lazy", "triangle-down", (3, 3))
ASKED = Style("Y, as QEMU asks", "asked", "triangle-down", (2, 2))
# Styles of ways to log, in pictures that only show Y.
PROTECTED = Style("write protection", "eager", "diamond")
BY_DIRTY_BITS = Style("Dirty bits", "bits", "triangle-up", (8, 2, 2, 2))


class Point(NamedTuple):
    """A point of a curve, and the lines of results that it was computed from."""

    x: float
    y: float
    lines: tuple[Line, ...] = ()

    @property
    def source(self) -> str:
        return ", ".join(f"{one.file}, line {one.number}" for one in self.lines)


Points = Sequence[Point]


@dataclass(frozen=True)
class Panel:
    """A pair of axes, and its curves. mode: the paging mode that it is about, if it is about one.

    x_zero: the x axis begins with 0, and is logarithmic from 1 on.
    """

    title: str
    x_label: str
    curves: Mapping[Style, Points]
    x_zero: bool = False
    mode: str = ""


class Datum(NamedTuple):
    """A row of the table behind a chart."""

    what: str
    at: str
    value: str
    lines: tuple[Line, ...] = ()


@dataclass(frozen=True)
class Chart:
    """A picture, or one of several that belong together. spec: what draws it, in Vega-Lite.

    data: the table behind it; empty for curves with a point for each window of time.
    """

    title: str
    spec: Spec
    data: Sequence[Datum] = ()
    styles: Sequence[Style] = ()
    mode: str = ""
    columns: tuple[str, str, str] = ("", "at", "value")

    @property
    def text(self) -> str:
        """The specification, to be put into a page."""
        own = {key: value for key, value in self.spec.items() if key not in SHARED}
        return as_text(own)

    @cached_property
    def svg(self) -> str:
        return to_svg(self.spec)


Record = Mapping[str, Any]


def by_bits(record: Record) -> bool:
    """Whether pages were logged by Dirty bits. Lines without that key: no."""
    return bool(record.get("dirty_bits", OFF) != OFF)


def style_of(record: Record) -> Style:
    """The style of a run, or of a migration."""
    if record["kernel"] == "peer":
        return UNGATED
    if by_bits(record):
        return ASKED if record["dirty_bits"] == "qemu" else BITS
    if record["kernel"] == "base":
        return UNPATCHED if record["eager"] else LAZY
    return EAGER if record["eager"] else FIRST_WRITE


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

    @property
    def end_ms(self) -> float:
        return (len(self.windows["writer_accesses"]) - 1) * self.window_ms

    def rates(self, kind: str) -> list[float]:
        """The accesses per millisecond of a KIND of vCPUs, without the last, short window."""
        return [count / self.window_ms for count in self.windows[f"{kind}_accesses"][:-1]]


def as_text(spec: Spec) -> str:
    """SPEC as JSON that can stand within a script element."""
    return json.dumps(spec, separators=(",", ":")).replace("<", "\\u003c")


def to_svg(spec: Spec) -> str:
    """What SPEC draws, as an SVG document. Imports late, since that takes a moment."""
    import vl_convert

    drawn = spec
    if "layer" in spec:
        layers = [layer for layer in spec["layer"] if layer.get("name") != HOVER]
        drawn = spec | {"layer": layers}
    svg: str = vl_convert.vegalite_to_svg(drawn, vl_version=VERSION)
    return f"{svg}\n"


@cache
def script() -> str:
    """Vega, Vega-Lite and Vega-Embed, to be put into a page."""
    import vl_convert

    code: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VERSION)
    return code.replace("</script", "<\\/script")


def number(value: float) -> str:
    """VALUE with about three digits, and without an exponent."""
    if value == 0:
        return "0"
    digits = 2 - math.floor(math.log10(abs(value)))
    shown = f"{value:,.{max(0, digits)}f}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown


def exact(value: float) -> str:
    """VALUE as it was measured, to six digits: enough for nanoseconds of milliseconds."""
    return f"{value:,.0f}" if value >= 1e6 else f"{value:.6g}"


# The keys of a specification that are the same in all of them. A page has them once.
SHARED: Spec = {
    "$schema": SCHEMA,
    "config": CONFIG,
    "autosize": {"type": "fit", "contains": "padding"},
    "padding": 4,
}


def _spec(layers: Sequence[Spec], values: Sequence[Record], height: int, **more: Any) -> Spec:
    return {
        **SHARED,
        "width": WIDTH,
        "height": height,
        "data": {"values": list(values)},
        "layer": list(layers),
        **more,
    }


def _colours(styles: Iterable[Style], name: str = "s") -> Spec:
    """The encoding of a field that holds labels of STYLES."""
    found = list(dict.fromkeys(styles))
    scale = {
        "domain": [one.label for one in found],
        "range": [COLOURS[one.colour] for one in found],
    }
    return {"field": name, "type": "nominal", "scale": scale, "legend": None, "sort": None}


def _tooltip(**titles: str) -> list[Spec]:
    return [{"field": name, "title": title} for name, title in titles.items()]


def limits(panels: Iterable[Panel]) -> tuple[float, float]:
    """The limits of a logarithmic axis: those of all values, or a power of ten if one is near."""
    seen = [p.y for panel in panels for points in panel.curves.values() for p in points if p.y > 0]
    if not seen:
        return 0.1, 10
    low, high = min(seen) / 1.6, max(seen) * 1.6
    below, above = 10.0 ** math.floor(math.log10(low)), 10.0 ** math.ceil(math.log10(high))
    return below if low < 2 * below else low, above if high > above / 2 else high


def _log_ticks(low: float, high: float) -> list[float]:
    """The powers of ten from LOW to HIGH, or more values if these are few."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    tens = [10.0**n for n in exponents if low <= 10.0**n <= high]
    if len(tens) >= 3:
        return tens
    return [d * 10.0**n for n in exponents for d in (1, 2, 5) if low <= d * 10.0**n <= high]


PLAIN = "format(datum.value, datum.value >= 1 ? ',.0f' : '~g')"


def _broken(title: str) -> str | list[str]:
    """A title in two lines if it is too long for one beside a chart."""
    words = title.split()
    if len(title) <= LONGEST_TITLE:
        return title
    fitting = [n for n in range(1, len(words)) if len(" ".join(words[:n])) <= LONGEST_TITLE]
    at = max(fitting, default=1)
    return [" ".join(words[:at]), " ".join(words[at:])]


def _log_axis(title: str, low: float, high: float, *, grid: bool = True) -> Spec:
    """The encoding of a logarithmic axis of LOW to HIGH."""
    return {
        "type": "quantitative",
        "scale": {"type": "log", "domain": [low, high], "nice": False},
        "axis": {
            "title": _broken(title),
            "values": _log_ticks(low, high),
            "labelExpr": PLAIN,
            "grid": grid,
        },
    }


def _x_axis(panel: Panel) -> Spec:
    """Ticks where something was measured."""
    seen = sorted({point.x for points in panel.curves.values() for point in points})
    scale: Spec = {"type": "log", "base": 2, "nice": False}
    if panel.x_zero:
        scale = {"type": "symlog", "constant": 1, "nice": False}
    if not panel.x_zero:
        scale["domain"] = [seen[0] / 1.15, seen[-1] * 1.15]
    axis = {"title": panel.x_label, "values": seen, "labelExpr": PLAIN, "grid": False}
    return {
        "field": "x",
        "type": "quantitative",
        "scale": scale,
        "axis": axis | {"labelOverlap": True},
    }


def _values(panel: Panel, unit: str) -> list[Record]:
    return [
        {"x": p.x, "y": p.y, "s": style.label, "t": f"{exact(p.y)} {unit}", "from": p.source}
        for style, points in panel.curves.items()
        for p in points
    ]


def _data(panel: Panel, unit: str) -> list[Datum]:
    return [
        Datum(style.label, number(p.x), f"{exact(p.y)} {unit}", p.lines)
        for style, points in panel.curves.items()
        for p in points
    ]


# Pictures with fewer points in each curve have bars.
LEAST_POINTS = 3


def curve(
    panel: Panel,
    y_label: str,
    unit: str = "ms",
    *,
    within: tuple[float, float] | None = None,
    whole: float | None = None,
) -> Chart:
    """Draw a panel: lines, or bars if curves have one or two points.

    Its axis is logarithmic, WITHIN limits if given, or goes from 0 to WHOLE.
    """
    counts = {point.x for points in panel.curves.values() for point in points}
    found = (panel.title, _data(panel, unit), list(panel.curves), panel.mode)
    spec = _few(panel, y_label, unit, whole) if len(counts) < LEAST_POINTS else None
    if not spec:
        low, high = within or limits([panel])
        y = _log_axis(y_label, low, high)
        if whole:
            y = {
                "type": "quantitative",
                "scale": {"domain": [0, whole]},
                "axis": {"title": _broken(y_label)},
            }
        spec = _lines(panel, unit, y)
    title, data, styles, mode = found
    return Chart(title, spec, data, styles, mode, ("", panel.x_label, y_label))


def _lines(panel: Panel, unit: str, y: Spec) -> Spec:
    styles = list(panel.curves)
    names = [one.label for one in styles]
    shape = {"domain": names, "range": [one.shape for one in styles]}
    dash = {"domain": names, "range": [list(one.dashes) or [1, 0] for one in styles]}
    common = {"x": _x_axis(panel), "y": {"field": "y"} | y, "color": _colours(styles)}
    series = {"field": "s", "type": "nominal", "legend": None, "sort": None}
    tooltip = _tooltip(s="what", x=panel.x_label, t="value", **{"from": "from"})
    line = {
        "mark": {"type": "line", "strokeWidth": 1.6},
        "encoding": common | {"strokeDash": series | {"scale": dash}},
    }
    point = {
        "mark": {"type": "point", "size": 45, "filled": False, "strokeWidth": 1.6},
        "encoding": common | {"shape": series | {"scale": shape}, "tooltip": tooltip},
    }
    return _spec([line, point], _values(panel, unit), HEIGHT)


def _few(panel: Panel, y_label: str, unit: str, whole: float | None) -> Spec | None:
    """Bars with numbers beside them: a group for each x. None if a value is 0."""
    bars = [
        Bar(f"{number(p.x)} {panel.x_label}", style, p.y, p.lines)
        for style, points in panel.curves.items()
        for p in sorted(points)
    ]
    if not whole and any(bar.value <= 0 for bar in bars):
        return None
    bars.sort(key=lambda bar: float(bar.group.split()[0].replace(",", "")))
    return _bars(bars, y_label, unit, whole=whole)


class Bar(NamedTuple):
    """A bar: the group that it stands in, how it looks, and its value."""

    group: str
    style: Style
    value: float
    lines: tuple[Line, ...] = ()


class _Rows(NamedTuple):
    """Where bars stand: the middle of each bar and of each group, and the height of all, pixels."""

    bars: list[float]
    groups: dict[str, float]
    counts: dict[str, int]
    height: float


def _rows(groups: Iterable[str]) -> _Rows:
    """Bars of the GROUPS, each below the one before, with a gap between groups."""
    bars, centres, counts, top = [], {}, {}, 0.0
    for group, members in groupby(groups):
        count = len([*members])
        bars += [top + (n + 0.5) * BAR for n in range(count)]
        centres[group], counts[group] = top + count * BAR / 2, count
        top += count * BAR + GAP
    return _Rows(bars, centres, counts, top)


def _value_axis(
    label: str, seen: Sequence[float], whole: float | None, part: float
) -> tuple[float, Spec]:
    """Where bars begin, and the axis of their values: logarithmic, or from 0 to WHOLE.

    part: of the axis, is free behind the longest bar, for numbers.
    """
    if whole is not None:
        scale = {"domain": [0, whole / (1 - part)], "nice": False}
        axis = {"title": label, "tickCount": 4, "grid": False}
        return 0, {"type": "quantitative", "scale": scale, "axis": axis}
    low, most = 10.0 ** math.floor(math.log10(min(seen)) - 0.01), max(seen)
    high = low * (most / low) ** (1 / (1 - part))
    x = _log_axis(label, low, high, grid=False)
    x["axis"] = x["axis"] | {"values": [v for v in _log_ticks(low, high) if v <= most * 3]}
    return low, x


def _bars(
    found: Sequence[Bar],
    label: str,
    unit: str,
    *,
    marks: Mapping[str, float] | None = None,
    whole: float | None = None,
) -> Spec:
    groups = list(dict.fromkeys(bar.group for bar in found))
    found = sorted(found, key=lambda bar: groups.index(bar.group))
    rows = _rows(bar.group for bar in found)
    seen = [bar.value for bar in found if bar.value > 0] + [*(marks or {}).values()]
    shown = [f"{bar.style.short} {number(bar.value)}" for bar in found]
    labels = _group_axis(rows.groups)
    room = max(map(len, shown)) * LETTER + 8
    part = min(0.75, room / (WIDTH - labels["minExtent"] - MARGIN))
    low, x = _value_axis(label, seen, whole, part)
    values: list[Record] = [
        {
            "p": place,
            "g": bar.group.replace("\n", " "),
            "s": bar.style.label,
            "v": bar.value,
            "t": text,
            "u": f"{exact(bar.value)} {unit}",
            "from": ", ".join(f"{one.file}, line {one.number}" for one in bar.lines),
        }
        for bar, place, text in zip(found, rows.bars, shown, strict=True)
    ]
    y: Spec = {
        "type": "quantitative",
        "scale": {"domain": [rows.height, 0], "nice": False, "zero": False},
        "axis": labels,
    }
    tooltip = _tooltip(g="what", s="way", u="value", **{"from": "from"})
    at, place = {"field": "v"} | x, {"field": "p"} | y
    layers: list[Spec] = [
        {
            "mark": {"type": "bar", "height": BAR - 3, "orient": "horizontal"},
            "encoding": {"x": at, "x2": {"datum": low}, "y": place, "tooltip": tooltip}
            | {"color": _colours(bar.style for bar in found)},
        },
        {
            "mark": {"type": "text", "align": "left", "dx": 4, "baseline": "middle"},
            "encoding": {"x": at, "y": place, "text": {"field": "t"}},
        },
    ]
    for group, value in (marks or {}).items():
        values_of = [{"p": rows.groups[group], "m": value}]
        mark = {"type": "tick", "orient": "vertical", "thickness": 2, "color": INK}
        mark["size"] = rows.counts[group] * BAR + 4
        encoding = {"y": place, "x": {"field": "m"} | x, "tooltip": _tooltip(m="without logging")}
        layers.append({"data": {"values": values_of}, "mark": mark, "encoding": encoding})
    return _spec(layers, values, round(rows.height) + 44)


def _group_axis(groups: Mapping[str, float]) -> Spec:
    """Groups of bars have their names to the left, broken into lines. groups: name -> place."""
    longest = max(len(line) for group in groups for line in group.split("\n"))
    names = json.dumps({f"{place:g}": group for group, place in groups.items()})
    # The first line is in the middle, unless it is moved up.
    in_lines = f"indexof(({names})['' + datum.value], '\\n') >= 0"
    return {
        "minExtent": round(longest * LETTER),
        "title": None,
        "ticks": False,
        "domain": False,
        "grid": False,
        "labelLimit": 140,
        "labelOffset": {"condition": {"test": in_lines, "value": -LINE / 2}, "value": 0},
        "values": list(groups.values()),
        "labelOverlap": False,
        "labelExpr": f"split(({names})['' + datum.value], '\\n')",
    }


def bars(
    title: str,
    found: Sequence[Bar],
    label: str,
    unit: str,
    *,
    marks: Mapping[str, float] | None = None,
    whole: float | None = None,
    mode: str = "",
) -> Chart:
    """Draw bars in groups, with their values beside them, on a logarithmic axis or from 0 to WHOLE.

    marks: a value for each group that a line across its bars shows.
    """
    spec = _bars(found, label, unit, marks=marks, whole=whole)
    data = [
        Datum(b.style.label, b.group.replace("\n", " "), f"{exact(b.value)} {unit}", b.lines)
        for b in found
    ]
    return Chart(title, spec, data, [b.style for b in found], mode, ("", "", label))


class Movement(NamedTuple):
    """A figure that moved between two results, with its times in milliseconds."""

    label: str
    before: float
    after: float
    lines: tuple[Line, ...] = ()


# Movements: what takes longer, and what takes less.
LONGER, SHORTER = Style("takes longer", "lazy", "cross"), Style("takes less", "eager", "diamond")
# A row of a movement: a bar with its label above.
ROW = 46


def _halves(label: str) -> list[str]:
    """A label in two lines that are about as long."""
    parts = label.split(", ")
    lengths = [abs(len(", ".join(parts[:n])) - len(label) / 2) for n in range(len(parts))]
    at = lengths.index(min(lengths))
    return [", ".join(part) for part in (parts[:at], parts[at:]) if part]


def movements(title: str, found: Sequence[Movement]) -> Chart:
    """Draw by which factor figures moved: bars to the right of 1 for longer, to the left for less.

    All of FOUND moved one way. Each has its label above it.
    """
    times = [f"{number(one.before)} to {number(one.after)} ms" for one in found]
    values: list[Record] = [
        {
            "p": n * ROW + 36,
            "f": one.after / one.before,
            "s": (LONGER if one.after > one.before else SHORTER).label,
            "l": one.label,
            "two": "\n".join(_halves(f"{one.label}: {times[n]}")),
            "t": times[n],
            "from": ", ".join(f"{line.file}, line {line.number}" for line in one.lines),
        }
        for n, one in enumerate(found)
    ]
    factors = [float(one["f"]) for one in values]
    longer = factors[0] > 1
    low, high = (1.0, max(1.3, *factors) * 1.05) if longer else (min(1 / 1.3, *factors) / 1.05, 1.0)
    axis = {"title": "B / A", "values": _log_ticks(low, high), "labelExpr": PLAIN, "grid": False}
    scale = {"type": "log", "domain": [low, high], "nice": False}
    x: Spec = {"field": "f", "type": "quantitative", "scale": scale, "axis": axis}
    height = len(found) * ROW
    y = {"type": "quantitative", "scale": {"domain": [height, 0], "nice": False}, "axis": None}
    tooltip = _tooltip(l="what", t="from A to B", **{"from": "from"})
    bar = {
        "mark": {"type": "bar", "height": BAR - 3, "orient": "horizontal"},
        "encoding": {"x": x, "x2": {"datum": 1}, "y": {"field": "p"} | y, "tooltip": tooltip}
        | {"color": _colours([LONGER, SHORTER])},
    }
    style = LONGER if longer else SHORTER
    label = {"type": "text", "align": "left", "baseline": "top", "x": 0, "yOffset": -32}
    text = {
        "mark": label | {"lineBreak": "\n", "lineHeight": 12},
        "encoding": {"y": {"field": "p"} | y, "text": {"field": "two"}},
    }
    spec = _spec([bar, text], values, height + 40)
    data = [
        Datum(one.label, "", f"{number(one.before)} to {number(one.after)} ms", one.lines)
        for one in found
    ]
    return Chart(title, spec, data, [style], "", ("", "", "ms"))


def _stairs(values: Sequence[float], window_ms: float) -> list[Record]:
    """VALUES, one for each window, as stairs: only where they change by more than a pixel."""
    found = [{"x": round(i * window_ms, 3), "y": float(f"{v:.4g}")} for i, v in enumerate(values)]
    return [*found, {"x": round(len(values) * window_ms, 3), "y": found[-1]["y"]}] if found else []


def _time_axis(title: str, end: float) -> Spec:
    scale = {"domain": [0, end], "nice": False}
    axis = {"title": title, "grid": False, "tickCount": 5}
    return {"field": "x", "type": "quantitative", "scale": scale, "axis": axis}


def throughput(
    title: str,
    found: Sequence[Timeline],
    kind: str,
    *,
    size: tuple[int, int] = (WIDTH, HEIGHT),
    legend: bool = False,
    mode: str = "",
) -> Chart:
    """Draw accesses per millisecond of a KIND of vCPUs over time, a curve for each timeline.

    A single timeline has the actions of the host behind it; several have rules where these begin,
    by the last one.
    """
    styles = [one.style for one in found]
    several = len(found) > 1
    values: list[Record] = [
        {**point, "s": one.style.label} if several else point
        for one in found
        for point in _stairs(one.rates(kind), one.window_ms)
    ]
    end = max(one.end_ms for one in found)
    x = _time_axis("milliseconds, simulated", end)
    axis = {"title": "accesses per ms", "tickCount": 5, "format": ",.0f"}
    y = {"field": "y", "type": "quantitative", "scale": {"zero": True}, "axis": axis}
    colour: Spec = _colours(styles) if several else {"value": COLOURS[styles[0].colour]}
    dashes: Spec = {}
    if several:
        # In print without colours, dashes tell which curve is lazy splitting.
        scale: Spec = {"domain": [one.label for one in styles]}
        scale["range"] = [list(one.dashes) or [1, 0] for one in styles]
        dashes = {"strokeDash": _colours(styles) | {"scale": scale}}
    if legend:
        key = {"title": None, "orient": "bottom-left", "labelFontSize": 11}
        key |= {"labelColor": INK, "labelLimit": 240, "symbolStrokeWidth": 3, "symbolSize": 300}
        for each in (colour, *dashes.values()):
            each |= {"legend": key}
    encoding = {"x": x, "y": y, "color": colour}
    what = {"s": "what"} if several else {}
    layers = [
        *(_bands(found[0], x) if len(found) == 1 else _actions(found[-1], x)),
        {
            "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 1.8},
            "encoding": encoding | dashes,
        },
        {
            "name": HOVER,
            "mark": {"type": "point", "opacity": 0, "size": 60, "filled": True},
            "encoding": encoding | {"tooltip": _tooltip(**what, x="ms", y="accesses per ms")},
        },
    ]
    width, height = size
    spec = _spec(layers, values, height, width=width)
    behind = (HOST,) if len(found) == 1 else ()
    return Chart(title, spec, styles=[*styles, *behind], mode=mode)


# What the host does meanwhile, as a picture calls it. Not GET: it is too short to be visible next
# to the CLEAR that follows it.
ACTIONS = {"enable": "log on", "clear": "CLEAR", "disable": "off"}
# What a single timeline has behind it, for its legend.
HOST = Style("the host switches the log on, clears it, or switches it off", "host", "square")


def _acting(timeline: Timeline) -> list[Record]:
    """What the host does meanwhile: from where to where, and its name."""
    return [
        {
            "x": one["begin_us"] / 1e3,
            # At least a pixel wide.
            "x2": (one["begin_us"] + one["seconds"] * 1e6) / 1e3 + timeline.end_ms / 300,
            "t": ACTIONS[one["phase"]],
        }
        for one in timeline.host
        if one["phase"] in ACTIONS
    ]


def _bands(timeline: Timeline, x: Spec) -> list[Spec]:
    """What the host does meanwhile, as bands with their names above."""
    tooltip = _tooltip(t="the host meanwhile", x="from, ms")
    mark = {"type": "rect", "opacity": 0.4, "color": COLOURS[HOST.colour]}
    encoding = {"x": x, "x2": {"field": "x2"}, "tooltip": tooltip}
    return _named_above(timeline, x, {"mark": mark, "encoding": encoding})


def _actions(timeline: Timeline, x: Spec) -> list[Spec]:
    """Rules where the host's actions begin, with their names above."""
    rule = {"mark": {"type": "rule", "color": GRID}, "encoding": {"x": x}}
    return _named_above(timeline, x, rule)


def _named_above(timeline: Timeline, x: Spec, layer: Spec) -> list[Spec]:
    """LAYER for each action of the host, and the name of the action above it."""
    data = {"data": {"values": _acting(timeline)}}
    text = {"type": "text", "baseline": "bottom", "y": -2, "align": "center", "fontSize": 10}
    return [
        {**data, **layer},
        {**data, "mark": text, "encoding": {"x": x, "text": {"field": "t"}}},
    ]


def _events(migration: Record, x: Spec) -> list[Spec]:
    """Rules where a migration begins, where its passes begin, and where it stops the guest."""
    ends = [{"x": migration[name] / 1e3} for name in ("begin_us", "stop_us")]
    passes = [{"x": each / 1e3} for each in migration["pass_us"]]
    encoding = {"x": x}
    return [
        {
            "data": {"values": ends},
            "mark": {"type": "rule", "color": INK, "strokeWidth": 1},
            "encoding": encoding,
        },
        {
            "data": {"values": passes},
            "mark": {"type": "rule", "color": INK, "strokeWidth": 0.8, "strokeDash": [2, 2]},
            "encoding": encoding,
        },
    ]


def migration_charts(timeline: Timeline, unit: str, mode: str = "") -> list[Chart]:
    """The requests that a migrated guest served in each window, and the longest that began in it.

    unit: of time, on the x axis.
    """
    style, window_ms = timeline.style, timeline.window_ms
    colour = COLOURS[style.colour]
    (migration,) = timeline.host
    served = timeline.windows["requests"]
    x = _time_axis(f"{unit} since the guest began to work", len(served) * window_ms)
    y: Spec = {"field": "y", "type": "quantitative", "scale": {"zero": True}}
    y |= {"axis": {"title": f"requests per {window_ms:g} ms", "tickCount": 5}}
    tooltip = _tooltip(x="ms", y="requests")
    stairs = {
        "mark": {"type": "line", "interpolate": "step-after", "color": colour, "strokeWidth": 1.2},
        "encoding": {"x": x, "y": y},
    }
    hover = {
        "name": HOVER,
        "mark": {"type": "point", "opacity": 0, "size": 60},
        "encoding": {"x": x, "y": y, "tooltip": tooltip},
    }
    events = _events(migration, x)
    requests = _spec([*events, stairs, hover], _stairs(served, window_ms), 170)
    longest = [
        {"x": i * window_ms, "y": us / 1e3}
        for i, us in enumerate(timeline.windows["longest_request_us"])
        if us
    ]
    found = [Chart(f"{style.label}: requests served", requests, mode=mode)]
    if longest:
        seen = [one["y"] for one in longest]
        y = {"field": "y"} | _log_axis("longest request, ms", min(seen) / 1.3, max(seen) * 1.3)
        dots = {
            "mark": {"type": "point", "filled": True, "size": 14, "color": colour, "opacity": 1},
            "encoding": {"x": x, "y": y, "tooltip": _tooltip(x="ms", y="longest request, ms")},
        }
        title = f"{style.label}: longest request"
        found.append(Chart(title, _spec([*events, dots], longest, 170), mode=mode))
    return found


def stalls(panel: Panel) -> Chart:
    """Draw the share of accesses that took as long as x, or longer; x in seconds."""
    styles = list(panel.curves)
    values: list[Spec] = [
        {"x": p.x * 1e3, "y": p.y, "s": style.label, "n": n}
        for style, points in panel.curves.items()
        for n, p in enumerate(points)
        if p.x > 0 and p.y > 0
    ]
    xs, ys = ([float(one[name]) for one in values] for name in "xy")
    x: Spec = {"field": "x"} | _log_axis(panel.x_label, min(xs) / 1.5, max(xs) * 1.5)
    y: Spec = {"field": "y"} | _log_axis("share of accesses", min(ys) / 2, 1.5)
    for each in (x, y):
        each["axis"] = {**each["axis"], "labelExpr": "format(datum.value, '~g')"}
    encoding = {"x": x, "y": y, "color": _colours(styles)}
    names = [one.label for one in styles]
    dash = {"domain": names, "range": [list(one.dashes) or [1, 0] for one in styles]}
    series = {"field": "s", "type": "nominal", "legend": None, "sort": None}
    lines = {
        "mark": {"type": "line", "interpolate": "step-before", "strokeWidth": 1.6},
        "encoding": encoding | {"strokeDash": series | {"scale": dash}, "order": {"field": "n"}},
    }
    hover = {
        "name": HOVER,
        "mark": {"type": "point", "opacity": 0, "size": 60, "filled": True},
        "encoding": encoding | {"tooltip": _tooltip(s="what", x="ms", y="share that took longer")},
    }
    return Chart(panel.title, _spec([lines, hover], values, HEIGHT), styles=styles, mode=panel.mode)
