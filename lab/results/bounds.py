# SPDX-License-Identifier: GPL-2.0-only
"""What eager splitting is to gain over the number of vCPUs: N/Y of the dirty memory time.

For EPT with 2 MiB per vCPU, one huge page each, all writes, initially-all-set.
"""

from collections.abc import Iterable
from dataclasses import replace

from lab.results import goals, tables
from lab.results.jsonl import Key, Measurement
from lab.results.tables import MIB, OFF, Beside, Table

# vCPUs -> N/Y at least.
RATIOS = {2: 20, 4: 30, 8: 60, 14: 100}


def _judged(key: Key) -> bool:
    row = tables.headline(True)
    like = replace(key, kernel="series", ept=True, tdp_mmu=False, pml=True, dirty_harvest=OFF)
    like = replace(like, bytes_per_vcpu=2 * MIB, write_percent=100, initially_all_set=True)
    like = replace(like, eager=False, phase=row.phase, iteration=row.iteration)
    return key.vcpus in RATIOS and key == like


def table(measurements: Iterable[Measurement]) -> Table | None:
    """Every bound that was measured, its verdict last; None if none was."""
    times = {one.key: one.seconds for one in measurements}
    title = "Bounds on N/Y: ept=Y, 2 MiB per vCPU, all writes, dirty memory time"
    found = Table(title, ("vCPUs", "N, ms", "Y, ms", "N/Y", "at least", "verdict"))
    for key in sorted(filter(_judged, times), key=lambda key: key.vcpus):
        beside = Beside.at(key, times)
        if beside.lazy is None or beside.eager is None:
            continue
        least = RATIOS[key.vcpus]
        said = goals.verdict(beside.lazy >= least * beside.eager)
        found.rows.append((str(key.vcpus), *beside.cells().values(), str(least), said))
        found.origins.append(Beside.keys(key)[:2])
    return found if found.rows else None


def missed(measurements: Iterable[Measurement]) -> list[str]:
    """One line for each bound that is not reached, or that was not measured."""
    found = table(measurements)
    rows = {int(row[0]): row for row in found.rows} if found else {}
    lines = []
    for vcpus, least in RATIOS.items():
        row = rows.get(vcpus)
        if row is None:
            lines.append(f"{vcpus} vCPUs: N/Y was not measured")
        elif row[-1] != goals.verdict(True):
            lines.append(f"{vcpus} vCPUs: N/Y is {row[3]} instead of at least {least}")
    return lines
