# SPDX-License-Identifier: GPL-2.0-only
"""lab.verify.bpf without a machine, and what every tool of tools/bpftrace has to have."""

import re
from pathlib import Path
from unittest.mock import Mock

import pytest

from lab.build import kernel
from lab.machines import MachineFailed, Result
from lab.machines.qemu import SvmQemu
from lab.verify import bpf
from tests.unit.calls import failed, lab, refusal, refused

SCRIPTS = sorted(bpf.TOOLS.glob("*.bt"))
RUNS = bpf.choose(["wpfaults"], "both", "npt")
FILES = {
    "wpfaults-N.tool": b"@write_protected[1, 0, 2M]: 4\n",
    "wpfaults-N.said": b"Test iterations: 2\n",
    "wpfaults-Y.tool": b"@write_protected[1, 0, 4K]: 2048\n",
    "wpfaults-Y.said": b"",
}


def names(runs: list[bpf.ToolRun]) -> list[str]:
    return [run.name for run in runs]


def test_every_tool_can_be_chosen() -> None:
    assert {run.tool for run in bpf.choose([], "both", "npt")} == set(bpf.NAMES)
    assert names(RUNS) == ["wpfaults-N", "wpfaults-Y"]
    chosen = bpf.choose(["splitlat", "wpfaults"], "Y", "shadow")
    assert names(chosen) == ["splitlat-Y", "wpfaults-Y"]
    assert "splitlat-Y" not in names(bpf.choose([], "both", "tdp"))
    assert {script.stem for script in SCRIPTS} == set(bpf.NAMES)


@pytest.mark.parametrize(("eager", "paging"), [("N", "npt"), ("both", "tdp")])
def test_nothing_to_show(eager: str, paging: str) -> None:
    said = refused(bpf.choose, ["splitlat"], eager, paging)
    assert re.search("splitlat has nothing to show .* try Y and npt", said)


def test_dry_run_builds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "build", None)
    lines = lab("bpf", "--dry-run", "--tool", "wpfaults", "--paging", "shadow").out.splitlines()
    assert lines[0].endswith("kvm.tdp_mmu=0 kvm_amd.npt=0")
    assert lines[1::2] == ["# eager_page_split=N", "# eager_page_split=Y"]
    assert lines[2].endswith(" -i 2 -w 100' wpfaults.bt")


@pytest.mark.parametrize("words", [["--tool", "nonsense"], ["--paging", "ept"], ["more"]])
def test_bad_input(words: list[str]) -> None:
    refusal("bpf", *words)


def test_bpftrace_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bpf, "BPFTRACE", tmp_path / "bpftrace")
    line = refusal("bpf")
    assert line.endswith("apt-get install bpftrace, or `make test WHAT=bpf`, which does that")


def test_one_boot_for_all_runs() -> None:
    job = bpf.bpf_job(RUNS, "shadow", Path("bzImage"), Path("tests"), "json")
    assert (job.command[3:7], job.command[9]) == (("bpf", "json", "wpfaults", "N"), "Y")
    assert job.parameters == {"kvm_amd.npt": "0", "kvm.tdp_mmu": "0"}
    assert job.files["/tools/dirty_log_perf_test"] == Path("tests/dirty_log_perf_test")
    assert job.files["/tools/wpfaults.bt"] == bpf.TOOLS / "wpfaults.bt"
    assert "/tools/mmulock.bt" not in job.files


def test_what_the_runs_left_is_shown_below_what_was_run(capsys: pytest.CaptureFixture[str]) -> None:
    bpf.show(RUNS, bpf.collect(RUNS, FILES))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "# eager_page_split=N"
    assert lines[2] == "@write_protected[1, 0, 2M]: 4"
    assert lines[4] == "# eager_page_split=Y"


@pytest.mark.parametrize("name", FILES)
def test_a_run_that_left_nothing_or_lost_events_is_no_result(name: str) -> None:
    others = {n: text for n, text in FILES.items() if n != name}
    assert f"no file '{name}' came back" in failed(bpf.collect, RUNS, others)
    for said in (b"Lost 12 events\n", b'{"type": "lost_events", "data": 1}\n'):
        assert "lost events" in failed(bpf.collect, RUNS, FILES | {name: said})


def execute(monkeypatch: pytest.MonkeyPatch, run: Mock) -> list[str]:
    monkeypatch.setattr(SvmQemu, "run", run)
    return bpf.execute(bpf.bpf_job(RUNS, "npt", Path("bzImage"), Path("tests")), RUNS)


def test_a_tool_or_a_machine_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = Mock(return_value=Result(1, b"no such probe", {}, "", 1.0))
    assert "svm-qemu: exit status 1:\nno such probe" in failed(execute, monkeypatch, bad)
    good = Mock(return_value=Result(0, b"", FILES, "", 1.0))
    assert execute(monkeypatch, good)[1] == FILES["wpfaults-Y.tool"].decode()
    with pytest.raises(MachineFailed):
        execute(monkeypatch, Mock(side_effect=MachineFailed("machine crashed", "why", "Oops")))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_tool_says_how_it_is_used_and_what_it_cannot_tell(script: Path) -> None:
    text = script.read_text()
    assert text.splitlines()[1] == "/* SPDX-License-Identifier: GPL-2.0-only */"
    assert f" * {script.name} - " in text
    assert f" * USAGE: bpftrace {script.name}" in text
    assert f" * {script.stem}_example.txt has output and explains it." in text
    assert " * Method." in text
    assert " * Limits." in text
    # It prints nothing but results, and the example shows them.
    example = script.with_name(f"{script.stem}_example.txt").read_text()
    shown = set(re.findall(r"^(@\w+)(?:\[.*\])?:", example, re.MULTILINE))
    # The maps that the script prints at its end.
    assert shown == set(re.findall(r"print\((@\w+)\)", text))
    assert set(re.findall(r"(@\w+)", text)) == set(re.findall(r"clear\((@\w+)\)", text))
