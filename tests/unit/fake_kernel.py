# SPDX-License-Identifier: GPL-2.0-only
"""A kernel source of a few files, and a repository for it, so that tests are fast."""

import hashlib
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lab.core.paths import DEFAULT_BASE, Layout
from lab.series import tree
from lab.series.source import KernelSource
from tests.unit.files import write

MMU = "arch/x86/kvm/mmu/mmu.c"
HEADER = "include/linux/kvm_host.h"
PROGRAM = "tools/testing/selftests/kvm/perf_test.c"
SPLITTER = "arch/x86/kvm/mmu/eager_split.c"

PIN = 'package = "linux-source"\ntarball = "/none"\n[proved]\n"1.0" = "00"\n'
# Directories that FakeKernel.repository() leaves out.
OTHERS = ("build/", "base/")

MMU_TEXT = """\
// SPDX-License-Identifier: GPL-2.0-only
#include <linux/kvm_host.h>

#define OLD_BATCH 8

static int split_one(struct kvm *kvm);

/* Reaches the first page. */
static int first(struct kvm *kvm)
{
\treturn kvm->pages[0];
}

/*
 * Splits one page, the old way.
 */
static int split_one(struct kvm *kvm)
{
\tint i;

\tfor (i = 0; i < OLD_BATCH; i++)
\t\tkvm->pages[i]++;
\treturn 0;
}

static int middle(struct kvm *kvm)
{
\treturn kvm->pages[1];
}

int split_all(struct kvm *kvm)
{
\tint r = split_one(kvm);

\treturn r ? r : first(kvm) + middle(kvm);
}
EXPORT_SYMBOL_GPL(split_all);

int last(struct kvm *kvm)
{
\treturn kvm->pages[2];
}
"""

HEADER_TEXT = """\
#define EXPORT_SYMBOL_GPL(x) extern int export_##x
struct kvm { int pages[8]; };
int split_all(struct kvm *kvm);
int last(struct kvm *kvm);
"""

PROGRAM_TEXT = "".join(f"int upstream_line_{number};\n" for number in range(40))

BASE_FILES = {
    "Kbuild": "obj-y += arch/\n",
    "Makefile": "VERSION = 6\n",
    ".gitignore": "*.o\nignored.txt\n",
    "ignored.txt": "in the package although .gitignore names it\n",
    "arch/x86/kvm/Makefile": "obj-y += mmu/mmu.o\nobj-y += x86.o\n",
    MMU: MMU_TEXT,
    HEADER: HEADER_TEXT,
    PROGRAM: PROGRAM_TEXT,
    "scripts/obsolete.txt": "no longer read\n",
}


def diff_of(path: str) -> str:
    """The header of a file's diff."""
    return f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n"


def write_tarball(path: Path, files: Mapping[str, str] = BASE_FILES) -> Path:
    """Write a .tar.xz like that of Debian's package: everything lies in one directory."""
    staging = path.parent / "staging"
    for name, text in files.items():
        write(staging / "linux-source" / name, text, 0o755 if text.startswith("#!") else 0o644)
    with tarfile.open(path, "w:xz") as archive:
        archive.add(staging / "linux-source", "linux-source")
    return path


@dataclass(frozen=True)
class FakeKernel:
    """A repository in `layout.root`, and its kernel source."""

    layout: Layout
    source: KernelSource

    @classmethod
    def make(cls, directory: Path, files: Mapping[str, str] = BASE_FILES) -> "FakeKernel":
        root = directory / "repository"
        root.mkdir(parents=True)
        tarball = write_tarball(directory / "linux-source.tar.xz", files)
        sha256 = hashlib.sha256(tarball.read_bytes()).hexdigest()
        made = cls(Layout(root), KernelSource("linux-source", "1.0", tarball, sha256, True))
        made.put(f"base/{DEFAULT_BASE}.pin", PIN)
        return made

    @classmethod
    def with_tree(cls, directory: Path, files: Mapping[str, str] = BASE_FILES) -> "FakeKernel":
        made = cls.make(directory, files)
        made.make_tree()
        return made

    def prove(self) -> None:
        """Let the pin prove the source, so that base/VERSION.sums is written and compared."""
        pin = self.layout.pin.read_text()
        self.layout.pin.write_text(pin.replace('"1.0" = "00"', f'"1.0" = "{self.source.sha256}"'))

    @property
    def linux(self) -> Path:
        return self.layout.linux

    def make_tree(self, *, discard: bool = False) -> str:
        return tree.make(self.layout, self.source, discard=discard)

    def git(self, *arguments: str) -> str:
        """Run git in build/linux, as a developer does."""
        command = ("git", "-c", "user.name=Dev", "-c", "user.email=dev@example.org", *arguments)
        done = subprocess.run(command, cwd=self.linux, check=True, capture_output=True, text=True)
        return done.stdout.removesuffix("\n")

    def read(self, path: str) -> str:
        return (self.linux / path).read_text()

    def write(self, path: str, text: str, *, commit: str = "") -> None:
        """Write a file in build/linux. commit: the message to commit it with; empty: do not."""
        write(self.linux / path, text)
        if commit:
            self.commit(commit)

    def edit(self, path: str, old: str, new: str, *, commit: str = "") -> None:
        text = self.read(path)
        assert old in text
        self.write(path, text.replace(old, new, 1), commit=commit)

    def commit(self, message: str) -> str:
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message)
        return self.git("rev-parse", "HEAD")

    def put(self, path: str, text: str) -> None:
        write(self.layout.root / path, text)

    def repository(self) -> dict[str, bytes]:
        """All files of the repository outside build/ and base/."""
        root = self.layout.root
        files = (file for file in root.rglob("*") if file.is_file())
        names = ((file.relative_to(root).as_posix(), file) for file in files)
        return {name: file.read_bytes() for name, file in names if not name.startswith(OTHERS)}
