# SPDX-License-Identifier: GPL-2.0-only
"""Commits of build/linux become the repository's files, and back, without noise."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.core.git import Repo
from lab.series.extract import changed_lines
from lab.series.mail import Mail, Removal, file_name, format_mail, parse
from lab.series.save import save
from tests.rows import for_each_row
from tests.unit.calls import refused
from tests.unit.fake_kernel import BASE_FILES, MMU, MMU_TEXT, PROGRAM, SPLITTER, FakeKernel

SPLIT_ONE = MMU_TEXT[MMU_TEXT.index("/*\n * Splits") : MMU_TEXT.index("static int middle")]
CHANGELOG = """KVM: split

Split another way.

  - indented: text
Signed-off-by: Some One <some@example.org>"""


Work = Callable[[FakeKernel], None]


def count(fake: FakeKernel) -> None:
    message = "KVM: count\n\nSigned-off-by: Some One <some@example.org>"
    fake.edit(MMU, "pages[0]", "pages[3]", commit=message)


def split(fake: FakeKernel) -> None:
    fake.edit(MMU, SPLIT_ONE, "")
    fake.edit(MMU, "static int split_one(struct kvm *kvm);\n\n", "")
    fake.edit(MMU, "#define OLD_BATCH 8\n\n", "")
    fake.edit(MMU, "int r = split_one(kvm);", "int r = eager_split(kvm);")
    fake.write(SPLITTER, "// ours\nint eager_split;\n")
    fake.write("scripts/split.sh", "#!/bin/sh\n")
    (fake.linux / "scripts/split.sh").chmod(0o755)
    fake.write(PROGRAM, "int ours;\nint upstream_line_1;\n")
    (fake.linux / "scripts/obsolete.txt").unlink()
    fake.commit(CHANGELOG)


@pytest.fixture
def saved(fake: FakeKernel) -> FakeKernel:
    count(fake)
    split(fake)
    save(fake.layout)
    return fake


def test_what_is_saved(saved: FakeKernel) -> None:
    files = saved.repository()
    mails = ["series/0001-kvm-count.patch", "series/0002-kvm-split.patch"]
    assert sorted(files) == [SPLITTER, "scripts/split.sh", *mails, PROGRAM]
    assert (saved.layout.root / "scripts/split.sh").stat().st_mode & 0o777 == 0o755
    assert files[PROGRAM] == b"int ours;\nint upstream_line_1;\n"
    assert files["series/0002-kvm-split.patch"].decode() == (
        f"Subject: {CHANGELOG}\n---\n"
        f"Adds: {SPLITTER}\nAdds: scripts/split.sh\nReplaces: {PROGRAM}\n"
        "Deletes: scripts/obsolete.txt\n"
        f"Removes: {MMU}: OLD_BATCH\nRemoves: {MMU}: split_one\n\n"
        f"diff --git a/{MMU} b/{MMU}\n--- a/{MMU}\n+++ b/{MMU}\n@@ -16,3 +16,3 @@\n"
        " {\n-\tint r = split_one(kvm);\n+\tint r = eager_split(kvm);\n \n"
    )


def test_a_users_configuration_changes_nothing(
    saved: FakeKernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.repository()
    (tmp_path / ".gitconfig").write_text(
        "[diff]\nnoprefix = true\ncontext = 5\nalgorithm = patience\nrenames = copies\n"
        "[color]\nui = always\n"
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    saved.git("config", "diff.context", "7")
    assert save(saved.layout) == []
    assert saved.repository() == before


def test_what_no_commit_does_goes_and_reordered_ones_are_renumbered(saved: FakeKernel) -> None:
    saved.git("reset", "-q", "--hard", "HEAD^")
    lines = save(saved.layout)
    assert f"removed {SPLITTER}" in lines
    assert "removed series/0002-kvm-split.patch" in lines
    assert sorted(saved.repository()) == ["series/0001-kvm-count.patch"]
    assert not (saved.layout.root / "tools").exists()
    saved.git("reset", "-q", "--hard", "base")
    split(saved)
    count(saved)
    save(saved.layout)
    names = [name for name in sorted(saved.repository()) if name.startswith("series/")]
    assert names == ["series/0001-kvm-split.patch", "series/0002-kvm-count.patch"]


def saved_as(fake: FakeKernel, subject: str) -> Mail:
    """The first mail when the tree's changes are committed and saved."""
    fake.commit(subject)
    save(fake.layout)
    (file,) = fake.layout.series.glob("0001-*.patch")
    return parse(file.name, file.read_text())


def test_a_renamed_function_stays_a_diff(fake: FakeKernel) -> None:
    fake.write(MMU, fake.read(MMU).replace("split_one", "split_page"))
    mail = saved_as(fake, "KVM: rename")
    assert mail.removes == ()
    assert "-\tint i;" not in mail.diff


def test_a_rewritten_function_with_another_name_is_removed(fake: FakeKernel) -> None:
    fake.edit(MMU, SPLIT_ONE, "static int mine(struct kvm *kvm)\n{\n\treturn kvm->pages[6];\n}\n\n")
    fake.write(MMU, fake.read(MMU).replace("split_one", "mine"))
    mail = saved_as(fake, "KVM: rewrite")
    assert mail.removes == (Removal(MMU, "split_one"),)
    assert "OLD_BATCH; i++" not in mail.diff


def test_a_file_that_is_ours_stays_ours(saved: FakeKernel) -> None:
    saved.git("reset", "-q", "--hard", "base")
    saved.edit(PROGRAM, "upstream_line_3;", "small_edit;")
    assert saved_as(saved, "KVM: selftests: small").replaces == (PROGRAM,)


def test_a_small_edit_of_a_file_of_the_kernel_is_a_diff(fake: FakeKernel) -> None:
    fake.edit(PROGRAM, "upstream_line_3;", "small_edit;")
    mail = saved_as(fake, "KVM: selftests: small")
    assert (mail.replaces, mail.diff.count("\n ")) == ((), 2)


def test_no_newline_and_other_encodings_survive(fake: FakeKernel) -> None:
    (fake.linux / MMU).write_bytes(BASE_FILES[MMU].encode() + b"// caf\xe9 without newline")
    fake.commit("KVM: bytes")
    save(fake.layout)
    before = fake.git("rev-parse", "HEAD^{tree}")
    fake.put("series/0002-x.patch", "Subject: y\n---\n")
    fake.make_tree()
    assert fake.git("rev-parse", "HEAD^^{tree}") == before


def grown(fake: FakeKernel) -> None:
    """A whole file that three more mails change."""
    fake.write(SPLITTER, "// ours\nint eager_split;\n\n//\n", commit="KVM: split")
    fake.edit(SPLITTER, "int eager", "int one;\nint eager", commit="KVM: one")
    fake.edit(SPLITTER, "// ours", "// mine", commit="KVM: mine")
    fake.edit(SPLITTER, "int eager_split;", "int eager_split;\nint two;", commit="KVM: two")


def test_a_whole_file_may_grow_from_mail_to_mail(fake: FakeKernel) -> None:
    grown(fake)
    save(fake.layout)
    last = fake.read(SPLITTER)
    assert fake.repository()[SPLITTER].decode() == last
    assert last == "// mine\nint one;\nint eager_split;\nint two;\n\n//\n"
    (second,) = fake.layout.series.glob("0002-*.patch")
    assert "Removes:" not in second.read_text()
    assert second.read_text().endswith("@@ -1,2 +1,3 @@\n // ours\n+int one;\n int eager_split;\n")
    before = fake.git("log", "--format=%T", "base..")
    shutil.rmtree(fake.linux)
    fake.make_tree()
    assert fake.git("log", "--format=%T", "base..") == before
    assert save(fake.layout) == []


def test_a_definition_that_a_whole_file_loses_is_shown_and_not_named(fake: FakeKernel) -> None:
    fake.write(SPLITTER, "int a(void)\n{\n\treturn 1;\n}\n\nint b;\n", commit="KVM: first")
    fake.write(SPLITTER, "int b;\n", commit="KVM: second")
    save(fake.layout)
    (second,) = fake.layout.series.glob("0002-*.patch")
    assert "Removes:" not in second.read_text()
    shutil.rmtree(fake.linux)
    fake.make_tree()
    assert "return 1;" in fake.git("show", f"HEAD^:{SPLITTER}")


def test_a_whole_file_without_what_a_later_mail_changes_in_it(fake: FakeKernel) -> None:
    grown(fake)
    save(fake.layout)
    before = fake.git("rev-parse", "HEAD")
    fake.put(SPLITTER, fake.read(SPLITTER).replace("int two;\n", ""))
    said = refused(fake.make_tree)
    assert f"{SPLITTER} no longer has what series/0004-kvm-two.patch changes in it" in said
    assert "`make save`" in said
    assert fake.git("rev-parse", "HEAD") == before
    # Another place could be taken for that of the mail.
    again = "int eager_split;\nint two;\n\n"
    text = "// mine\nint one;\nint eager_split;\nint two;\n\n//\n"
    fake.put(SPLITTER, text.replace("//\n", f"//\n{again}//\n"))
    assert "or more than once" in refused(fake.make_tree)
    fake.put(SPLITTER, text)
    # Nor is the mode of a file lost.
    (fake.layout.root / SPLITTER).chmod(0o755)
    fake.make_tree()
    assert fake.git("ls-files", "-s", SPLITTER).startswith("100755")
    (fake.layout.root / SPLITTER).chmod(0o644)
    # Elsewhere it may be edited: lines only move.
    fake.put(SPLITTER, fake.read(SPLITTER) + "// new\n")
    fake.make_tree()
    assert fake.git("show", f"HEAD^:{SPLITTER}").endswith("int eager_split;\n\n//\n// new")


def test_the_mode_that_a_later_mail_gives_a_whole_file(fake: FakeKernel) -> None:
    grown(fake)
    (fake.linux / SPLITTER).chmod(0o755)
    fake.commit("KVM: mode")
    save(fake.layout)
    before = fake.git("log", "--format=%T", "base..")
    shutil.rmtree(fake.linux)
    fake.make_tree()
    assert fake.git("log", "--format=%T", "base..") == before
    (fake.layout.root / SPLITTER).chmod(0o644)
    assert f"{SPLITTER} no longer has what series/0005-kvm-mode.patch" in refused(fake.make_tree)


def later_deletion(fake: FakeKernel) -> None:
    split(fake)
    (fake.linux / SPLITTER).unlink()
    fake.commit("KVM: later")


def fixup(fake: FakeKernel) -> None:
    count(fake)
    fake.edit(MMU, "pages[3]", "pages[4]", commit="fixup! KVM: count")


def edit(commit: str) -> Work:
    return lambda fake: fake.edit(MMU, "pages[0]", "pages[4]", commit=commit)


def symbolic_link(fake: FakeKernel) -> None:
    (fake.linux / "arch/link").symlink_to("x86")
    fake.commit("KVM: link")


def merge(fake: FakeKernel) -> None:
    fake.git("checkout", "-q", "-b", "side")
    count(fake)
    fake.git("checkout", "-q", "series")
    split(fake)
    fake.git("merge", "-q", "-m", "merged", "side")


def stopped_rebase(fake: FakeKernel) -> None:
    count(fake)
    (fake.linux / ".git/rebase-merge").mkdir()


def changed_repository(fake: FakeKernel) -> None:
    count(fake)
    fake.put("series/0001-other.patch", "Subject: other\n---\n")


@for_each_row(
    "work, said",
    (later_deletion, f'deletes {SPLITTER}, a whole file that belongs to "KVM: split"'),
    (fixup, "git rebase -i --autosquash base"),
    (edit("KVM: x\n\ntext\n---\nmore"), 'a line "---"'),
    (edit("KVM: x\nsecond line"), "needs a blank line"),
    (symbolic_link, "not a regular file"),
    (merge, "is a merge"),
    (edit(""), "uncommitted changes"),
    (stopped_rebase, "a rebase, merge or cherry-pick in progress"),
    (changed_repository, "ARGS=--overwrite"),
)
def test_refused_and_nothing_changed(fake: FakeKernel, work: Work, said: str) -> None:
    work(fake)
    before = fake.repository()
    assert said in refused(save, fake.layout)
    assert fake.repository() == before


def test_overwrite(fake: FakeKernel) -> None:
    changed_repository(fake)
    save(fake.layout, overwrite=True)
    assert sorted(fake.repository()) == ["series/0001-kvm-count.patch"]


def test_without_a_tree(tmp_path: Path) -> None:
    assert "make tree" in refused(save, FakeKernel.make(tmp_path).layout)


def test_mail_round_trip_and_file_name() -> None:
    mail = Mail(
        "KVM: a\n\nb: c\n\nSigned-off-by: A B <a@b>",
        (Removal("a.h", "FNAME(x)"), Removal("a.c", "struct y")),
        ("gone",),
        "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n",
        ("new",),
        ("old",),
    )
    assert parse("x", format_mail(mail)) == mail
    assert parse("x", format_mail(Mail("KVM: only a subject"))) == Mail("KVM: only a subject")
    assert mail.author == ("A B", "a@b")
    mail = Mail("KVM: x86/mmu: Skip a huge page that an invalidation in progress is about to zap")
    name = "0007-kvm-x86-mmu-skip-a-huge-page-that-an-invalidation-in-pro.patch"
    assert file_name(mail, 7) == name


def test_changed_lines(fake: FakeKernel) -> None:
    repo = Repo(fake.linux)
    old, new = repo.store(b"a\nb\n"), repo.store(b"a\nc\nd\n")
    assert changed_lines(repo, old, new) == (2, 1)
    assert changed_lines(repo, old, old) == (0, 0)
