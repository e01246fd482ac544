# SPDX-License-Identifier: GPL-2.0-only
"""Each bpftrace tool states its method and its limits, and has an example of its output."""

import re
import shlex
from pathlib import Path

import pytest

from lab.core.paths import ROOT
from tests.machines.test_bpf import LIVE, PHASES

EXAMPLES = sorted((ROOT / "tools/bpftrace").glob("*_example.txt"))
SPLITLAT = ROOT / "tools/bpftrace/splitlat_example.txt"
# Columns of the longest bar of a histogram.
BAR = 52
# Maps of splitlat.bt in which each range, or each batch, is counted once.
COUNTED_ALIKE = {
    "@ranges_us": ("@range_us", "@ranges"),
    "@held_us": ("@batch_us", "@batch_pages", "@batches"),
}


@pytest.mark.parametrize(
    "script", sorted((ROOT / "tools/bpftrace").glob("*.bt")), ids=lambda script: script.stem
)
def test_a_tool_says_how_it_is_used_and_what_it_cannot_tell(script: Path) -> None:
    text = script.read_text()
    assert text.splitlines()[1] == "/* SPDX-License-Identifier: GPL-2.0-only */"
    assert f" * {script.name} - " in text
    assert f" * USAGE: bpftrace {script.name}" in text
    assert f" * {script.stem}_example.txt has output and explains it." in text
    assert " * Method." in text
    assert " * Limits." in text
    # It prints nothing but results, and the example shows them.
    example = script.with_name(f"{script.stem}_example.txt").read_text()
    shown = set(re.findall(r"^(@\w+)(?:\[.*\])?:", example, re.MULTILINE))
    # The maps that the script prints at its end.
    assert shown == set(re.findall(r"print\((@\w+)\)", text))
    assert set(re.findall(r"(@\w+)", text)) == set(re.findall(r"clear\((@\w+)\)", text))


def histograms(text: str) -> dict[str, list[tuple[str, int, int]]]:
    """Map with its key -> label, count and length of the bar of each row that is shown."""
    found = {}
    for name, rows in re.findall(r"^(@\w+(?:\[.*\])?): \n((?:\S.*\n)+)", text, re.MULTILINE):
        row = re.compile(r"^(\[.*?[\])]) +(\d+) \|(@*) *\|$", re.MULTILINE)
        found[name] = [(label, int(count), len(bar)) for label, count, bar in row.findall(rows)]
    return found


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_an_example_is_output_of_its_tool(example: Path) -> None:
    """Only rows of 0 are left out by hand: the rest is what bpftrace could have printed."""
    text = example.read_text()
    # `make test WHAT=bpf ARGS=-rP` runs the same commands, and prints what the tools say.
    tool = example.name.replace("_example.txt", ".bt")
    known = {f"# bpftrace -c '{shlex.join(words)}' {tool}" for words in (LIVE, PHASES)}
    commands = re.findall(r"^# bpftrace .*$", text, re.MULTILINE)
    assert commands and {*commands} <= known
    for line, count, average, total in re.findall(
        r"^(@.*): count (\d+), average (\d+), total (\d+)$", text, re.MULTILINE
    ):
        assert int(total) // int(count) == int(average), line
    for name, rows in histograms(text).items():
        most = max(count for _, count, _ in rows)
        assert [bar for *_, bar in rows] == [count * BAR // most for _, count, _ in rows], name


def test_the_example_of_splitlat_is_of_one_run() -> None:
    """What is shown fits together, and the text below explains these figures."""
    text = SPLITLAT.read_text()
    shown = histograms(text)
    counts = {name: sum(count for _, count, _ in rows) for name, rows in shown.items()}
    for name, count in re.findall(r"^(@\w+)(?:\[.+\])?: (?:count )?(\d+)", text, re.MULTILINE):
        counts[name] = counts.get(name, 0) + int(count)
    for name, others in COUNTED_ALIKE.items():
        assert {counts[other] for other in others} == {counts[name]}
    # Each batch has as many huge pages as its row says.
    ends = [re.findall(r"\d+", label) for label, _, _ in shown["@batch_pages"]]
    least = sum(int(end[0]) * row[1] for end, row in zip(ends, shown["@batch_pages"], strict=True))
    most = sum(int(end[-1]) * row[1] for end, row in zip(ends, shown["@batch_pages"], strict=True))
    assert least <= counts["@pages"] <= most
    # The longest is in the last row.
    for name, longest in (("@range_us", "@longest_range_us"), ("@batch_us", "@longest_held_us")):
        first, last = (
            int(number.replace("K", "")) * (1024 if "K" in number else 1)
            for number in re.findall(r"\d+K?", shown[name][-1][0])
        )
        assert first <= counts[longest] < last
    vcpus, mib = (int(word) for word in re.findall(r"-v (\d+) -b (\d+)M", text)[0])
    assert counts["@pages"] == vcpus * mib // 2
    words = " ".join(text.split())
    assert f"mapped by {counts['@pages']} huge pages of 2 MiB" in words
    assert f"here {counts['@longest_held_us'] / 1000:.2f} ms at most" in words
