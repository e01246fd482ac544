# SPDX-License-Identifier: GPL-2.0-only
"""Which state of the code a line of results has measured.

Each line that is measured on kernels of the lab has two keys. "source" is a digest of the kernel
code of its base and of the programs that measure, so it stays the same if only changelogs,
comments, documents or tests change. "commit" is the commit of this repository that last
changed the files that these are made of.
"""

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from lab.core.errors import LabError
from lab.core.git import GitFailed, Repo
from lab.core.paths import LAYOUT, Layout
from lab.series import files, sums, tree
from lab.series.pin import read_pin
from lab.series.sums import KERNEL, LIVE, PERF

SOURCE, COMMIT = "source", "commit"
# The source of a line that has none, and of one that measured work that `make save` has not seen.
UNKNOWN, UNSAVED = "unknown", "unsaved"
DIGITS = 12

_BENCH = (*PERF, "scripts/split-bench.sh")
# The programs that measure, by kind of results: patterns of their sources, in the kernel and here.
PROGRAMS = {
    **dict.fromkeys(("bench", "memory", "cycles", "crossover"), _BENCH),
    "live": LIVE,
    **dict.fromkeys(("tracking", "cost", "lock"), PERF),
    "migrate": ("lab/measure/migration/*.sh", "lab/measure/migration/guest/*"),
    "native": ("lab/measure/native/*.[ch]",),
}
# What decides how the measured kernels are built.
BUILT_BY = ("lab/config/kvm.config", "lab/build/ungated.patch")


def _own(layout: Layout, patterns: Iterable[str]) -> dict[str, str]:
    """The texts of files of the repository that are no kernel's."""
    own = [pattern for pattern in patterns if pattern.startswith(("lab/", "scripts/"))]
    named = (file for pattern in own for file in sorted(layout.root.glob(pattern)))
    built_by = [layout.root / name for name in BUILT_BY]
    config = layout.backport / "config" / "kvm.config"
    texts = [*built_by, *([config] if config.exists() else []), *named]
    return {file.relative_to(layout.root).as_posix(): file.read_text() for file in texts}


def source_of(kind: str, layout: Layout = LAYOUT) -> str:
    """The digest of the code that a result of KIND measures, as it is in the repository.

    Of the kernel it has the files that the series adds, edits or removes, as the last mail leaves
    them, whichever mails do that. These are digested with what they have of the base, so another
    point release of the base has another digest, in any case because of its version. Code that
    measured kernels compile to nothing counts, unless it is in files of its own.
    """
    programs = PROGRAMS[kind]
    digest = hashlib.sha256(read_pin(layout).newest.encode())
    kernel = sums.of_repository(layout, files.load(layout), (*KERNEL, *programs))
    for path, text in sorted((kernel | _own(layout, programs)).items()):
        named = f"{path}\0{text}"
        digest.update(f"{len(named)}\0{named}".encode(errors="surrogateescape"))
    return digest.hexdigest()[:DIGITS]


def _is_saved(layout: Layout) -> bool:
    """Whether build/linux is what the repository says, and base/VERSION.sums is true of it."""
    with suppress(LabError):
        tree.check_sums(layout)
        state = tree.read_state(layout.linux)
        inputs = files.fingerprint(layout, files.load(layout))
        return state.inputs == inputs and tree.unsaved(layout.linux) is None
    return False


def _commit_of(kind: str, layout: Layout) -> str:
    """The commit that last changed the files that are measured; "+": and they were changed since.

    Empty if git does not know.
    """
    whole = (f":(glob){pattern.replace('*/', '**/')}" for pattern in PROGRAMS[kind])
    kernel = (name.removesuffix("/*") for name in KERNEL)
    base = [f"base/{layout.version}.{what}" for what in ("pin", "sums")]
    paths = ("--", "series", f"backport/{layout.version}", *base, *kernel, *BUILT_BY, *whole)
    repo = Repo(layout.root)
    try:
        commit = repo.text("log", "-1", f"--abbrev={DIGITS}", "--format=%h", *paths)
        changed = repo.text("status", "--porcelain", *paths)
    except GitFailed:
        return ""
    return f"{commit}+" if commit and changed else commit


def measured(kind: str, layout: Layout = LAYOUT) -> dict[str, str]:
    """The keys that say what a result of KIND measures; call it when the kernels are built."""
    source = source_of(kind, layout) if _is_saved(layout) else UNSAVED
    return {SOURCE: source, COMMIT: _commit_of(kind, layout)}


def source_in(records: Iterable[Mapping[str, Any]]) -> str:
    """The source that all RECORDS have measured; UNKNOWN if one does not say, or if they differ."""
    found = {str(one.get(SOURCE) or UNKNOWN) for one in records}
    return found.pop() if len(found) == 1 else UNKNOWN
