# SPDX-License-Identifier: GPL-2.0-only
"""What eager splitting is to gain over the number of vCPUs: N/Y of the dirty memory time.

For EPT with 2 MiB per vCPU, one huge page each, all writes, initially-all-set.
"""

from collections.abc import Iterable

from lab.results import tables
from lab.results.jsonl import Key, Measurement
from lab.results.tables import MIB, OFF, Beside, Table

# vCPUs -> N/Y at least.
RATIOS = {2: 20, 4: 30, 8: 60, 14: 100}
REACHED, MISSED = "reached", "missed"


def _judged(key: Key) -> bool:
    row = tables.headline(True)
    usual = (False, True, OFF)
    wanted = ("series", True, *usual, 2 * MIB, 100, True, False, row.phase, row.iteration)
    return key.vcpus in RATIOS and wanted == (
        key.kernel,
        key.ept,
        key.tdp_mmu,
        key.pml,
        key.dirty_harvest,
        key.bytes_per_vcpu,
        key.write_percent,
        key.initially_all_set,
        key.eager,
        key.phase,
        key.iteration,
    )


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
        verdict = REACHED if beside.lazy >= least * beside.eager else MISSED
        found.rows.append((str(key.vcpus), *beside.cells(""), str(least), verdict))
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
        elif row[-1] == MISSED:
            lines.append(f"{vcpus} vCPUs: N/Y is {row[3]} instead of at least {least}")
    return lines
