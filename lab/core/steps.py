# SPDX-License-Identifier: GPL-2.0-only
"""Long steps: what the user sees while they run, and the logs that keep their output."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from lab.core import process
from lab.core.errors import WorkFailed
from lab.core.space import complain_if_full

TAIL_LINES = 20
PLAIN_EVERY_S = 30.0

console = Console(stderr=True, highlight=False)


def say(line: str) -> None:
    """Print a line for the user, on stderr: stdout is for results."""
    console.print(line, markup=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """A duration for people, as in "40 s" or "3 min"."""
    if seconds < 90:
        return f"{max(5, 5 * round(seconds / 5))} s"
    return f"{round(seconds / 60)} min"


@contextmanager
def bar(
    what: str,
    total: float | None,
    now: Callable[[], tuple[float, str]],
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Callable[[], None]]:
    """Show progress: as a bar on a terminal, elsewhere as a line every PLAIN_EVERY_S seconds.

    Gives a function that updates it, to be called often. total: how much there is to do, None if
    that is not known. now: returns how much is done, and the same in words.
    """
    # On a narrow terminal the words are cut: several lines would flicker.
    words = TextColumn("{task.description}", table_column=Column(no_wrap=True, ratio=1))
    columns = (TextColumn(what, table_column=Column(no_wrap=True)), BarColumn(20), words)
    plain, last = not console.is_terminal, clock()
    with Progress(
        *columns, console=console, transient=True, disable=plain, expand=True
    ) as progress:
        task = progress.add_task("", total=total)

        def tick() -> None:
            nonlocal last
            if plain and clock() - last < PLAIN_EVERY_S:
                return
            last = clock()
            done, text = now()
            progress.update(task, completed=done, description=text)
            if plain:
                say(f"{what}: {text}")

        yield tick


@contextmanager
def step(what: str, estimate: str) -> Iterator[None]:
    """Print WHAT begins and about how long it will take, and at its end how long it took.

    estimate: for people, as in "3 min".
    """
    started = time.monotonic()
    say(f"{what} (about {estimate})")
    with console.status(what):
        yield
    say(f"{what}: done in {time.monotonic() - started:.0f} s")


def run_logged(
    what: str, command: Sequence[str], log: Path, cwd: Path, env: Mapping[str, str] | None = None
) -> None:
    """Run COMMAND in CWD with stdout and stderr appended to LOG; see process.run().

    Raises WorkFailed, after showing the end of the log, when it exits non-zero,
    and LabError when that came of a full disk.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as output:
        print("+", *command, file=output, flush=True)
        status = process.run(command, cwd, output, env=env)
    if status != 0:
        complain_if_full(cwd)
        say("\n".join(log.read_text(errors="replace").splitlines()[-TAIL_LINES:]))
        raise WorkFailed(f"{what} failed; the whole output is in {log}")
