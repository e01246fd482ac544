# SPDX-License-Identifier: GPL-2.0-only
"""What the tests of split-bench.sh share."""

import json
import subprocess
from pathlib import Path

from tests.unit.fake_kvm_host import SCRIPT, Host

Record = dict[str, object]
Said = subprocess.CompletedProcess[str]

# Of a run of two iterations: populate, enable, disable; dirty, get, clear of each.
RECORDS = 3 + 3 * 2
# Two runs.
PART = ("--vcpus", "2", "--writes", "20")


def refusal(host: Host, *arguments: str, **options: object) -> str:
    """The one line of a refusal, after the proof that it changed nothing."""
    before = host.settings()
    done = host.run(*arguments, **options)
    assert (done.returncode, done.stdout) == (2, "")
    assert host.settings() == before
    assert host.calls() == []
    lines = done.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("split-bench: ")
    return lines[0]


def measured(host: Host, *arguments: str, status: int = 0) -> tuple[Said, list[Record]]:
    """What a run with an output says and, if it is there, what the output then holds."""
    done = host.run(*arguments, "--output", str(host.output))
    assert done.returncode == status, done.stderr
    return done, records(host.output) if host.output.exists() else []


def records(file: Path) -> list[Record]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def keys(file: Path) -> list[str]:
    return sorted(str({**record, "seconds": None}) for record in records(file))


def needed() -> list[str]:
    """The commands that the script's header lists."""
    text = " ".join(line.lstrip("# ") for line in SCRIPT.read_text().splitlines()[:60])
    return text.partition("and the commands ")[2].partition(" (busybox")[0].split(", ")
