# SPDX-License-Identifier: GPL-2.0-only
"""`lab soak`: the stress, fault injection and race tests with new seeds, for as long as asked for.

docs/developing.md, "Soaking", has method and limits, also those of `--races`. Boots report their
counters while they run, so that progress, and the summary after Ctrl-C, include them.
"""

import math
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import click

from lab import machines
from lab.build import kernel, selftests
from lab.core.errors import LabError, WorkFailed
from lab.core.parallel import for_each
from lab.core.steps import bar, say
from lab.results.files import output_file
from lab.verify.soak_boots import Boot, Broken, run_one, soak_job
from lab.verify.soak_kinds import ANY, DIRTY_BITS, KINDS, NAMES, RACES, Kind, chosen
from lab.verify.soak_summary import MACHINE, Soak, summarise

INTERRUPTED = 130
SEED_BITS = 40
MOST_MINUTES = 100_000
SOME = f"Run only this kind of boot; can be repeated. Kinds: {', '.join(NAMES)}."


def _seed(text: str) -> int:
    with suppress(ValueError):
        if 0 <= (value := int(text, 0)) < 1 << 63:
            return value
    raise click.BadParameter(f"{text!r} is not a whole number from 0 to 2^63-1")


def _run(kinds: Sequence[Kind], seed: int, minutes: float, file: Path) -> int:
    machine = machines.get(MACHINE)
    kernels = {c: kernel.build("series", c) for c in dict.fromkeys(kind.config for kind in kinds)}
    images = {config: built.image for config, built in kernels.items()}
    tests = selftests.build("series")
    say(f"soak: {minutes:g} min on {MACHINE}, first seed {seed:#x}")
    started = time.monotonic()
    state = Soak(kinds, seed, started + minutes * 60, kernels[kinds[0].config].release)
    status, ended, lines = 1, "failed", 0
    missed: list[str] = []

    def work(boot: Boot) -> None:
        job = soak_job(boot, images[boot.kind.config], tests, partial(state.so_far, boot.seed))
        state.runs[boot.seed] = run_one(machine, boot, job)

    try:
        # This goes on until the time is over. The first failure, or Ctrl-C, ends running boots.
        with bar(
            "soak", minutes * 60, lambda: (minutes * 60 - state.left_s(), state.text())
        ) as tick:
            for_each(state.boots(), work, tick)
        status, ended = 0, "nothing was found"
    except KeyboardInterrupt:
        status, ended = INTERRUPTED, "interrupted"
    except SystemExit:
        # A signal ends the soak. Under nohup, which ignores Ctrl-C, that is the only way.
        ended = "interrupted"
        raise
    except Broken as broken:
        lines = broken.lines
        raise
    finally:
        missed = summarise(state, file, (time.monotonic() - started) / 60, ended, lines)
    if status == 0 and missed:
        raise WorkFailed(f"no boot failed, but goals were missed: {'; '.join(missed)}")
    return status


@click.command()
@click.option(
    "--minutes",
    type=click.FloatRange(0, MOST_MINUTES, min_open=True),
    default=60,
    help="Duration, not counting the time of builds.",
)
@click.option(
    "--seed", type=_seed, metavar="NUMBER", help="Seed of the first run, instead of a random one."
)
@click.option("--only", multiple=True, type=click.Choice(NAMES), metavar="NAME", help=SOME)
@click.option(
    "--dirty-bits",
    "dirty_bits",
    type=click.Choice(DIRTY_BITS),
    default=ANY,
    help="Value of kvm.dirty_bits. any: on or off at random; the stress test chooses for each VM.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="File for the results, instead of one in build/results/.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be run.")
@click.option(
    "--races", "look_for_races", is_flag=True, help="Look for data races, on a kernel with KCSAN."
)
def command(
    minutes: float,
    seed: int | None,
    only: tuple[str, ...],
    dirty_bits: str,
    output: Path | None,
    dry_run: bool,
    look_for_races: bool,
) -> int:
    """Stress the series with new seeds, in two machines at a time, until the time is over.

    Exit status: 0: no failure. 1: a boot failed, or a soak of all kinds of boots missed a goal. 2:
    wrong input. 130: interrupted; the summary is printed nevertheless.
    """
    if math.isnan(minutes):
        raise LabError("--minutes: not a number")
    kinds = chosen(only, dirty_bits, RACES if look_for_races else KINDS)
    if dry_run:
        for kind in kinds:
            click.echo(f"{kind.name}: {kind.seconds} s of {kind.program.path}")
        return 0
    seed = secrets.randbits(SEED_BITS) if seed is None else seed
    return _run(kinds, seed, minutes, output_file(output, "soak", "json"))
