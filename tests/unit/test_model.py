# SPDX-License-Identifier: GPL-2.0-only
"""tests/model/eager_split.pml, explored by spin: every state, or up to a counterexample.

A model in which nothing can go wrong proves nothing. So each safeguard is taken out in turn, and
the model has to find what that safeguard is for.
"""

import re
import subprocess
from pathlib import Path

import pytest

from lab.core.paths import ROOT

MODEL = ROOT / "tests" / "model" / "eager_split.pml"
# Twice what the largest takes. More would only hide that a change made the model explode.
MOST_MIB = 300
MOST_DEPTH = 5000

UNMAPPED = "(small|huge|tlb)\\["
FREED = "freed\\["
LOST = "ahead\\["
STUCK = "invalid end state"

# What is compiled in -> what is found.
BUGS = {
    # The splitter does not look for an invalidation in progress.
    ("BUG_NO_CHECK",): UNMAPPED,
    ("BUG_NO_CHECK", "GIB"): UNMAPPED,
    ("BUG_NO_CHECK", "ENABLE"): UNMAPPED,
    # It waits for the invalidation instead, with the lock held.
    ("BUG_WAIT",): STUCK,
    # It uses an SPTE that it found before it dropped the lock.
    ("BUG_STALE",): FREED,
    # The page fault does not look either.
    ("BUG_NO_RETRY",): FREED,
    # No flush after write-protection.
    ("BUG_NO_FLUSH",): LOST,
    ("BUG_NO_FLUSH", "ENABLE"): LOST,
    # User space copies pages before it clears their bits.
    ("BUG_COPY_FIRST",): LOST,
    # CLEAR write-protects the first of the huge pages that it reaches into.
    ("BUG_ONE_HUGE",): LOST,
}
GOOD = [(), ("GIB",), ("ENABLE",), ("DELETE",)]


def explore(directory: Path, macros: tuple[str, ...], level: str) -> str:
    """What the explorer, optimised to this LEVEL, says about the model with these macros defined.

    It takes a third of the time to compile it without, and twice as long to run it.
    """

    def run(*command: str, most_s: int = 60) -> str:
        return subprocess.run(
            command, cwd=directory, check=True, capture_output=True, text=True, timeout=most_s
        ).stdout

    run("spin", *(f"-D{macro}" for macro in macros), "-a", str(MODEL))
    # In two steps, since ccache knows objects only: they stay as long as the model does.
    run("ccache", "gcc", level, "-w", "-DSAFETY", f"-DMEMLIM={MOST_MIB}", "-c", "pan.c")
    run("gcc", "-o", "pan", "pan.o")
    return run("./pan", f"-m{MOST_DEPTH}", "-w20", "-n", most_s=120)


@pytest.mark.parametrize("macros", GOOD, ids=" ".join)
def test_with_every_safeguard_nothing_is_found(tmp_path: Path, macros: tuple[str, ...]) -> None:
    said = explore(tmp_path, macros, "-O1")
    assert "errors: 0" in said, said
    assert "Search not completed" not in said, said
    assert "max search depth too small" not in said, said
    states = re.search(r"(\d+) states, stored", said)
    assert states, said
    print(f"{' '.join(macros) or 'CLEAR'}: {states[1]} states")


@pytest.mark.parametrize("macros", BUGS, ids=" ".join)
def test_without_a_safeguard_what_it_is_for_shows(tmp_path: Path, macros: tuple[str, ...]) -> None:
    # Few states lead to the counterexample.
    said = explore(tmp_path, macros, "-O0")
    assert "errors: 1" in said, said
    assert re.search(BUGS[macros], said.splitlines()[0]), said
