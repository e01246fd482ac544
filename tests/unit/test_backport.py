# SPDX-License-Identifier: GPL-2.0-only
"""Two bases of one series: an older one has its own mails where it differs, and nothing else."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.build import selftests
from lab.core.paths import Layout
from lab.series import sums, tree
from lab.series.mail import parse
from lab.series.pin import PathMap
from lab.series.save import save
from lab.submit import check
from lab.submit.subject import CheckResult, Subject
from tests.rows import for_each_row
from tests.unit.calls import refused
from tests.unit.fake_kernel import BASE_FILES, HEADER, MMU, PIN, SPLITTER, FakeKernel, diff_of

KVM = "tools/testing/selftests/kvm"
THEIRS, OURS = "a_test.c", "our_test.c"
WHOLE = "int eager_split;\nint next;\n\n\n\nint last;\n"
NEW_FILES = {**BASE_FILES, f"{KVM}/x86/{THEIRS}": "int one;\nint two;\nint three;\n"}
OLD_FILES = {
    **BASE_FILES,
    MMU: BASE_FILES[MMU].replace("kvm->pages[0]", "first_page(kvm)").replace("/*\n", "\n\n/*\n", 1),
    f"{KVM}/x86_64/{THEIRS}": NEW_FILES[f"{KVM}/x86/{THEIRS}"],
}
PATHS = f'[paths]\n"{KVM}/x86" = "{KVM}/x86_64"\n'


def mail(subject: str, path: str, hunk: str) -> str:
    return f"Subject: {subject}\n---\n\n{diff_of(path)}{hunk}"


COUNT = mail(
    "KVM: count",
    MMU,
    "@@ -10,3 +10,3 @@\n {\n-\treturn first_page(kvm);\n+\treturn first_page(kvm) + 3;\n }\n",
)
NAME = mail(
    "KVM: new names",
    HEADER,
    "@@ -2,2 +2,3 @@\n struct kvm { int pages[8]; };\n+#define new_name last\n"
    " int split_all(struct kvm *kvm);\n",
)
MARK = mail(
    "KVM: mark folios",
    SPLITTER,
    "@@ -1,2 +1,3 @@\n int eager_split;\n+int folio_marked;\n int next;\n"
    "diff --git a/old.c b/old.c\nnew file mode 100644\n--- /dev/null\n+++ b/old.c\n"
    "@@ -0,0 +1 @@\n+int only_here;\n",
)
BACKPORT = "backport/6.12"
OWN = {
    f"{BACKPORT}/prereq/0001-kvm-new-names.patch": NAME,
    f"{BACKPORT}/series/kvm-count.patch": COUNT,
    f"{BACKPORT}/post/0001-kvm-mark-folios.patch": MARK,
}


def newest(directory: Path) -> FakeKernel:
    """The newest base, its series saved: two edits, a whole file each."""
    made = FakeKernel.make(directory, NEW_FILES)
    made.put("base/6.12.pin", PIN + PATHS)
    made.put("base/7.3.pin", PIN)
    made = FakeKernel(made.layout.of("7.3"), made.source)
    made.make_tree()
    made.edit(MMU, "pages[0]", "pages[3]", commit="KVM: count")
    made.edit(MMU, "pages[2]", "pages[4]")
    made.write(SPLITTER, WHOLE, commit="KVM: split")
    made.edit(f"{KVM}/x86/{THEIRS}", "int two", "int twice")
    made.write(f"{KVM}/x86/{OURS}", "int ours;\n", commit="KVM: selftests: test")
    save(made.layout)
    return made


@pytest.fixture(scope="session")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[FakeKernel, FakeKernel]:
    """The newest base and an older one, both with their trees, to be copied."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree, "NEEDED_GIB", 0)
        new = newest(tmp_path_factory.mktemp("new"))
        source = FakeKernel.make(tmp_path_factory.mktemp("old"), OLD_FILES).source
        old = FakeKernel(new.layout.of("6.12"), source)
        for name, text in OWN.items():
            old.put(name, text)
        old.make_tree()
    return new, old


@pytest.fixture
def new(both: tuple[FakeKernel, FakeKernel], tmp_path: Path) -> FakeKernel:
    shutil.copytree(both[0].layout.root, tmp_path / "copy", symlinks=True)
    return FakeKernel(Layout(tmp_path / "copy", "7.3"), both[0].source)


@pytest.fixture
def old(both: tuple[FakeKernel, FakeKernel], new: FakeKernel) -> FakeKernel:
    return FakeKernel(new.layout.of("6.12"), both[1].source)


@pytest.fixture
def bare(old: FakeKernel) -> FakeKernel:
    """The older base, that nothing was done for."""
    shutil.rmtree(old.layout.backport)
    shutil.rmtree(old.linux)
    return old


def subjects(fake: FakeKernel) -> list[str]:
    return fake.git("log", "--reverse", "--format=%s", "base..").splitlines()


def test_what_does_not_apply_says_where_its_mail_goes(new: FakeKernel, bare: FakeKernel) -> None:
    own = f"{BACKPORT}/series/kvm-count.patch in its place): hunk @@ -10,3 +10,3 @@ of {MMU}"
    assert own in refused(bare.make_tree)
    assert not bare.linux.exists()
    # Only the newest one's line number would choose, so the older base needs its own mail.
    new.git("reset", "-q", "--hard", "base")
    new.edit(HEADER, "int last", "int very;\nint last", commit="KVM: insert")
    save(new.layout)
    bare.make_tree()
    files = {**OLD_FILES, HEADER: BASE_FILES[HEADER] * 2}
    source = FakeKernel.make(bare.layout.root / "build/more", files).source
    where = rf"kvm-insert\.patch in its place\): hunk .* of {HEADER} fits in 2 places here"
    assert re.search(where, refused(tree.make, bare.layout, source))
    old = (bare.layout.root / "series/0001-kvm-insert.patch").read_text()
    bare.put(f"{BACKPORT}/series/kvm-insert.patch", old)
    tree.make(bare.layout, source)
    assert save(bare.layout) == []


def test_tree_of_an_older_base_and_back(old: FakeKernel, new: FakeKernel) -> None:
    assert subjects(old) == ["KVM: new names", *subjects(new), "KVM: mark folios"]
    assert "#define new_name last" in old.read(HEADER)
    assert "first_page(kvm) + 3;" in old.read(MMU)
    assert "pages[4]" in old.read(MMU)
    assert old.read(f"{KVM}/x86_64/{OURS}") == "int ours;\n"
    assert "int twice" in old.read(f"{KVM}/x86_64/{THEIRS}")
    assert not (old.linux / KVM / "x86").exists()
    assert old.read(SPLITTER) == WHOLE.replace("split;\n", "split;\nint folio_marked;\n")
    assert new.read(SPLITTER) == WHOLE
    assert old.linux == old.layout.build / "linux"
    assert new.linux == old.layout.build / "7.3/linux"
    for fake in (old, new):
        assert "up to date" in fake.make_tree()
    before = old.repository()
    assert save(old.layout) == []
    assert old.repository() == before
    assert check.round_trip(Subject.load(old.layout, [])) == CheckResult("3 files")


def test_only_what_differs_is_saved(old: FakeKernel, new: FakeKernel) -> None:
    new.git("commit", "-q", "--allow-empty", "-m", "KVM: moot")
    save(new.layout)
    old.make_tree()
    before = old.repository()
    old.edit(f"{KVM}/x86_64/{THEIRS}", "int three", "int thrice")
    old.edit(SPLITTER, "int last", "long last", commit="KVM: selftests: only here")
    assert save(old.layout) == [f"wrote {BACKPORT}/post/0002-kvm-selftests-only-here.patch"]
    assert {name: old.repository()[name] for name in before} == before


def test_checksums_of_an_older_base(old: FakeKernel, new: FakeKernel) -> None:
    """They are under the names of the newest base; whole files that only this base changes, too."""
    live = f"{KVM}/x86/dirty_log_live.c"
    new.prove()
    old.prove()
    new.write(live, "int a;\n", commit="KVM: selftests: live")
    assert f"wrote {live}" in save(new.layout)
    old.make_tree()
    old.edit(f"{KVM}/x86_64/dirty_log_live.c", "int a", "int old", commit="KVM: only here")
    assert save(old.layout)[1:] == ["wrote base/6.12.sums"]
    assert tree.check_sums(old.layout) and tree.check_sums(new.layout)
    assert set(sums.read(new.layout)) == {MMU}
    assert set(sums.read(old.layout)) == {MMU, HEADER, SPLITTER, live}
    assert sums.read(old.layout)[live] == sums.sum_of(live, b"int old;\n")


def amend(fake: FakeKernel, subject: str, change: Callable[[], None], message: str = "") -> None:
    """Make a change in the commit of that subject, or of what it says."""
    tip = fake.git("rev-parse", "HEAD")
    commit = fake.git("log", "-1", "--format=%H", f"--grep=^{subject}$")
    fake.git("checkout", "-q", commit)
    change()
    fake.git("add", "-A", "-f")
    fake.git("commit", "-q", "--amend", *(("-m", message) if message else ("--no-edit",)))
    fake.git("rebase", "-q", "--onto", "HEAD", commit, tip)
    fake.git("checkout", "-q", "-B", "series")


def test_a_mail_that_begins_to_differ_and_one_that_no_longer_does(old: FakeKernel) -> None:
    amend(old, "KVM: split", lambda: old.edit(MMU, "pages[4]", "pages[5]"))
    assert save(old.layout) == [f"wrote {BACKPORT}/series/kvm-split.patch"]
    own = old.layout.root / f"{BACKPORT}/series/kvm-split.patch"
    assert own.read_text().startswith("Subject: KVM: split\n\n---\n\ndiff --git ")
    before = old.git("rev-parse", "HEAD^{tree}")
    old.make_tree()
    assert old.git("rev-parse", "HEAD^{tree}") == before, "the rest is what series/ says"
    # So does a changelog that changes for all.
    (common,) = old.layout.series.glob("*-kvm-split.patch")
    common.write_text(common.read_text().replace("---\n", "Why not.\n---\n", 1))
    old.make_tree()
    assert "Why not." in old.git("log", "--format=%B", "--grep=^KVM: split$")
    amend(old, "KVM: split", lambda: old.edit(MMU, "pages[5]", "pages[4]"))
    assert save(old.layout) == [f"removed {BACKPORT}/series/kvm-split.patch"]
    assert save(old.layout) == []


def test_another_changelog_is_kept(old: FakeKernel) -> None:
    common = old.git("log", "-1", "--format=%B", "--grep=^KVM: split$")
    amend(old, "KVM: split", lambda: None, f"KVM: split\n\nOf old.\n{common}")
    assert save(old.layout) == [f"wrote {BACKPORT}/series/kvm-split.patch"]
    old.make_tree()
    assert "Of old." in old.git("log", "--format=%B", "--grep=^KVM: split$")


def test_a_moved_line_is_no_difference(old: FakeKernel, new: FakeKernel) -> None:
    new.edit(MMU, "#define OLD_BATCH 8\n", "#define OLD_BATCH 8\n/* One */\n/* Two */\n")
    new.git("commit", "-q", "-a", "--fixup=HEAD~1")
    new.git("-c", "sequence.editor=:", "rebase", "-q", "-i", "--autosquash", "base")
    save(new.layout)
    old.make_tree()
    assert "/* Two */" in old.read(MMU)
    assert save(old.layout) == []


def edit_common(subject: str) -> Callable[[FakeKernel], None]:
    return lambda fake: amend(fake, subject, lambda: fake.edit(SPLITTER, "int last", "long last"))


def grow(new: FakeKernel, old: FakeKernel) -> None:
    """Let a later mail of the newest base change a whole file, as well as a file of the kernel."""
    new.edit(SPLITTER, "int next;", "int next;\nint grown;")
    new.edit(MMU, "pages[4]", "pages[6]", commit="KVM: grow")
    save(new.layout)
    old.make_tree()


def test_a_whole_file_that_grows_does_so_on_all_bases(old: FakeKernel, new: FakeKernel) -> None:
    grow(new, old)
    for fake in (new, old):
        commit = fake.git("log", "-1", "--format=%H", "--grep=^KVM: grow$")
        assert "grown" not in fake.git("show", f"{commit}^:{SPLITTER}")
        assert "grown" in fake.git("show", f"{commit}:{SPLITTER}")
        assert save(fake.layout) == []
    # A mail of its own need not repeat that.
    amend(old, "KVM: grow", lambda: old.edit(MMU, "pages[6]", "pages[7]"))
    assert save(old.layout) == [f"wrote {BACKPORT}/series/kvm-grow.patch"]
    own = (old.layout.root / f"{BACKPORT}/series/kvm-grow.patch").read_text()
    assert "grown" not in own
    before = old.git("rev-parse", "HEAD^{tree}")
    old.make_tree()
    assert old.git("rev-parse", "HEAD^{tree}") == before
    assert save(old.layout) == []


@pytest.mark.parametrize("become", ["int next;", "int next;\nint larger;"])
def test_a_whole_file_that_would_grow_otherwise(
    old: FakeKernel, new: FakeKernel, become: str
) -> None:
    grow(new, old)
    amend(old, "KVM: grow", lambda: old.edit(SPLITTER, "int next;\nint grown;", become))
    before = old.repository()
    said = refused(save, old.layout)
    assert f'"KVM: grow" has another {SPLITTER} than all bases share' in said
    assert old.repository() == before


def drop_a_mail(fake: FakeKernel) -> None:
    fake.git("rebase", "-q", "--onto", "HEAD~2", "HEAD~1")


def insert_a_mail(fake: FakeKernel) -> None:
    def commit() -> None:
        fake.write("arch/x86/kvm/x.c", "int x;\n", commit="KVM: amid")

    amend(fake, "KVM: split", commit)


def swap(fake: FakeKernel) -> None:
    fake.git("checkout", "-q", "HEAD~3")
    fake.git("cherry-pick", "series~1", "series~2", "series")
    fake.git("checkout", "-q", "-B", "series")


@for_each_row(
    "work, said",
    (edit_common("KVM: split"), r"has another .*eager_split\.c than all bases share: .*BASE=7\.3"),
    (edit_common("KVM: selftests: test"), r"has another .*eager_split\.c than all bases share"),
    (drop_a_mail, "in their order: see kvm-selftests-test"),
    (insert_a_mail, "kvm-amid stands among the mails"),
    (swap, "in their order: see kvm-split"),
)
def test_refused_and_nothing_changed(
    old: FakeKernel, work: Callable[[FakeKernel], None], said: str
) -> None:
    work(old)
    before = old.repository()
    assert re.search(said, refused(save, old.layout))
    assert old.repository() == before


def test_an_own_mail_of_none(old: FakeKernel) -> None:
    old.put(f"{BACKPORT}/series/kvm-nothing.patch", "Subject: KVM: nothing\n---\n")
    assert "kvm-nothing.patch: series/ has no mail" in refused(old.make_tree)


def test_a_change_of_the_newest_reaches_the_older(old: FakeKernel) -> None:
    old.put(f"{KVM}/x86/{OURS}", "int changed;\n")
    old.make_tree()
    assert old.read(f"{KVM}/x86_64/{OURS}") == "int changed;\n"
    old.put("base/6.12.pin", PIN + PATHS.replace("x86_64", "elsewhere"))
    assert "elsewhere/a_test" in refused(old.make_tree)


def test_unsaved_work_of_any_base(old: FakeKernel, new: FakeKernel) -> None:
    tree.refuse_unsaved_bases(old.layout)
    new.edit(MMU, "pages[3]", "pages[9]")
    assert "build/7.3/linux contains uncommitted" in refused(tree.refuse_unsaved_bases, old.layout)


def test_paths_in_the_text_of_a_diff_stay() -> None:
    paths = PathMap({"a/x86": "a/x86_64"})
    text = "diff --git a/a/x86/f b/a/x86/f\n--- a/a/x86/f\n+++ b/a/x86/f\n@@ -1 +1 @@\n"
    body = "--- a/a/x86/f\n+++ b/a/x86/f\n"
    mapped = paths.mail(parse("x", f"Subject: s\n---\nAdds: a/x86/n\n\n{text}{body}"))
    assert mapped.diff == text.replace("x86", "x86_64") + body
    assert mapped.adds == ("a/x86_64/n",)
    assert paths.back(paths.there("a/x86/n")) == "a/x86/n"
    assert paths.there("a/x86x/n") == "a/x86x/n"
    tests = PathMap({f"{KVM}/x86": f"{KVM}/x86_64"})
    assert selftests.name_of(Path("x86_64/our_test"), tests) == Path("x86/our_test")
