# SPDX-License-Identifier: GPL-2.0-only
"""docs/topics.toml: the topics that the mails are sent in, each a slice of series/ in its order.

A topic comes after all that stand before it, and passes its own tests with no more than those.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec

from lab.core.errors import LabError
from lab.core.git import Repo
from lab.core.lookup import named
from lab.core.paths import Layout
from lab.series import files, tree

FILE = "docs/topics.toml"
# The environment variable that names the topic to test. Its kernel has no mails of later topics.
VARIABLE = "LAB_TOPIC"


class Topic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One topic.

    name: a word. subject, text: of its cover letter. last: the subject of its last
    mail. tests: patterns of the names of cases in tests/machines/test_selftests.py, of programs
    that are there by then.
    """

    name: str
    subject: str
    text: str
    last: str
    tests: tuple[str, ...]


class _File(msgspec.Struct, forbid_unknown_fields=True):
    topic: tuple[Topic, ...]


def read(layout: Layout) -> tuple[Topic, ...]:
    """All topics, in order. LabError: the file is not as it has to be."""
    try:
        return msgspec.toml.decode((layout.root / FILE).read_bytes(), type=_File).topic
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LabError(f"{FILE}: {error}") from error


def problems(topics: Sequence[Topic], subjects: Sequence[str]) -> Iterator[str]:
    """A line for each reason why TOPICS do not divide the mails with these SUBJECTS."""
    for name, count in Counter(topic.name for topic in topics).items():
        if count > 1:
            yield f"{FILE}: there are {count} topics '{name}'"
    last = [topic.last for topic in topics]
    yield from (f"{FILE}: series/ has no '{mail}'" for mail in last if mail not in subjects)
    if set(last) <= set(subjects):
        for first, second in pairwise(last):
            if subjects.index(first) >= subjects.index(second):
                yield f"{FILE}: '{second}' does not come after '{first}' in series/"
    if last[-1:] != list(subjects[-1:]):
        yield f"{FILE}: '{subjects[-1]}' is in no topic"


def slices(
    topics: Sequence[Topic], subjects: Sequence[str], commits: Sequence[str]
) -> list[tuple[str, ...]]:
    """The commits of each topic. subjects, commits: one per mail.

    LabError: the first of problems().
    """
    for problem in problems(topics, subjects):
        raise LabError(problem)
    ends = [subjects.index(topic.last) + 1 for topic in topics]
    return [tuple(commits[start:end]) for start, end in pairwise([0, *ends])]


def topic_named(topics: Sequence[Topic], name: str) -> Topic:
    """The topic with this name. LabError: there is none."""
    return named({topic.name: topic for topic in topics}, name, "topic")


def commit(layout: Layout) -> str:
    """The last commit of the topic that VARIABLE names, on top of all topics before it.

    No work tree changes. LabError: there is no such topic, or they do not fit series/.
    """
    topics, loaded = read(layout), files.load(layout)
    wanted = topic_named(topics, os.environ.get(VARIABLE, ""))
    commits = tree.series_commits(layout, Repo(layout.linux), loaded)
    return slices(topics, loaded.subjects, commits)[topics.index(wanted)][-1]
