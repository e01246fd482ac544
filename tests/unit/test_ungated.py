# SPDX-License-Identifier: GPL-2.0-only
"""The ungated baseline: every hunk fits exactly once or nothing is made; what is made stays."""

import os
import re
from pathlib import Path

import pytest

from lab.build import kernel, ungated
from lab.build.ungated import PATCH
from lab.core.git import Repo
from lab.series import tree
from tests.rows import for_each_row
from tests.unit.calls import refused
from tests.unit.fake_kernel import BASE_FILES, MMU, MMU_TEXT, FakeKernel, diff_of
from tests.unit.files import write

# A baseline of FakeKernel's source.
TEXT = f"""\
Subject: ungated
---

{diff_of(MMU)}\
@@ -10,3 +10,3 @@
 {{
-\treturn kvm->pages[0];
+\treturn kvm->pages[3];
 }}
@@ -28,3 +28,3 @@
 {{
-\treturn kvm->pages[1];
+\treturn kvm->pages[4];
 }}
"""
PEER = MMU_TEXT.replace("[0]", "[3]").replace("[1]", "[4]")


@pytest.fixture(autouse=True)
def patch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ungated, "ROOT", tmp_path)
    monkeypatch.setattr(ungated, "PATCH", write(tmp_path / "ungated.patch", TEXT))


@pytest.fixture
def fake(tmp_path: Path) -> FakeKernel:
    return FakeKernel.with_tree(tmp_path)


@pytest.fixture
def peer(fake: FakeKernel) -> Path:
    """Its tree, made."""
    return kernel.source_tree("peer", fake.layout)


def snapshot(work_tree: Path) -> dict[str, int]:
    return {
        path.relative_to(work_tree).as_posix(): path.stat().st_mtime_ns
        for path in work_tree.rglob("*")
        if path.is_file() and path.name != ".git"
    }


def test_the_edits_and_nothing_else(fake: FakeKernel, peer: Path) -> None:
    assert peer == fake.layout.tree_of("peer")
    assert (peer / MMU).read_text() == PEER
    assert Repo(peer).lines("diff", "--name-only", tree.BASE_TAG) == [MMU]
    assert Repo(peer).lines("status", "--porcelain") == []
    # The other trees stay as they are.
    base = kernel.source_tree("base", fake.layout)
    assert base == fake.layout.tree_of("base")
    assert (base / MMU).read_text() == MMU_TEXT
    assert tree.unsaved(fake.linux) is None


def test_second_time_no_file_is_touched_but_what_was_edited_by_hand(
    fake: FakeKernel, peer: Path
) -> None:
    (peer / "obj-kvm").mkdir()
    (peer / "obj-kvm/vmlinux").write_text("built")
    for path in peer.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    before = snapshot(peer)
    assert "obj-kvm/vmlinux" in before
    kernel.source_tree("peer", fake.layout)
    assert snapshot(peer) == before
    for text in (MMU_TEXT, ""):
        (peer / MMU).write_text(text)
        kernel.source_tree("peer", fake.layout)
        assert (peer / MMU).read_text() == PEER


def test_another_source_makes_another_baseline(
    fake: FakeKernel, peer: Path, tmp_path: Path
) -> None:
    newer = FakeKernel.make(tmp_path / "new", {**BASE_FILES, MMU: "/* newer */\n" + MMU_TEXT})
    tree.make(fake.layout, newer.source)
    assert not peer.exists()
    kernel.source_tree("peer", fake.layout)
    assert (peer / MMU).read_text() == "/* newer */\n" + PEER


@for_each_row(
    "files, said",
    ({MMU: MMU_TEXT.replace("[0]", "[2]")}, rf"hunk @@ -10,3 \+10,3 @@ of {MMU} does not apply"),
    ({MMU: MMU_TEXT.replace("[1]", "[2]")}, rf"hunk @@ -28,3 \+28,3 @@ of {MMU} does not apply"),
    ({MMU: 2 * MMU_TEXT}, f"of {MMU} fits in 2 places here"),
    ({}, f"the kernel has no {MMU} at this point"),
)
def test_a_base_that_does_not_fit(tmp_path: Path, files: dict[str, str], said: str) -> None:
    others = {name: text for name, text in BASE_FILES.items() if name != MMU}
    fake = FakeKernel.with_tree(tmp_path, others | files)
    line = refused(kernel.source_tree, "peer", fake.layout)
    assert re.match(f"ungated.patch: .*{said}", line) and "\t" not in line
    assert not fake.layout.tree_of("peer").exists()


def test_a_refusal_leaves_the_baseline_that_there_was(fake: FakeKernel, peer: Path) -> None:
    repo = Repo(fake.linux)
    before = snapshot(peer)
    fake.write(MMU, MMU_TEXT.replace("[0]", "[2]"), commit="KVM: another base")
    repo.run("update-ref", tree.BASE_TAG, "HEAD")
    assert "does not apply" in refused(kernel.source_tree, "peer", fake.layout)
    assert snapshot(peer) == before


def test_the_repository_carries_no_more_of_the_kernel_than_one_line_around() -> None:
    hunks = re.split(r"^@@ .* @@\n", PATCH.read_text(), flags=re.MULTILINE)[1:]
    assert [len(re.findall("^ ", hunk, re.MULTILINE)) for hunk in hunks] == [2] * 5
