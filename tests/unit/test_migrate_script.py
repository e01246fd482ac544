# SPDX-License-Identifier: GPL-2.0-only
"""migrate.sh with a QEMU that only talks: what it asks, keeps and puts back."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.measure.migration.command import SCRIPT
from tests.rows import for_each_row
from tests.unit.files import program, write

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
        cat "$FAKE_PARAMS/eager_page_split" "$FAKE_PARAMS/dirty_harvest" >>"$FAKE_LOG"
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
    values = {
        "sys/module/kvm/parameters/eager_page_split": "Y",
        "sys/module/kvm/parameters/dirty_harvest": "auto",
        "sys/module/kvm/parameters/tdp_mmu": "N",
        "sys/module/kvm_intel/parameters/ept": "N",
        "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "7",
        "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages": "18",
        "sys/kernel/debug/kvm/1-2/pages_2m": "18",
        "sys/kernel/debug/kvm/1-2/other": "5",
        "proc/cpuinfo": "flags\t\t: fpu vmx",
    }
    for name, value in values.items():
        write(tmp_path / "root" / name, f"{value}\n")
    return tmp_path / "root"


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
    ) -> subprocess.CompletedProcess[str]:
        env = os.environ | {
            "MIGRATE_ROOT": str(host),
            "MIGRATE_KVM": kvm,
            "LAB_OUT": str(tmp_path / "out"),
            "LAB_PROGRESS": str(tmp_path / "progress"),
            "TMPDIR": str(tmp_path / "tmp"),
            "FAKE": fake,
            "FAKE_SAYS": says,
            "FAKE_LOG": str(tmp_path / "log"),
            "FAKE_PARAMS": str(host / "sys/module/kvm/parameters"),
        }
        words = [str(qemu), "image", "2", str(mib), "128", "0", "0", "N", "Y", "D"]
        # TERM after LIMIT seconds, as the lab ends what takes too long.
        command = ["timeout", str(limit), "sh", str(SCRIPT), *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    return started


def settings(host: Path) -> tuple[str, ...]:
    params, mm = host / "sys/module/kvm/parameters", host / "sys/kernel/mm/hugepages"
    pool = mm / "hugepages-2048kB/nr_hugepages"
    files = (params / "eager_page_split", params / "dirty_harvest", pool)
    return tuple(file.read_text().strip() for file in files)


def assert_put_back(host: Path, tmp_path: Path) -> None:
    assert settings(host) == ("Y", "auto", "7")
    assert list((tmp_path / "tmp").iterdir()) == []


def test_all_are_migrated_and_restored(run: Run, host: Path, tmp_path: Path) -> None:
    done = run(kvm="")
    assert (done.returncode, done.stderr) == (0, "")
    names = ["host"] + [f"{e}.{end}" for e in "NYD" for end in ("qmp", "restored", "source")]
    found = sorted(file.name for file in (tmp_path / "out").iterdir())
    assert found == sorted([*names, "N.stats", "Y.stats", "D.stats"])
    facts = (tmp_path / "out/host").read_text()
    assert "tdp N\ntdp_mmu N\nqemu QEMU 7.2\n" in facts
    assert (tmp_path / "out/N.stats").read_text() == "before pages_2m 18\nafter pages_2m 18\n"
    log = (tmp_path / "log").read_text().splitlines()
    assert log.count("quit") == 6
    # What eager_page_split and dirty_harvest were while each migrated.
    seen = [log[i + 1 : i + 3] for i, name in enumerate(log) if name == "migrate"]
    assert seen == [["N", "off"], ["Y", "off"], ["Y", "on"]]
    assert_put_back(host, tmp_path)


def test_another_kvm_has_the_guest_in_between(run: Run, host: Path, tmp_path: Path) -> None:
    done = run()
    assert (done.returncode, done.stderr) == (0, "")
    found = {file.name for file in (tmp_path / "out").iterdir()}
    assert {f"{e}.{end}" for e in "NYD" for end in ("back.qmp", "there", "back.stats")} <= found
    for name in ("N.qmp", "N.back.qmp"):
        assert "query-migrate" in (tmp_path / "out" / name).read_text()
    stats = (tmp_path / "out/N.back.stats").read_text()
    assert stats == "before pages_2m 18\nafter pages_2m 18\n"
    log = (tmp_path / "log").read_text().splitlines()
    # Each guest is restored twice, and is sent away twice.
    assert [log.count(name) for name in ("quit", "migrate", "cont")] == [9, 6, 3]
    # No QEMU runs while another KVM is loaded; the first line comes after the last.
    loads = [i for i, line in enumerate(log) if line.startswith("kvm ")]
    assert {log[i - 1] for i in loads} == {"quit"}
    ends = ("source", "destination", "source")
    assert [log[i] for i in loads] == [f"kvm {end} {e}" for e in "NYD" for end in ends]
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


def test_being_ended_puts_all_back(run: Run, host: Path, tmp_path: Path) -> None:
    done = run("hangs", limit=1)
    assert done.returncode == 124
    assert "hangs" not in done.stderr
    assert_put_back(host, tmp_path)
    assert settings(host)[0] == "Y"
