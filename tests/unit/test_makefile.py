# SPDX-License-Identifier: GPL-2.0-only
"""The Makefile: what `make help` shows is there, and WHAT chooses what it names. Nothing is run."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from lab.core.paths import DEFAULT_BASE, ROOT
from tests.rows import for_each_row
from tests.unit.files import program
from tests.unit.test_links import KNOWN, RULE, markdown_files

KEPT = {"bench", "test", "tree", "save", "check", "build", "mail", "soak", "report", "compare"}
KEPT |= {"reference", "deb"}


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """Call make as if from a shell."""
    # Not what a make around this one, as that of `make test WHAT=unit`, hands on.
    env = {"PATH": os.environ["PATH"]}
    return subprocess.run(
        ["make", *words], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )


def commands(*words: str) -> list[str]:
    """The lines that make would run, but for the setup."""
    done = run("-n", *words)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if "setup.sh" not in line]


def values(goal: str) -> list[str]:
    """The values of WHAT that the help has below a target."""
    blocks = re.split(r"^(?=make )", help_text(), flags=re.MULTILINE)
    (block,) = (block for block in blocks if block.startswith(f"make {goal} "))
    return re.findall(r"^ +WHAT=(\w+)", block, re.MULTILINE)


def help_text() -> str:
    done = run()
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_only_the_help_says_how_long_make_test_takes() -> None:
    """A figure that stands in two places differs some day."""
    assert re.search(
        r"\(about \d+ minutes on two cores with a warm ccache, \d+ without; BASE=7\.3: \d+\)\n"
        r".*WHAT=quick .*\([a-z -]+ once the kernel is built\)",
        help_text(),
    )
    for page in markdown_files(ROOT):
        for sentence in re.split(r"(?<=[.:;|]) ", " ".join(page.read_text().split())):
            plain = re.search(r"`make test(?: WHAT=(?:quick|unit))?`", sentence)
            if plain and not sentence.startswith("No test of `make test`"):
                assert not re.search(r"\bminutes?\b", sentence), (page.name, sentence)


def test_the_help_shows_every_target_once_and_every_value() -> None:
    shown = re.findall(r"^make ([a-z]+)", help_text(), re.MULTILINE)
    assert len(shown) == len(set(shown))
    assert set(shown) >= KEPT
    rules = RULE.findall((ROOT / "Makefile").read_text())
    assert {goal for goals in rules for goal in goals.split()} - {"help"} == set(shown)
    known = dict(KNOWN.findall((ROOT / "Makefile").read_text()))
    assert known == {goal: " ".join(values(goal.lower())) for goal in ("BENCH", "TEST")}
    # Each has a rule, which ends with what it is for.
    chosen = ((goal.lower(), f"WHAT={what}") for goal in known for what in known[goal].split())
    assert {commands(*words)[-1].split(" -m ")[0] for words in chosen} == {"build/venv/bin/python"}


@for_each_row(
    "goal, what, last",
    ("bench", "live", "lab live -x"),
    ("bench", "lock", "lab lockprofile -x"),
    ("test", "unit", "pytest -n 2 tests/unit -x"),
    ("test", "quick", "pytest -n 2 -m quick tests/machines/test_selftests.py -x"),
    ("test", "mutants", "pytest -n 2 -m mutants tests -x"),
    ("test", "parity", "pytest -rsx -k svm-qemu tests/machines/test_parity.py -x"),
    ("test", "races", "lab soak --races -x"),
    ("test", "leaks", "pytest -n 2 tests/machines/test_leaks.py -x"),
    (
        *("test", "limit"),
        "pytest -n 2 -k limit tests/machines/test_limit.py tests/machines/test_mutants.py -x",
    ),
)
def test_what_is_chosen(goal: str, what: str, last: str) -> None:
    assert what in values(goal)
    lines = commands(goal, f"WHAT={what}", "ARGS=-x")
    assert lines[-1] == f"build/venv/bin/python -m {last}"
    assert len(lines) == 1 or goal == "test"


def test_plain_bench_and_test() -> None:
    assert commands("bench") == ["build/venv/bin/python -m lab bench "]
    assert commands("test") == [
        "build/venv/bin/python -m lab tree",
        "make --no-print-directory -j2 _kernels _mutants",
        "build/venv/bin/python -m lab build kvm debug selftests",
        "build/venv/bin/python -m lab build --kind mutants kvm",
        "build/venv/bin/python -m pytest -n 3 --no-loadscope-reorder -m 'not (long)' tests ",
    ]


@for_each_row(
    "words, said",
    (
        ("bench", "WHAT=parity"),
        "unknown, known are: live tracking cost lock crossover migrate native",
    ),
    (("test", "WHAT=live"), "unknown, known are: quick unit mutants long parity"),
    (("bench", "WHAT=%"), "known are: live tracking cost"),
    (("bench", "WHAT=live cost"), "known are: live tracking cost"),
    (("bench", "soak", "WHAT=live"), "make soak WHAT=live: only `make bench` and `make test`"),
    (("bench", "BASE=9.9"), "make BASE=9.9: unknown, known are: "),
    (("tree", "BASE=%"), "unknown, known are"),
    (("tree", "BASE=6.12 6.12"), "unknown, known are"),
    (("bench", "SOURCE=x"), "only `make tree` has a SOURCE, which it keeps"),
    (("dkms", "BASE=7.3"), "make dkms BASE=7.3: the package has the kernels of all bases"),
)
def test_what_is_not_there_is_one_line(words: tuple[str, ...], said: str) -> None:
    done = run("-n", *words)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert said in line


def test_a_base_and_a_tarball_reach_the_lab() -> None:
    (line,) = commands("bench", f"BASE={DEFAULT_BASE}")
    assert line == "build/venv/bin/python -m lab bench "
    text = "x: ; @echo $(flavor LAB_BASE) $$LAB_BASE"
    for words, said in (((), "undefined"), ((f"BASE={DEFAULT_BASE}",), f"simple {DEFAULT_BASE}")):
        assert run("--eval", text, "x", *words).stdout.strip() == said
    (line,) = commands("tree", "SOURCE=/a b.tar.xz")
    assert line == "build/venv/bin/python -m lab tree --source '/a b.tar.xz' "


def test_another_base_has_what_depends_on_it() -> None:
    for words in ((), (f"BASE={DEFAULT_BASE}",)):
        assert commands("test", *words)[-1].endswith(" -m 'not (long)' tests ")
    two = (f"BASES={DEFAULT_BASE} 9.9", "BASE=9.9")
    lines = commands("test", *two)
    assert "build/venv/bin/python -m lab build kvm selftests" in lines
    assert lines[-1].endswith(" -m 'not (long or once)' tests/machines ")
    # What it leaves out can be had.
    assert " -m 'long or once' " in commands("test", "WHAT=long", *two)[-1]
    assert " -m 'long' " in commands("test", "WHAT=long")[-1]


def test_ci_tests_the_default_base_and_then_the_others(tmp_path: Path) -> None:
    for name, text in (
        ("make", f'echo "make $*" >>{tmp_path}/calls'),
        ("build/venv/bin/python", '[ "$*" = "-m lab tree --others" ] && echo 9.9 9.10'),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        program(tmp_path / name, f"#!/bin/sh\n{text}\n")
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run([tmp_path / ".ci" / "run"], env=env, check=True)
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls == ["make test", "make test BASE=9.9", "make test BASE=9.10"]
