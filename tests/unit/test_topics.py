# SPDX-License-Identifier: GPL-2.0-only
"""docs/topics.toml: every mail is in one topic, and a topic's kernel has no later mail."""

import re
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from unittest.mock import Mock

import pytest

from lab import cli
from lab.build import kernel
from lab.core.git import Repo
from lab.core.paths import BASE_VARIABLE, LAYOUT
from lab.series import files, topics
from lab.series.save import save
from lab.series.topics import Topic
from lab.submit import mailout
from tests.conftest import _kind
from tests.machines.matrix import cases
from tests.rows import for_each_row
from tests.unit.calls import refused
from tests.unit.fake_kernel import MMU, FakeKernel

MAILS = ("KVM: a", "KVM: b", "KVM: c")


def topic(name: str, last: str) -> Topic:
    return Topic(name, "KVM: it", "Text.", last, ("*",))


GOOD = (topic("one", "KVM: b"), topic("two", "KVM: c"))


def test_fixes_say_what_they_fix_and_are_for_stable_kernels() -> None:
    found, subjects = topics.read(LAYOUT), files.load(LAYOUT.newest).subjects
    fixes = topics.slices(found, subjects, subjects)[0]
    kernel = [subject for subject in fixes if subject.startswith("KVM: x86/mmu: ")]
    assert (found[0].name, len(kernel)) == ("fixes", 3)
    said = {mail.subject: mail.message for _, mail in files.load(LAYOUT.newest).mails}
    for subject in kernel:
        assert re.search(r"^Fixes: [0-9a-f]{12} \(\"", said[subject], re.MULTILINE)
        assert "Cc: stable@vger.kernel.org" in said[subject].splitlines()


def test_every_topic_has_tests_that_there_are() -> None:
    names = [case.id for case in cases()]
    for each in topics.read(LAYOUT):
        assert each.tests
        for pattern in each.tests:
            assert any(fnmatchcase(name, pattern) for name in names), (each.name, pattern)


@for_each_row(
    "found, said",
    ((GOOD[0], topic("one", "KVM: c")), "there are 2 topics 'one'"),
    ((*GOOD, topic("three", "KVM: c")), "'KVM: c' does not come after 'KVM: c' in series/"),
    (GOOD[:1], "'KVM: c' is in no topic"),
    ((*GOOD, topic("three", "KVM: d")), "series/ has no 'KVM: d'"),
    (GOOD[::-1], "'KVM: b' does not come after 'KVM: c' in series/"),
)
def test_what_does_not_fit_the_series(found: tuple[Topic, ...], said: str) -> None:
    assert f"docs/topics.toml: {said}" in list(topics.problems(found, MAILS))
    refused(topics.slices, found, MAILS, MAILS)


def test_slices() -> None:
    assert topics.slices(GOOD, MAILS, ("1", "2", "3")) == [("1", "2"), ("3",)]


@pytest.fixture
def fake(tmp_path: Path) -> FakeKernel:
    made = FakeKernel.with_tree(tmp_path)
    for number, mail in enumerate(MAILS):
        made.edit(MMU, f"pages[{number}]", f"pages[{number + 4}]", commit=mail)
    save(made.layout)
    text = "".join(
        f"[[topic]]\nname = '{one.name}'\nsubject = 'S'\ntext = 'T'\nlast = '{one.last}'\n"
        "tests = ['*']\n"
        for one in GOOD
    )
    made.put(topics.FILE, text)
    return made


def test_the_kernel_of_a_topic_has_no_later_mail(
    fake: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = replace(fake.layout, only="6.12")
    monkeypatch.setattr(kernel, "current_source", lambda _: fake.source)
    for name, mails in (("one", MAILS[:2]), ("two", MAILS)):
        monkeypatch.setenv(topics.VARIABLE, name)
        path = kernel.source_tree("topic", layout)
        assert path == fake.layout.build / "topic"
        assert Repo(path).lines("log", "-3", "--format=%s")[::-1][-len(mails) :] == list(mails)
        assert ("pages[6]" in (path / MMU).read_text()) == (name == "two")
    monkeypatch.setenv(topics.VARIABLE, "three")
    assert "no topic 'three', but: one two" in refused(kernel.source_tree, "topic", layout)
    # A file that cannot be read.
    fake.put(topics.FILE, "[[topic]]\nname = 'x'\n")
    assert re.search(r"docs/topics\.toml: .*missing required", refused(topics.read, fake.layout))


def test_a_topics_tests_run_on_its_own_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Mock(return_value=1)
    monkeypatch.setattr("lab.core.process.run", run)
    name = topics.read(LAYOUT)[0].name
    assert cli.main(["mail", "--test", name]) == 1
    run.assert_called_once()
    env = run.call_args.kwargs["env"]
    assert run.call_args.args[0][-1] == mailout.TESTS
    assert (env[topics.VARIABLE], env[BASE_VARIABLE]) == (name, LAYOUT.newest.version)
    assert _kind("series") == "series"
    monkeypatch.setenv(topics.VARIABLE, name)
    assert [_kind(kind) for kind in ("series", "base")] == ["topic", "base"]
