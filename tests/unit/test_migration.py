# SPDX-License-Identifier: GPL-2.0-only
"""lab.measure.migration: the guest's image, its notes, QEMU's events, and what is made of them.

migrate.sh with a QEMU that only talks: what it asks, keeps and puts back.
"""

import fcntl
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab import machines
from lab.measure.migration import command, load, timeline
from lab.measure.migration.command import SCRIPT
from lab.measure.migration.load import Load
from lab.page import migration as shown
from lab.results import files
from tests.rows import for_each_row
from tests.unit import migration_data as data
from tests.unit.calls import failed, lab, refusal, refused
from tests.unit.fake_kvm_host import Host, furnish
from tests.unit.files import called, program, with_a_second_signal, write


def test_the_image_is_a_bios_that_begins_at_its_first_byte(tmp_path: Path) -> None:
    image = load.build(data.LOAD, tmp_path).read_bytes()
    assert len(image) == 1 << 16
    opcode, distance = image[-16], int.from_bytes(image[-15:-13], "little")
    # A near jump counts from its end, and wraps around in real mode.
    assert opcode == 0xE9 and (0xFFF0 + 3 + distance) & 0xFFFF == 0
    load.build(replace(data.LOAD, vcpus=load.MOST_VCPUS, mib_per_vcpu=2), tmp_path)
    assert Load(4, 16, 500, 63, 1).mib == 68


def test_notes_are_where_the_script_has_them_with_the_layout_that_is_read(tmp_path: Path) -> None:
    load.build(data.LOAD, tmp_path)
    words = ["nm", "-S", str(tmp_path / "load.elf")]
    listing = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    found = {line.split()[-1]: line.split() for line in listing.splitlines()}
    size = load.PAGE + data.LOAD.vcpus * load.vcpu_size(data.REAL_WINDOWS)
    assert int(found["results"][0], 16) == 2 << 20
    assert f'\\"val\\": {2 << 20}' in command.SCRIPT.read_text()
    assert int(found["results"][1], 16) == size


@for_each_row(
    "change, word",
    ({"vcpus": 0}, "--vcpus"),
    ({"vcpus": load.MOST_VCPUS + 1}, "--vcpus"),
    ({"mib_per_vcpu": 1}, "--mib"),
    ({"mib_per_vcpu": 24}, "--mib"),
    ({"mib_per_vcpu": 2048}, "--mib"),
)
def test_a_load_that_cannot_be_built_is_refused(change: Mapping[str, int], word: str) -> None:
    data.LOAD.check()
    assert word in refused(replace(data.LOAD, **change).check)


def test_notes_are_read_with_the_clock_of_the_host() -> None:
    notes = load.parse(data.notes())
    assert notes.start == pytest.approx(data.START_S, abs=1e-6)
    assert (notes.window_us, notes.tsc_khz, notes.pages) == (10_000, 50_000, data.LOAD.pages)
    assert len(notes.vcpus) == 2 and notes.wrong == 0
    assert notes.vcpus[0].windows[0].tolist() == (640, 10, 500, 50_000)
    # A last window has what came later, and is left out.
    assert len(load.parse(data.notes(total=50, spare=0)).vcpus[0].windows) == 49


@for_each_row(
    "bad, said",
    (b"", "missing"),
    (b"x" * 4096, "damaged"),
    (data.notes(start=0), "did not get to work"),
    (data.notes()[:-100], "incomplete"),
)
def test_what_are_no_notes_is_refused(bad: bytes, said: str) -> None:
    assert said in failed(load.parse, bad)


def test_notes_may_be_full_when_all_is_in_them() -> None:
    full = data.migration(source=data.notes(spare=0), restored=data.notes(total=80, spare=0))
    assert list(timeline.records(full)) == list(timeline.records(data.migration()))


def test_events_are_read() -> None:
    events = timeline.parse_events(data.QMP)
    offset = data.START_S
    assert (events.begin - offset, events.stop - offset) == pytest.approx((0.1, 0.405))
    assert len(events.passes) == 2 and events.answer["downtime"] == 7


@pytest.mark.parametrize("word", ["STOP", "setup", "completed", "query-migrate"])
def test_a_missing_event_is_found(word: str) -> None:
    without = data.QMP.replace(f'"{word}"', '"else"')
    assert "did not report a complete" in failed(timeline.parse_events, without)


def test_phases_are_told_apart() -> None:
    found = {one.get("phase", one["record"]): one for one in timeline.records(data.migration())}
    assert list(found) == ["migration", "before", "precopy", "blackout", "timeline"]
    assert found["before"]["requests_per_second"] == 2000
    assert found["before"]["longest_request_us"] == 1000
    # Window 12 is the slow one; window 35 has a request that ends when the guest is stopped.
    assert found["precopy"]["longest_request_us"] == 25000
    assert found["precopy"]["longest_request_at_us"] == 120_000
    assert found["precopy"]["lowest_per_window"] == 2
    assert found["blackout"]["longest_stall_us"] == 12_000
    assert len(found["timeline"]["requests"]) == 40
    assert found["migration"]["downtime_seconds"] == 0.007


@for_each_row(
    "change, said",
    ({"restored": data.notes(total=80, wrong=1)}, "1 accesses .* after restoring"),
    ({"source": data.notes(wrong=2)}, "2 accesses .* in the source"),
    ({"restored": data.notes(total=41)}, "did not see all its memory"),
    ({"stats": "before pages_2m 1\nafter pages_2m 0\n"}, "1 huge pages"),
    ({"stats": f"{data.STATS}before dirty_bits 1\n"}, "dirty_bits did not take effect"),
    ({"qmp": data.qmp(data.START_S - 100)}, "clocks .* do not agree"),
    ({"qmp": data.qmp(data.START_S + 100)}, "noted only 60: .* took too long"),
    ({"source": data.notes(total=data.STOP + 4, spare=0)}, "noted only 43: .* took too long"),
)
def test_a_migration_that_went_wrong_is_no_result(change: dict[str, Any], said: str) -> None:
    assert re.search(said, failed(list, timeline.records(data.migration(**change))))


def test_a_boot_gives_both_and_verifies_its_mode() -> None:
    boot = command.MigrationBoot("svm-qemu", "series", True, data.LOAD, 128, Path("qemu"))
    found = list(command.collect(boot, data.files(tdp=True)))
    assert [one["eager"] for one in found] == [False] * 5 + [True] * 15
    assert [one["dirty_bits"] for one in found] == ["off"] * 10 + ["on"] * 5 + ["qemu"] * 5
    assert {one["kernel_version"] for one in found} == {"6.12.1-series"}
    assert "did not take effect" in failed(list, command.collect(boot, data.files(tdp=False)))
    others = {name: text for name, text in data.files().items() if name != "Y.qmp"}
    assert "no file 'Y.qmp'" in failed(list, command.collect(boot, others))
    assert "no file 'host'" in failed(list, command.collect(boot, {}))
    with_pml = data.files() | {"host": data.files()["host"] + b"pml Y\n"}
    assert "dirty_bits did not take effect" in failed(list, command.collect(boot, with_pml))
    # A third migration has columns of its own, and a fourth.
    (table,) = shown.migration_tables(found)
    settings = ("N: on the first write", "Y: eager", "Y, Dirty bits", "Y, as QEMU asks")
    assert table.columns == ("", *settings, "N/Y", "N/Dirty bits", "N/as QEMU asks")
    assert {len(row) for row in table.rows} == {8}


def test_a_machine_has_room_for_guest_stream_and_qemu() -> None:
    machine = machines.get("vmx-bochs")
    (boot,) = command.migration_boots(machine, "series", [False], data.LOAD, 128)
    job = command.migration_job(machine, boot, Path("bz"), Path("load"))
    assert job.parameters["kvm_intel.ept"] == "0"
    assert job.cpus == data.LOAD.vcpus + command.MORE_CPUS
    assert job.memory_mib >= 3 * data.LOAD.mib + 512
    assert job.command[-3:] == ("N", "Y", "D")
    # The host is migrated on as it is.
    machine = machines.get("host")
    small = replace(data.LOAD, vcpus=1)
    (boot,) = command.migration_boots(machine, "series", [True, False], small, 128)
    assert boot.tdp is None and boot.parameters == {}


@for_each_row(
    "machine, kernel, tdp, settings",
    ("vmx-bochs", "series", True, "NY"),
    ("vmx-bochs", "series", False, "NYD"),
    ("svm-qemu", "series", True, "NYD"),
    ("svm-qemu", "base", True, "NY"),
    ("host", "series", None, "NY"),
)
def test_dirty_bits_are_tried_where_the_cpu_does_not_log_by_itself(
    machine: str, kernel: str, tdp: bool | None, settings: str
) -> None:
    assert "".join(command.MigrationBoot(machine, kernel, tdp, data.LOAD, 128).settings) == settings


def test_a_dry_run_says_what_would_run_or_what_the_machine_cannot_do() -> None:
    for words in (
        "--vcpus 9",
        "--vcpus 0",
        "--bandwidth 0",
        "--rate 0",
        "--writes 0",
        "--reads -1",
    ):
        name, value = words.split()
        assert name in refusal("migrate", "--dry-run", name, value)
    said = lab("migrate", "--dry-run", "--machine", "vmx-bochs", "--tdp", "Y").out
    assert "ept=Y: 7 CPUs" in said and "migrate.sh" in said and "ept=N" not in said


def test_another_qemu_is_one_that_asks(tmp_path: Path) -> None:
    qemu = program(tmp_path / "qemu", "#!/bin/sh\necho dirty-bits=on")
    assert lab("migrate", "--dry-run", "--qemu", str(qemu)).out.count(" N Y D V\n") == 2
    for other in ("/bin/true", str(tmp_path), "/nowhere"):
        assert f"{other} is not a QEMU with" in refusal("migrate", "--dry-run", "--qemu", other)


def test_the_table_judges_simulated_time_only() -> None:
    (table,) = shown.migration_tables(data.records())
    assert any("N is to be at most 1.5 times Y: missed" in note for note in table.notes)
    assert table.columns[-1] == "N/Y"
    row = next(row for row in table.rows if row[0].startswith("longest request during"))
    assert row[1:] == ("25.00", "1.00", "25.0")
    # Of what was counted from the start of the VM, only what was added during the migration.
    taken = next(row for row in table.rows if row[0] == "page faults that KVM handled")
    assert taken[1:] == ("820", "820", "1.00")
    slow = [{**one, "eager": True} for one in data.records() if not one["eager"]]
    (table,) = shown.migration_tables([*(o for o in data.records() if not o["eager"]), *slow])
    assert any("reached" in note for note in table.notes)
    (table,) = shown.migration_tables([{**one, "machine": "svm-qemu"} for one in data.records()])
    assert not any("reached" in note or "missed" in note for note in table.notes)


def test_results_are_written_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "measure", lambda *_: data.records())
    monkeypatch.setattr(command, "QEMU", "/bin/true")
    assert "| longest request before, ms" in lab("migrate").out
    (file,) = files.kept()
    assert [json.loads(line) for line in file.read_text().splitlines()] == data.records()
    # And the report of the newest results is made.
    assert (tmp_path / "report" / "migration-eptY-1.svg").read_text().rstrip().endswith("</svg>")


# Speaks as much of QMP as the script hears; FAKE says how it is to fail.
QEMU = r"""#!/bin/sh
[ "$1" != --version ] || { echo QEMU 7.2; exit; }
for word; do
    case $word in
    pipe,id=qmp,*) qmp=${word##*path=} ;;
    pipe,id=con,*) con=${word##*path=} ;;
    -incoming) incoming=1 ;;
    esac
done
exec 3<>"$qmp.in" 4<>"$qmp.out"
echo "$*" >>"$FAKE_LOG"
[ "$FAKE" != dies ] || { echo 'no KVM today' >&2; exit 1; }
echo '{"QMP": {}}' >&4
[ -n "${incoming-}" ] || echo "${FAKE_SAYS:-ready}" >>"$con.out"
answer() { echo "{\"return\": $1, \"id\": \"$2\"}" >&4; }
while read -r line <&3; do
    name=${line##*\"id\": \"}
    name=${name%\"\}}
    echo "$name" >>"$FAKE_LOG"
    case $name in
    "$FAKE") echo "{\"error\": {\"desc\": \"not today\"}, \"id\": \"$name\"}" >&4 ;;
    query-status)
        answer "{\"status\": \"${state-inmigrate}\"}" "$name"
        [ -n "${state-}" ] || echo '{"event": "RESUME"}' >&4
        state=${state:+postmigrate} ;;
    migrate)
        answer {} "$name"
        cat "$FAKE_PARAMS/eager_page_split" "$FAKE_PARAMS/dirty_bits" >>"$FAKE_LOG"
        [ "$FAKE" != hangs ] || continue
        stream=${line##*cat >}
        : >"${stream%%\"*}"
        state=finish-migrate
        echo '{"event": "MIGRATION", "data": {"status": "completed"}}' >&4 ;;
    cont) [ "$state" != postmigrate ] || answer {} "$name" ;;
    pmemsave)
        file=${line##*\"filename\": \"}
        echo notes >"${file%%\"*}"
        answer {} "$name" ;;
    quit) answer {} "$name"; exit ;;
    *) answer {} "$name" ;;
    esac
done
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host with huge pages, of Intel's make."""
    made = Host(tmp_path / "root", [])
    furnish(made)
    made.set("kvm.dirty_bits", "auto")
    made.set("kvm_intel.ept", "N")
    made.pool().write_text("7\n")
    made.free(18)
    for name, value in (("pages_2m", 18), ("other", 5)):
        made.write(f"sys/kernel/debug/kvm/1-2/{name}", f"{value}\n")
    return made.root


@pytest.fixture
def run(host: Path, tmp_path: Path) -> Run:
    """Run the script for N, Y and D; the QEMU fails as the argument says."""
    qemu = program(tmp_path / "qemu", QEMU)
    (tmp_path / "out").mkdir()
    (tmp_path / "tmp").mkdir()

    def started(
        fake: str = "",
        says: str = "ready",
        mib: int = 36,
        limit: float = 30,
        kvm: str = 'echo "kvm $*" >>"$FAKE_LOG"; [ "$FAKE" != "$1" ]',
        settings: str = "NYD",
        end: str = "TERM",
    ) -> subprocess.CompletedProcess[str]:
        # TERM after LIMIT seconds, as the lab ends what takes too long.
        words = (
            "timeout",
            "-s",
            end,
            limit,
            "sh",
            SCRIPT,
            qemu,
            "image",
            2,
            mib,
            128,
            0,
            0,
            *settings,
        )
        return called(
            tmp_path,
            *words,
            MIGRATE_ROOT=host,
            MIGRATE_KVM=kvm,
            LAB_OUT=tmp_path / "out",
            LAB_PROGRESS=tmp_path / "progress",
            TMPDIR=tmp_path / "tmp",
            FAKE=fake,
            FAKE_SAYS=says,
            FAKE_LOG=tmp_path / "log",
            FAKE_PARAMS=host / "sys/module/kvm/parameters",
        )

    return started


def assert_put_back(host: Path, tmp_path: Path) -> None:
    params, mm = host / "sys/module/kvm/parameters", host / "sys/kernel/mm/hugepages"
    pool = mm / "hugepages-2048kB/nr_hugepages"
    files = (params / "eager_page_split", params / "dirty_bits", pool)
    assert [file.read_text() for file in files] == ["Y\n", "auto\n", "7\n"]
    assert [*(tmp_path / "tmp").iterdir()] == []


def test_all_are_migrated_and_restored(run: Run, host: Path, tmp_path: Path) -> None:
    done = run(kvm="")
    assert (done.returncode, done.stderr) == (0, "")
    names = ["host"] + [f"{e}.{end}" for e in "NYD" for end in ("qmp", "restored", "source")]
    found = sorted(file.name for file in (tmp_path / "out").iterdir())
    assert found == sorted([*names, "N.stats", "Y.stats", "D.stats"])
    assert "tdp N\ntdp_mmu N\nqemu QEMU 7.2\n" in (tmp_path / "out/host").read_text()
    assert (tmp_path / "out/N.stats").read_text() == "before pages_2m 18\nafter pages_2m 18\n"
    log = (tmp_path / "log").read_text().splitlines()
    assert log.count("quit") == 6
    # What eager_page_split and dirty_bits were while each migrated.
    seen = [log[i + 1 : i + 3] for i, name in enumerate(log) if name == "migrate"]
    assert seen == [["N", "off"], ["Y", "off"], ["Y", "on"]]
    assert_put_back(host, tmp_path)


@for_each_row("cpu, bits", ("vmx", ""), ("svm", ",dirty-bits=on"))
def test_qemu_asks_for_it(run: Run, host: Path, tmp_path: Path, cpu: str, bits: str) -> None:
    write(host / "proc/cpuinfo", f"flags : fpu {cpu}\n")
    assert run(kvm="", settings="NV").returncode == 0
    log = (tmp_path / "log").read_text()
    asked = f"kvm,eager-split-size=2M{bits}"
    assert re.findall(" -accel (\\S+) ", log) == ["kvm", "kvm", asked, asked]
    assert "\nY\nauto\n" in log and "\npml" in (tmp_path / "out/host").read_text()


def test_another_kvm_has_the_guest_in_between(run: Run, host: Path, tmp_path: Path) -> None:
    done = run()
    assert (done.returncode, done.stderr) == (0, "")
    found = {file.name for file in (tmp_path / "out").iterdir()}
    assert {f"{e}.{end}" for e in "NYD" for end in ("back.qmp", "there", "back.stats")} <= found
    for name in ("N.qmp", "N.back.qmp"):
        assert "query-migrate" in (tmp_path / "out" / name).read_text()
    assert (tmp_path / "out/N.back.stats").read_text() == "before pages_2m 18\nafter pages_2m 18\n"
    log = (tmp_path / "log").read_text().splitlines()
    # Each guest is restored twice, and is sent away twice.
    assert [log.count(name) for name in ("quit", "migrate", "cont")] == [9, 6, 3]
    # No QEMU runs while another KVM is loaded; the first line comes after the last.
    loads = [i for i, line in enumerate(log) if line.startswith("kvm ")]
    assert {log[i - 1] for i in loads} == {"quit"}
    ends = ("source", "destination", "source")
    assert [log[i] for i in loads] == [f"kvm {end} {e}" for e in "NYD" for end in ends]
    assert_put_back(host, tmp_path)


GONE = 'rm -f "$FAKE_PARAMS/dirty_bits"'


def test_a_parameter_that_another_kvm_lacks_is_not_put_back(run: Run, host: Path) -> None:
    done = run(kvm=GONE, settings="N")
    assert (done.returncode, done.stderr) == (0, "")
    assert not (host / "sys/module/kvm/parameters/dirty_bits").exists()


def test_a_parameter_that_is_gone_is_put_back_if_nothing_swaps_kvm(
    run: Run, host: Path, tmp_path: Path
) -> None:
    program(tmp_path / "qemu", QEMU.replace("echo 'no KVM", f"{GONE}; echo 'no KVM"))
    assert run("dies", kvm="").returncode == 1
    assert_put_back(host, tmp_path)


@for_each_row(
    "fake, says, mib, said",
    ("dies", "ready", 36, "QEMU ended unexpectedly\nno KVM today"),
    ("migrate", "ready", 36, "not today"),
    ("destination", "ready", 36, "no KVM for destination N"),
    ("", "no kvm-clock", 36, "the guest says: no kvm-clock"),
    ("", "ready", 40, "no 20 free huge pages of 2 MiB"),
)
def test_what_fails_is_said_and_all_is_put_back(
    run: Run, host: Path, tmp_path: Path, fake: str, says: str, mib: int, said: str
) -> None:
    done = run(fake, says, mib)
    assert done.returncode == 1
    assert done.stderr.startswith("migrate: ") and said in done.stderr
    assert_put_back(host, tmp_path)


def test_a_second_signal_puts_all_back(
    run: Run, host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = with_a_second_signal(SCRIPT, tmp_path / "script")
    monkeypatch.setattr("tests.unit.test_migration.SCRIPT", script)
    run("hangs", limit=1)
    assert_put_back(host, tmp_path)


POOL = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
PARAMETERS = "/sys/module/kvm/parameters"


def test_being_killed_leaves_a_journal(run: Run, host: Path, tmp_path: Path) -> None:
    """From which kvm-eager-split restores, and without that nothing is changed again."""
    write(host / POOL[1:].replace("nr_", "surplus_"), "2\n")
    free = host / POOL[1:].replace("nr_", "free_")
    free.unlink()
    free.symlink_to("nr_hugepages")
    assert run("hangs", kvm="", limit=3, end="KILL").returncode == -signal.SIGKILL
    by, *lines = (host / "run/kvm-eager-split.journal").read_text().splitlines()
    assert re.fullmatch("by split-bench [0-9]+", by)
    # Surplus pages are others'.
    assert lines == [
        f"{POOL} 5 18",
        f"{PARAMETERS}/eager_page_split Y N",
        f"{PARAMETERS}/dirty_bits auto off",
    ]
    done = run(kvm="")
    said = "migrate: a benchmark or a reload was killed: kvm-eager-split restore\n"
    assert (done.returncode, done.stderr) == (1, said)


def test_reserved_pages_are_not_free(run: Run, host: Path, tmp_path: Path) -> None:
    """Another process has mapped them, and writes to them later."""
    write(host / POOL[1:].replace("nr_", "resv_"), "3\n")
    done = run(kvm="")
    said = "migrate: no 18 free huge pages of 2 MiB: memory is fragmented or short\n"
    assert (done.returncode, done.stderr) == (1, said)
    assert_put_back(host, tmp_path)


@for_each_row("grown", True, False)
def test_a_pool_that_somebody_else_has_changed(run: Run, host: Path, grown: bool) -> None:
    """Its pages are not taken away, and a pool that was large enough is not written to."""
    pool, free = host / POOL[1:], host / POOL[1:].replace("nr_", "free_")
    if grown:
        free.unlink()
        free.symlink_to("nr_hugepages")
    done = run(kvm=f"echo 500 >{pool}")
    said = f"migrate: {pool} is 500, which somebody else has set meanwhile, so it stays; it was 7\n"
    assert (done.returncode, done.stderr) == (0, said if grown else "")
    assert pool.read_text() == "500\n"


def test_everybody_may_read_the_journal(run: Run, host: Path) -> None:
    old = os.umask(0o77)
    try:
        assert run("hangs", kvm="", limit=3, end="KILL").returncode == -signal.SIGKILL
    finally:
        os.umask(old)
    assert (host / "run/kvm-eager-split.journal").stat().st_mode & 0o777 == 0o644


def test_memory_and_pool_are_not_taken_from_others(run: Run, host: Path, tmp_path: Path) -> None:
    write(host / "proc/meminfo", "MemAvailable: 90000 kB\n")
    done = run(kvm="", mib=100)
    said = "migrate: too little memory: wanted 128 MiB, had 87 MiB available\n"
    assert (done.returncode, done.stderr) == (1, said)
    assert_put_back(host, tmp_path)
    with (host / "run/split-bench.lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done = run(kvm="")
    assert done.returncode == 1
    assert "migrate: a benchmark, or a test that it has started, is running" in done.stderr
    assert not (host / "run/kvm-eager-split.journal").exists()
    assert_put_back(host, tmp_path)


def test_another_vm_is_not_disturbed(run: Run, host: Path, tmp_path: Path) -> None:
    files = host / "proc/123/fd"
    files.mkdir(parents=True)
    (files / "9").symlink_to("anon_inode:kvm-vm")
    done = run(kvm="")
    assert done.returncode == 1
    assert (
        done.stderr
        == "migrate: 1 other VM(s) run here, and eager_page_split applies to all of them\n"
    )
    assert_put_back(host, tmp_path)


def test_being_ended_puts_all_back(run: Run, host: Path, tmp_path: Path) -> None:
    done = run("hangs", limit=1)
    assert (done.returncode, "hangs" in done.stderr) == (124, False)
    assert_put_back(host, tmp_path)
