# SPDX-License-Identifier: GPL-2.0-only
"""What of a kernel's log means that something is wrong."""

import re

COMPLAINT = re.compile(
    r"WARNING:|BUG:|INFO: .*(?:lock|task|rcu)|KASAN|possible .* detected|Oops|Call Trace"
)


def complaints(kernel_log: str) -> list[str]:
    return [line for line in kernel_log.splitlines() if COMPLAINT.search(line)]
