# SPDX-License-Identifier: GPL-2.0-only
"""A build that is told to end leaves nothing running, neither make nor what make started."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cli import INTERRUPTED
from lab.core.paths import ROOT, Layout
from tests.rows import for_each_row
from tests.unit.fake_kernel import PIN
from tests.unit.files import program, write
from tests.unit.processes import is_gone, started, until

# Ends when it is told to, but does not tell its child.
MAKE = """\
#!/bin/sh
sleep 60 &
echo $$ $! > pids.new
mv pids.new pids
wait
"""
LAB = """
import sys
from pathlib import Path
from lab.core import paths
paths.LAYOUT = paths.Layout(Path(sys.argv[1]))
from lab import cli
from lab.build import kernel
kernel.source_tree = lambda _: paths.LAYOUT.linux
sys.exit(cli.main(["build", sys.argv[2]]))
"""


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A tree whose kernel is built, so that no space is asked for, and a make that sleeps."""
    made = Layout(tmp_path)
    write(made.pin, PIN)
    write(made.linux / "obj-kvm/arch/x86/boot/bzImage", "")
    program(tmp_path / "bin/make", MAKE)
    return made


@contextlib.contextmanager
def build_of(what: str, layout: Layout) -> Iterator[subprocess.Popen[bytes]]:
    """`lab build`, busy with make."""
    path = f"{layout.root / 'bin'}:{os.environ['PATH']}"
    with started(
        [sys.executable, "-c", LAB, layout.root, what],
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PATH": path},
    ) as running:
        assert until((layout.linux / "pids").exists)
        yield running


@pytest.mark.parametrize("what", ["kvm", "selftests"])
@for_each_row(
    "number, code",
    (signal.SIGINT, INTERRUPTED),
    (signal.SIGTERM, 128 + signal.SIGTERM),
    (signal.SIGHUP, 128 + signal.SIGHUP),
)
def test_all_that_make_started_ends(
    layout: Layout, what: str, number: signal.Signals, code: int
) -> None:
    with build_of(what, layout) as running:
        pids = [int(word) for word in (layout.linux / "pids").read_text().split()]
        assert len(pids) == 2 and not any(map(is_gone, pids))
        running.send_signal(number)
        assert running.wait(timeout=20) == code
        assert all(map(is_gone, pids))


# What it starts says that it was told to end, and takes its time.
SLOW = "(trap 'touch told; sleep 1; exit 1' TERM; while :; do sleep 0.1; done) &"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_being_told_twice_changes_nothing(layout: Layout, number: signal.Signals) -> None:
    (layout.root / "bin/make").write_text(MAKE.replace("sleep 60 &", SLOW))
    with build_of("kvm", layout) as running:
        pids = [int(word) for word in (layout.linux / "pids").read_text().split()]
        running.send_signal(number)
        assert until((layout.linux / "told").exists)
        running.send_signal(number)
        assert running.wait(timeout=20) in {INTERRUPTED, 128 + number}
        assert all(map(is_gone, pids))
