# SPDX-License-Identifier: GPL-2.0-only
"""make check on a small kernel: each check passes, and fails when what it checks is broken.

And lab/ has floors: a module imports what is below it, no cycle and nothing from above. Imports
inside functions count as well. The floors are in pyproject.toml.
"""

import io
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from lab.core.paths import BUILD, ROOT
from lab.series import topics
from lab.series.save import save
from lab.submit import check, checkers, compiling
from lab.submit.subject import CheckResult, Subject
from tests.rows import for_each_row
from tests.unit.calls import failed
from tests.unit.fake_kernel import BASE_FILES, MMU, PROGRAM, SPLITTER, FakeKernel
from tests.unit.files import program

# Understands just the words that the checks use, and does nothing without them: it warns only with
# W=1, and stands for sparse only with C=2. A semantic patch is the word that it looks for, and
# sphinx says what stands behind ERROR.
MAKEFILE = """\
WARN = $(if $(filter 1,$(W)),-Wunused)
SPARSE = $(if $(filter 2,$(C)),context,nothing)
tinyconfig olddefconfig:
\t@mkdir -p $(O) && touch $(O)/.config
headers: ;
arch/x86/kvm/: $(patsubst %.c,$(O)/%.o,$(wildcard arch/x86/kvm/mmu/*.c))
$(O)/%.o: %.c
\t@mkdir -p $(@D) && cd $(O) && gcc -I../include $(WARN) -c -o $*.o ../$<
%.o: %.c
\t@grep -n $(SPARSE) $< | sed 's,^\\([0-9]*\\):.*,$<:\\1: warning: context imbalance,' >&2
vmlinux:
\t@! grep -rn later arch
coccicheck:
\t@test $(MODE) = report
\t@cd $(M) && grep -rn -f $(COCCI) . | sed 's,^\\(.*:[0-9]*\\):.*,\\1:1-3: WARNING: see line 17,'
htmldocs:
\t@mkdir -p $(O)/Documentation/output/$(SPHINXDIRS)
\t@touch $(O)/Documentation/output/$(SPHINXDIRS)/index.html
\t@grep -rn ERROR Documentation/$(SPHINXDIRS) | sed "s,^\\([^:]*:[0-9]*:\\),$$PWD/\\1 ," >&2
"""
DOCUMENT = "Documentation/virt/kvm/api.rst"
PATCH = "scripts/coccinelle/null/words.cocci"
SELFTESTS = """\
all:
\t@mkdir -p $(OUTPUT) && gcc -o $(OUTPUT)/perf_test -c perf_test.c
"""
CHECKPATCH = """\
my $mail = $ARGV[-1];
open(my $file, '<', $mail);
my $strict = grep { $_ eq '--strict' } @ARGV;
my @bad = grep { $strict && /BAD/ } <$file>;
print "$mail:1: WARNING:BAD: bad line\\n" foreach @bad;
exit(@bad ? 1 : 0);
"""
FILES = {
    **BASE_FILES,
    "Makefile": MAKEFILE,
    ".gitignore": "obj-*\n",
    "scripts/checkpatch.pl": CHECKPATCH,
    "scripts/kconfig/merge_config.sh": "#!/bin/sh\n",
    PATCH: "virtual report\nmiddle\n",
    "scripts/coccinelle/edits.cocci": "virtual patch\nmiddle\n",
    "scripts/coccinelle/other.cocci": "virtual report\n@initialize:ocaml@\n",
    "virt/kvm/kvm_main.c": "int middle;\n",
    DOCUMENT: "ERROR: Malformed table.\nText\n",
    "tools/testing/selftests/kvm/Makefile": SELFTESTS,
    MMU: BASE_FILES[MMU] + "\nint noisy(void)\n{\n\tint unused;\n\treturn 0;\n}\n",
}


@pytest.fixture
def fake(tmp_path: Path) -> FakeKernel:
    made = FakeKernel.with_tree(tmp_path, FILES)
    made.edit(MMU, "pages[0]", "pages[3]")
    made.write(SPLITTER, "int eager_split;\n", commit="KVM: first")
    return made


def subject(fake: FakeKernel) -> Subject:
    save(fake.layout)
    fake.layout.log.mkdir(exist_ok=True)
    return Subject.load(fake.layout, [])


def test_round_trip_and_files_edited_by_hand(fake: FakeKernel) -> None:
    assert check.round_trip(subject(fake)) == CheckResult("2 files")
    mail = "series/0001-kvm-first.patch"
    fake.put(mail, (fake.layout.root / mail).read_text().replace("@@ -10,3", "@@ -11,3"))
    fake.put("arch/x86/kvm/stray.c", "int stray;\n")
    fake.put("tools/bpftrace/ours.bt", "no part of the kernel\n")
    verdict = check.round_trip(Subject.load(fake.layout, []))
    stray = "arch/x86/kvm/stray.c: no mail adds or replaces it"
    assert verdict.problems == (f"{mail}: save would write it differently", stray)


def test_compiles(fake: FakeKernel) -> None:
    assert compiling.compiles(subject(fake)) == CheckResult("1 mails, W=1 (1 warnings in base)")


def test_topics(fake: FakeKernel) -> None:
    fake.edit(MMU, "return kvm->pages[1];", "return kvm->pages[1]; /* later */")
    fake.commit("KVM: second")
    fake.edit(MMU, " /* later */", "", commit="KVM: third")
    text = "[[topic]]\nname = '{}'\nsubject = 'S'\ntext = ''\nlast = '{}'\ntests = []\n"
    fake.put(topics.FILE, text.format("one", "KVM: first"))
    save(fake.layout)
    (problem,) = check.in_topics(subject(fake)).problems
    assert problem == f"{topics.FILE}: 'KVM: third' is in no topic"
    fake.put(topics.FILE, text.format("one", "KVM: second") + text.format("two", "KVM: third"))
    assert check.in_topics(subject(fake)) == CheckResult("2 topics")
    (problem,) = compiling.compiles(subject(fake)).problems
    assert problem.startswith("topic one: the kernel does not build; see ")
    fake.put(topics.FILE, text.format("all", "KVM: third"))
    assert compiling.compiles(subject(fake)).problems == ()


@for_each_row(
    "file, old, new, said",
    (MMU, "pages[3]", "pages[undeclared]", f"{MMU}: error: "),
    (MMU, "return kvm", "int fresh;\n\treturn kvm", rf"{MMU}: warning: unused variable.*fresh"),
    (PROGRAM, "int up", "int ours = undeclared;\nint up", "building the selftests failed"),
)
def test_a_mail_that_does_not_compile_alone(
    fake: FakeKernel, file: str, old: str, new: str, said: str
) -> None:
    fake.edit(file, old, new, commit="KVM: breaks")
    fake.edit(file, new, old, commit="KVM: repairs")
    (problem,) = compiling.compiles(subject(fake)).problems
    assert re.match(f'"KVM: breaks": {said}', problem)


def test_checkpatch(fake: FakeKernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checkers.checkpatch(subject(fake)) == CheckResult("1 mails, --strict")
    fake.edit(MMU, "pages[3]", "pages[4] /* BAD */", commit="KVM: second")
    (problem,) = checkers.checkpatch(subject(fake)).problems
    assert "0002-KVM-second.patch:1: WARNING:BAD" in problem
    # It finds the Python of Debian.
    program(tmp_path / "python3", "#!/bin/sh\necho BAD module >&2\nexit 1\n")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    text = "system('python3', '-c', '') == 0 or exit 1;\n"
    fake.write("scripts/checkpatch.pl", text, commit="scripts: run Python")
    assert checkers.checkpatch(subject(fake)).problems == ()


def test_sparse(fake: FakeKernel, tmp_path: Path) -> None:
    assert checkers.sparse(subject(fake)).problems == ()
    fake.write(SPLITTER, "int eager_split;\nint context;\n")
    fake.git("commit", "-q", "--amend", "-a", "--no-edit")
    (problem,) = checkers.sparse(subject(fake)).problems
    assert problem == f"{SPLITTER}: warning: context imbalance"
    # Without whole files.
    assert checkers.sparse(subject(FakeKernel.with_tree(tmp_path / "bare", FILES))).problems == ()


def test_coccicheck(fake: FakeKernel) -> None:
    assert checkers.coccicheck(subject(fake)) == CheckResult(
        "1 semantic patches, 1 in OCaml left out"
    )
    fake.edit(MMU, "int noisy(void)", "int middle_too(void)")
    fake.edit("virt/kvm/kvm_main.c", "int middle;", "int middle, middling;\nint middle_too;")
    fake.write(PROGRAM, "int middle;\n")
    fake.commit("KVM: say it once more than base, in two files, and in user space")
    wanted = tuple(f"{file}: WARNING: see line N" for file in (MMU, "virt/kvm/kvm_main.c"))
    assert checkers.coccicheck(subject(fake)).problems == wanted


def test_docs(fake: FakeKernel) -> None:
    assert checkers.docs(subject(fake)) == CheckResult(
        "Documentation/virt/kvm (1 warnings in base)"
    )
    fake.edit(DOCUMENT, "Text\n", "ERROR: Malformed table.\nWARNING: just text\n")
    fake.write("Documentation/virt/kvm/new.rst", "ERROR: Unknown target\n")
    fake.commit("KVM: documentation")
    assert checkers.docs(subject(fake)).problems == (
        f"{DOCUMENT}: ERROR: Malformed table.",
        "Documentation/virt/kvm/new.rst: ERROR: Unknown target",
    )


@for_each_row(
    "run, old, new, said",
    (checkers.coccicheck, "test $(MODE) = report", "exit 3", f"could not run {PATCH}"),
    # Without sphinx it skips the target.
    (checkers.docs, "touch $(O)/Documentation", ": ", "could not be built"),
)
def test_a_check_that_cannot_run(
    fake: FakeKernel, run: Callable[[Subject], CheckResult], old: str, new: str, said: str
) -> None:
    fake.write("Makefile", MAKEFILE.replace(old, new), commit="scripts: break")
    assert re.search(rf"{said}; see .*check\.log", failed(run, subject(fake)))


def test_scripts(fake: FakeKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    # Mypy learns the standard library once, not for every test run.
    monkeypatch.setenv("MYPY_CACHE_DIR", str(BUILD / "cache" / "mypy-of-tests"))
    fake.put("pyproject.toml", '[tool.mypy]\nfiles = ["lab"]\nstrict = true\n')
    fake.put("lab/good.py", "X: int = 1\n")
    fake.put("scripts/good", '#!/bin/sh\necho "$1"\n')
    fake.put("scripts/words.txt", "echo $1\n")
    assert checkers.scripts(subject(fake)).problems == ()
    fake.put("scripts/bad", "#!/bin/sh\necho $1\n")
    fake.put("lab/guest/init", "#!/bin/busybox sh\n# shellcheck shell=sh\necho $2\n")
    fake.put("lab/ugly.py", "X: int=1\n")
    fake.put("lab/bad.py", "import os\ndef f(a): return a\n")
    problems = "\n".join(checkers.scripts(subject(fake)).problems)
    wanted = ("scripts/bad:2", "lab/guest/init:3", "SC2086", "F401", "[no-untyped-def]", "ugly.py")
    for said in wanted:
        assert said in problems
    assert "words.txt" not in problems


def test_table() -> None:
    output = io.StringIO()
    verdicts = {"one": CheckResult("3 files"), "second": CheckResult("2 mails", ("[a] is wrong",))}
    check.show(verdicts, Console(file=output, width=80))
    text = output.getvalue()
    rows = [line.split() for line in text.splitlines()]
    assert [word for word in rows[3] if word.isalnum()] == ["one", "passed", "3", "files"]
    assert [word for word in rows[4] if word.isalnum()] == ["second", "FAILED", "2", "mails"]
    assert "second: [a] is wrong" in text


def test_every_package_has_a_floor_no_import_goes_up_and_no_modules_import_each_other() -> None:
    command = (Path(sys.executable).with_name("lint-imports"), "--no-cache")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 kept, 0 broken" in done.stdout
