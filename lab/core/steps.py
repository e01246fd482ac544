# SPDX-License-Identifier: GPL-2.0-only
"""Long steps: shown while they run, their output kept in a log."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from lab.core import process
from lab.core.errors import WorkFailed
from lab.core.space import complain_if_full

TAIL_LINES = 20
PLAIN_EVERY_S = 20.0

console = Console(stderr=True, highlight=False)


def say(line: str) -> None:
    """Tell the user one line, on stderr: stdout belongs to results."""
    console.print(line, markup=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """For people: "40 s", "3 min"."""
    if seconds < 90:
        return f"{max(5, 5 * round(seconds / 5))} s"
    return f"{round(seconds / 60)} min"


def now_and_then(
    text: Callable[[], str],
    every_s: float = PLAIN_EVERY_S,
    clock: Callable[[], float] = time.monotonic,
) -> Callable[[], None]:
    """Return a function to be called often, which says text() now and then."""
    last = clock()

    def tick() -> None:
        nonlocal last
        if clock() - last >= every_s:
            last = clock()
            say(text())

    return tick


@contextmanager
def step(what: str, estimate: str) -> Iterator[None]:
    """Announce WHAT and about how long it takes, then how long it took.

    estimate: for people, as in "3 min". On a terminal a clock runs meanwhile.
    """
    started = time.monotonic()
    if console.is_terminal:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            progress.add_task(f"{what} (about {estimate})")
            yield
    else:
        say(f"{what} (about {estimate})")
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
