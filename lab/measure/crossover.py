# SPDX-License-Identifier: GPL-2.0-only
"""`lab crossover`: dirty logging by Dirty bits beside write protection, over what is written.

docs/measuring.md, "Dirty bits instead of write protection", says what is measured.
lab.results.tradeoff computes crossings from that.
"""

from dataclasses import replace
from pathlib import Path

import click

from lab import machines
from lab.measure import bench
from lab.measure.plan import MACHINE, Boot, Matrix, bench_boots
from lab.page import command as page
from lab.page import dirty_bits
from lab.results import jsonl, tradeoff
from lab.results.files import output_file, output_option
from lab.results.tables import BASE_VCPUS

MODES = ("ept0", "ept1-nopml", "tdp-nopml", "tdp")
# Write percentages around the crossing, and some up to 100.
MATRIX = Matrix(
    vcpus=(BASE_VCPUS,),
    writes=(0, 1, 2, 5, 10, 20, 50, 100),
    eager=("Y",),
    iterations=tradeoff.ROUND,
    dirty_bits=("off", "on"),
)
# One vCPU writes, the memory of the others is idle. Two sizes of it give the cost of an idle page
# table. Five iterations, since in the TDP MMU that cost falls with the fourth GET.
IDLE = Matrix(
    vcpus=(2, 8),
    writes=(100,),
    eager=("Y",),
    bytes_per_vcpu="16M",
    iterations=5,
    dirty_bits=("off", "on"),
    busy=1,
)


def boots() -> list[Boot]:
    used, idle = (bench_boots(MACHINE, "series", matrix, MODES) for matrix in (MATRIX, IDLE))
    return [*used, *(replace(boot, part="idle memory") for boot in idle)]


def measure_into(file: Path) -> None:
    """Measure everything, and write FILE completely or not at all."""
    machine, plan = machines.get(MACHINE), boots()
    bench.announce(machine, plan, "dirty_bits=on beside off")
    bench.measure_into(file, machine, plan)


@click.command()
@output_option
@click.option("--dry-run", is_flag=True, help="Show what would be run.")
def command(output: Path | None, dry_run: bool) -> None:
    """Measure dirty_bits=on and =off over write percentages, and print where on becomes faster.

    Write JSON lines, and draw the report. Times are simulated.
    """
    if dry_run:
        bench.show_plan(machines.get(MACHINE), boots())
        return
    file = output_file(output, "crossover")
    measure_into(file)
    found = jsonl.parse_all(file.read_text(), file.name)
    page.present("crossover", dirty_bits.tradeoff_tables(found), file, draw=output is None)
