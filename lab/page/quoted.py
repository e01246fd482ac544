# SPDX-License-Identifier: GPL-2.0-only
"""Figures quoted from the mails about eager splitting in the shadow MMU, for their shape.

They are of real hardware, in seconds, and other memory sizes than ours. They stand in tables of
their own and are never set off against a figure of this project.
"""

from lab.results.jsonl import Key
from lab.results.tables import Table, writes

SOURCE = (
    'quoted from David Matlack, "KVM: Extend Eager Page Splitting to the shadow MMU", 2022:'
    " real hardware (one large Intel host), tdp_mmu=N, 1 GiB per vCPU, HugeTLB, seconds;"
    " compare the shape, not the figures"
)
COLUMNS = ("vCPUs", "off: lazy", "on: eager", "off/on")

# vCPUs, seconds with eager splitting off and on, as printed.
Rows = tuple[tuple[int, str, str], ...]
EPT_DIRTY: Rows = (
    (2, "0.3108", "0.0587"),
    (4, "0.4192", "0.0596"),
    (8, "1.0612", "0.0609"),
    (16, "2.8530", "0.0671"),
    (32, "7.0328", "0.0786"),
    (64, "16.501", "0.0839"),
)
SHADOW_ALL: Rows = ((2, "0.3730", "0.3489"), (8, "1.5885", "1.5250"), (64, "20.086", "18.532"))
SHADOW_20: Rows = ((2, "0.4031", "0.0718"), (8, "1.3830", "0.2487"), (64, "19.785", "3.4894"))
EPT_ENABLE: Rows = ((2, "0.0016", "0.0257"), (8, "0.0062", "0.1030"), (64, "0.1038", "1.1997"))
EPT_CLEAR_1: Rows = ((2, "0.0015", "0.0553"), (8, "0.0063", "0.2239"), (64, "0.0905", "2.6644"))
EPT_CLEAR_2: Rows = ((2, "0.0156", "0.0158"), (8, "0.0633", "0.0638"), (64, "0.6956", "0.7004"))


def _table(title: str, rows: Rows) -> Table:
    cells = ((str(n), off, on, _ratio(off, on)) for n, off, on in rows)
    return Table(f"The mails: {title}", COLUMNS, [*cells], [SOURCE])


def _ratio(off: str, on: str) -> str:
    value = float(off) / float(on)
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def tables(key: Key) -> list[Table]:
    """What the mails have for the table of ours that KEY is in, perhaps nothing."""
    if key.tdp_mmu:
        return []
    if not key.ept:
        quoted = {100: SHADOW_ALL, 20: SHADOW_20}.get(key.write_percent)
        title = f"ept=N, iteration 1 dirty memory time, {writes(key.write_percent)}"
        return [_table(title, quoted)] if quoted else []
    if key.write_percent != 100:
        return []
    found = [_table("ept=Y, iteration 1 dirty memory time", EPT_DIRTY)]
    if not key.initially_all_set:
        return [*found, _table("ept=Y, enabling dirty logging", EPT_ENABLE)]
    first = _table("ept=Y, iteration 1 clear dirty log", EPT_CLEAR_1)
    return [*found, first, _table("ept=Y, iteration 2 clear dirty log", EPT_CLEAR_2)]
