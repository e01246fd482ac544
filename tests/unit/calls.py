# SPDX-License-Identifier: GPL-2.0-only
"""The lab's commands and functions as they are called, and what the caller reads."""

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
    """What a command says that ends with STATUS, by itself or by a signal."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            ended: object = cli.main(words)
        except SystemExit as error:
            ended = error.code
    assert ended == status, err.getvalue()
    return Said(out.getvalue(), err.getvalue())


def refusal(*words: str) -> str:
    """The line of a command that refuses what it is given; nothing else is said."""
    said = lab(*words, status=2)
    (line,) = said.err.splitlines()
    assert line.startswith("lab: ")
    assert said.out == ""
    return line


def refused(call: Callable[..., object], *arguments: Any, **words: Any) -> str:
    """The line that a user reads when CALL is given what it cannot work with."""
    with pytest.raises(LabError) as error:
        call(*arguments, **words)
    assert error.value.exit_code == 2
    assert "\n" not in str(error.value)
    return str(error.value)


def failed(call: Callable[..., object], *arguments: Any, **words: Any) -> str:
    """What a user reads when the work that CALL does fails."""
    with pytest.raises(WorkFailed) as error:
        call(*arguments, **words)
    assert error.value.exit_code == 1
    return str(error.value)
