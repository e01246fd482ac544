# SPDX-License-Identifier: GPL-2.0-only
"""Patches on top of a tree: what is wrong with one is said in a line, or all of it applies.

The ungated baseline, of which what is made stays, and the mutants of tests/mutants.
"""

import os
import re
from pathlib import Path

import pytest

from lab.build import kernel, mutants, ungated
from lab.build.ungated import PATCH
from lab.core.git import Repo
from lab.core.paths import LAYOUT
from lab.series import files, tree
from tests.machines import test_limit
from tests.machines.matrix import cases
from tests.rows import for_each_row
from tests.unit.calls import refused
from tests.unit.fake_kernel import BASE_FILES, MMU, MMU_TEXT, FakeKernel, diff_of
from tests.unit.files import write

SWITCH = f"""\
Subject: mutant: a switch

Adds kvm_mutant().
---

{diff_of(MMU)}\
@@ -2,2 +2,3 @@
 #include <linux/kvm_host.h>
+int kvm_mutant(int nr);

"""
MUTANT = f"""\
Subject: mutant: the wrong page

It reads another one.

Caught-by: x86_64/some_test -m all
Machine: svm-qemu kvm_amd.npt=0 hugepages=1
Output: gfn 0x\\d+ is wrong
---

{diff_of(MMU)}\
@@ -28,3 +28,3 @@
 {{
-\treturn kvm->pages[1];
+\treturn kvm->pages[1 + kvm_mutant(3)];
 }}
"""
NAME = "tests/mutants/03-page.patch"


def made(directory: Path, text: str = MUTANT) -> FakeKernel:
    fake = FakeKernel.make(directory)
    fake.put("tests/mutants/00-switch.patch", SWITCH)
    fake.put(NAME, text)
    return fake


def test_what_a_patch_says(tmp_path: Path) -> None:
    (mutant,) = mutants.load(made(tmp_path).layout).mutants
    assert (mutant.number, mutant.name, mutant.path) == (3, "page", NAME)
    check = mutant.check
    assert (check.program, check.arguments) == ("x86_64/some_test", ("-m", "all"))
    assert (check.machine, check.words) == ("svm-qemu", ("kvm_amd.npt=0", "hugepages=1"))
    assert check.output and check.output.search("long: gfn 0x40 is wrong")
    assert check.kernel_log is None


def test_all_of_them_on_top_of_the_series(tmp_path: Path) -> None:
    fake = made(tmp_path)
    fake.make_tree()
    head = fake.git("rev-parse", "HEAD")
    before = fake.read(MMU)
    repo = Repo(fake.linux)
    commit = mutants.commit(repo, mutants.load(fake.layout))
    found = (tree.work_tree(fake.layout, fake.layout.tree_of("mutants"), commit) / MMU).read_text()
    assert "int kvm_mutant(int nr);" in found and "pages[1 + kvm_mutant(3)]" in found
    assert commit == mutants.commit(repo, mutants.load(fake.layout))
    assert (fake.git("rev-parse", "HEAD"), fake.read(MMU)) == (head, before)
    assert tree.unsaved(fake.linux) is None


def test_a_command_that_was_killed_amid_a_checkout(tmp_path: Path) -> None:
    """What git leaves behind then does not keep the next command from its work tree."""
    fake = made(tmp_path)
    fake.make_tree()
    commit, path = fake.git("rev-parse", "HEAD"), fake.layout.tree_of("mutants")
    stale = fake.linux / ".git" / "worktrees" / path.name / "index.lock"
    for _ in range(2):
        tree.work_tree(fake.layout, path, commit)
        stale.touch()
    assert Repo(path).text("rev-parse", "HEAD") == commit


WRONG = {
    "Caught-by: x86_64/some_test -m all\n": ("", "has no Caught-by:"),
    "Machine: svm-qemu kvm_amd.npt=0 hugepages=1\n": ("", "has no Machine:"),
    "Output: gfn 0x\\d+ is wrong\n": ("", "needs Output: or Kernel-log:"),
    "Output: ": (
        "Says: ",
        "expected one of Reverts, Caught-by, Machine, Config, Control, Output, Kernel-log",
    ),
    "Machine: ": ("Caught-by: ", "more than one Caught-by:"),
    "Machine: svm": ("Control: none\nMachine: svm", "Control: none: there is only own"),
    "gfn 0x\\d+": ("gfn (0x", "is no regular expression"),
    "kvm_mutant(3)": ("kvm_mutant(4)", "must use kvm_mutant(3), and uses 4"),
    "1 + kvm_mutant(3)": ("2", "and uses none"),
    "+ kvm_mutant(3)": ("+ kvm_mutant_or_control(4)", "and uses 4"),
    "---\n\n": ("---\nDeletes: Makefile\n\n", "a mutant must be a diff"),
}


@pytest.mark.parametrize("text", WRONG)
def test_a_patch_that_is_wrong(tmp_path: Path, text: str) -> None:
    new, said = WRONG[text]
    assert MUTANT.count(text) == 1
    line = refused(mutants.load, made(tmp_path, MUTANT.replace(text, new)).layout)
    assert line.startswith(NAME)
    assert said in line


@for_each_row(
    "name, said",
    ("tests/mutants/page.patch", "is called NN-name.patch"),
    ("tests/mutants/00-again.patch", "needs one patch 00, has 2"),
    ("tests/mutants/03-same.patch", "03-page.patch has the number 03 already"),
)
def test_a_name_that_is_wrong(tmp_path: Path, name: str, said: str) -> None:
    fake = made(tmp_path)
    fake.put(name, MUTANT)
    assert said in refused(mutants.load, fake.layout)


def test_ours_name_tests_that_make_test_runs_and_are_numbered_without_gaps() -> None:
    found = mutants.load(LAYOUT).mutants
    # Of a configuration of its own, `make test WHAT=limit` runs the test.
    programs = {mutant.check.program for mutant in found if mutant.check.config == "kvm"}
    assert programs <= {case.test.argv[0] for case in cases()}
    assert {m.check.program for m in found if m.check.config != "kvm"} == {test_limit.TEST}
    layouts = map(LAYOUT.of, LAYOUT.versions)
    numbers = {mutant.number for layout in layouts for mutant in mutants.load(layout).mutants}
    assert sorted(numbers) == list(range(1, len(numbers) + 1))


def test_an_older_base_keeps_what_differs_or_leaves_a_mutant_out(tmp_path: Path) -> None:
    fake = made(tmp_path)
    fake.put("base/9.9.pin", (fake.layout.root / "base/6.12.pin").read_text())
    own = "backport/6.12/mutants/03-page.patch"
    old = fake.layout.of("6.12")
    common = mutants.load(old).mutants
    fake.put(own, "Subject: mutant: the wrong page\n---\n\n" + MUTANT.partition("---\n\n")[2])
    (kept,) = mutants.load(old).mutants
    (same,) = common
    assert (kept.path, kept.check, kept.mail.message) == (own, same.check, same.mail.message)
    fake.put(own, "")
    assert mutants.load(old).mutants == ()
    for name in ("tests/mutants/100-last.patch", "backport/6.12/mutants/20-more.patch"):
        number = name.partition("-")[0].rpartition("/")[2]
        fake.put(name, MUTANT.replace("(3)", f"({number})"))
    for base, numbers in ((old, [20, 100]), (fake.layout.of("9.9"), [3, 100])):
        assert [one.number for one in mutants.load(base).mutants] == numbers
    fake.put("backport/6.12/mutants/04-gone.patch", "")
    assert "04-gone.patch: has no diff, and there is no such mutant" in refused(mutants.load, old)


def test_a_mutant_that_reverts_a_fix_is_left_out_for_a_reason(tmp_path: Path) -> None:
    reverts = "Reverts: KVM: The right page\nCaught-by:"
    fake = made(tmp_path, MUTANT.replace("Caught-by:", reverts))
    fake.put("base/9.9.pin", (fake.layout.root / "base/6.12.pin").read_text())
    own, old = "backport/6.12/mutants/03-page.patch", fake.layout.of("6.12")
    assert mutants.load(old).mutants[0].reverts == "KVM: The right page"
    for text in ("", "Subject: mutant: the wrong page\n---\n"):
        fake.put(own, text)
        assert "why the bug cannot show in this kernel" in refused(mutants.load, old)
    fake.put(own, "Subject: mutant: the wrong page\n\nThere is one page only.\n---\n")
    found = mutants.load(old)
    assert (found.mutants, dict(found.left_out)) == (
        (),
        {"KVM: The right page": "There is one page only."},
    )
    fake.put(NAME, "Subject: mutant: the wrong page\n\nNothing else.\n---\n")
    assert f"{NAME}: has no diff" in refused(mutants.load, fake.layout.of("9.9"))


def test_each_fix_has_a_mutant_that_reverts_it() -> None:
    newest = files.load(LAYOUT.newest).mails
    for layout in map(LAYOUT.of, LAYOUT.versions):
        # A mail may say less of an older base, which its own changelog is about.
        mails = (*newest, *files.load(layout).mails)
        # checkpatch.pl wants a commit to blame with `Cc: stable@`; there may be none to name.
        tags = re.compile(r"^(Fixes: |Cc: stable@|.*Stable kernels need this)", re.MULTILINE)
        fixes = {mail.subject for _, mail in mails if tags.search(mail.message)}
        found = mutants.load(layout)
        reverted = {mutant.reverts for mutant in found.mutants if mutant.reverts}
        assert reverted | found.left_out.keys() == fixes, layout.version
        assert not reverted & found.left_out.keys(), layout.version


@pytest.mark.parametrize("version", LAYOUT.versions)
def test_lines_of_changelogs_are_as_long_as_checkpatch_allows(version: str) -> None:
    """At most 75 columns; a tag is a line, however long."""
    tag = re.compile(r"[A-Z][a-z-]+: ")
    for name, mail in files.load(LAYOUT.of(version)).mails:
        lines = mail.message.split("\n")[1:]
        assert [line for line in lines if len(line) > 75 and not tag.match(line)] == [], name


# A baseline of FakeKernel's source.
TEXT = f"""\
Subject: ungated
---

{diff_of(MMU)}\
@@ -10,3 +10,3 @@
 {{
-\treturn kvm->pages[0];
+\treturn kvm->pages[3];
 }}
@@ -28,3 +28,3 @@
 {{
-\treturn kvm->pages[1];
+\treturn kvm->pages[4];
 }}
"""
PEER = MMU_TEXT.replace("[0]", "[3]").replace("[1]", "[4]")


@pytest.fixture(autouse=True)
def patch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ungated, "ROOT", tmp_path)
    monkeypatch.setattr(ungated, "PATCH", write(tmp_path / "ungated.patch", TEXT))


@pytest.fixture
def peer(fake: FakeKernel) -> Path:
    """Its tree, made."""
    return kernel.source_tree("peer", fake.layout)


def snapshot(work_tree: Path) -> dict[str, int]:
    return {
        path.relative_to(work_tree).as_posix(): path.stat().st_mtime_ns
        for path in work_tree.rglob("*")
        if path.is_file() and path.name != ".git"
    }


def test_the_edits_and_nothing_else(fake: FakeKernel, peer: Path) -> None:
    assert (peer, (peer / MMU).read_text()) == (fake.layout.tree_of("peer"), PEER)
    assert Repo(peer).lines("diff", "--name-only", tree.BASE_TAG) == [MMU]
    assert Repo(peer).lines("status", "--porcelain") == []
    # The other trees stay as they are.
    base = kernel.source_tree("base", fake.layout)
    assert (base, (base / MMU).read_text()) == (fake.layout.tree_of("base"), MMU_TEXT)
    assert tree.unsaved(fake.linux) is None


def test_again_no_file_is_touched_but_what_was_edited_by_hand(fake: FakeKernel, peer: Path) -> None:
    (peer / "obj-kvm").mkdir()
    (peer / "obj-kvm/vmlinux").write_text("built")
    for path in peer.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    before = snapshot(peer)
    assert "obj-kvm/vmlinux" in before
    kernel.source_tree("peer", fake.layout)
    assert snapshot(peer) == before
    for text in (MMU_TEXT, ""):
        (peer / MMU).write_text(text)
        kernel.source_tree("peer", fake.layout)
        assert (peer / MMU).read_text() == PEER


def test_another_source_makes_another_peer(fake: FakeKernel, peer: Path, tmp_path: Path) -> None:
    newer = FakeKernel.make(tmp_path / "new", {**BASE_FILES, MMU: "/* newer */\n" + MMU_TEXT})
    tree.make(fake.layout, newer.source)
    assert not peer.exists()
    kernel.source_tree("peer", fake.layout)
    assert (peer / MMU).read_text() == "/* newer */\n" + PEER


@for_each_row(
    "files, said",
    ({MMU: MMU_TEXT.replace("[0]", "[2]")}, rf"hunk @@ -10,3 \+10,3 @@ of {MMU} does not apply"),
    ({MMU: MMU_TEXT.replace("[1]", "[2]")}, rf"hunk @@ -28,3 \+28,3 @@ of {MMU} does not apply"),
    ({MMU: 2 * MMU_TEXT}, f"of {MMU} fits in 2 places here"),
    ({}, f"the kernel has no {MMU} at this point"),
)
def test_a_base_that_does_not_fit(tmp_path: Path, files: dict[str, str], said: str) -> None:
    others = {name: text for name, text in BASE_FILES.items() if name != MMU}
    fake = FakeKernel.with_tree(tmp_path, others | files)
    line = refused(kernel.source_tree, "peer", fake.layout)
    assert re.match(f"ungated.patch: .*{said}", line) and "\t" not in line
    assert not fake.layout.tree_of("peer").exists()


def test_a_refusal_leaves_the_baseline_that_there_was(fake: FakeKernel, peer: Path) -> None:
    repo = Repo(fake.linux)
    before = snapshot(peer)
    fake.write(MMU, MMU_TEXT.replace("[0]", "[2]"), commit="KVM: another base")
    repo.run("update-ref", tree.BASE_TAG, "HEAD")
    assert "does not apply" in refused(kernel.source_tree, "peer", fake.layout)
    assert snapshot(peer) == before


def test_the_repository_carries_no_more_of_the_kernel_than_one_line_around() -> None:
    hunks = re.split(r"^@@ .* @@\n", PATCH.read_text(), flags=re.MULTILINE)[1:]
    assert [len(re.findall("^ ", hunk, re.MULTILINE)) for hunk in hunks] == [2] * 5
