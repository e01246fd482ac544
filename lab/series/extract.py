# SPDX-License-Identifier: GPL-2.0-only
"""Make mails of commits, the reverse of lab.series.apply, with little text of the kernel."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from lab.core.errors import LabError, WorkFailed
from lab.core.git import Repo
from lab.series import cdefs
from lab.series.apply import remove_definitions, tree_of_mail
from lab.series.files import WholeFile
from lab.series.mail import Mail, Removal

UNFINISHED = ("fixup!", "squash!", "amend!")
REGULAR = ("100644", "100755")
# If a smaller share of a file's lines in `base` survives, keep it as a whole file of ours.
OURS_BELOW = 0.3
# Options that fix the text of a diff, even if git's defaults change.
DIFF = (
    *("--no-renames", "--no-color", "--no-ext-diff", "--no-textconv", "--full-index"),
    *("--diff-algorithm=histogram", "--indent-heuristic", "--inter-hunk-context=0"),
    *("--src-prefix=a/", "--dst-prefix=b/"),
)

IsOurs = Callable[[str], bool]


@dataclass(frozen=True)
class Extract:
    """A commit as the repository keeps it: the mail, and the whole files that it changes."""

    mail: Mail
    files: Mapping[str, WholeFile]


def changed_lines(repo: Repo, old: str, new: str) -> tuple[int, int]:
    """Lines that the diff between two blobs adds and removes."""
    if old == new:
        return 0, 0
    added, removed, _ = repo.text("diff", "--numstat", *DIFF, old, new).split("\t")
    return (int(added), int(removed)) if added != "-" else (1, 1)


def message_of(repo: Repo, commit: str) -> str:
    """The message of a commit. LabError: a file of series/ cannot have it."""
    message = repo.text("log", "-1", "--format=%B", commit).strip("\n")
    subject, *body = message.split("\n")
    if subject.startswith(UNFINISHED):
        raise LabError(
            f'commit "{subject}" is not squashed yet;'
            " run in build/linux: git rebase -i --autosquash base"
        )
    if body and body[0]:
        raise LabError(f'commit "{subject}": its subject needs a blank line below it')
    if "---" in body:
        raise LabError(f'commit "{subject}": a line "---" would end the mail there; change it')
    return message


class Extractor:
    """Turns the commits on top of BASE into mails, oldest first.

    is_ours: whether the repository has a file of its own at a path already.
    """

    def __init__(self, repo: Repo, base: str, is_ours: IsOurs) -> None:
        self.repo = repo
        self.base = base
        self.is_ours = is_ours
        self.owner: dict[str, str] = {}

    def extract(self, commit: str) -> Extract:
        """The mail of a commit whose parent came before.

        LabError: a message or a change that the repository cannot keep.
        WorkFailed: the mail would not make the same commit again (a mistake here).
        """
        message = message_of(self.repo, commit)
        parent = self.repo.text("rev-parse", f"{commit}^")
        change = self._classify(message.split("\n")[0], parent, commit)
        edits = change["edits"]
        named = [path for path in edits if self.may_name(path)]
        removes = [found for path in named for found in self._removals(parent, commit, path)]
        diff = self._diff(parent, commit, removes, edits)
        deletes, adds, replaces = (tuple(change[key]) for key in ("deletes", "adds", "replaces"))
        mail = Mail(message, tuple(removes), deletes, diff, adds, replaces)
        grown = (path for path in edits if path in self.owner)
        files = {path: self._whole(commit, path) for path in (*mail.whole, *grown)}
        made = tree_of_mail(self.repo, parent, mail, files.__getitem__, f'"{mail.subject}"')
        if made != self.repo.tree_of(commit):
            raise WorkFailed(f'"{mail.subject}" would be another commit as a mail: a bug in save')
        return Extract(mail, files)

    def _classify(self, subject: str, parent: str, commit: str) -> dict[str, list[str]]:
        """The paths that a commit touches, by what it does to them."""
        change: dict[str, list[str]] = {"adds": [], "replaces": [], "deletes": [], "edits": []}
        fields = self.repo.text("diff-tree", "-r", "-z", "--no-renames", parent, commit).split("\0")
        for information, path in zip(fields[0::2], fields[1::2], strict=False):
            _, mode, _, blob, status = information.split(" ")
            if status == "D":
                self.check_owner(subject, path)
            if status != "D" and mode not in REGULAR:
                what = f'commit "{subject}": {path}'
                raise LabError(f"{what} is not a regular file; only regular files can be saved")
            if status == "D":
                change["deletes"].append(path)
            elif path in self.owner or not self.is_whole(path, blob, added=status == "A"):
                change["edits"].append(path)
            elif status == "A":
                change["adds"].append(path)
            else:
                change["replaces"].append(path)
        self.owner.update((path, subject) for path in change["adds"] + change["replaces"])
        return change

    def check_owner(self, subject: str, path: str) -> None:
        """LabError: the file is a whole file of ours, which a commit must not delete."""
        if path in self.owner:
            raise LabError(
                f'commit "{subject}" deletes {path}, a whole file that belongs to'
                f' "{self.owner[path]}": drop it there (git commit --fixup, then'
                " git rebase -i --autosquash base)"
            )

    def may_name(self, path: str) -> bool:
        """Whether definitions that a commit removes from a file may be named instead of shown.

        Not in whole files: what a mail does to them has to be reversible.
        """
        return path not in self.owner

    def is_whole(self, path: str, blob: str, *, added: bool) -> bool:
        """Whether the repository keeps a file as a whole, instead of a diff."""
        if added or self.is_ours(path):
            return True
        if not (old := self.repo.entry(self.base, path)):
            return False
        total = self.repo.content(old.blob).count(b"\n")
        _, removed = changed_lines(self.repo, old.blob, blob)
        return total > 0 and (total - removed) / total < OURS_BELOW

    def _text(self, commit: str, path: str) -> tuple[str, str]:
        entry = self.repo.entry(commit, path)
        assert entry is not None, "an edited file exists on both sides"
        return entry.blob, self.repo.content(entry.blob).decode("utf-8", "surrogateescape")

    def _removals(self, parent: str, commit: str, path: str) -> list[Removal]:
        """The deleted definitions that are worth a Removes: line, because it shortens the diff.

        If a function was only renamed, it does not.
        """
        if PurePosixPath(path).suffix not in (".c", ".h") or not self.repo.entry(parent, path):
            return []
        blob, text = self._text(parent, path)
        target, target_text = self._text(commit, path)
        left = {definition.name for definition in cdefs.definitions(target_text)}
        gone = dict.fromkeys(definition.name for definition in cdefs.definitions(text))
        found = []
        cost = sum(changed_lines(self.repo, blob, target))
        for symbol in (name for name in gone if name not in left):
            shorter = cdefs.remove(text, symbol)
            candidate = self.repo.store(shorter.encode("utf-8", "surrogateescape"))
            if (new_cost := sum(changed_lines(self.repo, candidate, target))) < cost:
                text, cost = shorter, new_cost
                found.append(Removal(path, symbol))
        return found

    def _diff(self, parent: str, commit: str, removes: list[Removal], paths: list[str]) -> str:
        """Edits after the removals, without blob ids and without function names."""
        if not paths:
            return ""
        with self.repo.index_of(parent) as index:
            remove_definitions(index, removes, "save")
            before = index.text("write-tree")
        diff = self.repo.run("diff-tree", "-p", "-U1", *DIFF, before, commit, "--", *paths)
        text = diff.decode("utf-8", "surrogateescape")
        text = re.sub(r"^index [0-9a-f]+\.\.[0-9a-f]+( \d+)?\n", "", text, flags=re.MULTILINE)
        return re.sub(r"^(@@ -\S+ \+\S+ @@).*", r"\1", text, flags=re.MULTILINE)

    def _whole(self, commit: str, path: str) -> WholeFile:
        entry = self.repo.entry(commit, path)
        assert entry is not None, "the commit adds, replaces or edits it"
        return WholeFile(entry.mode, self.repo.content(entry.blob))


def line_of(repo: Repo, base: str, head: str) -> list[str]:
    """The commits of base..head, oldest first. LabError: one of them is a merge."""
    if merges := repo.lines("log", "--merges", "--format=%s", f"{base}..{head}"):
        raise LabError(f'"{merges[0]}" is a merge, and a series must be linear: git rebase base')
    return repo.lines("rev-list", "--reverse", f"{base}..{head}")
