# SPDX-License-Identifier: GPL-2.0-only
"""The files of series/: the changelog of a mail, and what it does to the kernel."""

import re
from dataclasses import dataclass
from typing import NamedTuple

from lab.core.errors import LabError
from lab.core.git import Identity

KEYS = ("Adds", "Replaces", "Deletes", "Removes")
_SIGNED_OFF = re.compile(r"^Signed-off-by: *(.+?) *<(.+)>$", re.MULTILINE)


@dataclass(frozen=True)
class Removal:
    """A top-level C definition to remove from a file of the kernel."""

    path: str
    symbol: str


@dataclass(frozen=True)
class Mail:
    """What one commit does, in the order in which it is applied.

    message: subject, blank line, changelog; no newline at either end.
    removes: definitions removed by name. deletes: kernel files that go.
    diff: edits of kernel files, as `git apply` takes them.
    adds, replaces: files whose whole text is in the repository at that path. The mail has them
    without what later mails do to them.
    grows: paths in diff of whole files that earlier mails add or replace; files.load() sets this.
    from_newest: whether its line numbers may be those of another base than the one it is for.
    """

    message: str
    removes: tuple[Removal, ...] = ()
    deletes: tuple[str, ...] = ()
    diff: str = ""
    adds: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()
    grows: tuple[str, ...] = ()
    from_newest: bool = False

    @property
    def subject(self) -> str:
        return self.message.split("\n", 1)[0]

    @property
    def author(self) -> Identity | None:
        """The first person who signed off; checkpatch requires that this is the author."""
        match = _SIGNED_OFF.search(self.message)
        return Identity(match[1], match[2]) if match else None

    @property
    def whole(self) -> tuple[str, ...]:
        return self.adds + self.replaces


class NamedMail(NamedTuple):
    """A mail, and what messages call it: mostly its path in the repository."""

    name: str
    mail: Mail


def edits(diff: str) -> dict[str, str]:
    """What a diff does to each file: its part of the diff, by path."""
    parts = re.split(r"^(?=diff --git )", diff, flags=re.MULTILINE)[1:]
    return {part.split("\n", 1)[0].rpartition(" b/")[2]: part for part in parts}


def slug(mail: Mail) -> str:
    """The subject, as it is in file names."""
    return re.sub(r"[^a-z0-9]+", "-", mail.subject.lower())[:56].strip("-")


def file_name(mail: Mail, number: int) -> str:
    """Name of the mail's file in series/, the NUMBERth counting from 1."""
    return f"{number:04d}-{slug(mail)}.patch"


def format_mail(mail: Mail) -> str:
    """The mail as text; parse() gives back an equal Mail."""
    subject, _, body = mail.message.partition("\n")
    machine = [
        *(f"Adds: {path}" for path in mail.adds),
        *(f"Replaces: {path}" for path in mail.replaces),
        *(f"Deletes: {path}" for path in mail.deletes),
        *(f"Removes: {removal.path}: {removal.symbol}" for removal in mail.removes),
    ]
    head = [f"Subject: {subject}", *body.split("\n"), "---", *machine]
    return "\n".join(head) + "\n" + ("\n" + mail.diff if mail.diff else "")


def _wrong(name: str, number: int, expected: str) -> LabError:
    return LabError(f"{name}:{number}: expected {expected}")


def _split(name: str, text: str) -> tuple[list[str], list[str], str]:
    """The lines above `---`, the machine lines below it, and the diff."""
    lines = text.split("\n")
    if "---" not in lines:
        raise _wrong(name, len(lines), "a line '---' below the changelog")
    cut = lines.index("---")
    rest = lines[cut + 1 :]
    end = rest.index("") if "" in rest else len(rest)
    return lines[:cut], rest[:end], "\n".join(rest[end + 1 :])


def parse(name: str, text: str) -> Mail:
    """Read a mail. LabError names NAME, the line, and what was expected there."""
    head, machine, diff = _split(name, text)
    if not head[0].startswith("Subject: "):
        raise _wrong(name, 1, "'Subject: ' and the mail's subject")
    if len(head) > 1 and head[1]:
        raise _wrong(name, 2, "a blank line after the subject")
    found: dict[str, list[str]] = {key: [] for key in KEYS}
    for number, line in enumerate(machine, len(head) + 2):
        key, _, value = line.partition(": ")
        if key not in KEYS or not value:
            raise _wrong(name, number, f"one of {', '.join(KEYS)} and a path")
        if key == "Removes" and ": " not in value:
            raise _wrong(name, number, "'Removes: PATH: SYMBOL'")
        found[key].append(value)
    if diff and not diff.startswith("diff --git "):
        raise _wrong(name, len(head) + len(machine) + 3, "a diff as git makes it")
    message = "\n".join([head[0].removeprefix("Subject: "), *head[1:]]).rstrip("\n")
    removes = (Removal(*value.split(": ", 1)) for value in found["Removes"])
    deletes, adds, replaces = (tuple(found[key]) for key in ("Deletes", "Adds", "Replaces"))
    return Mail(message, tuple(removes), deletes, diff, adds, replaces)
