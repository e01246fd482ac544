# SPDX-License-Identifier: GPL-2.0-only
"""A fake host for split-bench.sh: a directory for /, and a script for dirty_log_perf_test."""

import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tests.unit.files import program, write

SCRIPT = Path(__file__).parents[2] / "scripts" / "split-bench.sh"
NOBODY = 65534

# Appends the value of eager_page_split, behind a comma that of dirty_bits unless it is
# off, and its arguments but for the file of -j to "calls", then writes what dirty_log_perf_test
# writes there. N costs 100 times what Y costs, and either costs 10 times what it does with
# dirty_bits; iterations differ. A tracked VM takes twice as long to populate and a second longer
# for each iteration, and later cycles 10 s longer or more. All by the shell itself, as it runs
# thousands of times.
FAKE_TEST = r"""#!/bin/sh
here=${0%/*}
read -r eager <"$here/sys/module/kvm/parameters/eager_page_split"
{ read -r dirty_bits <"$here/sys/module/kvm/parameters/dirty_bits"; } 2>/dev/null || dirty_bits=off
[ "$dirty_bits" = off ] && suffix= || suffix=,$dirty_bits
echo "$eager$suffix ${*% -j *}" >>"$here/calls"
read -r mode <"$here/mode"
clear=1
verify=0
pattern=pages
tracked=0
iterations=2
cycles=1
while getopts Vs:b:v:w:i:gc:j:-: option; do
    case $option in
        v) vcpus=$OPTARG ;;
        i) iterations=$OPTARG ;;
        g) clear=0 ;;
        V) verify=1 ;;
        j) json=$OPTARG ;;
        -) case $OPTARG in
            pattern=*) pattern=${OPTARG#*=} ;;
            cycles=*) cycles=${OPTARG#*=} ;;
            tracked) tracked=1 ;;
        esac ;;
    esac
done
case $mode in
    wrong) [ "$verify" = 0 ] || { echo "gfn 0x40 is not in the dirty log"; exit 254; } ;;
    fail) echo "==== Test Assertion Failure ===="; echo "  lib/x.c:1: ret == 0"; exit 254 ;;
    fail-second) [ "$(grep -c . "$here/calls")" -ne 2 ] || exit 254 ;;
    hang) echo $$ >"$here/pid"; exec sleep 600 ;;
    stubborn) trap '' INT TERM HUP; echo $$ >"$here/pid"; while :; do sleep 0.1; done ;;
esac
[ "$eager" = Y ] && dirty=00$vcpus || dirty=$vcpus
[ "$dirty_bits" = off ] && dirty=$tracked.$dirty || dirty=$tracked.0$dirty
read -r page_tables <"$here/page_tables"
counts="\"pages_4k\": 9, \"pages_2m\": 32, \"page_tables\": $page_tables"
phase() {
    line="\"phase\": \"$1\", \"iteration\": $2$of"
    stats='"writes": 5, "kvm_stats": {"pages_2m": -1, "exits": 7, "pf_taken": 3}'
    [ $1 != get ] || stats="\"logged\": 6, $stats"
    echo "{\"record\": \"phase\", \"run\": 1, $line, \"seconds\": $3, $stats}"
    case $1$tracked in populate1 | dirty1) echo "{\"record\": \"memory\", $line, $counts}" ;; esac
    [ "$1" != disable ] || echo "{\"record\": \"summary\", $line, \"median_seconds\": $3}"
}
echo "Test iterations: $iterations"
exec >"$json"
of=
[ $tracked = 1 ] || phase populate null 0.012345678
cycle=1
while [ $cycle -le $cycles ]; do
    [ $cycle = 1 ] || of=", \"cycle\": $cycle"
    phase enable null 0.000123456
    [ $tracked = 0 ] || phase populate null 0.024691356
    i=1
    while [ $i -le $iterations ]; do
        [ $mode = short ] && [ $i = 2 ] && exit 0
        [ $mode = short-cycle ] && [ $cycle$i = 22 ] && exit 0
        phase dirty $i ${dirty}${i}0000001
        phase get $i 0.00$i
        [ $clear = 0 ] || phase clear $i 0.004000000
        i=$((i + 1))
    done
    [ $pattern$tracked != regions0 ] || echo "{\"record\": \"memory\"$of, $counts}"
    phase disable null 0.080500000
    dirty=1$dirty
    cycle=$((cycle + 1))
done
"""


@dataclass
class Host:
    """A fake host with its files below `root`, and a shell to run the script with."""

    root: Path
    shell: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    script: Path = SCRIPT
    # What --verify is where a test says nothing of it: runs are easier to count without.
    verify: str = "no"

    @property
    def eager(self) -> Path:
        return self.root / "sys/module/kvm/parameters/eager_page_split"

    @property
    def output(self) -> Path:
        return self.root / "out.jsonl"

    @property
    def dirty_bits(self) -> Path:
        return self.root / "sys/module/kvm/parameters/dirty_bits"

    @property
    def journal(self) -> Path:
        return self.root / "run/kvm-eager-split.journal"

    def pool(self, size: str = "2048kB") -> Path:
        return self.root / "sys/kernel/mm/hugepages" / f"hugepages-{size}" / "nr_hugepages"

    def free(self, pages: int, size: str = "2048kB") -> None:
        """Make a pool that always reports this number of free pages, whatever its size."""
        file = self.pool(size).parent / "free_hugepages"
        file.unlink()
        file.write_text(f"{pages}\n")

    def write(self, path: str, text: str) -> Path:
        return write(self.root / path, text)

    def set(self, parameter: str, value: str) -> None:
        """Set a module parameter, such as "kvm.tdp_mmu"."""
        self.write(f"sys/module/{parameter.replace('.', '/parameters/')}", f"{value}\n")

    def mode(self, mode: str) -> None:
        self.write("mode", f"{mode}\n")

    def calls(self) -> list[str]:
        file = self.root / "calls"
        return file.read_text().splitlines() if file.exists() else []

    def command(self, *arguments: str) -> list[str]:
        words = (f"--verify={self.verify}", "--test", str(self.root / "fake_test"))
        return [*self.shell, str(self.script), *words, *arguments]

    def run(self, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # type: ignore[call-overload, no-any-return]
            self.command(*arguments),
            env=self.environment,
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=60,
            **options,
        )

    def settings(self) -> dict[str, str]:
        """All files of the host, including temporary ones, except the notes of the fake itself."""
        # The file of a lock stays: to remove it would let two processes hold it.
        notes = {"calls", "calls.pools", "pid", "progress", "split-bench.lock"}
        files = (f for f in self.root.rglob("*") if f.is_file() and f.name not in notes)
        return {str(f.relative_to(self.root)): f.read_text() for f in files}


def make_pool(host: Host, size: str, pages: int) -> None:
    """Make a pool that grows to any size, and whose pages are all free."""
    pool = host.pool(size)
    host.write(str(pool.relative_to(host.root)), f"{pages}\n")
    (pool.parent / "free_hugepages").symlink_to("nr_hugepages")
    host.write(str((pool.parent / "resv_hugepages").relative_to(host.root)), "0\n")


def set_cpus(host: Host, count: int) -> None:
    """Give the host this number of CPUs, all of them online and usable."""
    last = f"0-{count - 1}" if count > 1 else "0"
    host.write("sys/devices/system/cpu/online", f"{last}\n")
    host.write("proc/self/status", f"Name:\tsed\nCpus_allowed_list:\t{last}\n")


def furnish(host: Host) -> None:
    host.write("dev/kvm", "")
    host.write("run/keep", "")
    (host.root / "tmp").mkdir()
    host.write("proc/cpuinfo", "processor : 0\nflags : fpu vmx\n")
    set_cpus(host, 9)
    host.write("proc/meminfo", "MemAvailable: 4194304 kB\nHugepagesize: 2048 kB\n")
    host.set("kvm.eager_page_split", "Y")
    host.set("kvm.dirty_bits", "off")
    host.set("kvm.tdp_mmu", "N")
    host.set("kvm_intel.ept", "Y")
    host.set("kvm_intel.pml", "Y")
    host.set("kvm_amd.npt", "N")
    make_pool(host, "2048kB", 0)
    make_pool(host, "1048576kB", 0)
    host.mode("ok")
    host.write("page_tables", "8\n")
    program(host.root / "fake_test", FAKE_TEST)
