# SPDX-License-Identifier: GPL-2.0-only
"""Reports of data races that are made up: what is read of them, and whose they are."""

import subprocess
from pathlib import Path
from unittest.mock import Mock

import pytest

from lab.core.git import IDENTITY, Repo, signature
from lab.verify import races
from lab.verify.races import Place, Report
from tests.rows import for_each_row

TITLE = "data-race in our_harvest / mark_page_dirty_in_slot"
KNOWN = f"""\
booted
==================================================================
BUG: KCSAN: {TITLE}

read to 0xffff888004c1a000 of 8 bytes by task 88 on cpu 0:
 _find_next_bit+0x10/0x100
 our_harvest+0x30/0x400
 kvm_vm_ioctl+0x50/0x400

read-write (marked) to 0xffff888004c1a000 of 8 bytes by interrupt on cpu 1:
 mark_page_dirty_in_slot+0x20/0x80
 our_fault+0x8/0x80

value changed: 0x0000000000000000 -> 0x0000000000000001

Reported by Kernel Concurrency Sanitizer on:
CPU: 1 UID: 0 PID: 90 Comm: test Tainted: G        W          6.12.0-series #1
Tainted: [W]=WARN
Hardware name: QEMU Standard PC (i440FX + PIIX, 1996), BIOS 1.16.2
==================================================================
done
"""
UNKNOWN = """\
==================================================================
BUG: KCSAN: data-race in upstream.constprop.0+0x40/0x80

race at unknown origin, with read to 0xffff888004c1b008 of 8 bytes by task 7 on cpu 0:
 upstream.constprop.0+0x40/0x80
 our_harvest+0x30/0x400

value changed: 0x8000000000000001 -> 0x8000000000000041

Reported by Kernel Concurrency Sanitizer on:
CPU: 0 UID: 0 PID: 7 Comm: test Not tainted 6.12.0-series #1
==================================================================
"""

OUR_FILE = "arch/x86/kvm/mmu/our.c"
MMU = "arch/x86/kvm/mmu/mmu.c"
WRITTEN = {OUR_FILE: set(range(1, 100)), MMU: {50, 51}}
PLACES: dict[str, list[Place]] = {
    "_find_next_bit+0x10/0x100": [("lib/find_bit.c", 50)],
    "our_harvest+0x30/0x400": [(OUR_FILE, 7)],
    "kvm_vm_ioctl+0x50/0x400": [("virt/kvm/kvm_main.c", 5)],
    "mark_page_dirty_in_slot+0x20/0x80": [("virt/kvm/kvm_main.c", 9)],
    "our_fault+0x8/0x80": [(MMU, 50)],
    "upstream.constprop.0+0x40/0x80": [(MMU, 60)],
}


def sort_out(log: str, **changed: list[Place]) -> tuple[list[str], list[str]]:
    by_name = {frame.split("+")[0]: frame for frame in PLACES}
    places = PLACES | {by_name[name]: there for name, there in changed.items()}
    verdict = races.sort_out(log, places, WRITTEN)
    return [r.title for r in verdict.series], [r.title for r in verdict.others]


def test_a_report_is_read() -> None:
    (known, unknown), rest = races.parse(KNOWN + UNKNOWN)
    assert known.title == TITLE
    assert known.sides == [
        ["_find_next_bit+0x10/0x100", "our_harvest+0x30/0x400", "kvm_vm_ioctl+0x50/0x400"],
        ["mark_page_dirty_in_slot+0x20/0x80", "our_fault+0x8/0x80"],
    ]
    assert known.race == ("_find_next_bit+0x10/0x100", "mark_page_dirty_in_slot+0x20/0x80")
    assert unknown.sides == [["upstream.constprop.0+0x40/0x80", "our_harvest+0x30/0x400"]]
    assert "KCSAN" not in rest
    assert [line for line in rest.splitlines() if "=" not in line] == ["booted", "done"]


def test_what_is_in_the_log_twice_counts_once() -> None:
    stamped = "".join(f"[   12.345678] {line}\n" for line in KNOWN.splitlines())
    end_only = "".join(KNOWN.splitlines(keepends=True)[7:])
    reports, _ = races.parse(KNOWN + end_only + stamped)
    assert len(reports) == 1


def test_other_messages_between_the_lines_are_not_lost() -> None:
    lines = KNOWN.splitlines()
    lines[6:6] = ["WARNING: CPU: 1 PID: 3 at mm/slub.c:3 x+0x1/0x2", "Call Trace:"]
    (report,), rest = races.parse("\n".join(lines))
    assert report.sides == races.parse(KNOWN)[0][0].sides
    assert "WARNING: CPU: 1 PID: 3" in rest
    assert "Call Trace:" in rest


def test_a_side_with_a_line_of_the_series_makes_it_ours() -> None:
    # The bitmap is looked through for the caller.
    assert sort_out(KNOWN) == ([TITLE], [])
    assert sort_out(KNOWN, our_harvest=[(MMU, 52)]) == ([], [TITLE])
    assert sort_out(KNOWN, our_harvest=[(MMU, 51)]) == ([TITLE], [])
    others: list[Place] = [(MMU, 52)]
    assert sort_out(KNOWN, our_harvest=others, mark_page_dirty_in_slot=[(MMU, 51)])[0]
    assert sort_out(KNOWN, our_harvest=others, mark_page_dirty_in_slot=others)[1]
    # Who calls KVM code of others is not at fault.
    assert sort_out(UNKNOWN) == ([], ["data-race in upstream.constprop.0+0x40/0x80"])


@for_each_row(
    "entry, ours",
    ("asm_sysvec_apic_timer_interrupt+0x1b/0x20", False),
    ("asm_common_interrupt+0x22/0x40", False),
    ("asm_exc_nmi+0xb3/0x130", False),
    ("asm_exc_page_fault+0x22/0x30", True),
)
def test_what_an_interrupt_comes_upon_is_not_at_fault(entry: str, ours: bool) -> None:
    frames = f"\n _find_next_bit+0x10/0x100\n {entry}\n"
    log = UNKNOWN.replace("\n upstream.constprop.0+0x40/0x80\n", frames)
    series, others = sort_out(log)
    assert (len(series), len(others)) == (int(ours), int(not ours))


def test_what_is_inlined_counts() -> None:
    there: list[Place] = [("include/linux/list.h", 9), (OUR_FILE, 3), (MMU, 60)]
    assert sort_out(UNKNOWN, **{"upstream.constprop.0": there})[0]
    there = [(MMU, 70), (MMU, 60)]
    assert not sort_out(UNKNOWN, **{"upstream.constprop.0": there})[0]


@for_each_row("log", "BUG: KCSAN: assert: race in x\n", UNKNOWN.replace("upstream", "y"))
def test_what_is_not_understood_is_ours(log: str) -> None:
    places = {frame: there for frame, there in PLACES.items() if not frame.startswith("our")}
    verdict = races.sort_out(log, places, WRITTEN)
    assert len(verdict.series) == 1
    assert not verdict.others


def test_the_lines_of_the_series_are_those_that_base_does_not_have(tmp_path: Path) -> None:
    repo = Repo(tmp_path)
    repo.run("init", "-q")
    file = tmp_path / "mmu.c"
    file.write_text("".join(f"line {i}\n" for i in range(1, 21)))
    repo.run("add", ".")
    repo.run("commit", "-q", "-m", "base", env=signature(*IDENTITY, 0))
    repo.run("tag", "base")
    lines = file.read_text().splitlines(keepends=True)
    lines[4:5] = ["changed\n", "added\n"]
    del lines[10]
    file.write_text("".join(lines))
    (tmp_path / "new.c").write_text("1\n2\n3\n")
    repo.run("add", ".")
    repo.run("commit", "-q", "-m", "series", env=signature(*IDENTITY, 1))
    file.write_text(file.read_text() + "not committed\n")
    written = races.lines_of_series(repo)
    wanted = {"mmu.c": {5, 6, 21}, "new.c": {1, 2, 3}}
    assert {path: lines for path, lines in written.items() if lines} == wanted


SOURCE = """\
static inline __attribute__((always_inline)) int inner(volatile int *p)
{
	return *p;
}

__attribute__((noinline)) int outer(volatile int *p)
{
	return inner(p) + 1;
}

int main(void)
{
	int i = 0;

	return outer(&i);
}
"""


def test_frames_are_found_in_the_source(tmp_path: Path) -> None:
    objects = tmp_path / "obj-kcsan"
    image = objects / "arch/x86/boot/bzImage"
    (tmp_path / "arch").mkdir()
    objects.mkdir()
    (tmp_path / "arch/outer.c").write_text(SOURCE)
    command = ("gcc", "-O2", "-g", "-no-pie", "-o", "vmlinux", "../arch/outer.c")
    subprocess.run(command, cwd=objects, check=True)
    # An offset behind the first instruction, as that of a call's return address is.
    places = races.locate(["outer+0x1/0x20", "nowhere+0x1/0x20"], image)
    assert places == {"outer+0x1/0x20": [("arch/outer.c", 3), ("arch/outer.c", 8)]}
    assert races.locate(["nowhere+0x1/0x20"], image) == {}


def test_a_frame_is_where_the_call_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    symbols = "ffffffff81000100 T outer\nffffffff81000200 t twice\n0300 t twice\n U x\n"
    output = Mock(side_effect=[symbols, ""])
    monkeypatch.setattr(races, "_output", output)
    image = tmp_path / "obj-kcsan/arch/x86/boot/bzImage"
    races.locate(["outer+0x10/0x20", "twice+0x1/0x2"], image)
    assert [call.args[0] for call in output.call_args_list] == ["nm", "addr2line"]
    assert output.call_args.args[-3:] == ("0xffffffff8100010f", "0xffffffff81000200", "0x300")


def test_a_log_without_reports_needs_no_kernel(tmp_path: Path) -> None:
    verdict = races.judge("quiet\nWARNING: x\n", tmp_path / "none")
    assert (verdict.series, verdict.others) == ([], [])
    assert verdict.rest == "quiet\nWARNING: x"
    assert Report("x").race == ()
