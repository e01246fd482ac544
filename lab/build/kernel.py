# SPDX-License-Identifier: GPL-2.0-only
"""Configure and build the kernels.

Objects lie in a directory of the source tree, so that kbuild calls the
compiler with relative paths and ccache recognises a file in every tree.
"""

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.build import mutants, ungated
from lab.core import space
from lab.core.errors import LabError
from lab.core.git import Repo
from lab.core.locks import locked
from lab.core.lookup import check_known, named
from lab.core.paths import CONFIG, KINDS, LAYOUT, Layout
from lab.core.steps import run_logged, step
from lab.series import topics, tree
from lab.series.source import current_source

# The fragments of each configuration, applied to tinyconfig in this order.
CONFIGS = {
    "kvm": ("kvm.config",),
    "kvm-preempt": ("kvm.config", "preempt.config"),
    "debug": ("kvm.config", "debug.config"),
    "fault": ("kvm.config", "fault.config"),
    "pae": ("kvm.config", "pae.config"),
    "bpf": ("kvm.config", "preempt.config", "bpf.config"),
    "leaks": ("kvm.config", "leaks.config"),
    "kcsan": ("kvm.config", "kcsan.config"),
    "host": ("kvm.config", "host.config"),
}
# kbuild's ARCH: the usual one, and those of configurations that have another one.
ARCH_64 = "x86_64"
ARCHITECTURES = {"pae": "i386"}
# With two cores and an empty ccache.
ESTIMATE = "4 to 6 min, less with a warm ccache"
# The objects of the largest configuration, debug, need half of this.
NEEDED_GIB = 0.5
# In the directory of objects: a file as old as the end of the last build, which succeeded.
BUILT = ".lab-built"

# Variables that may reach kbuild. Others of the user could change the result: MAKEFLAGS, ARCH...
PASSED_ON = re.compile(r"PATH|HOME|USER|TMPDIR|CCACHE_\w+|XDG_\w+")
REPRODUCIBLE = {
    "KBUILD_BUILD_TIMESTAMP": "Thu Jan  1 00:00:00 UTC 2026",
    "KBUILD_BUILD_USER": "lab",
    "KBUILD_BUILD_HOST": "lab",
    "KBUILD_BUILD_VERSION": "1",
    "LC_ALL": "C",
}
# Without depend mode ccache preprocesses a file that it has to compile a second time.
FASTER = {"CCACHE_DEPEND": "1"}


@dataclass(frozen=True)
class Kernel:
    """A kernel that is built. image: its bzImage. release: what uname -r says."""

    kind: str
    config: str
    image: Path
    release: str


def build_environment() -> dict[str, str]:
    """The environment for make; of the user's variables only those that don't change the result."""
    kept = {key: value for key, value in os.environ.items() if PASSED_ON.fullmatch(key)}
    return FASTER | kept | REPRODUCIBLE


def arch_of(config: str) -> str:
    return ARCHITECTURES.get(config, ARCH_64)


def make_command(objects: str, *targets: str, arch: str = ARCH_64) -> tuple[str, ...]:
    """The kbuild command for TARGETS, objects being a directory below the tree."""
    make = ("make", f"-j{os.cpu_count()}", f"O={objects}", f"ARCH={arch}")
    return (*make, "CC=ccache gcc", "HOSTCC=ccache gcc", *targets)


def _commit_of(kind: str, layout: Layout) -> str:
    repo = Repo(layout.linux)
    if kind == "peer":
        return ungated.commit(repo)
    if kind == "mutants":
        return mutants.commit(repo, mutants.load(layout))
    if kind == "topic":
        return topics.commit(layout)
    return tree.BASE_TAG


def source_tree(kind: str, layout: Layout = LAYOUT) -> Path:
    """The up-to-date work tree of a kind of kernel, one of KINDS.

    LabError: no such kind. Also raises what lab.series.tree.make() and the functions commit() of
    lab.build.ungated, lab.build.mutants and lab.series.topics raise.
    """
    check_known(KINDS, kind, "kernel")
    if kind in ("series", "mutants", "topic") or not layout.linux.exists():
        tree.make(layout, current_source(layout))
    path = layout.tree_of(kind)
    if kind != "series":
        commit = _commit_of(kind, layout)
        with locked(tree.lock(path)):
            tree.work_tree(layout, path, commit)
    return path


def wanted(fragments: Iterable[Path]) -> dict[str, str]:
    """The values that FRAGMENTS set, by symbol; "n" for a symbol that they switch off."""
    values: dict[str, str] = {}
    for fragment in fragments:
        for line in fragment.read_text().splitlines():
            if match := re.fullmatch(r"(CONFIG_\w+)=(.*)", line):
                # Kconfig treats an empty string like a symbol that is not set.
                values[match[1]] = "n" if match[2] == '""' else match[2]
            elif match := re.fullmatch(r"# (CONFIG_\w+) is not set", line):
                values[match[1]] = "n"
    return values


def verify(config: Path, asked: Mapping[str, str]) -> None:
    """LabError: the file CONFIG does not have all values of ASKED. Names those that are missing."""
    took = wanted([config])
    failed = [f"{name}={value}" for name, value in asked.items() if took.get(name, "n") != value]
    if failed:
        raise LabError(
            f"{config}: not accepted: {' '.join(failed)}; an option that they depend on"
            " is missing from the fragments, or the kernel no longer has them"
        )


def configure(
    source: Path,
    objects: str,
    fragments: Sequence[Path],
    log: Path,
    arch: str = ARCH_64,
    first: bytes = b"",
) -> None:
    """Make OBJECTS/.config of tinyconfig and the fragments, or bring it up to date.

    first: the text of a .config to begin with instead of tinyconfig. LabError: a value that a
    fragment sets did not take effect.
    """
    made_of = b"".join((first, *(fragment.read_bytes() for fragment in fragments)))
    digest = hashlib.sha256(made_of).hexdigest()
    stamp = source / objects / ".lab-config"
    env = build_environment()
    config = source / objects / ".config"
    if not config.exists() or not stamp.exists() or stamp.read_text() != digest:
        stamp.unlink(missing_ok=True)
        run_logged("tinyconfig", make_command(objects, "tinyconfig", arch=arch), log, source, env)
        if first:
            config.write_bytes(first)
        merge = ("scripts/kconfig/merge_config.sh", "-m", "-O", objects, f"{objects}/.config")
        run_logged("merge_config", (*merge, *map(str, fragments)), log, source, env)
    run_logged("olddefconfig", make_command(objects, "olddefconfig", arch=arch), log, source, env)
    verify(config, wanted(fragments))
    stamp.write_text(digest)


def fragments_of(config: str, layout: Layout = LAYOUT) -> list[Path]:
    """The files of a configuration, each followed by that of an older base which overrides it.

    LabError: there is no such configuration.
    """
    places = (CONFIG, layout.backport / "config")
    found = (place / name for name in named(CONFIGS, config, "configuration") for place in places)
    return [file for file in found if file.parent == CONFIG or file.exists()]


def image_in(source: Path, config: str) -> Path:
    return source / f"obj-{config}" / "arch/x86/boot/bzImage"


def build(kind: str, config: str) -> Kernel:
    """Build a kernel, incrementally.

    kind: one of KINDS. config: a name in CONFIGS.
    LabError: no such kind or configuration, or one that does not take effect.
    WorkFailed: it does not compile; the end of the log has been shown.
    """
    fragments = fragments_of(config)
    source = source_tree(kind)
    objects = f"obj-{config}"
    arch, image = arch_of(config), image_in(source, config)
    built = source / objects / BUILT
    if not image.exists():
        space.need(source, NEEDED_GIB, "a kernel")
    log = LAYOUT.log / f"kernel-{kind}-{config}.log"
    log.unlink(missing_ok=True)
    what = f"Building the {kind} kernel, configuration {config}"
    estimate = "1 min or less" if image.exists() else ESTIMATE
    with locked(tree.lock(source)), step(what, estimate):
        built.unlink(missing_ok=True)
        configure(source, objects, fragments, log, arch)
        command = make_command(objects, f"LOCALVERSION=-{kind}", "bzImage", arch=arch)
        run_logged(what, command, log, source, build_environment())
        built.touch()
    return _in(source, kind, config)


def _in(source: Path, kind: str, config: str) -> Kernel:
    release = source / f"obj-{config}" / "include/config/kernel.release"
    return Kernel(kind, config, image_in(source, config), release.read_text().strip())


def is_newer(stamp: Path, since: float) -> bool:
    """Whether there is a file STAMP that was written at SINCE, in seconds since 1970, or later."""
    return stamp.exists() and stamp.stat().st_mtime >= since


def built_since(since: float, kind: str, config: str) -> Kernel | None:
    """The kernel that build(kind, config) has built at SINCE or later.

    Nothing is done for it, not even whether the sources have changed: that takes make 10 s.
    """
    source = LAYOUT.tree_of(kind)
    return _in(source, kind, config) if is_newer(source / f"obj-{config}" / BUILT, since) else None
