# SPDX-License-Identifier: GPL-2.0-only
"""KVM's code as `lab native` compiles it does its work, and a pass that doesn't is found out."""

from types import SimpleNamespace

import pytest

from lab.build.kernel import source_tree
from lab.core.errors import WorkFailed
from lab.measure.native import code, guest


def test_every_page_is_as_it_should_be() -> None:
    sides = code.build(source_tree("series"))
    assert len(list(guest.passes(sides, 1, 1))) == 2 * (5 + 4 + 3 + 3)
    for phase in ("split", "clear", "harvest"):
        idle = SimpleNamespace(**{"set_up": lambda *_: None, phase: lambda _: None})
        with pytest.raises(WorkFailed, match=f"{phase} by idle: page 0 is wrong"):
            list(guest.passes({**sides, "idle": idle}, 1, 1))
