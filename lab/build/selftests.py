# SPDX-License-Identifier: GPL-2.0-only
"""Build the KVM selftests of a kernel tree."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from lab.build.kernel import BUILT, build_environment, is_newer, make_command, source_tree
from lab.core.locks import locked
from lab.core.paths import LAYOUT
from lab.core.steps import run_logged, step
from lab.series import tree
from lab.series.pin import PathMap, path_map

OBJECTS = "obj-selftests"
STRIPPED = "stripped"
# The selftests that measure.
PERF_TEST = "dirty_log_perf_test"
LIVE_TEST = "x86/dirty_log_live_perf_test"
SELFTESTS = "tools/testing/selftests/kvm"


def _drop_if_built_otherwise(objects: Path, command: Sequence[str]) -> None:
    """Remove OBJECTS if another command has built them: their Makefile does not look for that."""
    stamp, text = objects / "command", shlex.join(command)
    if not stamp.exists() or stamp.read_text() != text:
        shutil.rmtree(objects, ignore_errors=True)
        objects.mkdir()
        stamp.write_text(text)


def compile_in(source: Path, log: Path) -> Path:
    """Build the selftests of the tree SOURCE; returns where they are.

    WorkFailed: they do not compile.
    """
    env = build_environment()
    output = source / OBJECTS / "kvm"
    command = (
        "make",
        f"-j{os.cpu_count()}",
        "ARCH=x86_64",
        "CC=ccache gcc",
        # Some files are named by their whole path. The programs must not depend on where the tree
        # lies: simulated time depends on every byte of them.
        f"EXTRA_CFLAGS=-g0 -ffile-prefix-map={source}/=",
        f"OUTPUT={output}",
        f"KHDR_INCLUDES=-isystem {source / OBJECTS / 'usr/include'}",
    )
    _drop_if_built_otherwise(source / OBJECTS, command)
    output.mkdir(parents=True, exist_ok=True)
    run_logged("make headers", make_command(OBJECTS, "headers"), log, source, env)
    run_logged("building the selftests", command, log, source / SELFTESTS, env)
    return output


def name_of(program: Path, paths: PathMap) -> Path:
    """What the newest base, and so the repository, calls a program of some base."""
    return Path(paths.back(f"{SELFTESTS}/{program}")).relative_to(SELFTESTS)


def strip_new(source: Path, built: Path, stripped: Path, paths: PathMap) -> None:
    """Bring the stripped copies up to date, and drop those of tests that are gone.

    source: the kernel tree. Only programs whose source it has count: BUILT may still have others,
    from when another commit was checked out.
    """
    sources = source / SELFTESTS
    plain = (file for file in built.rglob("*") if file.suffix == "" and file.is_file())
    there = (file for file in plain if os.access(file, os.X_OK))
    found = [f for f in there if (sources / f.relative_to(built)).with_suffix(".c").exists()]
    programs = {name_of(file.relative_to(built), paths): file for file in found}
    for old in stripped.rglob("*"):
        if old.is_file() and old.relative_to(stripped) not in programs:
            old.unlink()
    for name, file in programs.items():
        target = stripped / name
        if not target.exists() or target.stat().st_mtime < file.stat().st_mtime:
            target.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["strip", "-o", target, file], check=True)


def build(kind: str) -> Path:
    """Build the selftests of a kind of kernel, incrementally.

    Returns a directory with the stripped programs at the selftest-relative paths of
    the newest base, as in x86/nx_huge_pages_test. Raises like lab.build.kernel.build().
    """
    source = source_tree(kind)
    log = LAYOUT.log / f"selftests-{kind}.log"
    log.unlink(missing_ok=True)
    with locked(tree.lock(source)), step(f"Building the {kind} selftests", "30 s"):
        (source / OBJECTS / BUILT).unlink(missing_ok=True)
        built = compile_in(source, log)
        stripped = source / OBJECTS / STRIPPED
        strip_new(source, built, stripped, path_map(LAYOUT))
        (source / OBJECTS / BUILT).touch()
    return stripped


def built_since(since: float, kind: str) -> Path | None:
    """The directory that build(kind) has brought up to date at SINCE or later."""
    objects = LAYOUT.tree_of(kind) / OBJECTS
    return objects / STRIPPED if is_newer(objects / BUILT, since) else None
