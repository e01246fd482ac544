# SPDX-License-Identifier: GPL-2.0-only
"""The container: what it is made of, and as whom commands run in it."""

import subprocess
from pathlib import Path

import pytest

from lab.core.paths import ROOT
from tests.unit.files import called, program, write

ENTRY = ROOT / "scripts/container-entry.sh"
# A command that says as whom it would run, which only root can try.
SETPRIV = '#!/bin/sh\necho "$2:$4 HOME $(stat -c %a "$HOME")"; shift 6; exec "$@"\n'


class Container:
    def __init__(self, root: Path) -> None:
        self.root, self.source = root, root / "src"
        write(self.source / "Makefile", "")
        program(root / "bin/setpriv", SETPRIV)
        program(root / "bin/chown", "#!/bin/sh\n")
        self.is_user(0)
        self.belongs_to(1000)

    def is_user(self, number: int) -> None:
        program(self.root / "bin/id", f"#!/bin/sh\necho {number}\n")

    def belongs_to(self, number: int) -> None:
        inner = 'case $2 in %u|%g) echo {};; *) exec /usr/bin/stat "$@";; esac'
        program(self.root / "bin/stat", f"#!/bin/sh\n{inner.format(number)}\n")

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return called(self.root, "dash", ENTRY, *words, CONTAINER_SOURCE=self.source)


@pytest.fixture
def container(tmp_path: Path) -> Container:
    return Container(tmp_path)


def test_a_command_runs_as_the_owner(container: Container) -> None:
    """docker: root in the container is root outside."""
    done = container.run("sh", "-c", "echo done; exit 7")
    assert (done.returncode, done.stdout) == (7, "1000:1000 HOME 700\ndone\n"), done.stderr


@pytest.mark.parametrize("number", [0, 1000])
def test_the_owner_runs_it(container: Container, number: int) -> None:
    """podman without root: root in the container is the caller; or with --userns=keep-id."""
    container.is_user(number)
    container.belongs_to(number)
    done = container.run("echo", "done")
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_what_is_refused(container: Container) -> None:
    def said(*words: str) -> str:
        done = container.run(*words)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        return done.stderr

    assert "no command is named, as in: podman run" in said()
    container.is_user(1001)
    assert f"user 1001 does not own {container.source}, which belongs to 1000" in said("true")
    (container.source / "Makefile").unlink()
    assert f"{container.source} is not the repository: run this in its directory" in said("true")


def test_the_image_gets_what_setup_installs_and_nothing_else() -> None:
    text = (ROOT / "Containerfile").read_text()
    copied = [line.split()[1] for line in text.splitlines() if line.startswith("COPY ")]
    assert copied == ["lab/packages.txt", "scripts/container-entry.sh"]
    ignored = (ROOT / ".containerignore").read_text()
    assert ignored == "".join(f"{line}\n" for line in ("*", *(f"!{each}" for each in copied)))
    assert (ROOT / ".dockerignore").readlink() == Path(".containerignore")
    # The README names the same line.
    line = (
        'podman build -t eager-split . && podman run --rm -v "$PWD:/src:Z" eager-split make bench'
    )
    assert f"#\t{line}\n" in text and line in (ROOT / "README.md").read_text()
