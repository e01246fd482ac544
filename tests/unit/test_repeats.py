# SPDX-License-Identifier: GPL-2.0-only
"""`make test ARGS='--count 3 -k ...'` runs each case three times, and shares no boot between them.

The tests of tests/machines run here on a machine that is not real, in a pytest of their own.
"""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from lab.core.paths import ROOT
from tests.machines.matrix import Case, cases
from tests.repeats import CaseName, case_name
from tests.rows import for_each_row
from tests.unit.files import write

# A plugin of pytest: every boot is a line of the file BOOTS, the names of its cases.
FAKE = """
import os, re
from pathlib import Path

from lab import machines
from lab.build import kernel, selftests
from lab.build.kernel import Kernel
from lab.machines import Result


class Fake:
    def run(self, job):
        names = re.findall("^run ([^ ]+) ", job.command[2], re.MULTILINE)
        with open(os.environ["BOOTS"], "a") as boots:
            boots.write(" ".join(names) + "\\n")
        files = {"between.log": b""}
        for name in names:
            job.on_progress(name)
            files |= {f"{name}.status": b"0", f"{name}.output": b"", f"{name}.log": b""}
        return Result(0, b"", files, "", 1.0)


machines.get = lambda name: Fake()
kernel.build = lambda kind, config: Kernel(kind, config, Path("image"), "")
selftests.build = lambda kind: Path("selftests")
"""


def two_cases_of_a_boot() -> list[Case]:
    boots: dict[str, list[Case]] = {}
    for case in cases():
        boots.setdefault(case.boot, []).append(case)
    return next(found[:2] for found in boots.values() if len(found) > 1)


@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_each_repetition_boots_again(tmp_path: Path, workers: str) -> None:
    write(tmp_path / "fake_machine.py", FAKE)
    wanted = [case.id for case in two_cases_of_a_boot()]
    command = [sys.executable, "-m", "pytest", "-q", workers, "-p", "fake_machine", "--count", "3"]
    command += ["-o", f"cache_dir={tmp_path}/cache", f"--basetemp={tmp_path}/base"]
    command += ["-k", " or ".join(wanted), "tests/machines/test_selftests.py"]
    env = os.environ | {"PYTHONPATH": str(tmp_path), "BOOTS": str(tmp_path / "boots")}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    ran = [line.split() for line in (tmp_path / "boots").read_text().splitlines()]
    assert set(wanted) <= {name for names in ran for name in names}
    # A name can be the beginning of another one, which has a boot of its own or not.
    times = Counter(name for names in ran for name in names)
    assert set(times.values()) == {3}
    assert all(len(names) == len(set(names)) for names in ran)
    assert sum(wanted[0] in names and wanted[1] in names for names in ran) == 3
    (passed,) = re.findall(r"^(\d+) passed", done.stdout.splitlines()[-1])
    assert int(passed) == times.total()


@for_each_row(
    "test, count, name",
    ("a.py::test_a", 1, CaseName("")),
    ("a.py::test_a[x-1-20]", 1, CaseName("x-1-20")),
    ("a.py::test_a[x-1-20]", 20, CaseName("x", "1-20")),
    ("a.py::test_a[x-3-20-1-20]", 20, CaseName("x-3-20", "1-20")),
    ("a.py::test_a[1-20]", 20, CaseName("", "1-20")),
)
def test_names_of_repetitions(
    test: str,
    count: int,
    name: CaseName,
    pytestconfig: pytest.Config,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pytestconfig.option, "count", count)
    assert case_name(test, pytestconfig) == name
