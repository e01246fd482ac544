# SPDX-License-Identifier: GPL-2.0-only
"""KVM's functions, taken from a kernel tree with all that they need, compiled in user space."""

import re
from collections.abc import Iterator, Sequence
from ctypes import CDLL
from pathlib import Path

from lab.core.errors import WorkFailed
from lab.core.git import Repo
from lab.core.paths import LAYOUT
from lab.core.steps import run_logged
from lab.series import cdefs, tree

HERE = Path(__file__).parent
MMU = "arch/x86/kvm/mmu"
# Files to look for a name, in this order.
OURS = [f"{MMU}/{name}" for name in ("spte_bulk.h", "rmap_log.h", "rmap_log.c")]
OURS += [f"{MMU}/{name}" for name in ("eager_split.c", "dirty_bits.c", "tdp_dirty_bits.h")]
KERNEL = [f"{MMU}/{name}" for name in ("mmu.c", "spte.c", "spte.h", "mmu_internal.h")]
KERNEL += ["arch/x86/kvm/mmu.h", "arch/x86/include/asm/kvm_host.h"]
BY_PAGE = ("shadow_mmu_split_huge_page", "kvm_mmu_write_protect_pt_masked")
BULK = ("eager_split_heads_are_empty", "eager_split_fill", "kvm_rmap_log_wrprot", "collect_64")
STAND_INS = HERE / "kernel.h"
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
# Matches a prototype, or the declaration of a variable that is defined elsewhere.
ELSEWHERE = re.compile(r"(?!#)(extern[^{]*|[^{]*\([^{]*)")
# The attribute of functions that other files call: compilers must not inline them here, either.
FOR_OTHERS = re.compile(r"(?!static|struct \w+ \{|union|enum|#)[\w\s*]+\(")
# Options of the kernel's Makefiles that change such code.
KERNEL_FLAGS = ["-std=gnu11", "-mgeneral-regs-only", "-fno-strict-aliasing", "-fwrapv"]
KERNEL_FLAGS += ["-fno-common", "-fno-stack-protector", "-fno-delete-null-pointer-checks"]
# With hidden visibility, variables are accessed without a table of addresses, as in the kernel.
GCC = ("gcc", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-I", str(HERE))


def _definitions(texts: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        lines = text.split("\n")
        for one in cdefs.definitions(text):
            body = COMMENT.sub("", "\n".join(lines[one.start : one.end])).strip()
            if not ELSEWHERE.fullmatch(body):
                body = f"static noinline {body}" if FOR_OTHERS.match(body) else body
                found.setdefault(one.name.split()[-1], body)
    return found


def closure(roots: Sequence[str], texts: Sequence[str], stand_ins: Path = STAND_INS) -> str:
    """The definitions of ROOTS and all that they use, but STAND_INS. WorkFailed: there is none."""
    found = _definitions(texts)
    done = set(_definitions([stand_ins.read_text()]))
    if missing := [root for root in roots if root not in found]:
        raise WorkFailed(f"native: the kernel has no {', '.join(missing)} any longer")

    def needed(name: str) -> Iterator[str]:
        if name in done or name not in found:
            return
        done.add(name)
        for word in re.findall(r"\w+", found[name]):
            yield from needed(word)
        yield found[name]

    return "\n\n".join(text for root in roots for text in needed(root)) + "\n"


def library(side: str, functions: str, *flags: str, calls: str = '#include "sides.c"') -> CDLL:
    """Compile and load KVM's functions, and CALLS, which calls them. WorkFailed: that fails."""
    directory = LAYOUT.work / "native"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{side}.c").write_text(f'#include "kernel.h"\n{functions}{calls}\n')
    command = (*GCC, *flags, "-o", f"{side}.so", f"{side}.c")
    run_logged(f"compiling {side}", command, LAYOUT.log / "native.log", directory)
    return CDLL(str(directory / f"{side}.so"))


def build(linux: Path) -> dict[str, CDLL]:
    """Compile and load the code of each side for a tree. WorkFailed: that fails."""
    before = [Repo(linux).text("show", f"{tree.BASE_TAG}:{name}") for name in KERNEL]
    now = [(linux / name).read_text() for name in (*OURS, *KERNEL)]
    # Compile all primitives, including those that only the TDP MMU calls.
    bulk = (*BULK, *_definitions(now[:1]))
    return {
        "limit": library("limit", "", "-DLIMIT"),
        "stores": library("stores", "", "-DLIMIT", "-DSTORES"),
        "series": library("series", closure(bulk, now), *KERNEL_FLAGS),
        "plain": library("plain", closure(bulk, now), *KERNEL_FLAGS, "-Dunrolled_count(n)="),
        "unpatched": library("unpatched", closure(BY_PAGE, before), *KERNEL_FLAGS, "-DUNPATCHED"),
    }
