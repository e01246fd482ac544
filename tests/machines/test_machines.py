# SPDX-License-Identifier: GPL-2.0-only
"""The emulated machines, really booted: what comes back, and that a crash is no failed test.

Each case is a boot. On vmx-bochs only those run that depend on the emulator.
"""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from lab import machines
from lab.build.kernel import Kernel
from lab.core import workspace
from lab.core.errors import LabError
from lab.machines import Job, MachineFailed, Result
from tests.rows import for_each_row

pytestmark = pytest.mark.once

Boot = Callable[..., Result]

ALL = ("svm-qemu", "vmx-bochs")
EVERYTHING = """
echo "$LAB_MACHINE $PWD $1"; echo error >&2
echo first >>$LAB_PROGRESS; echo "second  line" >>$LAB_PROGRESS
mkdir $LAB_OUT/d; printf '\\000\\377\\r\\n' >$LAB_OUT/d/bytes
: >$LAB_OUT/empty; ln -s x $LAB_OUT/link
echo "written by a program" >/dev/kmsg
sleep 1000 & exit 42
"""


@pytest.fixture
def boot(
    kernel: Callable[[str, str], Kernel], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Boot]:
    """boot(machine, *command, **fields of Job). Nothing may be left behind."""
    # Use another directory than usual, in which other workers have theirs.
    monkeypatch.setattr(workspace, "TEMPORARY", tmp_path)
    image = kernel("series", "kvm").image

    def run(machine: str, *command: str, **more: object) -> Result:
        job = Job(kernel=image, command=command, **more)  # type: ignore[arg-type]
        return machines.get(machine).run(job)

    yield run
    assert not psutil.Process().children(recursive=True)
    assert not list(tmp_path.glob("machine-*"))


@pytest.mark.parametrize("machine", ALL)
def test_everything_comes_back(boot: Boot, machine: str) -> None:
    progress: list[str] = []
    result = boot(machine, "sh", "-c", EVERYTHING, "sh", "a 'b'", on_progress=progress.append)
    assert (result.status, result.output) == (42, f"{machine} / a 'b'\nerror\n".encode())
    assert result.files == {"d/bytes": b"\0\xff\r\n", "empty": b""}
    assert progress == ["first", "second  line"]
    assert "Linux version" in result.kernel_log
    assert "written by a program" in result.kernel_log


@for_each_row(
    "script, status", ("exec true", 0), ("exec false", 1), ("kill -SEGV $$", 139), ("nosuch", 127)
)
def test_status(boot: Boot, script: str, status: int) -> None:
    assert boot("svm-qemu", "sh", "-c", script).status == status


def test_much_output(boot: Boot) -> None:
    script = "head -c 1048576 /dev/urandom >/tmp/x; cat /tmp/x; sha256sum </tmp/x >$LAB_OUT/sum"
    result = boot("svm-qemu", "sh", "-c", script)
    assert len(result.output) == 1 << 20
    assert hashlib.sha256(result.output).hexdigest().encode() == result.files["sum"].split()[0]


@pytest.mark.parametrize("machine", ALL)
def test_virtualization_is_there(boot: Boot, machine: str) -> None:
    flag = {"svm-qemu": "svm", "vmx-bochs": "vmx"}[machine]
    second_level = {"svm-qemu": "kvm_amd.npt", "vmx-bochs": "kvm_intel.ept"}[machine]
    script = f"grep -c ' {flag}' /proc/cpuinfo; ls /dev/kvm; cd /sys/module; cat "
    script += " ".join(name.replace(".", "/parameters/") for name in (second_level, "kvm.tdp_mmu"))
    result = boot(machine, "sh", "-c", script, cpus=3, parameters={second_level: "0"})
    assert result.output == b"3\n/dev/kvm\nN\nN\n"


@pytest.mark.parametrize("machine", ALL)
def test_panic_is_a_crash_of_the_machine(boot: Boot, machine: str) -> None:
    with pytest.raises(MachineFailed) as failure:
        boot(machine, "true", cmdline=("rdinit=/bin/false",))
    assert failure.value.reason == "machine crashed"
    assert "Attempted to kill init" in failure.value.kernel_log


@for_each_row(
    "parameters, why",
    ({"kvm.tdp_mmuu": "0"}, "kvm.tdp_mmuu: svm-qemu's kernel has no such module parameter"),
    ({"kvm.eager_page_split": "maybe"}, "did not accept the value, and has Y"),
)
def test_a_bad_parameter_is_found_inside(boot: Boot, parameters: dict[str, str], why: str) -> None:
    with pytest.raises(LabError, match=why):
        boot("svm-qemu", "sleep", "1000", parameters=parameters)


def test_results_that_do_not_fit_are_said(boot: Boot) -> None:
    with pytest.raises(LabError, match="did not fit into 256 MiB"):
        boot("svm-qemu", "sh", "-c", "cat /dev/zero >$LAB_OUT/big", memory_mib=256)
