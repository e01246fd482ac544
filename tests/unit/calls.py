# SPDX-License-Identifier: GPL-2.0-only
"""Calls of the lab's commands and functions, and what a user reads of them."""

import io
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

import pytest

from lab import cli
from lab.core.errors import LabError, WorkFailed


@dataclass(frozen=True)
class Said:
    out: str
    err: str


def lab(*words: str, status: int = 0) -> Said:
    """Run a command, which has to end with STATUS, and return its output."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            ended: object = cli.main(words)
        except SystemExit as error:
            ended = error.code
    assert ended == status, err.getvalue()
    return Said(out.getvalue(), err.getvalue())


def refusal(*words: str) -> str:
    """Run a command that has to refuse its arguments, and return the only line that it prints."""
    said = lab(*words, status=2)
    (line,) = said.err.splitlines()
    assert line.startswith("lab: ")
    assert said.out == ""
    return line


def refused(call: Callable[..., object], *arguments: Any, **words: Any) -> str:
    """Call a function that has to refuse its input, and return the line that a user reads."""
    with pytest.raises(LabError) as error:
        call(*arguments, **words)
    assert error.value.exit_code == 2
    assert "\n" not in str(error.value)
    return str(error.value)


def failed(call: Callable[..., object], *arguments: Any, **words: Any) -> str:
    """Call a function whose work has to fail, and return what a user reads."""
    with pytest.raises(WorkFailed) as error:
        call(*arguments, **words)
    assert error.value.exit_code == 1
    return str(error.value)
