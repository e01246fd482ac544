# SPDX-License-Identifier: GPL-2.0-only
"""lab.page.labels: what a page calls a figure is what the line of the figure has measured."""

from pathlib import Path
from typing import Any

import pytest

from lab.core.paths import ROOT
from lab.page import figures, labels
from lab.results import jsonl
from tests.rows import for_each_row
from tests.unit.calls import refused
from tests.unit.report_data import measurement

MIB = 1 << 20
RECORDS = [
    measurement(vcpus=8, kernel="base", seconds=0.1154),
    measurement(vcpus=8, seconds=0.0023),
    measurement(vcpus=8, eager=True, seconds=0.0013),
    measurement(vcpus=8, ept=False, seconds=0.151),
    measurement(vcpus=8, eager=True, phase="clear", iteration=1, seconds=0.002),
]
TABLE = """
base = "6.12"
[table.a]
said = ["simulated, initially all set, PML"]
rows_are = "8 vCPUs x 2 MiB, tdp_mmu=N"
common = "bench write_percent=100"
columns = [
    { name = "unpatched", of = "kernel=base eager=false phase=dirty iteration=2" },
    { name = "N", of = "eager=false phase=dirty iteration=2" },
    { name = "unpatched / Y", of = "kernel=base phase=dirty / eager=true phase=dirty" },
]
rows = [{ name = "EPT, all written, dirty, second round", of = "ept=true" }]
"""
CLAIM = """
base = "6.12"
[said]
"docs/a.md" = ["simulated, initially all set, PML"]
[table]
[[claim."docs/a.md"]]
says = "Y: the first CLEAR takes [2.0] ms"
said = ["8 vCPUs x 2 MiB, EPT, tdp_mmu=N, all written"]
of = ["bench ept=true eager=true phase=clear"]
"""
PAGE = """\
6.12, simulated, initially all set, PML. 8 vCPUs x 2 MiB, EPT, tdp_mmu=N, all written.
Y: the first CLEAR takes 2.0 ms.

<!-- figures: a -->
<!-- end -->
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / figures.REFERENCE / "6.12").mkdir(parents=True)
    jsonl.write(tmp_path / figures.REFERENCE / "6.12" / "bench.jsonl", RECORDS)
    (tmp_path / "docs/a.md").write_text(PAGE)
    return tmp_path


def wrong(root: Path, text: str, old: str = "", new: str = "") -> list[str]:
    assert old in text
    (root / figures.SPECIFICATION).write_text(text.replace(old, new))
    return labels.wrong(root)


def test_every_label_fits_the_line_of_its_figure() -> None:
    """If not: correct the label, or the query, in docs/figures.toml, and the page."""
    assert labels.wrong(ROOT) == []


def test_labels_that_fit(root: Path) -> None:
    assert wrong(root, TABLE) == []
    base = '"docs/a.md" = ["simulated'
    assert wrong(root, CLAIM, base, '"docs/a.md" = ["6.12, simulated') == []


@for_each_row(
    "old, new, said",
    ("EPT, all", "shadow paging, all", "names ept=False, not True"),
    ("EPT, all", "all", ""),
    ("all written, dirty", "20% written, dirty", "names write_percent=20, not 100"),
    ("all written, dirty", "dirty", "does not name write_percent=100"),
    ("dirty, second round", "GET, second round", "names phase=get, not dirty"),
    ("second round", "second CLEAR", "names several values of phase: clear dirty"),
    ("second round", "writes", "does not name iteration=2"),
    ("8 vCPUs x 2 MiB", "4 vCPUs x 2 MiB", "names vcpus=4, not 8"),
    ("8 vCPUs x 2 MiB", "8 vCPUs x 4 MiB", f"names bytes_per_vcpu={4 * MIB}, not {2 * MIB}"),
    ("tdp_mmu=N", "tdp_mmu=Y", "names tdp_mmu=True, not False"),
    (", tdp_mmu=N", "", "does not name tdp_mmu=False"),
    ('name = "unpatched",', 'name = "ungated",', "names kernel=peer, not base"),
    ('name = "N"', 'name = "Y"', "names eager=True, not False"),
    ('name = "N"', 'name = "unpatched, N"', "names the kernel ['base'], the line has the series"),
    ('"unpatched / Y"', '"Y / unpatched"', "does not name kernel=base"),
    ('["simulated, initially all set, PML"]', "[]", "does not name machine=vmx-bochs"),
    ('["simulated, initially all set, PML"]', '["PML"]', "does not name initially_all_set=True"),
    (
        '["simulated, initially all set, PML"]',
        '["simulated, initially all set", "6.12"]',
        "does not name pml=True",
    ),
)
def test_a_label_of_a_table_that_does_not_fit(root: Path, old: str, new: str, said: str) -> None:
    found = wrong(root, TABLE, old, new)
    if not said:
        # PML is EPT's.
        assert found == []
        return
    assert any(said in line for line in found), found
    assert found[0].startswith("table a, '")


def test_text_around_a_table_may_name_one_value_only(root: Path) -> None:
    page = root / "docs/a.md"
    page.write_text(PAGE.replace("initially all set, PML.", "initially all set, PML. tdp_mmu=Y"))
    said = '"simulated, initially all set, PML"'
    (line, *_) = wrong(root, TABLE, said, f'{said}, "tdp_mmu=Y"')
    assert line.endswith("names several values of tdp_mmu: False True")


@for_each_row(
    "old, new, said",
    ("first CLEAR", "second CLEAR", "names iteration=2, not 1"),
    ("Y: the", "N: the", "names eager=False, not True"),
    (", EPT, tdp_mmu=N", "", "does not name tdp_mmu=False"),
    (", all written", "", "does not name write_percent=100"),
    ("simulated, ", "", "does not name machine=vmx-bochs"),
)
def test_a_sentence_that_does_not_fit(root: Path, old: str, new: str, said: str) -> None:
    page = root / "docs/a.md"
    page.write_text(page.read_text().replace(old, new))
    found = wrong(root, CLAIM, old, new)
    assert any(said in line for line in found), found
    assert any("does not name base=6.12" in line for line in found)


def test_what_is_quoted_has_to_be_there(root: Path) -> None:
    text = CLAIM.replace('said = ["8 vCPUs x 2 MiB', 'said = ["9 vCPUs x 2 MiB')
    (root / figures.SPECIFICATION).write_text(text)
    assert "docs/a.md: no longer says '9 vCPUs x 2 MiB" in refused(labels.wrong, root)


@for_each_row(
    "text, named",
    ("8 vCPUs that write 4MiB each", {"vcpus": {8}, "bytes_per_vcpu": {4 * MIB}}),
    ("with 2 vCPUs and 3.0 with 14.", {"vcpus": {2, 14}}),
    ("with 32 MiB per vCPU", {"bytes_per_vcpu": {32 * MIB}}),
    ("ept=N, 14 | waits", {"vcpus": {14}, "ept": {False}}),
    ("no PML", {"pml": {False}}),
    ("ept=N", {"ept": {False}}),
    ("after the first CLEAR", {"phase": {"logging"}, "iteration": {1}}),
    ("first CLEAR + dirty", {"phase": {"splitting"}}),
    ("all pages dirty", {"write_percent": {100}}),
    ("GET, wp", {"phase": {"get"}, "dirty_bits": {"off"}}),
    ("CLEAR, D", {"phase": {"clear"}, "dirty_bits": {"on"}}),
    ("ept=Y, none | D", {"ept": {True}, "write_percent": {0}, "dirty_bits": {"on"}}),
    ("eager_page_split=N", {"eager": {False}}),
)
def test_words(text: str, named: dict[str, set[Any]]) -> None:
    assert labels.named(text) == named


def test_what_a_line_leaves_out() -> None:
    line = {"ept": True, "tdp_mmu": False, "eager": True, "kernel": "series"}
    full = labels.complete("bench", "6.12", line, "seconds")
    assert full["pml"] is True and "dirty_bits" not in full and "kernel" not in full
    off = labels.complete("bench", "6.12", line | {"pml": False}, "seconds")
    assert off["dirty_bits"] == "off"
    shadow = labels.complete("bench", "6.12", line | {"ept": False}, "seconds")
    assert "tdp_mmu" not in shadow and shadow["dirty_bits"] == "off"
    # The unpatched kernel's parameter decides nothing but in the TDP MMU.
    base = line | {"kernel": "base"}
    assert "eager" not in labels.complete("bench", "6.12", base, "seconds")
    tdp = labels.complete("bench", "6.12", base | {"tdp_mmu": True}, "seconds")
    assert tdp["eager"] is True
    cost = labels.complete("cost", "6.12", {"ept": True, "mib_per_vcpu": 32}, "instructions")
    assert cost["bytes_per_vcpu"] == 32 * MIB and "pml" not in cost
