# SPDX-License-Identifier: GPL-2.0-only
"""base/VERSION.sums: what the series makes of those files of the kernel that are measured.

The file has a checksum of each file that the series edits or removes, as the last mail leaves it.
So it does not depend on how the series is cut into mails. The whole text of the other files is in
the repository. A checksum covers all of a file's code, also that of the base: if a newer point
release of the base has other code there, the checksum changes, too.

`make save` writes the file, `make tree` fails if it is not true. Paths are those of the newest
base.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from lab.core import complete
from lab.core.errors import LabError
from lab.core.git import Repo
from lab.core.paths import Layout
from lab.series.files import Series, read_text

KERNEL = ("arch/x86/*", "include/*", "kernel/*", "lib/*", "mm/*", "virt/*")
# Debug kernels alone have these, and no debug kernel is measured.
DEBUG_ONLY = ("arch/x86/kvm/mmu/prove.c", "arch/x86/kvm/mmu/prove_race.c")
_TESTS = "tools/testing/selftests/kvm"
# The selftests that measure, without and with running vCPUs.
PERF = (
    *(f"{_TESTS}/{name}" for name in ("dirty_log_perf*", "x86/dirty_log_perf*")),
    *(f"{_TESTS}/{name}" for name in ("include/dirty_log_perf.h", "*/test_options.[ch]")),
    *(f"{_TESTS}/{name}" for name in ("*/memstress.[ch]", "lib/kvm_util.c", "include/kvm_util.h")),
)
LIVE = (*PERF, f"{_TESTS}/x86/dirty_log_live*")
MEASURED = (*KERNEL, *LIVE)

DIGITS = 16
# In the place of the checksum of a file that the series removes.
DELETED = "deleted"
HEAD = """\
# SPDX-License-Identifier: GPL-2.0-only
# Checksums of the measured files of the kernel that the series edits or removes, as it leaves
# them, C without comments. `make save` writes this file; see docs/developing.md, "Bases".
"""

_COMMENT = re.compile(
    r"""("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|/\*.*?\*/|//[^\n]*""", re.DOTALL
)
_C = (".c", ".h", ".S")
_LINE = re.compile(rf"([0-9a-f]{{{DIGITS}}}|{DELETED}) +(\S+)")


def without_comments(code: str) -> str:
    """C without comments and without the white space that no compiler sees."""
    plain = _COMMENT.sub(lambda found: found[1] or " ", code)
    return "\n".join(line for line in map(" ".join, map(str.split, plain.splitlines())) if line)


def is_measured(path: str, patterns: Iterable[str] = MEASURED) -> bool:
    """Whether a file is called like one of PATTERNS. path: that of the newest base."""
    return path not in DEBUG_ONLY and any(fnmatchcase(path, pattern) for pattern in patterns)


def sum_of(path: str, content: bytes) -> str:
    """The checksum of a file's content; of C, without comments."""
    text = content.decode(errors="surrogateescape")
    code = without_comments(text) if path.endswith(_C) else text
    return hashlib.sha256(code.encode(errors="surrogateescape")).hexdigest()[:DIGITS]


def _of_whole(layout: Layout, series: Series) -> dict[str, str]:
    """The checksums of the whole files of the repository."""
    files = {series.paths.back(path): path for path in series.whole}
    return {
        name: sum_of(name, series.read_whole(layout.root, path).content)
        for name, path in files.items()
        if is_measured(name)
    }


def of_tree(layout: Layout, repo: Repo, series: Series, base: str, head: str) -> dict[str, str]:
    """What the file has to say if the mails of SERIES make BASE..HEAD, by path."""
    words = ("diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", base, head)
    fields = repo.text(*words).split("\0")
    found, blobs = {}, {}
    for entry, path in zip(fields[::2], fields[1::2], strict=False):
        *_, blob, status = entry.split(" ")
        name = series.paths.back(path)
        if not is_measured(name):
            continue
        if status == "D":
            found[name] = DELETED
        else:
            blobs[name] = blob
    contents = repo.contents([*blobs.values()])
    found |= {name: sum_of(name, one) for name, one in zip(blobs, contents, strict=True)}
    whole = _of_whole(layout, series)
    return {name: made for name, made in sorted(found.items()) if whole.get(name) != made}


def _name(layout: Layout) -> str:
    return layout.sums.relative_to(layout.root).as_posix()


def read(layout: Layout) -> dict[str, str]:
    """What the file says; nothing if there is none. LabError: it cannot be read."""
    if not layout.sums.exists():
        return {}
    found = {}
    for number, line in enumerate(read_text(layout.sums).splitlines(), 1):
        if line.startswith("#"):
            continue
        if not (match := _LINE.fullmatch(line)):
            raise LabError(
                f"{_name(layout)}:{number}: expected a checksum and a path:"
                f" `make tree BASE={layout.version}`, then `make save BASE={layout.version}` write"
                " it anew"
            )
        found[match[2]] = match[1]
    return found


def write(layout: Layout, found: Mapping[str, str]) -> list[str]:
    """Write the file, if it is another one then; returns its name in that case."""
    lines = (f"{made:{DIGITS}}  {path}\n" for path, made in found.items())
    text = HEAD + "".join(lines)
    if layout.sums.exists() and read_text(layout.sums) == text:
        return []
    with complete.file(layout.sums) as stream:
        stream.write(text)
    return [_name(layout)]


def check(layout: Layout, found: Mapping[str, str]) -> None:
    """LabError: the file does not say what of_tree() has FOUND."""
    said = read(layout)
    wrong = [path for path in sorted({*said, *found}) if said.get(path) != found.get(path)]
    if wrong:
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise LabError(
            f"{_name(layout)} is not what the series makes of {wrong[0]}{more}:"
            f" run `make save BASE={layout.version}`"
        )


def of_repository(layout: Layout, series: Series, patterns: Iterable[str]) -> dict[str, str]:
    """The checksums of all files called like PATTERNS that the series adds, edits or removes."""
    wanted = tuple(patterns)
    every = _of_whole(layout, series) | read(layout)
    return {name: made for name, made in every.items() if is_measured(name, wanted)}
