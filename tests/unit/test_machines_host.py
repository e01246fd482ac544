# SPDX-License-Identifier: GPL-2.0-only
"""The machine `host`, with a false /sys/module: real commands, no real settings."""

import dataclasses
import os
import signal
from pathlib import Path

import pytest

from lab.machines import host
from lab.machines.host import Host, here, new_messages
from lab.machines.job import Job, MachineFailed
from tests.rows import for_each_row
from tests.unit.calls import refused
from tests.unit.files import program, write
from tests.unit.processes import is_gone

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs commands as root")


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A host with KVM: kvm and kvm_intel are modules, kvm_builtin is not."""
    modules = tmp_path / "module"
    values = {
        "kvm/parameters/tdp_mmu": "Y\n",
        "kvm/parameters/eager_page_split": "N\n",
        "kvm_intel/parameters/ept": "Y\n",
        "builtin/parameters/x": "1\n",
        "kvm/initstate": "live\n",
        "kvm_intel/initstate": "live\n",
    }
    for name, value in values.items():
        write(modules / name, value, 0o444)
    (modules / "kvm/parameters/eager_page_split").chmod(0o644)
    monkeypatch.setattr(host, "MODULES", modules)
    monkeypatch.setattr(host, "KVM", tmp_path)
    return modules


def job(*command: str, **more: object) -> Job:
    first = Job(kernel=Path(), command=command, cpus=1, memory_mib=1)
    return dataclasses.replace(first, **more)  # type: ignore[arg-type]


def shell(script: str, **more: object) -> Job:
    return job("sh", "-c", script, **more)


def test_status_output_files_and_progress(modules: Path, tmp_path: Path) -> None:
    progress: list[str] = []
    (tmp_path / "data").write_text("data")
    script = (
        "echo $LAB_MACHINE $PWD; echo error >&2; mkdir $LAB_OUT/d; cp /in/data $LAB_OUT/d/copy;"
        r"for i in 1 2; do printf 'run %s \377\n' $i >>$LAB_PROGRESS; done; exit 42"
    )
    result = Host().run(shell(script, files={"/in": tmp_path}, on_progress=progress.append))
    assert (result.status, result.output) == (42, b"host /\nerror\n")
    assert (result.files, progress) == ({"d/copy": b"data"}, ["run 1 \ufffd", "run 2 \ufffd"])
    assert not list((tmp_path / "tmp").glob("machine-*"))


@for_each_row(
    "work, status",
    (shell("kill -SEGV $$"), 128 + signal.SIGSEGV),
    (job("nosuchcommand"), 127),
    (job("true", parameters={"kvm.tdp_mmu": "1", "kvm-intel.ept": "y"}), 0),
)
def test_exit_statuses(modules: Path, work: Job, status: int) -> None:
    assert Host().run(work).status == status


@pytest.fixture
def sudo(modules: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A host whose user is not root, and the file in which its sudo notes what it runs."""
    text = f'#!/bin/sh\necho "$*" >>{tmp_path}/sudo.log\n[ "$1" = -n ] && shift && exec "$@"\n'
    program(tmp_path / "bin/sudo", text)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    monkeypatch.setattr(host, "_is_root", lambda: False)
    return tmp_path / "sudo.log"


def test_a_user_runs_everything_by_sudo_and_gets_the_files(sudo: Path) -> None:
    result = Host().run(shell("echo said; touch $LAB_OUT/file; exit 7"))
    assert (result.status, result.output, result.files) == (7, b"said\n", {"file": b""})
    asked, before, work, own, after = sudo.read_text().splitlines()
    assert (asked, before, after) == ("-n true", "-n dmesg", "-n dmesg")
    assert work.startswith("-n env -C / LAB_MACHINE=host ")
    assert own.startswith(f"-n chown -R {os.getuid()}:{os.getgid()} ") and own.endswith("/out")
    assert Host().describe(shell("true")).endswith("\ncommand:        sudo -n sh -c true")


def test_a_user_who_cannot_be_root_is_told_what_to_do(
    sudo: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = "host runs its commands as root: run as root, or "
    program(sudo.parent / "bin/sudo", "#!/bin/sh\necho a password is required >&2\nexit 1\n")
    assert refused(Host().run, job("true")) == f"{begin}run `sudo -v` first"
    # What sudo says is no help.
    assert capfd.readouterr() == ("", "")
    monkeypatch.setenv("PATH", str(sudo.parent / "none"))
    assert refused(Host().describe, job("true")) == f"{begin}install sudo"


def test_a_kernel_whose_messages_cannot_be_read_has_none(
    modules: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program(tmp_path / "bin/dmesg", "#!/bin/sh\necho not permitted >&2\nexit 1\n")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    result = Host().run(job("true"))
    assert (result.status, result.kernel_log) == (0, "")


def test_timeout_is_the_machines_failure_and_leaves_nothing(modules: Path, tmp_path: Path) -> None:
    script = f"sleep 1000 & echo $! >{tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; wait"
    with pytest.raises(MachineFailed) as failure:
        Host().run(shell(script, timeout_s=0.5))
    assert failure.value.reason == "command timed out"
    assert is_gone(int((tmp_path / "pid").read_text()))


@for_each_row(
    "parameters, remedy",
    (
        {"kvm.tdp_mmu": "0", "kvm_intel.ept": "1"},
        "run: modprobe -r kvm_intel kvm && modprobe kvm tdp_mmu=0 && modprobe kvm_intel ept=1",
    ),
    ({"kvm.eager_page_split": "1"}, "run: echo 1 > "),
    ({"builtin.x": "0"}, "boot with builtin.x=0 on the kernel command line"),
    ({"kvm.tdp_mmuu": "0"}, "no such module parameter"),
    ({"tdp_mmu": "0"}, "MODULE.NAME"),
)
def test_what_is_wrong_has_a_remedy(modules: Path, parameters: dict[str, str], remedy: str) -> None:
    assert remedy in refused(Host().run, job("true", parameters=parameters))
    assert (modules / "kvm/parameters/eager_page_split").read_text() == "N\n"


def test_what_there_is_not_is_refused(modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for more in ({"cpus": 1 << 20}, {"memory_mib": 1 << 40}, {"files": {"/x": Path("/none")}}):
        refused(Host().run, job("true", **more))
    monkeypatch.setattr(host, "KVM", modules / "nonexistent")
    assert "svm-qemu or vmx-bochs" in refused(Host().run, job("true"))


@for_each_row(
    "word, replaced",
    ("/test", "/tmp"),
    ("/test/run", "/tmp/run"),
    ("--dir=/test/a", "--dir=/tmp/a"),
    ("cd /test && ./run", "cd /tmp && ./run"),
    ("/tests/run", "/tests/run"),
    ("/other/test", "/other/test"),
    ("/test/deep/x", "/usr/x"),
)
def test_paths_of_files_are_replaced(word: str, replaced: str) -> None:
    assert here((word,), {"/test": Path("/tmp"), "/test/deep": Path("/usr")}) == [replaced]


def test_new_kernel_messages() -> None:
    assert new_messages(["a", "b"], ["a", "b", "c"]) == "c\n"
    assert new_messages(["a", "b"], ["b", "c", "d"]) == "c\nd\n"
    assert new_messages(["a", "b"], ["a", "b"]) == ""
    assert new_messages(["a"], ["x", "y"]) == "x\ny\n"
    assert new_messages([], ["x"]) == "x\n"
