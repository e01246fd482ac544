# SPDX-License-Identifier: GPL-2.0-only
"""The terms and methods of the report, each explained once. Pages link to these explanations."""

import re
from collections.abc import Mapping

# By anchor: the term, and its explanation.
TERMS: Mapping[str, tuple[str, str]] = {
    "dirty-logging": (
        "dirty logging",
        "KVM records which 4 KiB pages of a guest are written, because a live migration has to send"
        " them again. To notice the first write to a page, KVM maps it write-protected, or reads"
        " the Dirty bit that the processor sets.",
    ),
    "split": (
        "split",
        "Guest memory is mapped by huge pages of 2 MiB, but is logged by pages of 4 KiB. So each"
        " huge page has to be replaced by 512 small ones before its writes can be logged.",
    ),
    "lazily": (
        "lazily",
        "The unpatched kernel splits a huge page step by step: each first write to a 4 KiB page"
        " stops the guest in a page fault.",
    ),
    "N": (
        "N",
        "The series with eager_page_split=N. The first write to a huge page splits all of it, in"
        " one page fault. Huge pages that are not written stay huge.",
    ),
    "Y": (
        "Y",
        "The series with eager_page_split=Y. The first CLEAR, or enabling the log without"
        " initially-all-set, splits all huge pages ahead of the writes.",
    ),
    "Dirty-bits": (
        "Dirty bits",
        "With dirty_bits=on, pages stay writable, and GET reads the Dirty bits that processors"
        " set in page tables. Writes to small pages then cause no page faults.",
    ),
    "ungated": (
        "ungated baseline",
        "The unpatched kernel has an eager splitter, which it uses for nested guests only. The"
        " ungated baseline is that kernel without the restriction, with eager_page_split=Y.",
    ),
    "first-writes": (
        "first writes",
        "The time that all vCPUs take to go through their memory once, in the first round that"
        " pays for splitting: after the first CLEAR, or after enabling without initially-all-set."
        " The writes before them, with initially-all-set, are those of a guest that is not"
        " logged.",
    ),
    "CLEAR": (
        "CLEAR",
        "The ioctl KVM_CLEAR_DIRTY_LOG: the thread that migrates the guest says which pages it is"
        " about to send, and KVM protects them again.",
    ),
    "GET": ("GET", "The ioctl KVM_GET_DIRTY_LOG: the thread asks which pages were written."),
    "initially-all-set": (
        "initially-all-set",
        "All pages count as written when logging begins, so nothing is write-protected before the"
        " first CLEAR. Without it, enabling protects everything.",
    ),
    "EPT": (
        "EPT",
        "Two-dimensional paging on Intel processors (NPT on AMD's): the processor translates"
        " guest addresses by a page table of KVM. Without further words it is that of the shadow"
        " MMU (tdp_mmu=N).",
    ),
    "TDP-MMU": (
        "TDP MMU",
        "The newer of two implementations of two-dimensional paging in KVM (tdp_mmu=Y). The"
        " unpatched kernel can split eagerly there. The older one is the shadow MMU.",
    ),
    "shadow-paging": (
        "shadow paging",
        "KVM translates the guest's own page tables into page tables for the processor (ept=N).",
    ),
    "PML": (
        "PML",
        "Page-modification logging: Intel processors write the addresses of written pages into a"
        " buffer. It takes the place of write protection where there is EPT.",
    ),
    "simulated": (
        "simulated",
        "Bochs executes 50 million instructions in each simulated second. Instructions, page"
        " faults and waiting for locks count; caches, TLBs and the latency of interrupts do not."
        " The same kernel gives the same digits. Such times compare settings, and predict no"
        " machine.",
    ),
    "goal": (
        "goal",
        "A bound that `make bench` checks, see docs/measuring.md (The reference). The section"
        " All goals has a table of them.",
    ),
    "mmu-lock": (
        "mmu_lock",
        "The lock of a VM that protects its page tables in KVM. A page fault of the shadow MMU"
        " holds it alone, so that all other vCPUs wait.",
    ),
    "stall": (
        "stall",
        "The time that one access to memory takes, by the guest's own clock: it contains the page"
        " fault, and waiting for KVM's lock.",
    ),
}


def link(html: str, linked: set[str]) -> str:
    """HTML, with the first of each term that is not in LINKED as a link; adds these to it.

    html: text without tags.
    """
    found: list[tuple[int, int, str]] = []
    for anchor, (term, _) in TERMS.items():
        if anchor in linked:
            continue
        match = re.search(rf"(?<![\w=-]){re.escape(term)}(?![\w=-])", html)
        if match and not any(a < match.end() and match.start() < b for a, b, _ in found):
            found.append((match.start(), match.end(), anchor))
            linked.add(anchor)
    for begin, end, anchor in sorted(found, reverse=True):
        html = (
            f'{html[:begin]}<a class="term" href="#term-{anchor}">{html[begin:end]}</a>{html[end:]}'
        )
    return html
