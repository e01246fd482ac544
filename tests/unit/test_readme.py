# SPDX-License-Identifier: GPL-2.0-only
"""README.md leads a newcomer to the first things to read, docs/README.md leads to everything.

The map, docs/README.md, links to every document, to all kernel code of the series and to every
test, and names every measurement.
"""

from pathlib import Path
from urllib.parse import urlsplit

from lab.core.paths import ROOT
from tests.unit.test_links import KNOWN, links, make_calls, markdown_files

README, MAP = ROOT / "README.md", ROOT / "docs" / "README.md"
NEWCOMER = (
    "arch/x86/kvm/mmu/eager_split.c",
    "scripts/split-bench.sh",
    "docs/developing.md#running-one-thing",
    "docs/measuring.md",
)
# Where whole files of ours are, and which of them a newcomer looks for.
CODE = {"arch": (".c", ".h"), "tools/bpftrace": (".bt",), "tools/testing": ("_test.c",)}


def reached(page: Path) -> set[str]:
    """Where the links of a page lead, from the root of the repository, with their anchors."""
    found = set()
    for target in links(page.read_text()):
        address = urlsplit(target)
        if not address.scheme:
            path = (page.parent / address.path).resolve().relative_to(ROOT.resolve())
            found.add(f"{path}{f'#{address.fragment}' if address.fragment else ''}")
    return found


def files(page: Path) -> set[str]:
    return {target.partition("#")[0] for target in reached(page)}


def test_what_a_newcomer_looks_for_is_one_step_away_and_so_is_the_map_which_has_it_too() -> None:
    found = reached(README)
    assert set(NEWCOMER) <= found
    assert "docs/README.md" in {f"{t}/README.md" if t == "docs" else t for t in found}
    assert set(NEWCOMER) <= reached(MAP)


def test_the_map_has_every_document() -> None:
    documents = {str(file.relative_to(ROOT)) for file in markdown_files(ROOT)}
    assert documents - files(MAP) - {"docs/README.md"} == set()


def test_the_map_has_all_kernel_code_and_every_test() -> None:
    """Each of them, or the .c file of a header, or the directory that it is in."""
    ours = [
        file
        for directory, endings in CODE.items()
        for file in (ROOT / directory).rglob("*")
        if file.name.endswith(endings)
    ]
    assert ours
    reachable = files(MAP)
    missing = [
        str(path)
        for path in (file.relative_to(ROOT) for file in ours)
        if not {str(path), str(path.with_suffix(".c")), str(path.parent)} & reachable
    ]
    assert missing == []


def test_the_map_has_every_measurement_and_every_proof() -> None:
    calls = make_calls(MAP.read_text())
    known = dict(KNOWN.findall((ROOT / "Makefile").read_text()))
    for goal in ("bench", "test"):
        words = set(known[goal.upper()].split()) - {"migration"}
        assert {what for g, what in calls if g == goal} >= words
    known_goals = {goal for goal, _ in calls}
    assert {"bench", "soak", "report", "compare", "reference", "mail", "deb"} <= known_goals
