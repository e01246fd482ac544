# SPDX-License-Identifier: GPL-2.0-only
"""Does every mail compile on those before it, without new warnings?"""

import re

from lab.build import kernel, selftests
from lab.core.errors import WorkFailed
from lab.series import topics, tree
from lab.submit.subject import KVM, KVM_OBJECTS, OBJECTS, CheckResult, Subject, make

_DIAGNOSTIC = re.compile(r"^(?:\.\./)*([\w./+-]+):\d+(?::\d+)?: (warning|error): (.*)$")


def diagnostics(output: str) -> set[tuple[str, str]]:
    """The compiler's warnings and errors as (file, text), without line numbers.

    The series shifts the line numbers of code that it does not change.
    """
    matches = map(_DIAGNOSTIC.match, output.splitlines())
    return {(match[1], f"{match[2]}: {match[3]}") for match in matches if match}


def _compile_base(subject: Subject) -> set[tuple[str, str]]:
    """Compile KVM without the series from scratch; returns all of its warnings."""
    source = subject.at(tree.BASE_TAG)
    kernel.configure(source, OBJECTS, subject.fragments, subject.log)
    for directory in KVM_OBJECTS:
        for built in (source / OBJECTS / directory).rglob("*.o"):
            built.unlink()
    done = make(subject, source, "W=1", KVM)
    if done.returncode != 0:
        raise WorkFailed(f"KVM does not compile without the series; see {subject.log}")
    return diagnostics(done.stderr)


def _link_topics(subject: Subject) -> list[str]:
    """Build the kernel at the end of each topic, which must not need code of a later topic."""
    if not subject.layout.is_newest or not (subject.layout.root / topics.FILE).exists():
        return []
    problems = []
    found = topics.read(subject.layout)
    slices = topics.slices(found, subject.loaded.subjects, subject.commits)
    for topic, commits in zip(found, slices, strict=True):
        if make(subject, subject.at(commits[-1]), "vmlinux").returncode != 0:
            problems.append(f"topic {topic.name}: the kernel does not build; see {subject.log}")
    return problems


def _compile_mail(subject: Subject, commit: str, known: set[tuple[str, str]]) -> list[str]:
    """Compile what a mail changes, and return its problems. Adds its new warnings to KNOWN."""
    title, source = subject.repo.text("log", "-1", "--format=%s", commit), subject.at(commit)
    done = make(subject, source, "W=1", KVM)
    found = diagnostics(done.stderr) - known
    known |= found
    problems = [f'"{title}": {path}: {text}' for path, text in sorted(found)]
    if done.returncode != 0 and not found:
        problems.append(f'"{title}" does not compile; see {subject.log}')
    touched = subject.repo.lines("diff-tree", "-r", "--name-only", f"{commit}^", commit)
    if any(path.startswith(f"{selftests.SELFTESTS}/") for path in touched):
        try:
            selftests.compile_in(source, subject.log)
        except WorkFailed as error:
            problems.append(f'"{title}": {error}')
    return problems


def compiles(subject: Subject) -> CheckResult:
    """Every mail compiles on those before it, without warnings that base does not have.

    At the end of each topic the whole kernel builds.
    """
    known = _compile_base(subject)
    in_base = len(known)
    problems = [one for commit in subject.commits for one in _compile_mail(subject, commit, known)]
    problems += _link_topics(subject)
    detail = f"{len(subject.commits)} mails, W=1 ({in_base} warnings in base)"
    return CheckResult(detail, tuple(problems))
