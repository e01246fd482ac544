# SPDX-License-Identifier: GPL-2.0-only
"""The command line: one line and the right status, whatever goes wrong."""

import errno
from pathlib import Path

import click
import pytest

from lab import cli
from lab.core.errors import LabError, WorkFailed
from lab.core.paths import BASE_VARIABLE, DEFAULT_BASE, LAYOUT
from lab.machines import MachineFailed
from tests.rows import for_each_row
from tests.unit.calls import lab, refusal


@pytest.fixture
def raising(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """`lab tree` raises what the test puts into this list."""
    errors: list[BaseException] = []

    def fail() -> None:
        raise errors.pop()

    command = click.Command("tree", callback=fail)
    monkeypatch.setattr(cli.LazyGroup, "get_command", lambda *_: command)
    return errors


@for_each_row(
    "error, status, line",
    (LabError("no such thing"), 2, "lab: no such thing"),
    (WorkFailed("broken"), 1, "lab: broken"),
    (click.UsageError("what?"), 2, "lab: what?"),
    (KeyboardInterrupt(), 130, "lab: interrupted"),
    (OSError(errno.ENOSPC, "full", "/x/y"), 2, "lab: no space left for /x/y"),
)
def test_errors(raising: list[BaseException], error: BaseException, status: int, line: str) -> None:
    raising.append(error)
    assert lab("tree", status=status).err.strip() == line


def test_a_machine_that_crashed_is_said_in_a_line(
    raising: list[BaseException], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cli, "LOG", tmp_path / "log")
    raising.append(MachineFailed("machine crashed", "it ended by itself", "Kernel panic\n"))
    log = tmp_path / "log" / "failed-machine.log"
    wanted = f"lab: machine crashed: it ended by itself; its console: {log}\n"
    assert lab("tree", status=3).err == wanted
    assert log.read_text() == "Kernel panic\n"


def test_mistakes_of_the_program_stay_visible(raising: list[BaseException]) -> None:
    raising.append(OSError(errno.EIO, "broken disk"))
    with pytest.raises(OSError, match="broken disk"):
        cli.main(["tree"])


@pytest.mark.parametrize(
    "words",
    [["nonsense"], ["tree", "--nonsense"], ["tree", "--base=nonsense"], ["build", "nonsense"]],
)
def test_bad_input(words: list[str]) -> None:
    assert "nonsense" in refusal(*words)


def test_every_command_exists_and_most_take_a_base() -> None:
    context = click.Context(cli.cli)
    for name in cli.COMMANDS:
        found = cli.cli.get_command(context, name)
        assert found is not None
        without = {"report", "compare", "mail", "qemu", "dkms"}
        assert (cli.BASE_OPTION in found.params) != (name in without)


@pytest.mark.parametrize("words", [["--base=9.9"], []])
def test_a_base_is_chosen_by_option_or_environment(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BASE_VARIABLE, DEFAULT_BASE if words else "9.9")
    line = refusal("run", "host", "--dry-run", *words, "--", "true")
    assert line.startswith("lab: there is no base '9.9', only: ")
    lab("run", "svm-qemu", "--dry-run", "--base", DEFAULT_BASE, "--", "true")
    monkeypatch.setattr(type(LAYOUT), "versions", ("7.3", DEFAULT_BASE))
    said = lab("run", "svm-qemu", "--dry-run", "--base", "7.3", "--", "true")
    assert "build/7.3/linux/obj-kvm" in said.out
