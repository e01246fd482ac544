# SPDX-License-Identifier: GPL-2.0-only
"""lab/setup.sh with every program it calls replaced by one that only takes notes."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.rows import for_each_row
from tests.unit.files import called, program, write

LAB = Path(__file__).parents[2] / "lab"
REAL = ("sh", "sed", "grep", "cat", "dirname", "mkdir", "rm", "date", "flock", "sha256sum", "env")

# Every package of the file `installed` is; apt-get puts its arguments there.
DPKG_QUERY = """\
while read -r name; do echo "installed $name"; done <"$NOTES/installed"
exit 1
"""
APT_GET = """\
echo "apt-get $*" >>"$NOTES/calls"
[ ! -e "$NOTES/no-network" ] || { echo "could not resolve" >&2; exit 100; }
[ "$1" = update ] || for word; do echo "$word" >>"$NOTES/installed"; done
"""
PYTHON = """\
[ "$1" = -m ] || { [ ! -e "$NOTES/old-python" ]; exit; }
mkdir -p "$3/bin"
cp "$NOTES/pip" "$3/bin/pip"
cp "$NOTES/pip" "$3/bin/python"
"""
PIP = """\
#!/bin/sh
echo "pip $*" >>"$NOTES/calls"
[ ! -e "$NOTES/no-pip" ]
"""


@dataclass(frozen=True)
class Machine:
    """A machine on which setup.sh sees only the programs of these tests."""

    root: Path
    notes: Path
    path: Path

    def run(self, *lists: str, base: str = "") -> subprocess.CompletedProcess[str]:
        root, script = self.root, self.root / "lab/setup.sh"
        places = {"PATH": str(self.path), "NOTES": str(self.notes), "HOME": str(root)}
        return called(root, script, *lists, cwd=None, **places, LAB_BASE=base)

    def calls(self) -> list[str]:
        calls = self.notes / "calls"
        return calls.read_text().splitlines() if calls.exists() else []

    def note(self, name: str) -> None:
        (self.notes / name).touch()

    def program(self, name: str, text: str) -> None:
        program(self.path / name, f"#!/bin/sh\n{text}")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path / "root", tmp_path / "notes", tmp_path / "path")
    (made.root / "lab").mkdir(parents=True)
    made.notes.mkdir()
    made.path.mkdir()
    for name in ("setup.sh", "packages.txt", "requirements.txt"):
        shutil.copy(LAB / name, made.root / "lab" / name)
    for name in (*REAL, "cp"):
        (made.path / name).symlink_to(shutil.which(name) or name)
    made.program("id", "echo 0\n")
    made.program("dpkg-query", DPKG_QUERY)
    made.program("apt-get", APT_GET)
    made.program("python3", PYTHON)
    program(made.notes / "pip", PIP)
    lines = (LAB / "packages.txt").read_text().splitlines()
    packages = [line for line in lines if not line.startswith("#")]
    (made.notes / "installed").write_text("".join(f"{name}\n" for name in packages))
    return made


def forget(machine: Machine, *packages: str) -> None:
    file = machine.notes / "installed"
    kept = [name for name in file.read_text().split() if name not in packages]
    file.write_text("".join(f"{name}\n" for name in kept))


def refusal(machine: Machine, *lists: str, base: str = "") -> str:
    """The line that a user reads of what could not be done."""
    done = machine.run(*lists, base=base)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    return line


def test_silent_when_nothing_is_missing(machine: Machine) -> None:
    assert machine.run().returncode == 0
    done = machine.run()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert machine.calls() == [
        f"pip install --quiet --no-deps --no-compile -r {machine.root}/lab/requirements.txt"
    ]


def test_a_cdpath(machine: Machine) -> None:
    """By which cd finds another directory, and prints its name."""
    (machine.root / "elsewhere/lab").mkdir(parents=True)
    places = {"PATH": str(machine.path), "NOTES": str(machine.notes), "HOME": str(machine.root)}
    for path in (".", "elsewhere"):
        done = called(
            machine.root, "lab/setup.sh", cwd=machine.root, **places, LAB_BASE="", CDPATH=path
        )
        assert (done.returncode, done.stderr) == (0, "")
    assert not (machine.root / "elsewhere/build").exists()


def test_installs_only_what_is_missing(machine: Machine) -> None:
    forget(machine, "flex", "bochs")
    done = machine.run()
    assert done.returncode == 0
    assert "installing Debian packages (about 2 minutes): flex bochs" in done.stdout
    wanted = ["apt-get update", "apt-get install -y --no-install-recommends flex bochs"]
    assert machine.calls()[:2] == wanted
    # And all of it where nothing is installed.
    (machine.notes / "installed").write_text("")
    assert machine.run().returncode == 0
    assert " linux-source-6.12 build-essential " in machine.calls()[-1]


def test_a_base_needs_more(machine: Machine) -> None:
    pin = write(machine.root / "base/7.3.pin", 'packages = ["uuid-dev", "flex"]\n')
    (machine.notes / "pip").write_text(PIP + f'[ "$1" = install ] || exec {sys.executable} "$@"\n')
    done = machine.run(base="7.3")
    assert done.returncode == 0, done.stderr
    assert "installing Debian packages (about 2 minutes): uuid-dev\n" in done.stdout
    assert machine.calls()[-1] == "apt-get install -y --no-install-recommends uuid-dev"
    assert machine.run(base="7.3").stdout == ""
    pin.write_text("packages = [")
    assert "7.3.pin cannot be read" in refusal(machine, base="7.3")
    assert machine.run().returncode == 0


def test_a_command_needs_more(machine: Machine) -> None:
    (machine.root / "lab/packages-more.txt").write_text("# comment\nsome\nflex\n")
    done = machine.run("more")
    assert done.returncode == 0
    assert "installing Debian packages (about 2 minutes): some\n" in done.stdout
    assert refusal(machine, "else") == f"setup: there is no {machine.root}/lab/packages-else.txt"


def test_other_pins_make_another_venv(machine: Machine) -> None:
    machine.run()
    requirements = machine.root / "lab/requirements.txt"
    requirements.write_text(requirements.read_text() + "more==1\n")
    stale = machine.root / "build/venv/stale"
    stale.touch()
    assert "making build/venv" in machine.run().stdout
    assert not stale.exists()
    # One that was not finished is made again.
    (machine.root / "build/venv/.complete").unlink()
    assert "making build/venv" in machine.run().stdout


def without_a_python(machine: Machine) -> None:
    machine.note("old-python")
    script = machine.root / "lab/setup.sh"
    script.write_text(script.read_text().replace("/usr/bin/python3", "python3"))


@for_each_row(
    "spoil, said, calls",
    (lambda m: m.note("no-network"), "apt-get update failed, is there a network?", 1),
    (lambda m: m.note("no-pip"), "pip could not install requirements.txt", 3),
    (without_a_python, "no Python that is 3.11 or newer", 2),
    (
        lambda m: m.program("id", "echo 1000\n"),
        "run as root: apt-get install --no-install-recommends flex",
        0,
    ),
    (lambda m: (m.path / "dpkg-query").unlink(), "needs Debian 12", 0),
)
def test_what_is_in_the_way(
    machine: Machine, spoil: Callable[[Machine], object], said: str, calls: int
) -> None:
    forget(machine, "flex")
    spoil(machine)
    assert said in refusal(machine)
    assert len(machine.calls()) == calls
    assert not (machine.root / "build/venv").exists()


def test_sudo(machine: Machine) -> None:
    machine.program("id", "echo 1000\n")
    machine.program("sudo", 'echo "sudo $*" >>"$NOTES/calls"\n"$@"\n')
    forget(machine, "flex")
    assert machine.run().returncode == 0
    assert machine.calls()[0] == "sudo env DEBIAN_FRONTEND=noninteractive apt-get update"
