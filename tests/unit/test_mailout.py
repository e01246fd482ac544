# SPDX-License-Identifier: GPL-2.0-only
"""make mail on a small kernel: what is written applies, and what is not fit stays back.

docs/topics.toml: every mail is in one topic, and a topic's kernel has no later mail.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from unittest.mock import Mock

import pytest

from lab import cli
from lab.build import kernel
from lab.core.git import Identity, Repo, configured_identity
from lab.core.paths import BASE_VARIABLE, LAYOUT, Layout
from lab.results import jsonl, origin, tables
from lab.results.jsonl import Measurement
from lab.series import files, topics
from lab.series.save import save
from lab.series.topics import Topic
from lab.submit import mailout
from lab.submit.mailout import choose_results, tables_text
from lab.submit.subject import Subject
from tests.conftest import _kind
from tests.machines.matrix import DIRTY_BITS_MODES, SIGNAL, cases, each
from tests.rows import for_each_row
from tests.unit.calls import failed, lab, refusal, refused
from tests.unit.fake_kernel import MMU, SPLITTER, FakeKernel
from tests.unit.files import write
from tests.unit.report_data import measurement
from tests.unit.test_check import FILES

MAINTAINER = "Some One <some@example.org>"
FIGURES = "  N  Y\n  2  1"
TOPICS = (
    Topic("split", "KVM: all of it", "Why.\n\n{tables}\n", "KVM: split", ("*",)),
    Topic("use", "KVM: use it", "No figures.", "KVM: use", ("*",)),
)
GET_MAINTAINER = f"""\
foreach (@ARGV) {{ print '{MAINTAINER}', "\\n", 'kvm@example.org', "\\n" if /\\.patch$/; }}
"""


@pytest.fixture
def fake(tmp_path: Path) -> FakeKernel:
    made = FakeKernel.with_tree(tmp_path, {**FILES, "scripts/get_maintainer.pl": GET_MAINTAINER})
    made.edit(MMU, "pages[0]", "pages[3]")
    made.commit(f"KVM: count\n\nCount.\n\nSigned-off-by: {MAINTAINER}")
    made.write(SPLITTER, "int eager_split;\n", commit="KVM: split")
    made.edit(MMU, "pages[2]", "pages[5]", commit="KVM: use")
    save(made.layout)
    made.layout.log.mkdir(exist_ok=True)
    return made


def subject(fake: FakeKernel) -> Subject:
    return Subject.load(fake.layout, [])


def make(fake: FakeKernel, version: int = 1) -> list[tuple[list[Path], list[str]]]:
    found = subject(fake)
    return mailout.make(found, mailout.parcels(found, TOPICS, FIGURES), version)


def files_in(directory: Path) -> dict[str, bytes]:
    files = (file for file in directory.rglob("*") if file.is_file())
    return {str(file.relative_to(directory)): file.read_bytes() for file in files}


def test_what_is_written(fake: FakeKernel) -> None:
    (mails, people), (others, _) = make(fake)
    names = ["0000-cover-letter.patch", "0001-KVM-count.patch", "0002-KVM-split.patch"]
    assert mails == [fake.layout.mail / "01-split" / name for name in names]
    names = [names[0], "0001-KVM-use.patch"]
    assert others == [fake.layout.mail / "02-use" / name for name in names]
    assert people == [MAINTAINER, "kvm@example.org"]
    cover, first, _ = (mail.read_text() for mail in mails)
    assert f"From: {MAINTAINER}\n" in cover
    assert "Subject: [PATCH 0/2] KVM: all of it\n" in cover
    assert f"This comes after no other topic.\n\nWhy.\n\n{FIGURES}\n" in cover
    assert "KVM: split\n" in cover
    assert "***" not in cover
    assert f"From: {MAINTAINER}\n" in first
    # Three lines of context, unlike in series/.
    assert "+\treturn kvm->pages[3];\n }\n \n /*\n" in first
    second = others[0].read_text()
    assert "Subject: [PATCH 0/1] KVM: use it\n" in second
    assert "This comes after:\n  KVM: all of it\n\nNo figures.\n" in second
    assert not any(mailout.NOT_SIGNED in text for text in (cover, second))


def test_the_sender_signs_off(fake: FakeKernel) -> None:
    sender = Identity("A Sender", "sender@example.org")
    line = "Signed-off-by: A Sender <sender@example.org>\n"
    found = mailout.signed_by(subject(fake), sender)
    made = mailout.make(found, mailout.parcels(found, TOPICS, FIGURES))
    mails = [mail.read_text() for mails, _ in made for mail in mails[1:]]
    assert [mail.count(line) for mail in mails] == [1, 1, 1]
    # Whoever signed off first stays the author; what has none is the sender's.
    assert f"From: {MAINTAINER}\n" in mails[0]
    assert f"\n\nSigned-off-by: {MAINTAINER}\n{line}---\n" in mails[0]
    assert all("From: A Sender <sender@example.org>\n" in mail for mail in mails[1:])
    again = mailout.signed_by(subject(fake), Identity("Some One", "some@example.org"))
    assert again.repo.text("log", "--format=%B", again.tip).count(f"by: {MAINTAINER}\n") == 3
    tips = (found.tip, subject(fake).tip)
    assert found.repo.tree_of(tips[0]) == found.repo.tree_of(tips[1]) and tips[0] != tips[1]


def test_without_a_sender_mails_say_so(fake: FakeKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpatch = Mock(return_value=[])
    monkeypatch.setattr("lab.submit.checkers.checkpatch_problems", checkpatch)
    found = subject(fake)
    for signed in (False, True):
        wanted = mailout.parcels(found, TOPICS, FIGURES, signed=signed)
        (mails, _), *_ = mailout.make(found, wanted, signed=signed)
        assert (mailout.NOT_SIGNED in mails[0].read_text()) == (not signed)
    ignored = [call.args[2] for call in checkpatch.call_args_list]
    assert ["MISSING_SIGN_OFF" in ignores for ignores in ignored] == [True, False]


def test_the_sender_is_that_of_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config"
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    half = "[user]\nname = A B\n"
    for text, sender in (("", None), (half, None), (f"{half}email = a@b\n", ("A B", "a@b"))):
        config.write_text(text)
        assert configured_identity(tmp_path) == sender


def test_saved_is_sent_not_what_is_in_the_tree(fake: FakeKernel) -> None:
    make(fake)
    before = files_in(fake.layout.mail)
    fake.edit(MMU, "pages[1]", "pages[4]", commit="KVM: not saved")
    make(fake)
    # The same input writes the same bytes.
    assert files_in(fake.layout.mail) == before
    # Of another version.
    (mails, _), _ = make(fake, 3)
    assert [mail.name[:8] for mail in mails] == ["v3-0000-", "v3-0001-", "v3-0002-"]
    assert "[PATCH v3 1/2]" in mails[1].read_text()


Break = Callable[[pytest.MonkeyPatch, FakeKernel], None]


def bad_style(_: pytest.MonkeyPatch, fake: FakeKernel) -> None:
    fake.edit(MMU, "pages[5]", "pages[BAD]")
    fake.git("commit", "-q", "-a", "--amend", "-m", "KVM: use")
    save(fake.layout)


def edited(old: str, new: str) -> Break:
    """Have mails written with NEW in the place of OLD."""
    written: Callable[..., list[Path]] = mailout.write_mails

    def write(*arguments: object) -> list[Path]:
        mails = written(*arguments)
        for mail in mails[1:]:
            mail.write_text(mail.read_text().replace(old, new))
        return mails

    return lambda monkeypatch, _: monkeypatch.setattr(mailout, "write_mails", write)


@for_each_row(
    "breaks, said",
    (bad_style, "BAD"),
    (edited("kvm->pages[0];", "other;"), "git am: error: patch failed"),
    (
        edited("eager_split;", "eager_spilt;"),
        "git am: 01-split: the mails do not make the tree of the series",
    ),
)
def test_what_is_not_fit_stays_back(
    fake: FakeKernel,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    breaks: Break,
    said: str,
) -> None:
    make(fake)
    before = files_in(fake.layout.mail)
    with monkeypatch.context() as patch:
        breaks(patch, fake)
        error = failed(make, fake)
    assert "cannot be sent as they are" in error and "\n" not in error
    assert said in capsys.readouterr().err
    assert files_in(fake.layout.mail) == before
    # Nothing of the failed attempt is in the way of the next.
    assert make(fake) if breaks is not bad_style else True


def test_no_mail_no_letter(tmp_path: Path) -> None:
    fake = FakeKernel.with_tree(tmp_path, FILES)
    assert "no mail to send" in refused(mailout.make, subject(fake), [])
    assert not fake.layout.mail.exists()


def measured(**changes: object) -> list[Measurement]:
    record = {"vcpus": 8, "bytes_per_vcpu": 4 << 20, **changes}
    return [
        measurement(**record, eager=eager, seconds=seconds)
        for eager, seconds in ((False, 0.2309), (True, 0.00235))
    ]


def test_the_tables_are_those_of_the_report() -> None:
    text = tables_text(measured(), "x")
    (table,) = tables.main_tables(measured())
    assert re.search(r"dirty, iteration 2 +8 +230.9 +2.35 +98.3", text)
    assert " ".join(text.split()).count(f"{table.title}:") == 1
    assert "simulated time" in text
    assert "only CLEAR write-protects." in " ".join(text.split())
    assert "Nothing of this was measured on real hardware." in text
    assert max(map(len, text.splitlines())) <= mailout.WIDTH
    # Real machines are called so.
    text = tables_text(measured(machine="epyc-7"), "x")
    assert "wall-clock time of a real machine" in text
    assert "simulated" not in text
    assert "Nothing of this" not in text


def test_dirty_bits_and_the_baseline_fit_a_mail() -> None:
    lazy, eager = measured(ept=False)
    found = [lazy, eager, replace(eager, dirty_bits="on", seconds=0.001)]
    text = tables_text([*found, replace(eager, kernel="peer")], "x")
    assert re.search(r"vCPUs +N +Y +D bits +ungated +N/Y\n", text)
    assert re.search(r"dirty, iteration 2 +8 +230.9 +2.35 +1.00 +2.35 +98.3$", text)
    assert f"{tables.WHAT_ARE_BITS}." in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= mailout.WIDTH


@pytest.mark.parametrize(
    "found", [[], measured(kernel="base"), measured(write_percent=50), measured(iteration=3)]
)
def test_nothing_to_show(found: list[Measurement]) -> None:
    assert re.search("x.jsonl: has no figures .*make bench", refused(tables_text, found, "x.jsonl"))


def test_which_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for base in ("6.12", "7.3"):
        write(tmp_path / "base" / f"{base}.pin", "")
    layout, given = Layout(tmp_path), tmp_path / "given"
    assert re.search(r"make reference.*--results", refused(choose_results, None, layout))
    older, newer = (tmp_path / "docs/reference" / base / "bench.jsonl" for base in ("6.12", "7.3"))
    write(older, "")
    assert choose_results(None, layout) == older
    assert "figures are of Linux 6.12: `make reference BASE=7.3`" in capsys.readouterr().err
    write(newer, "")
    assert [choose_results(one, layout) for one in (None, given)] == [newer, given]
    assert not capsys.readouterr().err


def test_the_texts_of_the_cover_letters_have_no_figures_of_their_own() -> None:
    for topic in topics.read(LAYOUT):
        cover = mailout.cover_of(topic, (), "TABLES", signed=False)
        assert mailout.NOT_SIGNED in cover
        assert len(topic.subject) <= 65
        assert max(map(len, cover.splitlines())) <= mailout.WIDTH
        assert not re.findall(r"\d+(?:\.\d+)? *(?:ms|us|ns|s\b|%|times)", cover)
    assert sum(topic.text.count("{tables}") for topic in topics.read(LAYOUT)) == 1


@for_each_row(
    "words, said",
    (["--results", "none.jsonl"], "lab: none.jsonl: cannot be read: No such file"),
    (["--version", "0"], "0 is not in the range"),
    (["--send"], "No such option"),
    (["--test", "none"], "lab: there is no topic 'none', only: "),
)
def test_the_command_line(words: list[str], said: str) -> None:
    assert said in refusal("mail", *words)
    printed = lab("mail", "--help")
    assert printed.out and not printed.err


def test_dry_run_only_prints_the_letter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "bench.jsonl"
    words = ("mail", "--dry-run", "--results", str(file))
    source = origin.source_of("bench", LAYOUT.of("6.12"))
    jsonl.write(file, [replace(one, source=source) for one in measured()])
    monkeypatch.setattr(mailout, "make", None)
    monkeypatch.setattr(mailout, "configured_identity", lambda _: Identity("A", "a@b"))
    printed = lab(*words)
    assert printed.out.startswith("Subject: KVM: ")
    assert "230.9" in printed.out
    assert mailout.NOT_SIGNED not in printed.out
    assert not printed.err
    monkeypatch.setattr(mailout, "configured_identity", lambda _: None)
    printed = lab(*words)
    assert printed.out.count(mailout.NOT_SIGNED) == len(topics.read(LAYOUT))
    assert "git has no user.name and user.email: the mails are not signed off" in printed.err
    jsonl.write(file, measured())
    assert "bench.jsonl is older than the series: run `make bench`" in lab(*words).err


MAILS = ("KVM: a", "KVM: b", "KVM: c")


def topic(name: str, last: str) -> Topic:
    return Topic(name, "KVM: it", "Text.", last, ("*",))


GOOD = (topic("one", "KVM: b"), topic("two", "KVM: c"))


def test_fixes_say_what_they_fix_and_are_for_stable_kernels() -> None:
    found, subjects = topics.read(LAYOUT), files.load(LAYOUT.newest).subjects
    fixes = topics.slices(found, subjects, subjects)[0]
    kernel = [subject for subject in fixes if subject.startswith("KVM: x86/mmu: ")]
    assert (found[0].name, len(kernel)) == ("fixes", 7)
    said = {mail.subject: mail.message for _, mail in files.load(LAYOUT.newest).mails}
    for subject in kernel:
        named = re.search(r"^Fixes: [0-9a-f]{12} \(\"", said[subject], re.MULTILINE)
        if named:
            assert "Cc: stable@vger.kernel.org" in said[subject].splitlines()
        else:  # checkpatch.pl takes no `Cc: stable@` without the commit to blame.
            assert "older than any commit that could be named here" in said[subject]
            assert "Stable kernels need this as well." in said[subject]


def test_every_topic_has_tests_that_there_are() -> None:
    # Topics are of the newest base: what another one leaves out is there.
    names = [case.id for case in (*cases(), *each((SIGNAL,), DIRTY_BITS_MODES))]
    for one in topics.read(LAYOUT):
        assert one.tests
        for pattern in one.tests:
            assert any(fnmatchcase(name, pattern) for name in names), (one.name, pattern)


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


def test_the_kernel_of_a_topic_has_no_later_mail(
    fake: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = "subject = 'S'\ntext = 'T'\ntests = ['*']\n"
    named = (f"[[topic]]\nname = '{one.name}'\nlast = '{one.last}'\n{rest}" for one in TOPICS)
    fake.put(topics.FILE, "".join(named))
    layout = replace(fake.layout, only="6.12")
    monkeypatch.setattr(kernel, "current_source", lambda _: fake.source)
    mails = ["KVM: count", "KVM: split", "KVM: use"]
    for name, count in (("split", 2), ("use", 3)):
        monkeypatch.setenv(topics.VARIABLE, name)
        path = kernel.source_tree("topic", layout)
        assert path == fake.layout.build / "topic"
        assert Repo(path).lines("log", "--reverse", "--format=%s", "base..") == mails[:count]
        assert ("pages[5]" in (path / MMU).read_text()) == (name == "use")
    monkeypatch.setenv(topics.VARIABLE, "three")
    assert "no topic 'three', only: split use" in refused(kernel.source_tree, "topic", layout)
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
