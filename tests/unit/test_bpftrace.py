# SPDX-License-Identifier: GPL-2.0-only
"""Each bpftrace tool states its method and its limits, and has an example of its output."""

import re
from pathlib import Path

import pytest

from lab.core.paths import ROOT


@pytest.mark.parametrize(
    "script", sorted((ROOT / "tools/bpftrace").glob("*.bt")), ids=lambda script: script.stem
)
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
