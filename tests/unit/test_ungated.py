# SPDX-License-Identifier: GPL-2.0-only
"""The ungated baseline: every edit fits exactly once or nothing is made; what is made stays."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.build import kernel
from lab.build.ungated import EDITS, MMU
from lab.core.git import Repo
from lab.series import tree
from tests.unit.calls import refused
from tests.unit.fake_kernel import BASE_FILES, FakeKernel

# {...}: what an edit looks for. The gate stands in a function that keeps it, too.
SOURCE = """\
static bool shadow_mmu_try_split_huge_pages(struct kvm *kvm);

static bool shadow_mmu_try_split_huge_pages(struct kvm *kvm)
{{
	for_each_rmap_spte() {{
{nested_only}		if (sp->role.invalid)
			continue;
	}}
}}

/* Must be called with the mmu_lock held in write-mode. */
void kvm_mmu_try_split_huge_pages(struct kvm *kvm)
{{
{gate}	if (kvm_memslots_have_rmaps(kvm))
		kvm_shadow_mmu_try_split_huge_pages(kvm);

{call}kvm, false);
}}

void kvm_mmu_slot_try_split_huge_pages(struct kvm *kvm)
{{
	u64 start = 0;

{slot_gate}	read_lock(&kvm->mmu_lock);
{slot_call}kvm, true);
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
CALL = "\tkvm_tdp_mmu_try_split_huge_pages("
GUARDED = "\tif (tdp_mmu_enabled)\n\t\tkvm_tdp_mmu_try_split_huge_pages("
UNPATCHED = {
    "nested_only": "\t\tif (WARN_ON_ONCE(!sp->role.guest_mode))\n\t\t\tcontinue;\n\n",
    "gate": GATE,
    "call": CALL,
    "slot_gate": GATE,
    "slot_call": CALL,
}
PEER = {"nested_only": "", "gate": "", "call": GUARDED, "slot_gate": "", "slot_call": GUARDED}


def made(directory: Path, **changes: str) -> FakeKernel:
    text = SOURCE.format(**UNPATCHED | changes)
    fake = FakeKernel.make(directory, {**BASE_FILES, MMU: text})
    fake.make_tree()
    return fake


def snapshot(work_tree: Path) -> dict[str, int]:
    return {
        path.relative_to(work_tree).as_posix(): path.stat().st_mtime_ns
        for path in work_tree.rglob("*")
        if path.is_file() and path.name != ".git"
    }


def test_the_edits_and_nothing_else(tmp_path: Path) -> None:
    fake = made(tmp_path)
    peer = kernel.source_tree("peer", fake.layout)
    assert peer == fake.layout.peer
    assert (peer / MMU).read_text() == SOURCE.format(**PEER)
    assert Repo(peer).lines("diff", "--name-only", tree.BASE_TAG) == [MMU]
    assert Repo(peer).lines("status", "--porcelain") == []


def test_the_other_trees_stay_as_they_are(tmp_path: Path) -> None:
    fake = made(tmp_path)
    head = fake.git("rev-parse", "HEAD")
    kernel.source_tree("peer", fake.layout)
    base = kernel.source_tree("base", fake.layout)
    assert base == fake.layout.base
    assert (base / MMU).read_text() == SOURCE.format(**UNPATCHED)
    assert fake.git("rev-parse", "HEAD") == head
    assert tree.unsaved(fake.linux) is None


def test_second_time_no_file_is_touched(tmp_path: Path) -> None:
    fake = made(tmp_path)
    peer = kernel.source_tree("peer", fake.layout)
    (peer / "obj-kvm").mkdir()
    (peer / "obj-kvm/vmlinux").write_text("built")
    for path in peer.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    before = snapshot(peer)
    assert "obj-kvm/vmlinux" in before
    kernel.source_tree("peer", fake.layout)
    assert snapshot(peer) == before


def test_what_was_edited_by_hand_is_undone(tmp_path: Path) -> None:
    fake = made(tmp_path)
    peer = kernel.source_tree("peer", fake.layout)
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
    assert not fake.layout.peer.exists()
    peer = kernel.source_tree("peer", fake.layout)
    assert (peer / MMU).read_text() == "/* newer */\n" + SOURCE.format(**PEER)


FUNCTIONS = {
    "nested_only": "shadow_mmu_try_split_huge_pages",
    "gate": "kvm_mmu_try_split_huge_pages",
    "call": "kvm_mmu_try_split_huge_pages",
    "slot_gate": "kvm_mmu_slot_try_split_huge_pages",
    "slot_call": "kvm_mmu_slot_try_split_huge_pages",
}


def refusal(fake: FakeKernel) -> str:
    """What the user reads. Nothing has been made."""
    said = refused(kernel.source_tree, "peer", fake.layout)
    assert not fake.layout.peer.exists()
    assert "\t" not in said
    assert said.startswith(f"{MMU}: ")
    return said


@pytest.mark.parametrize("anchor", UNPATCHED)
@pytest.mark.parametrize(
    ("change", "count"), [(lambda text: "\tother(", 0), (lambda text: text + text, 2)]
)
def test_an_anchor_that_is_not_there_once(
    tmp_path: Path, anchor: str, change: Callable[[str], str], count: int
) -> None:
    fake = made(tmp_path, **{anchor: change(UNPATCHED[anchor])})
    words = " ".join(UNPATCHED[anchor].split())
    said = refusal(fake)
    assert f"{FUNCTIONS[anchor]}() has '{words}' {count} times, expected once" in said


@pytest.mark.parametrize("function", sorted(set(FUNCTIONS.values())))
def test_a_function_that_is_gone(tmp_path: Path, function: str) -> None:
    text = SOURCE.format(**UNPATCHED).replace(f" {function}(", f" {function}_2(")
    fake = FakeKernel.make(tmp_path, {**BASE_FILES, MMU: text})
    fake.make_tree()
    assert f"{function}() is defined 0 times, expected once" in refusal(fake)


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    fake = FakeKernel.make(tmp_path, {k: v for k, v in BASE_FILES.items() if k != MMU})
    fake.make_tree()
    assert "the kernel has no such file" in refusal(fake)


def test_a_refusal_leaves_the_baseline_that_there_was(tmp_path: Path) -> None:
    fake = made(tmp_path)
    peer = kernel.source_tree("peer", fake.layout)
    repo = Repo(fake.linux)
    before = snapshot(peer)
    fake.write(MMU, SOURCE.format(**UNPATCHED | {"gate": ""}))
    fake.commit("KVM: a base without a gate")
    repo.run("update-ref", tree.BASE_TAG, "HEAD")
    assert "0 times, expected once" in refused(kernel.source_tree, "peer", fake.layout)
    assert snapshot(peer) == before


def test_the_repository_carries_no_more_of_the_kernel_than_anchors() -> None:
    assert max(edit.old.strip().count("\n") for edit in EDITS) == 1
