# SPDX-License-Identifier: GPL-2.0-only
"""build/linux: made strictly, updated sparingly, never over unsaved work."""

import dataclasses
import fnmatch
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.core.git import Repo
from lab.core.paths import LAYOUT
from lab.series import files, tree
from tests.rows import for_each_row
from tests.unit.calls import refused
from tests.unit.fake_kernel import BASE_FILES, HEADER, MMU, PROGRAM, SPLITTER, FakeKernel, diff_of
from tests.unit.files import leave_free

SPLITTER_TEXT = "// ours\nint eager_split;\n"
FIRST = "series/0001-kvm-count.patch"
SECOND = "series/0002-kvm-split.patch"

FIRST_TEXT = f"""\
Subject: KVM: count

Count differently.

Signed-off-by: Some One <some@example.org>
---

{diff_of(MMU)}\
@@ -10,3 +10,3 @@
 {{
-\treturn kvm->pages[0];
+\treturn kvm->pages[3];
 }}
"""

SECOND_TEXT = f"""\
Subject: KVM: split

Signed-off-by: Some One <some@example.org>
---
Adds: {SPLITTER}
Replaces: {PROGRAM}
Deletes: scripts/obsolete.txt
Removes: {MMU}: split_one
Removes: {MMU}: OLD_BATCH

{diff_of(MMU)}\
@@ -17,3 +17,3 @@
 {{
-\tint r = split_one(kvm);
+\tint r = eager_split;

"""


@pytest.fixture
def fake(tmp_path: Path) -> FakeKernel:
    return FakeKernel.make(tmp_path)


@pytest.fixture
def with_series(fake: FakeKernel) -> FakeKernel:
    fake.put(FIRST, FIRST_TEXT)
    fake.put(SECOND, SECOND_TEXT)
    fake.put(SPLITTER, SPLITTER_TEXT)
    fake.put(PROGRAM, "int ours;\n")
    return fake


@pytest.fixture
def made(with_series: FakeKernel) -> FakeKernel:
    with_series.make_tree()
    return with_series


def snapshot(fake: FakeKernel) -> tuple[str, str, str]:
    state = (fake.linux / ".git/lab-state").read_text()
    return fake.git("rev-parse", "HEAD"), fake.git("status", "--porcelain"), state


def test_without_a_series_it_is_the_package_and_objects_are_no_work(fake: FakeKernel) -> None:
    fake.make_tree()
    assert {name: fake.read(name) for name in BASE_FILES} == BASE_FILES
    assert fake.git("ls-files").splitlines() == sorted(BASE_FILES)
    assert (fake.git("log", "--format=%s"), fake.git("status", "--porcelain")) == ("base", "")
    assert not (fake.layout.build / "linux.new").exists()
    fake.write("obj-kvm/vmlinux", "built")
    assert tree.unsaved(fake.linux) is None


def test_one_commit_per_mail(made: FakeKernel) -> None:
    commits = made.git("log", "--format=%s|%an", "--reverse").splitlines()
    assert commits == ["base|Kernel lab", "KVM: count|Some One", "KVM: split|Some One"]
    assert made.git("log", "-1", "--skip=1", "--format=%b").startswith("Count differently.")
    assert made.git("status", "--porcelain") == ""
    mmu = made.read(MMU)
    assert "return kvm->pages[3];" in mmu
    assert "int r = eager_split;" in mmu
    assert "split_one" not in mmu
    assert "OLD_BATCH" not in mmu
    assert (made.read(SPLITTER), made.read(PROGRAM)) == (SPLITTER_TEXT, "int ours;\n")
    assert not (made.linux / "scripts/obsolete.txt").exists()


def test_commit_ids_repeat_whatever_a_user_configures(
    made: FakeKernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = FakeKernel.make(tmp_path / "other")
    for path, content in made.repository().items():
        other.put(path, content.decode())
    other.make_tree()
    head = made.git("rev-parse", "HEAD")
    assert other.git("rev-parse", "HEAD") == head
    shutil.rmtree(made.linux)
    home = made.layout.root.parent
    (home / ".gitconfig").write_text("[core]\nautocrlf = true\n[commit]\ngpgSign = true\n")
    monkeypatch.setenv("HOME", str(home))
    made.make_tree()
    assert made.git("rev-parse", "HEAD") == head
    assert b"\r" not in (made.linux / MMU).read_bytes()


def test_update_touches_only_what_differs(made: FakeKernel) -> None:
    before = snapshot(made)
    assert "up to date" in made.make_tree()
    assert snapshot(made) == before
    long_ago = 1_000_000_000
    for name in BASE_FILES:
        if (made.linux / name).exists():
            os.utime(made.linux / name, (long_ago, long_ago))
    made.put(SPLITTER, SPLITTER_TEXT + "int more;\n")
    made.make_tree()
    assert made.read(SPLITTER).endswith("int more;\n")
    assert (made.linux / MMU).stat().st_mtime == long_ago
    assert (made.linux / HEADER).stat().st_mtime == long_ago
    assert made.git("status", "--porcelain") == ""


@for_each_row(
    "name, old, new, said",
    (FIRST, "pages[0]", "pages[9]", f"hunk @@ -10,3 +10,3 @@ of {MMU} does not apply"),
    (SECOND, f"{MMU}: split_one", f"{MMU}: split_two", "defines no split_two"),
    (SECOND, f"Removes: {MMU}", "Removes: arch/none.c", "no arch/none.c"),
    (SECOND, f"Adds: {SPLITTER}", f"Adds: {SPLITTER}x", "eager_split.cx is missing"),
    (SECOND, "Adds:", "Replaces:", f"no {SPLITTER}"),
    (SECOND, "Replaces:", "Adds:", f"already has {PROGRAM}"),
    (SECOND, "Deletes: scripts/obsolete.txt", "Deletes: none", "no none"),
    (SECOND, "Adds:", "Ads:", "0002-kvm-split.patch:5: expected one of Adds"),
    (SECOND, f"{MMU}: split_one", MMU, "expected 'Removes: PATH: SYMBOL'"),
    (FIRST, "Subject: ", "Title: ", "0001-kvm-count.patch:1: expected 'Subject: '"),
    (FIRST, "\n---\n\n", "\n\n", "expected a line '---'"),
)
def test_what_does_not_fit_changes_nothing(
    made: FakeKernel, name: str, old: str, new: str, said: str
) -> None:
    before = snapshot(made)
    text = (made.layout.root / name).read_text()
    assert old in text
    made.put(name, text.replace(old, new, 1))
    assert said in refused(made.make_tree)
    assert snapshot(made) == before


def test_first_failure_leaves_no_tree(with_series: FakeKernel) -> None:
    with_series.put(FIRST, FIRST_TEXT.replace("pages[0]", "pages[9]"))
    refused(with_series.make_tree)
    assert not with_series.linux.exists()
    assert not (with_series.layout.build / "linux.new").exists()
    # A whole file has one owner.
    with_series.put(FIRST, FIRST_TEXT.replace("---\n\n", f"---\nAdds: {SPLITTER}\n\n"))
    assert "belongs to series/0001-kvm-count.patch already" in refused(with_series.make_tree)


@for_each_row(
    "work",
    lambda fake: fake.edit(MMU, "pages[2]", "pages[5]"),
    lambda fake: fake.write("arch/x86/kvm/new.c", "int new;\n"),
    lambda fake: fake.edit(MMU, "pages[2]", "pages[5]", commit="KVM: work"),
    ids=("uncommitted", "untracked", "committed"),
)
def test_unsaved_work_stays(made: FakeKernel, work: Callable[[FakeKernel], None]) -> None:
    work(made)
    before = snapshot(made)
    assert "used as it is" in made.make_tree()
    made.put(SPLITTER, "int changed;\n")
    assert "make save" in refused(made.make_tree)
    assert snapshot(made) == before
    made.make_tree(discard=True)
    assert (made.git("status", "--porcelain"), made.read(SPLITTER)) == ("", "int changed;\n")
    assert "pages[5]" not in made.read(MMU)


def test_a_part_of_the_kernel_is_enough(tmp_path: Path) -> None:
    """For the same series on it; what it lacks is not unpacked."""
    left_out = ("drivers", "arch/arm/mm", "fs/ext4")
    bulk = {f"{name}/Makefile": "obj-y += x.o\n" for name in left_out}
    fake = FakeKernel.make(tmp_path, BASE_FILES | bulk)
    fake.put(FIRST, FIRST_TEXT)
    repo = Repo(tmp_path / "part")
    tip = tree.lay_out(fake.layout, fake.source, repo.path)
    assert set(repo.lines("ls-tree", "-r", "--name-only", tip)) == set(BASE_FILES)
    assert "pages[3]" in repo.text("show", f"{tip}:{MMU}")
    fake.make_tree()
    assert set(bulk) < set(fake.git("ls-files").splitlines())
    assert fake.git("diff", f"{tree.BASE_TAG}..HEAD") == repo.text("diff", tree.BASE_TAG, tip)


def is_left_out(path: str) -> bool:
    """As tar excludes a path and all that is below it, by patterns that match no slash."""
    names = path.split("/")
    for pattern in tree.BULK:
        words = pattern.split("/")
        if len(words) <= len(names) and all(map(fnmatch.fnmatchcase, names, words)):
            return True
    return False


@for_each_row("version", *LAYOUT.versions)
def test_what_the_series_edits_is_part_of_it(version: str) -> None:
    mails = [mail for _, mail in files.load(LAYOUT.of(version)).mails]
    edited = {path for mail in mails for path in re.findall(r"^--- a/(\S+)", mail.diff, re.M)}
    edited |= {path for mail in mails for path in mail.deletes}
    assert "arch/x86/kvm/mmu/mmu.c" in edited
    assert not [path for path in edited if is_left_out(path)]
    assert is_left_out("arch/arm64/mm/init.c") and is_left_out("fs/ext4/Makefile")


def test_newer_source_makes_a_new_tree(made: FakeKernel, tmp_path: Path) -> None:
    files = {**BASE_FILES, MMU: "/* one line more */\n" + BASE_FILES[MMU]}
    newer = dataclasses.replace(FakeKernel.make(tmp_path / "newer", files).source, version="1.1")
    tree.make(made.layout, newer)
    assert made.read(MMU).startswith("/* one line more */\n")
    assert "return kvm->pages[3];" in made.read(MMU)
    assert "linux-source 1.1" in made.git("log", "-1", "--format=%b", "base")
    # Unless the series does not apply to it.
    before = snapshot(made)
    files = {**BASE_FILES, MMU: BASE_FILES[MMU].replace("pages[0]", "first_page")}
    newest = FakeKernel.make(tmp_path / "newest", files).source
    assert "does not apply" in refused(tree.make, made.layout, newest)
    assert snapshot(made) == before


@pytest.mark.parametrize("content", [b"no archive", b""])
def test_source_that_does_not_unpack(fake: FakeKernel, content: bytes) -> None:
    fake.source.tarball.write_bytes(content)
    assert "cannot be unpacked" in refused(fake.make_tree)
    assert not fake.linux.exists()


def test_source_that_is_no_kernel(tmp_path: Path) -> None:
    fake = FakeKernel.make(tmp_path, {"README": "something else\n"})
    assert "not a kernel source" in refused(fake.make_tree)
    assert not fake.linux.exists()


def test_too_little_space(fake: FakeKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_free(monkeypatch, 3 * 2**30)
    assert re.search(r"about 4 GiB.*3\.0 GiB are free", refused(fake.make_tree))
    assert not fake.linux.exists()
    # There was enough, and it runs out.
    fake.source.tarball.write_bytes(b"fails to unpack as on a full disk")
    leave_free(monkeypatch, 1000)
    monkeypatch.setattr(tree, "NEEDED_GIB", 0)
    assert "no space left in" in refused(fake.make_tree)
    assert not fake.linux.exists()
    assert not (fake.layout.build / "linux.new").exists()


def test_space_that_runs_out_in_git(fake: FakeKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.make_tree()
    leave_free(monkeypatch, 1000)
    assert "no space left in" in refused(Repo(fake.linux).run, "cat-file", "blob", "none")


def test_a_tree_of_another_user(fake: FakeKernel) -> None:
    fake.linux.mkdir(parents=True)
    assert "move it away" in refused(fake.make_tree)
