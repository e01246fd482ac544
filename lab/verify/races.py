# SPDX-License-Identifier: GPL-2.0-only
"""Data races in the log of a KCSAN kernel: those of the series, and those of the kernel below it.

A report has one or two sides, each with a stack. docs/developing.md, "Data races", says which sides
belong to the series. A report that cannot be understood counts as one of the series.
"""

import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lab.core.errors import WorkFailed
from lab.core.git import Repo
from lab.series import tree
from lab.series.extract import DIFF

KVM = ("arch/x86/kvm/", "virt/kvm/")

_STAMP = re.compile(r"\[ *\d+\.\d+\] ")
_TITLE = re.compile(r"BUG: KCSAN: (.+)")
_END = re.compile(r"={60,}$")
_SIDE = re.compile(
    r"(?:race at unknown origin, with )?(?:read|write|read-write|assert no \w+)(?: \([a-z, ]+\))?"
    r" to 0x[0-9a-f]+ of \d+ bytes by (?:task \d+|interrupt) on cpu \d+:$"
)
_FRAME = re.compile(r" (\S+\+0x[0-9a-f]+/0x[0-9a-f]+)$")
# Frames below which an interrupted, unrelated stack begins. Exceptions, such as page faults, are
# not in the list: the code below caused them.
_INTERRUPT = re.compile(r"asm_(?:sysvec_\w+|common_interrupt|exc_nmi)\+")
_OTHER = re.compile(
    r"$|value changed: | bits changed: |Reported by Kernel Concurrency Sanitizer on:|CPU: \d"
    r"|Tainted: |Hardware name: |  \||  \+-> reordered to: "
)
_FILE = re.compile(r"\+\+\+ b/(.+)")
_HUNK = re.compile(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@")

# Place: file and line in the kernel. Places: of each frame. Written: lines of the series in each
# file.
Place = tuple[str, int]
Places = Mapping[str, list[Place]]
Written = Mapping[str, set[int]]


@dataclass
class Report:
    """KCSAN's report of one race.

    sides: frames of each side, innermost first, as "function+0x1/0x2". lines: as in the log.
    text: the whole report; with places in the source, once they are known.
    """

    title: str
    sides: list[list[str]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    text: str = ""

    @property
    def race(self) -> tuple[str, ...]:
        """A key that is the same each time that the same two places race."""
        return tuple(sorted(frames[0] for frames in self.sides if frames))

    def take(self, line: str) -> bool:
        """Add a line of the log if it belongs to the report. Returns whether it does."""
        if _SIDE.match(line):
            self.sides.append([])
        elif (frame := _FRAME.match(line)) and self.sides:
            self.sides[-1].append(frame[1])
        elif not _OTHER.match(line):
            return False
        self.lines.append(line)
        return True


@dataclass(frozen=True)
class SortedLog:
    """The reports in a log. rest: the lines that belong to none."""

    series: list[Report]
    others: list[Report]
    rest: str


def parse(log: str) -> tuple[list[Report], str]:
    """Return the reports in a log, each once, and the lines that belong to none.

    Lines of other processors can come between those of a report. A message can be in the log twice.
    Of the second copy, only the end may be left: ignore it.
    """
    reports: list[Report] = []
    rest = []
    open_report = False
    for raw in log.splitlines():
        line = _STAMP.sub("", raw, count=1)
        if title := _TITLE.match(line):
            reports.append(Report(title[1]))
            open_report = True
        elif open_report and _END.match(line):
            open_report = False
        elif not (open_report and reports[-1].take(line)):
            rest.append(line)
    distinct = {(report.title, *report.lines): report for report in reports}
    return list(distinct.values()), "\n".join(rest)


def lines_of_series(repo: Repo) -> dict[str, set[int]]:
    """The numbers of the lines that the unpatched kernel does not have, for each file."""
    written: dict[str, set[int]] = {}
    path = ""
    for line in repo.lines("diff", "-U0", *DIFF, tree.BASE_TAG):
        if file := _FILE.match(line):
            path = file[1]
        elif hunk := _HUNK.match(line):
            first, count = int(hunk[1]), int(hunk[2] or 1)
            written.setdefault(path, set()).update(range(first, first + count))
    return written


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
        raise WorkFailed(f"{command[0]}: {last}")
    return done.stdout


def _calls(frames: Iterable[str], symbols: str) -> Iterator[tuple[str, int]]:
    """The frames and their addresses: those of the call instructions, not of the ones after them.

    Static functions may have the same name. Then each of them counts.
    """
    starts: dict[str, list[int]] = {}
    for line in symbols.splitlines():
        match line.split():
            case [address, _, name]:
                starts.setdefault(name, []).append(int(address, 16))
    for frame in frames:
        symbol, offset = frame.split("/")[0].rsplit("+", 1)
        for start in starts.get(symbol, []):
            yield frame, start + int(offset, 16) - 1


def _places(lines: str, source: Path, objects: Path) -> dict[int, list[Place]]:
    """The place of each address in the output of addr2line, and the places it is inlined into."""
    found: dict[int, list[Place]] = {}
    here: list[Place] = []
    for line in lines.splitlines():
        if line.startswith("0x"):
            here = found.setdefault(int(line, 16), [])
            continue
        path, _, number = line.split(" (")[0].rpartition(":")
        if number.isdigit() and not path.startswith("?"):
            here.append((os.path.relpath(objects / path, source), int(number)))
    return found


def locate(frames: Iterable[str], image: Path) -> dict[str, list[Place]]:
    """Frame -> where that is in the source, the innermost of what is inlined first.

    image: the kernel, built by lab.build.kernel with debug information. WorkFailed: binutils fail.
    """
    objects = image.parents[3]
    vmlinux = str(objects / "vmlinux")
    calls = list(_calls(dict.fromkeys(frames), _output("nm", vmlinux)))
    if not calls:
        return {}
    lines = _output("addr2line", "-a", "-i", "-e", vmlinux, *(hex(at) for _, at in calls))
    known = _places(lines, objects.parent, objects)
    places: dict[str, list[Place]] = {}
    for frame, address in calls:
        places.setdefault(frame, []).extend(known.get(address, []))
    return places


def _is_of_series(side: Iterable[str], places: Places, written: Written) -> bool:
    understood = False
    for frame in side:
        here = places.get(frame, [])
        understood = understood or bool(here)
        if any(path.startswith(KVM) for path, _ in here):
            return any(line in written.get(path, ()) for path, line in here)
        if _INTERRUPT.match(frame):
            break
    return not understood


def _text(report: Report, places: Places) -> str:
    """The text of a report, with the places of its frames in the source."""
    lines = [f"BUG: KCSAN: {report.title}"]
    for line in report.lines:
        here = places.get(line.strip(), [])
        lines.append(line + "".join(f"  {path}:{number}" for path, number in here))
    return "\n".join(lines).rstrip() + "\n"


def sort_out(log: str, places: Places, written: Written) -> SortedLog:
    """Sort the reports of a log: those of the series, and others."""
    reports, rest = parse(log)
    verdict = SortedLog([], [], rest)
    for report in reports:
        report.text = _text(report, places)
        ours = not report.sides or any(_is_of_series(one, places, written) for one in report.sides)
        (verdict.series if ours else verdict.others).append(report)
    return verdict


def judge(log: str, image: Path) -> SortedLog:
    """Sort the reports in the log of the kernel IMAGE. Raises what locate() raises."""
    frames = [frame for report in parse(log)[0] for side in report.sides for frame in side]
    if not frames:
        return sort_out(log, {}, {})
    return sort_out(log, locate(frames, image), lines_of_series(Repo(image.parents[4])))
