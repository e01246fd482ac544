# SPDX-License-Identifier: GPL-2.0-only
"""Write backport/VERSION from the commits of an older base's tree.

The rules are in docs/developing.md: "Bases".
"""

from collections.abc import Sequence
from itertools import zip_longest

from lab.core.errors import LabError
from lab.core.git import Repo
from lab.core.paths import Layout
from lab.series import files
from lab.series.apply import as_added, tree_of_mail
from lab.series.extract import Extractor, line_of, message_of
from lab.series.files import AFTER, BEFORE, SAME, WholeFile
from lab.series.mail import Mail, edits, file_name, format_mail, slug
from lab.series.pin import path_map
from lab.series.tree import BASE_TAG


class _Extractor(Extractor):
    """Lets commits that come after the series do to whole files what they like."""

    part = BEFORE

    def check_owner(self, subject: str, path: str) -> None:
        if self.part != AFTER:
            super().check_owner(subject, path)

    def may_name(self, path: str) -> bool:
        return self.part == AFTER or super().may_name(path)

    def is_whole(self, path: str, blob: str, *, added: bool) -> bool:
        return self.part == SAME and self.is_ours(path)


def _parts(subjects: Sequence[str], common: Sequence[str]) -> list[str]:
    """Whether each commit comes BEFORE or AFTER the series, or is one of its mails (SAME).

    LabError: the mails of the series are not all there, or in another order.
    """
    if not common:
        return [AFTER] * len(subjects)
    places = [number for number, subject in enumerate(subjects) if subject in common]
    here = [subjects[place] for place in places]
    if here != list(common):
        wrong = next(one or other for one, other in zip_longest(common, here) if one != other)
        raise LabError(f"the commits are not the mails of series/ in their order: see {wrong}")
    first, last = places[0], places[-1]
    for number in set(range(first, last)) - set(places):
        raise LabError(
            f"{subjects[number]} stands among the mails of series/: what comes in addition belongs"
            " before the first or after the last"
        )
    return [BEFORE] * first + [SAME] * (last + 1 - first) + [AFTER] * (len(subjects) - last - 1)


class _Saver:
    """Decides for each commit which file of backport/VERSION keeps it, if any."""

    def __init__(self, layout: Layout, repo: Repo) -> None:
        self.layout = layout
        self.repo = repo
        self.newest = files.load(layout.newest)
        self.paths = path_map(layout)
        self.common = {slug(mail): self.paths.mail(mail) for _, mail in self.newest.mails}
        self.own = {
            (part, slug(mail)): (name, mail)
            for part in (BEFORE, AFTER)
            for name, mail in files.read_mails(layout, layout.backport / part)
        }
        for key, file in files.differing(layout, self.common).items():
            self.own[SAME, key] = file
        whole = set(map(self.paths.there, self.newest.whole))
        self.extractor = _Extractor(repo, BASE_TAG, whole.__contains__)
        loaded = files.load(layout)
        self._as_added = as_added(repo, loaded, lambda path: loaded.read_whole(layout.root, path))

    def _makes(self, mail: Mail | None, commit: str) -> bool:
        """Whether applying a mail to the parent of a commit makes that commit."""
        if mail is None or mail.message != message_of(self.repo, commit):
            return False
        try:
            made = tree_of_mail(self.repo, f"{commit}^", mail, self._as_added, "save")
        except LabError:
            return False
        return made == self.repo.tree_of(commit)

    def _grown_otherwise(self, mail: Mail, common: Mail) -> list[str]:
        """The whole files of earlier mails that MAIL changes in another way than COMMON."""
        mine, theirs = edits(mail.diff), edits(common.diff)
        grown = {path for path in mine if path in self.extractor.owner} | set(common.grows)
        return sorted(path for path in grown if mine.get(path) != theirs.get(path))

    def text_of(self, commit: str, part: str, name: str) -> bytes | None:
        """The mail to keep for a commit; None if series/ has it. LabError: it cannot be kept."""
        self.extractor.part = part
        if part == SAME and self._makes(self.common[name], commit):
            # The mail of series/ says which whole files belong to it.
            self.extractor.owner.update((path, name) for path in self.common[name].whole)
            return None
        file, mail = self.own.get((part, name), ("", None))
        if self._makes(mail, commit):
            assert mail is not None, "it makes the commit"
            self.extractor.owner.update((path, name) for path in mail.whole)
            return (self.layout.root / file).read_bytes()
        extract = self.extractor.extract(commit)
        added = extract.mail.whole
        other = [path for path in added if extract.files[path] != self._as_added(path)]
        if part == SAME:
            other += self._grown_otherwise(extract.mail, self.common[name])
        if other:
            raise LabError(
                f'commit "{extract.mail.subject}" has another {other[0]} than all bases share: make'
                f" the edit with BASE={self.layout.newest.version}, or after the last mail if"
                f" only {self.layout.version} needs it"
            )
        made = files.shortened(extract.mail, self.common[name]) if part == SAME else extract.mail
        return format_mail(made).encode("utf-8", "surrogateescape")


def made_of(layout: Layout, repo: Repo, head: str) -> dict[str, WholeFile]:
    """The files of backport/VERSION as the commits of base..HEAD make them, by path.

    LabError: mails of series/ are missing or in another order, a whole file differs, and what
    Extractor.extract() raises.
    """
    saver = _Saver(layout, repo)
    commits = line_of(repo, BASE_TAG, head)
    mails = [Mail(message_of(repo, commit)) for commit in commits]
    parts = _parts([slug(mail) for mail in mails], list(saver.common))
    made = {}
    for number, (commit, mail, part) in enumerate(zip(commits, mails, parts, strict=True), 1):
        text = saver.text_of(commit, part, slug(mail))
        if text is None:
            continue
        within = number - (parts.index(part) if part != SAME else 0)
        name = f"{slug(mail)}.patch" if part == SAME else file_name(mail, within)
        path = (layout.backport / part / name).relative_to(layout.root)
        made[path.as_posix()] = WholeFile("100644", text)
    return made
