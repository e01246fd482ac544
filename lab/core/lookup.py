# SPDX-License-Identifier: GPL-2.0-only
"""Looking up what a user named, such as a kernel, a machine or a base."""

from collections.abc import Collection, Mapping
from typing import TypeVar

from lab.core.errors import LabError

T = TypeVar("T")


def check_known(known: Collection[str], name: str, what: str) -> None:
    """LabError: there is no WHAT called NAME; says which names there are."""
    if name not in known:
        raise LabError(f"there is no {what} {name!r}, only: {' '.join(known)}")


def named(known: Mapping[str, T], name: str, what: str) -> T:
    """KNOWN[NAME]. Raises LabError like check_known()."""
    check_known(known, name, what)
    return known[name]
