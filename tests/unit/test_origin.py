# SPDX-License-Identifier: GPL-2.0-only
"""Which code the lines of results have measured, and which parts of the reference are older."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lab.core.paths import LAYOUT, ROOT, Layout
from lab.page import figures, older
from lab.results import files, jsonl, origin
from tests.rows import for_each_row
from tests.unit.calls import refused
from tests.unit.fake_kernel import FakeKernel
from tests.unit.report_data import measurement

COPIED = ("series", "backport", "base", "arch", "tools/testing", "lab/config", "scripts")
PERF = "tools/testing/selftests/kvm/dirty_log_perf_test.c"
LIVE = "tools/testing/selftests/kvm/x86/dirty_log_live_report.c"
SPLITTER = "arch/x86/kvm/mmu/eager_split.c"
MMU = "arch/x86/kvm/mmu/mmu.c"
MEMSTRESS = "tools/testing/selftests/kvm/include/memstress.h"
BENCH = "docs/reference/6.12/bench.jsonl"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what this repository measures, and of the programs that measure."""
    root = tmp_path_factory.mktemp("origin")
    for name in COPIED:
        shutil.copytree(ROOT / name, root / name)
    for name in ("lab/build/ungated.patch", "lab/measure/native/sides.c"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    return root


def one_of(root: Path, pattern: str) -> Path:
    (found,) = root.glob(pattern)
    return found


def sources_of(root: Path) -> dict[str, str]:
    """The sources of both bases and some kinds."""
    kinds = ("bench", "live", "cost", "migrate", "native")
    layouts = [Layout(root, base) for base in LAYOUT.versions]
    return {f"{a.version}/{k}": origin.source_of(k, a) for a in layouts for k in kinds}


@pytest.fixture(scope="module")
def before(repository: Path) -> dict[str, str]:
    """The sources of what nothing was changed in."""
    return sources_of(repository)


def changed(root: Path, before: dict[str, str], pattern: str, old: str, new: str) -> set[str]:
    """Whose sources change if NEW stands in a file in place of OLD."""
    file = one_of(root, pattern)
    text = file.read_text()
    assert old in text, pattern
    file.write_text(text.replace(old, new, 1))
    try:
        after = sources_of(root)
    finally:
        file.write_text(text)
    return {name for name in before if before[name] != after[name]}


EVERY = {f"{base}/{k}" for base in LAYOUT.versions for k in ("bench", "live", "cost")}
EVERY |= {f"{base}/{k}" for base in LAYOUT.versions for k in ("migrate", "native")}


def of(*kinds: str, bases: tuple[str, ...] = LAYOUT.versions) -> set[str]:
    return {f"{base}/{kind}" for base in bases for kind in kinds}


@for_each_row(
    "pattern, old, new, whose",
    # The kernel, by a whole file and by the checksum of one that the series edits.
    (SPLITTER, "\treturn", "\treturn 0 +", EVERY),
    ("base/7.3.sums", MMU, f"{MMU}x", {n for n in EVERY if "7.3" in n}),
    ("base/6.12.sums", MMU, f"{MMU}x", {n for n in EVERY if "6.12" in n}),
    ("lab/config/kvm.config", "CONFIG_", "CONFIG_X=y\nCONFIG_", EVERY),
    ("lab/build/ungated.patch", "\n+", "\n+x", EVERY),
    ("base/7.3.pin", '[proved]\n"7.3.4', '[proved]\n"7.3.5', {n for n in EVERY if "7.3" in n}),
    (
        "backport/6.12/config/kvm.config",
        "CONFIG_",
        "CONFIG_X=y\nCONFIG_",
        {n for n in EVERY if "6.12" in n},
    ),
    # A program that measures.
    (PERF, "\treturn", "\treturn 0 +", of("bench", "live", "cost")),
    (LIVE, "\treturn", "\treturn 0 +", of("live")),
    ("base/7.3.sums", MEMSTRESS, f"{MEMSTRESS}.c", of("bench", "live", "cost", bases=("7.3",))),
    ("scripts/split-bench.sh", "echo", "echo x", of("bench")),
    ("lab/measure/native/sides.c", "PASS(", "PASS(x", of("native")),
    # What no figure depends on: comments, mails, tests, debug kernels.
    (SPLITTER, "/*", "/* More. */\n\n/*", set()),
    ("series/*-create-split-sptes-of-the-*.patch", "\n\n", "\n\nA changelog.\n", set()),
    ("series/*-create-split-sptes-of-the-*.patch", "\n@@ -", "\n@@ -1", set()),
    ("series/0001-*.patch", "Subject: ", "Subject: x ", set()),
    ("base/7.3.sums", "\n# ", "\n# More.\n# ", set()),
    ("tools/testing/selftests/kvm/x86/eager_split_modes_test.c", "return", "return 0 +", set()),
    ("arch/x86/kvm/mmu/prove.c", "return", "return 0 +", set()),
)
def test_what_changes_a_source(
    repository: Path, before: dict[str, str], pattern: str, old: str, new: str, whose: set[str]
) -> None:
    """What the series makes of the kernel's files is in test_sums.py."""
    assert changed(repository, before, pattern, old, new) == whose


def test_measured_work_is_saved_and_has_a_commit(
    fake: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = fake.layout.root
    (root / "lab/build").mkdir(parents=True)
    (root / "lab/config").mkdir()
    for name in origin.BUILT_BY:
        (root / name).write_text("a\n")

    def git(*words: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        done = subprocess.run(
            ("git", *who, *words), cwd=root, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    source = origin.source_of("bench", fake.layout)
    assert origin.measured("bench", fake.layout)[origin.SOURCE] == source
    git("init", "-q")
    git("add", "-A", "-f", "lab", "base")
    git("commit", "-q", "-m", "a")
    commit = git("rev-parse", "HEAD")[: origin.DIGITS]
    assert origin.measured("bench", fake.layout) == {"source": source, "commit": commit}
    # A commit of something else, and changes of what is measured.
    git("commit", "-q", "--allow-empty", "-m", "b")
    assert origin.measured("bench", fake.layout)["commit"] == commit
    (root / origin.BUILT_BY[0]).write_text("b\n")
    found = origin.measured("bench", fake.layout)
    assert found["commit"] == f"{commit}+" and found["source"] != source
    # Work that make save has not seen is no state of the repository.
    (fake.layout.linux / "Makefile").write_text("VERSION = 7\n")
    assert origin.measured("bench", fake.layout)["source"] == origin.UNSAVED


@for_each_row(
    "records, source",
    ([{"source": "a"}, {"source": "a"}], "a"),
    ([{"source": "a"}, {"source": "b"}], origin.UNKNOWN),
    ([{"source": "a"}, {}], origin.UNKNOWN),
    ([{}], origin.UNKNOWN),
)
def test_the_source_of_a_file(records: list[dict[str, Any]], source: str) -> None:
    assert origin.source_in(records) == source


def test_a_line_says_what_it_has_measured() -> None:
    line = jsonl.to_line(measurement(source="a", commit="b"))
    assert '"source": "a", "commit": "b", "seconds"' in line
    assert jsonl.parse(line).source == "a"
    assert "source" not in jsonl.to_line(measurement())


def test_the_committed_list_of_older_parts_is_right() -> None:
    """If not, the message says what to do."""
    assert older.wrong() == []


@pytest.fixture
def kept(repository: Path) -> Path:
    """The copy with a reference of one part, which has measured what there is."""
    shutil.rmtree(repository / figures.REFERENCE, ignore_errors=True)
    (repository / older.FILE).unlink(missing_ok=True)
    (repository / BENCH).parent.mkdir(parents=True)
    write(repository, origin.source_of("bench", Layout(repository, "6.12")))
    return repository


def write(root: Path, source: str | None) -> None:
    jsonl.write(root / BENCH, [measurement(source=source)])


def test_a_part_that_has_become_older_has_to_be_listed_or_measured(kept: Path) -> None:
    assert older.wrong(kept) == [] and not older.record(kept)
    assert not (kept / older.FILE).exists()
    write(kept, "0123")
    (line,) = older.wrong(kept)
    assert line.startswith(f"{BENCH} has measured 0123, and the kernel code or the programs")
    assert "`make reference BASE=6.12 ARGS='--part bench'` measures it again" in line
    assert f"`{older.RECORD}` lists it as older until then" in line
    assert older.record(kept) == {"6.12/bench": "0123"}
    assert older.wrong(kept) == []
    # It was measured again, but the code has changed once more.
    write(kept, "4567")
    assert older.wrong(kept) == [
        f"{BENCH} has measured 4567, docs/older.toml says 0123: `{older.RECORD}`"
    ]
    write(kept, origin.source_of("bench", Layout(kept, "6.12")))
    (line,) = older.wrong(kept)
    assert line.startswith(f"{BENCH} is not older than the code: take it off")
    assert older.record(kept) == {} and older.wrong(kept) == []
    assert not (kept / older.FILE).exists()


@pytest.mark.parametrize("source", [None, origin.UNSAVED])
def test_nothing_joins_the_list_that_does_not_say_what_it_measured(
    kept: Path, source: str | None
) -> None:
    write(kept, source)
    assert "does not say which code it has measured" in refused(older.record, kept)
    assert not (kept / older.FILE).exists()
    # What is there already may stay until it is measured again.
    (kept / older.FILE).write_text(f'"6.12/bench" = "{source or origin.UNKNOWN}"\n')
    assert older.wrong(kept) == []
    assert older.record(kept) == {"6.12/bench": source or origin.UNKNOWN}


@for_each_row("text", "a = 1\n", "a\n")
def test_a_list_that_cannot_be_read(kept: Path, text: str) -> None:
    (kept / older.FILE).write_text(text)
    assert refused(older.wrong, kept).startswith("docs/older.toml: ")


def test_every_kind_of_the_reference_has_its_programs() -> None:
    assert {*origin.PROGRAMS} == {*files.KINDS} - {"yield"}
    for kind, patterns in origin.PROGRAMS.items():
        for pattern in patterns:
            plain = pattern.replace("*/", "**/")
            upstream = "memstress" in pattern or "kvm_util" in pattern
            assert upstream or [*ROOT.glob(plain)], (kind, pattern)
