# SPDX-License-Identifier: GPL-2.0-only
"""Make commits of mails, without a work tree. A mail applies as a whole, without fuzz, or not."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator

from lab.core.errors import LabError
from lab.core.git import IDENTITY, Entry, GitFailed, Repo, signature
from lab.series import cdefs
from lab.series.files import Series, WholeFile
from lab.series.mail import Mail, Removal, edits

# Gives a whole file of the repository, by path.
Fetch = Callable[[str], WholeFile]
# git's name of the tree without files.
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"

_FAILED_HUNK = re.compile(r"patch failed: (.+):(\d+)$", re.MULTILINE)


def _existing(index: Repo, path: str, wanted_by: str) -> Entry:
    mode, blob = "", ""
    for line in index.lines("ls-files", "-s", "--", path):
        mode, blob = line.split()[:2]
    if not blob:
        raise LabError(f"{wanted_by}: the kernel has no {path} at this point")
    return Entry(mode, blob)


def remove_definitions(index: Repo, removals: Iterable[Removal], wanted_by: str) -> None:
    """Remove definitions by name in the index. LabError: no such file or name."""
    for removal in removals:
        entry = _existing(index, removal.path, wanted_by)
        text = index.content(entry.blob).decode("utf-8", "surrogateescape")
        try:
            text = cdefs.remove(text, removal.symbol)
        except KeyError as error:
            raise LabError(
                f"{wanted_by}: {removal.path} defines no {removal.symbol} at top level;"
                " drop or correct its Removes: line"
            ) from error
        blob = index.store(text.encode("utf-8", "surrogateescape"))
        index.put(removal.path, Entry(entry.mode, blob))


def _refused(mail: Mail, error: GitFailed, wanted_by: str) -> LabError:
    remedy = f"correct {wanted_by} by hand, or install a version that the pin names as proved"
    if match := _FAILED_HUNK.search(error.output):
        path, line = match[1], match[2]
        part = mail.diff.partition(f"--- a/{path}\n")[2].split("\ndiff --git ")[0]
        header = re.search(rf"^@@ -{line}\b.* @@", part, re.MULTILINE)
        hunk = header[0] if header else f"at line {line}"
        return LabError(f"{wanted_by}: hunk {hunk} of {path} does not apply; {remedy}")
    reason = error.output.splitlines()[0].removeprefix("error: ")
    return LabError(f"{wanted_by}: {reason}; {remedy}")


def _hunks(diff: str, side: str = "-") -> Iterator[tuple[str, str, str]]:
    """Path, header and text of each hunk of DIFF, except those that have no text.

    side: "-" for the text before the change, "+" for that after it.
    """
    for path, part in edits(diff).items():
        _, *hunks = re.split(r"^(?=@@ )", part, flags=re.MULTILINE)
        for hunk in hunks:
            header, *lines = hunk.splitlines(keepends=True)
            if text := "".join(line[1:] for line in lines if line[0] in f" {side}"):
                yield path, header.strip(), text


def _places(content: bytes, lines: str) -> int:
    """How often a file has these lines. Places may overlap, so the search is a lookahead."""
    text = "\n" + content.decode("utf-8", "surrogateescape")
    return len(re.findall(rf"(?=\n{re.escape(lines)})", text))


def _check_places(index: Repo, mail: Mail, wanted_by: str) -> None:
    """LabError: a hunk fits in more than one place, so that only its line number would choose one.

    That is no error if there are as many equal hunks as places: each place gets one. Nor is it in
    whole files, whose lines have the same numbers on all bases.
    """
    hunks = [hunk for hunk in _hunks(mail.diff) if hunk[0] not in mail.grows]
    alike = Counter((path, old) for path, _, old in hunks)
    for path, header, old in hunks:
        entry = _existing(index, path, wanted_by)
        count = _places(index.content(entry.blob), old)
        if count > alike[path, old]:
            raise LabError(f"{wanted_by}: hunk {header} of {path} fits in {count} places here")


def _apply_diff(index: Repo, mail: Mail, wanted_by: str) -> None:
    if not mail.diff:
        return
    if mail.from_newest:
        _check_places(index, mail, wanted_by)
    patch = mail.diff.encode("utf-8", "surrogateescape")
    try:
        index.run("apply", "--cached", "--whitespace=nowarn", "-", stdin=patch)
    except GitFailed as error:
        raise _refused(mail, error, wanted_by) from error


def _with_edit(repo: Repo, path: str, file: WholeFile, edit: str, *words: str) -> WholeFile:
    """A file after an edit, or before it if WORDS has -R. GitFailed: the edit does not apply."""
    with repo.index_of(EMPTY_TREE) as index:
        index.put(path, Entry(file.mode, index.store(file.content)))
        patch = edit.encode("utf-8", "surrogateescape")
        index.run("apply", "--cached", *words, "--whitespace=nowarn", "-", stdin=patch)
        entry = _existing(index, path, "save")
        return WholeFile(entry.mode, index.content(entry.blob))


def _taken_back(repo: Repo, path: str, file: WholeFile, name: str, edit: str) -> WholeFile:
    """A whole file without what the mail called NAME does to it.

    LabError: the file does not have that, or has it twice, so that it could be taken back at
    another place than where the mail puts it.
    """
    said = (
        f"{path} no longer has what {name} changes in it, or more than once: edit it in"
        " build/linux, in the commit of that mail, and run `make save`"
    )
    if any(_places(file.content, new) > 1 for _, _, new in _hunks(edit, "+")):
        raise LabError(said)
    try:
        before = _with_edit(repo, path, file, edit, "-R")
        again = _with_edit(repo, path, before, edit)
    except GitFailed as error:
        raise LabError(said) from error
    if again != file:
        raise LabError(said)
    return before


def as_added(repo: Repo, series: Series, whole: Fetch) -> Fetch:
    """What gives whole files as the mails have them that add or replace them.

    LabError, when it is called: a later mail changes what the file does not have. So what the mails
    make in the end is what WHOLE gives.
    """
    later: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for name, mail in series.mails:
        parts = edits(mail.diff)
        for path in mail.grows:
            later[path].append((name, parts[path]))

    def fetch(path: str) -> WholeFile:
        file = whole(path)
        for name, edit in reversed(later[path]):
            file = _taken_back(repo, path, file, name, edit)
        return file

    return fetch


def _put_whole(index: Repo, mail: Mail, whole: Fetch, wanted_by: str) -> None:
    for path in mail.replaces:
        _existing(index, path, wanted_by)
    for path in mail.adds:
        if index.lines("ls-files", "--", path):
            raise LabError(
                f"{wanted_by}: the kernel already has {path}: write Replaces: instead of Adds:"
            )
    for path in mail.whole:
        file = whole(path)
        index.put(path, Entry(file.mode, index.store(file.content)))


def _apply(index: Repo, mail: Mail, whole: Fetch, wanted_by: str) -> str:
    """Apply the mail to the index, and return the id of the resulting tree."""
    remove_definitions(index, mail.removes, wanted_by)
    for path in mail.deletes:
        _existing(index, path, wanted_by)
        index.drop(path)
    _apply_diff(index, mail, wanted_by)
    _put_whole(index, mail, whole, wanted_by)
    return index.text("write-tree")


def tree_of_mail(repo: Repo, parent: str, mail: Mail, whole: Fetch, wanted_by: str) -> str:
    """The id of the tree that the mail makes of its parent.

    wanted_by: what to call the mail in a LabError, which says what does not fit.
    """
    with repo.index_of(parent) as index:
        return _apply(index, mail, whole, wanted_by)


def commit_mails(repo: Repo, base: str, mails: Iterable[tuple[str, Mail]], whole: Fetch) -> str:
    """Put one commit per mail on BASE and return the id of the last.

    mails: what to call each, and the mail. The same input gives the same ids.
    No ref, index or work tree changes. LabError: something does not apply.
    """
    parent = base
    # Use one index for all mails: filling it with a kernel takes longer than applying most of them.
    with repo.index_of(base) as index:
        for number, (name, mail) in enumerate(mails, 1):
            tree = _apply(index, mail, whole, name)
            env = signature(*(mail.author or IDENTITY), number)
            message = f"{mail.message}\n".encode("utf-8", "surrogateescape")
            made = repo.run("commit-tree", tree, "-p", parent, "-F", "-", stdin=message, env=env)
            parent = made.decode().strip()
    return parent
