# SPDX-License-Identifier: GPL-2.0-only
"""The ungated baseline: every hunk fits exactly once or nothing is made; what is made stays."""

import os
import re
from pathlib import Path

import pytest

from lab.build import kernel
from lab.build.ungated import PATCH
from lab.core.git import Repo
from lab.series import tree
from tests.rows import for_each_row
from tests.unit.calls import refused
from tests.unit.fake_kernel import BASE_FILES, MMU, FakeKernel

# {...}: what the patch looks for. The gate stands in a function that keeps it, too.
SOURCE = """\
static bool shadow_mmu_try_split_huge_pages(struct kvm *kvm)
{{
	for_each_rmap_spte() {{
		/* TDP MMU is enabled, so rmap only contains nested MMU SPs. */
{nested_only}		/* The rmaps should never contain non-leaf SPTEs. */
	}}
}}

void kvm_mmu_try_split_huge_pages(struct kvm *kvm)
{{
{gate}	if (kvm_memslots_have_rmaps(kvm))
		kvm_shadow_mmu_try_split_huge_pages(kvm);

{call}false);

}}

void kvm_mmu_slot_try_split_huge_pages(struct kvm *kvm)
{{
	u64 start = 0;

{slot_gate}	if (kvm_memslots_have_rmaps(kvm)) {{
	}}

	read_lock(&kvm->mmu_lock);
{slot_call}true);
	read_unlock(&kvm->mmu_lock);
}}

void keeps_its_gate(struct kvm *kvm)
{{
	if (!tdp_mmu_enabled)
		return;

	kvm_tdp_mmu_try_split_huge_pages(kvm, true);
}}
"""
GATE = "\tif (!tdp_mmu_enabled)\n\t\treturn;\n\n"
CALL = "\tkvm_tdp_mmu_try_split_huge_pages(kvm, memslot, start, end, target_level, "
GUARDED = f"\tif (tdp_mmu_enabled)\n\t{CALL}"
UNPATCHED = {
    "nested_only": "\t\tif (WARN_ON_ONCE(!sp->role.guest_mode))\n\t\t\tcontinue;\n\n",
    "gate": GATE,
    "call": CALL,
    "slot_gate": GATE,
    "slot_call": CALL,
}
PEER = {"nested_only": "", "gate": "", "call": GUARDED, "slot_gate": "", "slot_call": GUARDED}


def made(directory: Path) -> FakeKernel:
    text = SOURCE.format(**UNPATCHED)
    return FakeKernel.with_tree(directory, {**BASE_FILES, MMU: text})


@pytest.fixture
def fake(tmp_path: Path) -> FakeKernel:
    return made(tmp_path)


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
    assert (peer / MMU).read_text() == SOURCE.format(**PEER)
    assert Repo(peer).lines("diff", "--name-only", tree.BASE_TAG) == [MMU]
    assert Repo(peer).lines("status", "--porcelain") == []
    # The other trees stay as they are.
    base = kernel.source_tree("base", fake.layout)
    assert base == fake.layout.tree_of("base")
    assert (base / MMU).read_text() == SOURCE.format(**UNPATCHED)
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
    for text in (SOURCE.format(**UNPATCHED), ""):
        (peer / MMU).write_text(text)
        kernel.source_tree("peer", fake.layout)
        assert (peer / MMU).read_text() == SOURCE.format(**PEER)


def test_another_source_makes_another_baseline(tmp_path: Path) -> None:
    fake = made(tmp_path / "old")
    kernel.source_tree("peer", fake.layout)
    newer = FakeKernel.make(
        tmp_path / "new", {**BASE_FILES, MMU: "/* newer */\n" + SOURCE.format(**UNPATCHED)}
    )
    tree.make(fake.layout, newer.source)
    assert not fake.layout.tree_of("peer").exists()
    peer = kernel.source_tree("peer", fake.layout)
    assert (peer / MMU).read_text() == "/* newer */\n" + SOURCE.format(**PEER)


def refusal(fake: FakeKernel) -> str:
    """What the user reads. Nothing has been made."""
    said = refused(kernel.source_tree, "peer", fake.layout)
    assert not fake.layout.tree_of("peer").exists()
    assert "\t" not in said
    assert said.startswith("lab/build/ungated.patch: ")
    return said


@for_each_row(
    "files, said",
    *(
        ({MMU: SOURCE.format(**UNPATCHED | {anchor: "\tx("})}, f"hunk @@ .* of {MMU} does not")
        for anchor in UNPATCHED
    ),
    ({MMU: 2 * SOURCE.format(**UNPATCHED)}, f"of {MMU} fits in 2 places here"),
    ({}, f"the kernel has no {MMU} at this point"),
)
def test_a_base_that_does_not_fit(tmp_path: Path, files: dict[str, str], said: str) -> None:
    others = {name: text for name, text in BASE_FILES.items() if name != MMU}
    assert re.search(said, refusal(FakeKernel.with_tree(tmp_path, others | files)))


def test_a_refusal_leaves_the_baseline_that_there_was(fake: FakeKernel, peer: Path) -> None:
    repo = Repo(fake.linux)
    before = snapshot(peer)
    fake.write(MMU, SOURCE.format(**UNPATCHED | {"gate": ""}), commit="KVM: a base without a gate")
    repo.run("update-ref", tree.BASE_TAG, "HEAD")
    assert "does not apply" in refused(kernel.source_tree, "peer", fake.layout)
    assert snapshot(peer) == before


def test_the_repository_carries_no_more_of_the_kernel_than_one_line_around() -> None:
    hunks = re.split(r"^@@ .* @@\n", PATCH.read_text(), flags=re.MULTILINE)[1:]
    assert [len(re.findall("^ ", hunk, re.MULTILINE)) for hunk in hunks] == [2] * 5
