# SPDX-License-Identifier: GPL-2.0-only
"""What the series makes of measured files decides which code was measured, not its mails."""

import shutil
from collections.abc import Callable

import pytest

from lab.core.git import Repo
from lab.core.paths import PINS_VARIABLE
from lab.results import origin
from lab.series import sums, tree
from lab.series.files import load
from lab.series.save import save
from lab.submit import check
from lab.submit.subject import Subject
from tests.rows import for_each_row
from tests.unit.calls import lab, refused
from tests.unit.fake_kernel import HEADER, MMU, PROGRAM, SPLITTER, FakeKernel

SUMS = "base/6.12.sums"
WROTE = f"wrote {SUMS}"


@pytest.fixture
def fake(fake: FakeKernel) -> FakeKernel:
    """Two mails that edit one file, and a whole file, saved."""
    fake.prove()
    for name in origin.BUILT_BY:
        fake.put(name, "a\n")
    fake.edit(MMU, "pages[0]", "pages[3]", commit="KVM: one")
    fake.edit(MMU, "pages[2]", "pages[4]")
    fake.edit(PROGRAM, "upstream_line_3;", "not_measured;")
    fake.write(SPLITTER, "int eager_split;\n", commit="KVM: two")
    assert WROTE in save(fake.layout)
    return fake


def source(fake: FakeKernel) -> str:
    return origin.source_of("bench", fake.layout)


def text(fake: FakeKernel) -> str:
    return fake.layout.sums.read_text()


def test_what_is_written(fake: FakeKernel) -> None:
    assert text(fake) == f"{sums.HEAD}{sums.sum_of(MMU, fake.read(MMU).encode())}  {MMU}\n"
    assert save(fake.layout) == []
    fake.git("rm", "-q", HEADER)
    fake.commit("KVM: header")
    assert WROTE in save(fake.layout)
    assert text(fake).endswith(f"\ndeleted           {HEADER}\n")
    assert sums.read(fake.layout)[HEADER] == sums.DELETED
    # It says nothing of a file that the series leaves as it was.
    fake.git("reset", "-q", "--hard", "base")
    save(fake.layout)
    assert text(fake) == sums.HEAD


def moved(fake: FakeKernel) -> None:
    """A hunk is in the other mail."""
    fake.git("reset", "-q", "--soft", "base")
    fake.git("reset", "-q", SPLITTER)
    fake.git("commit", "-q", "-m", "KVM: one")
    fake.commit("KVM: two")


def turned(fake: FakeKernel) -> None:
    """The mails are in the other order."""
    fake.git("reset", "-q", "--hard", "base")
    fake.git("cherry-pick", "HEAD@{1}", "HEAD@{1}~1")


def edit(path: str, old: str, new: str) -> Callable[[FakeKernel], None]:
    return lambda fake: fake.edit(path, old, new, commit="KVM: three")


@for_each_row(
    "work, changes",
    (moved, False),
    (turned, False),
    (edit(MMU, "pages[1]", "pages[5]"), True),
    (edit(MMU, "pages[4]", "pages[2]"), True),
    (edit(MMU, "Splits one page, the old way.", "Splits it."), False),
    (edit(MMU, "\tint i;", "\n\tint  i; /* One */"), False),
    (edit(PROGRAM, "upstream_line_4;", "not_measured_either;"), False),
    (edit(SPLITTER, "int eager", "int very_eager"), True),
)
def test_what_changes_the_source(
    fake: FakeKernel, work: Callable[[FakeKernel], None], changes: bool
) -> None:
    before, said = source(fake), text(fake)
    work(fake)
    lines = save(fake.layout)
    assert [line for line in lines if line.startswith("wrote series/")]
    assert (source(fake) != before) == changes
    # Of a whole file, the repository has the text.
    assert (WROTE in lines) == (text(fake) != said)
    assert text(fake) == said or (changes and SPLITTER not in "".join(lines))
    assert tree.check_sums(fake.layout)


def test_another_name_for_the_same_text(fake: FakeKernel) -> None:
    """Whether a file is kept whole or as a diff does not change the source."""
    before = source(fake)
    (mail,) = fake.layout.series.glob("*-two.patch")
    diff = (
        f"diff --git a/{SPLITTER} b/{SPLITTER}\nnew file mode 100644\n--- /dev/null\n"
        f"+++ b/{SPLITTER}\n@@ -0,0 +1 @@\n+int eager_split;\n"
    )
    mail.write_text(mail.read_text().replace(f"Adds: {SPLITTER}\n", "") + diff)
    (fake.layout.root / SPLITTER).unlink()
    fake.make_tree()
    assert f"{SUMS} is not what the series makes of {SPLITTER}: " in refused(
        tree.check_sums, fake.layout
    )
    found = sums.of_tree(fake.layout, Repo(fake.linux), load(fake.layout), "base", "HEAD")
    sums.write(fake.layout, found)
    assert source(fake) == before


def test_a_whole_file_counts_before_it_is_saved(fake: FakeKernel) -> None:
    before, said = source(fake), text(fake)
    fake.put(SPLITTER, "int eager_split = 1;\n")
    assert source(fake) != before
    fake.make_tree()
    assert tree.check_sums(fake.layout)
    assert save(fake.layout) == [] and text(fake) == said
    fake.put(SPLITTER, "// ours\nint eager_split;\n")
    assert source(fake) == before


def edit_a_mail(fake: FakeKernel) -> None:
    (mail,) = fake.layout.series.glob("*-one.patch")
    mail.write_text(mail.read_text().replace("pages[3]", "pages[5]"))


def edit_sums(fake: FakeKernel) -> None:
    fake.put(SUMS, text(fake).replace(MMU, HEADER))


def remove_sums(fake: FakeKernel) -> None:
    fake.layout.sums.unlink()


@for_each_row("work, of", (edit_a_mail, MMU), (edit_sums, f"{MMU} and 1 more"), (remove_sums, MMU))
def test_make_tree_notices_what_is_not_true(
    fake: FakeKernel,
    monkeypatch: pytest.MonkeyPatch,
    work: Callable[[FakeKernel], None],
    of: str,
) -> None:
    monkeypatch.setattr(tree, "LAYOUT", fake.layout)
    monkeypatch.setattr(tree, "current_source", lambda *_: fake.source)
    lab("tree")
    assert origin.measured("bench", fake.layout)[origin.SOURCE] == source(fake)
    work(fake)
    said = f"{SUMS} is not what the series makes of {of}: run `make save BASE=6.12`"
    # Each time, and whatever else make tree has to do.
    for _ in range(2):
        assert lab("tree", status=2).err.splitlines()[-1] == f"lab: {said}"
        assert origin.measured("bench", fake.layout)[origin.SOURCE] == origin.UNSAVED
    assert said in check.round_trip(Subject.load(fake.layout, [])).problems
    assert save(fake.layout) == [WROTE]
    lab("tree")
    assert origin.measured("bench", fake.layout)[origin.SOURCE] == source(fake)
    assert check.round_trip(Subject.load(fake.layout, [])).problems == ()


def test_sums_that_cannot_be_read(fake: FakeKernel) -> None:
    fake.put(SUMS, f"{text(fake)}<<<<<<< HEAD\n")
    said = f"{SUMS}:5: expected a checksum and a path: `make tree BASE=6.12`, then `make save"
    assert said in refused(source, fake)
    assert said in refused(tree.check_sums, fake.layout)
    assert save(fake.layout) == [WROTE]
    assert tree.check_sums(fake.layout)


def test_another_source_than_the_pin_proves(
    fake: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sums stay those of the proved source."""
    said = text(fake)
    monkeypatch.setenv(PINS_VARIABLE, str(fake.layout.build / "pins"))
    shutil.copytree(fake.layout.root / "base", fake.layout.build / "pins")
    fake.edit(MMU, "pages[1]", "pages[5]", commit="KVM: three")
    assert WROTE not in save(fake.layout)
    monkeypatch.delenv(PINS_VARIABLE)
    assert f"makes of {MMU}: run" in refused(tree.check_sums, fake.layout)
    pin = fake.layout.pin.read_text()
    fake.layout.pin.write_text(f'{pin}"1.1" = "11"\n')
    monkeypatch.setattr(tree, "LAYOUT", fake.layout)
    monkeypatch.setattr(tree, "current_source", lambda *_: fake.source)
    assert "was not compared" in lab("tree").err
    assert save(fake.layout) == [] and text(fake) == said


def test_code_without_comments() -> None:
    code = 'a = "/* b */ // c"; /* d\n e */ b =  \'"\';\t// f\n\n\n  c();\n'
    plain = 'a = "/* b */ // c"; b = \'"\';\nc();'
    assert sums.without_comments(code) == plain
    assert sums.sum_of("a.h", code.encode()) == sums.sum_of("a.h", plain.encode())
    # These are comments in C only.
    assert sums.sum_of("Kconfig", b"a // b\n") != sums.sum_of("Kconfig", b"a\n")


def test_debug_kernels_are_not_measured() -> None:
    assert sums.is_measured("arch/x86/kvm/mmu/mmu.c")
    assert not sums.is_measured(sums.DEBUG_ONLY[0])
    assert not sums.is_measured("tools/testing/selftests/kvm/x86/eager_split_modes_test.c")


def test_all_files_of_the_kernel_that_measure_have_sums() -> None:
    kernel = {one for patterns in origin.PROGRAMS.values() for one in patterns}
    kernel -= {one for one in kernel if one.startswith(("lab/", "scripts/"))}
    assert kernel <= set(sums.MEASURED)
