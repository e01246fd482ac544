# SPDX-License-Identifier: GPL-2.0-only
"""`lab soak`: the stress and race tests with new seeds, for as long as asked for."""

import math
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

import click

from lab import machines
from lab.build import kernel, selftests
from lab.core.errors import LabError
from lab.core.steps import say
from lab.results.files import output_file
from lab.verify import soak
from lab.verify.soak import Kind, Soak

SEED_BITS = 40
MOST_MINUTES = 100_000


def _seed(context: click.Context, option: click.Parameter, text: str | None) -> int:
    if text is None:
        return secrets.randbits(SEED_BITS)
    try:
        value = int(text, 0)
    except ValueError:
        value = -1
    if not 0 <= value < 1 << 63:
        raise click.BadParameter(f"{text!r} is not a whole number from 0 to 2^63-1")
    return value


def _run(kinds: Sequence[Kind], seed: int, minutes: float, file: Path) -> int:
    machine = machines.get(soak.MACHINE)
    configs = dict.fromkeys(kind.config for kind in kinds)
    kernels = {config: kernel.build("series", config) for config in configs}
    images = {config: built.image for config, built in kernels.items()}
    tests = selftests.build("series")
    say(f"soak: {minutes:g} min on {soak.MACHINE}, first seed {seed:#x}")
    started = time.monotonic()
    state = Soak(kinds, seed, started + minutes * 60, kernels[kinds[0].config].release)
    status, ended, lines = 1, "failed", 0
    try:
        soak.run_all(machine, state, images, tests)
        status, ended = 0, "nothing was found"
    except KeyboardInterrupt:
        status, ended = soak.INTERRUPTED, "interrupted"
    except SystemExit:
        # Told to end by a signal: where Ctrl-C is ignored, as under nohup, that is how.
        ended = "interrupted"
        raise
    except soak.Broken as broken:
        lines = broken.lines
        raise
    finally:
        soak.summarise(state, file, (time.monotonic() - started) / 60, ended, lines)
    return status


@click.command()
@click.option(
    "--minutes",
    type=click.FloatRange(0, MOST_MINUTES, min_open=True),
    default=60,
    help="For how long, after what has changed was built.",
)
@click.option("--seed", callback=_seed, help="Of the first run, instead of a random one.")
@click.option("--only", multiple=True, metavar="NAME", help=f"Of {', '.join(soak.NAMES)}.")
@click.option(
    "--dirty-harvest",
    "harvest",
    type=click.Choice(soak.HARVEST),
    default=soak.ANY,
    help="Whether VMs log by Dirty bits where they can; any: the stress test draws it, VM by VM.",
)
@click.option("--output", type=click.Path(path_type=Path), help="Instead of build/results/.")
@click.option("--dry-run", is_flag=True, help="Show what would be run.")
@click.option("--races", "look_for_races", is_flag=True, help="On a kernel with KCSAN: data races.")
def command(
    minutes: float,
    seed: int,
    only: tuple[str, ...],
    harvest: str,
    output: Path | None,
    dry_run: bool,
    look_for_races: bool,
) -> int:
    """Stress the series with new seeds, two machines at a time, until the time is over.

    Exit status: 0 nothing was found, 1 something was, 2 bad input, 130 interrupted; the last with
    the summary of what was done so far.
    """
    if math.isnan(minutes):
        raise LabError("--minutes: not a number")
    kinds = soak.chosen(only, harvest, soak.RACES if look_for_races else soak.KINDS)
    if dry_run:
        for kind in kinds:
            click.echo(f"{kind.name}: {kind.seconds} s of {kind.program.path}")
        return 0
    return _run(kinds, seed, minutes, output_file(output, "soak", "json"))
