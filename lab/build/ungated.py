# SPDX-License-Identifier: GPL-2.0-only
"""The ungated baseline, kind "peer": the packaged kernel, its own splitter for every shadow page.

The kernel splits shadow pages of nested guests only, and only while the TDP MMU is on. Deleting
the gates that see to it is the least that can be done for the others, hence what the series is
measured beside. It is made to be measured: what it leaves wrong is in docs/measuring.md.
"""

from dataclasses import dataclass

from lab.core.errors import LabError
from lab.core.git import IDENTITY, Entry, Repo, signature
from lab.series.cdefs import definitions
from lab.series.tree import BASE_TAG

MMU = "arch/x86/kvm/mmu/mmu.c"
MESSAGE = "ungated: base without the gates of its eager splitting"


@dataclass(frozen=True)
class Edit:
    """Text that stands in a function once, and what takes its place."""

    function: str
    old: str
    new: str


GATE = "\tif (!tdp_mmu_enabled)\n\t\treturn;\n\n"
# Without the TDP MMU its list of roots is not initialised.
TDP_CALL = "\tkvm_tdp_mmu_try_split_huge_pages("
GUARDED_CALL = f"\tif (tdp_mmu_enabled)\n\t{TDP_CALL}"
NESTED_ONLY = "\t\tif (WARN_ON_ONCE(!sp->role.guest_mode))\n\t\t\tcontinue;\n\n"

EDITS = (
    Edit("kvm_mmu_try_split_huge_pages", GATE, ""),
    Edit("kvm_mmu_try_split_huge_pages", TDP_CALL, GUARDED_CALL),
    Edit("kvm_mmu_slot_try_split_huge_pages", GATE, ""),
    Edit("kvm_mmu_slot_try_split_huge_pages", TDP_CALL, GUARDED_CALL),
    Edit("shadow_mmu_try_split_huge_pages", NESTED_ONLY, ""),
)


def _refused(edit: Edit, reason: str) -> LabError:
    return LabError(
        f"{MMU}: {edit.function}() {reason}; correct lab/build/ungated.py,"
        " or install a version that the pin names as proved"
    )


def _body(text: str, edit: Edit) -> tuple[int, int]:
    """First line and end of the function to edit, prototypes left aside."""
    lines = text.split("\n")
    found = [
        (item.start, item.end)
        for item in definitions(text)
        if item.name == edit.function and "{" in lines[item.start : item.end]
    ]
    if len(found) != 1:
        raise _refused(edit, f"is defined {len(found)} times, expected once")
    return found[0]


def apply(text: str, edit: Edit) -> str:
    """TEXT of the file with one edit made. LabError: it does not fit exactly once."""
    start, end = _body(text, edit)
    lines = text.split("\n")
    body = "\n".join(lines[start:end])
    if (count := body.count(edit.old)) != 1:
        anchor = " ".join(edit.old.split())
        raise _refused(edit, f"has {anchor!r} {count} times, expected once")
    return "\n".join([*lines[:start], body.replace(edit.old, edit.new), *lines[end:]])


def commit(repo: Repo) -> str:
    """The id of a commit on top of `base` that holds the baseline; the same base gives the same id.

    No ref, index or work tree changes. LabError: an edit does not fit.
    """
    entry = repo.entry(BASE_TAG, MMU)
    if entry is None:
        raise LabError(f"{MMU}: the kernel has no such file; correct lab/build/ungated.py")
    text = repo.content(entry.blob).decode("utf-8", "surrogateescape")
    for edit in EDITS:
        text = apply(text, edit)
    blob = repo.store(text.encode("utf-8", "surrogateescape"))
    with repo.index_of(BASE_TAG) as index:
        index.put(MMU, Entry(entry.mode, blob))
        tree = index.text("write-tree")
    env = signature(*IDENTITY, 0)
    return repo.text("commit-tree", tree, "-p", BASE_TAG, "-m", MESSAGE, env=env)
