# SPDX-License-Identifier: GPL-2.0-only
"""Which state of the code a line of results has measured.

Each line that is measured on kernels of the lab has two keys. "source" is a digest of the kernel
code of its base and of the programs that measure, so it stays the same if only changelogs,
comments, documents or tests change. "commit" is the commit of this repository that last
changed the files that these are made of.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Any

from lab.core.errors import LabError
from lab.core.git import GitFailed, Repo
from lab.core.paths import LAYOUT, Layout
from lab.series import files, mail, tree
from lab.series.pin import read_pin

SOURCE, COMMIT = "source", "commit"
# The source of a line that has none, and of one that measured work that `make save` has not seen.
UNKNOWN, UNSAVED = "unknown", "unsaved"
DIGITS = 12

KERNEL = ("arch/x86/*", "include/*", "kernel/*", "lib/*", "mm/*", "virt/*")
# Debug kernels alone have these, and no debug kernel is measured.
DEBUG_ONLY = ("arch/x86/kvm/mmu/prove.c", "arch/x86/kvm/mmu/prove_race.c")
_TESTS = "tools/testing/selftests/kvm"
_PERF = (
    *(f"{_TESTS}/{name}" for name in ("dirty_log_perf*", "x86/dirty_log_perf*")),
    *(f"{_TESTS}/{name}" for name in ("include/dirty_log_perf.h", "*/test_options.[ch]")),
    *(f"{_TESTS}/{name}" for name in ("*/memstress.[ch]", "lib/kvm_util.c", "include/kvm_util.h")),
)
_BENCH = (*_PERF, "scripts/split-bench.sh")
_LIVE = (*_PERF, f"{_TESTS}/x86/dirty_log_live*")
# The programs that measure, by kind of results: patterns of their sources, in the kernel and here.
PROGRAMS = {
    **dict.fromkeys(("bench", "memory", "cycles", "crossover"), _BENCH),
    "live": _LIVE,
    **dict.fromkeys(("tracking", "cost", "lock"), _PERF),
    "migrate": ("lab/measure/migration/*.sh", "lab/measure/migration/guest/*"),
    "native": ("lab/measure/native/*.[ch]",),
}
# What decides how the measured kernels are built.
BUILT_BY = ("lab/config/kvm.config", "lab/build/ungated.patch")

_COMMENT = re.compile(
    r"""("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|/\*.*?\*/|//[^\n]*""", re.DOTALL
)
_HUNK = re.compile(r"^@@ -\S+ \+\S+ @@.*$", re.MULTILINE)
# In a hunk: a line, of the kernel's coding style, that has nothing but a comment or a part of one.
_COMMENT_LINE = re.compile(
    r"^[ +-][ \t]*(?:/\*.*\*/|/\*\*?[^*\n]*|\*/|\*(?:[ \t].*)?)[ \t]*\n", re.MULTILINE
)


def without_comments(code: str) -> str:
    """C without comments and without the white space that no compiler sees."""
    plain = _COMMENT.sub(lambda found: found[1] or " ", code)
    return "\n".join(line for line in map(" ".join, map(str.split, plain.splitlines())) if line)


def _matches(path: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def _edits(diff: str) -> Iterator[tuple[str, str]]:
    """The files that a diff edits, and what is changed in each: not where, and no comments."""
    for path, part in mail.edits(diff).items():
        edit = part.removeprefix(f"diff --git a/{path} ")
        yield path, _COMMENT_LINE.sub("", _HUNK.sub("@@", edit))


def _series(layout: Layout, patterns: Iterable[str]) -> dict[str, list[str]]:
    """What the series does to the files of a base that are called like PATTERNS, in order.

    Paths are those of the newest base.
    """
    wanted = tuple(patterns)
    found: dict[str, list[str]] = defaultdict(list)
    series = files.load(layout)

    def counts(path: str) -> bool:
        name = series.paths.back(path)
        return _matches(name, wanted) and name not in DEBUG_ONLY

    for _, one in series.mails:
        done = [(removal.path, f"removes {removal.symbol}") for removal in one.removes]
        done += [(path, "deletes") for path in one.deletes]
        # What it does to whole files is in their text.
        done += [(path, edit) for path, edit in _edits(one.diff) if path not in one.grows]
        for path in filter(counts, one.whole):
            content = series.read_whole(layout.root, path).content.decode(errors="replace")
            done.append((path, without_comments(content)))
        for path, what in done:
            if counts(path):
                found[series.paths.back(path)].append(what)
    return found


def _own(layout: Layout, patterns: Iterable[str]) -> dict[str, list[str]]:
    """The texts of files of the repository that are no kernel's."""
    own = [pattern for pattern in patterns if pattern.startswith(("lab/", "scripts/"))]
    named = (file for pattern in own for file in sorted(layout.root.glob(pattern)))
    built_by = [layout.root / name for name in BUILT_BY]
    config = layout.backport / "config" / "kvm.config"
    texts = [*built_by, *([config] if config.exists() else []), *named]
    return {file.relative_to(layout.root).as_posix(): [file.read_text()] for file in texts}


def source_of(kind: str, layout: Layout = LAYOUT) -> str:
    """The digest of the code that a result of KIND measures, as it is in the repository."""
    programs = PROGRAMS[kind]
    digest = hashlib.sha256(read_pin(layout).newest.encode())
    every = _series(layout, (*KERNEL, *programs)) | _own(layout, programs)
    for path, texts in sorted(every.items()):
        text = "\0".join([path, *texts])
        digest.update(f"{len(text)}\0{text}".encode(errors="surrogateescape"))
    return digest.hexdigest()[:DIGITS]


def _is_saved(layout: Layout) -> bool:
    """Whether build/linux is what the repository says."""
    with suppress(LabError):
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
    places = ["series", f"backport/{layout.version}", f"base/{layout.version}.pin", *kernel]
    paths = ("--", *places, *BUILT_BY, *whole)
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
