# SPDX-License-Identifier: GPL-2.0-only
"""Mutants of the lab itself: for small mistakes in its code, does a unit test fail?

mutmut makes the mistakes in a copy of the repository. It tries them one by one, with the tests that
call the function with the mistake. pyproject.toml says in which files, and which tests there are. A
mutant survives if no test fails. KNOWN lists survivors that are not worth a test. Functions that no
unit test calls are left out: tests in machines call them.
"""

import ast
import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, takewhile
from pathlib import Path
from textwrap import dedent

import msgspec

from lab.core import process
from lab.core.errors import LabError, WorkFailed
from lab.core.git import Repo
from lab.core.parallel import at_once
from lab.core.paths import Layout
from lab.core.signals import ends_by_exception
from lab.core.steps import bar, duration
from lab.submit.subject import CheckResult, Subject

KNOWN = "docs/survivors.toml"
COMMAND = (str(Path(sys.executable).with_name("mutmut")),)
# How many mutants are tried, and which ones: another seed chooses others.
SIZE = 150
SEED = 1
# The tests of one function take at most this share of the time of all tests.
MOST_TESTS = 1 / 3
POLL_S = 0.5

# Of the tool: its settings; the tests of each function; and the name of no mutant, as the tool has
# no command that makes mutants and finds their tests, but does not try them.
SETTINGS = "pyproject.toml"
STATS = "mutmut-stats.json"
NO_MUTANT = "none"
# And what it notes as the result of a mutant: an exit status, or a signal.
SURVIVED = 0
WITHOUT_TEST = (5, 33)
# Tests failed, or pytest itself; or they needed much more time or memory. Not 255: it could not run
# them.
TIMED_OUT = (24, -24, 36, 152)
CAUGHT = (1, 3, *TIMED_OUT, -9, -11)

# How it names functions: x_name, or xǁClassǁname.
_NAME = re.compile(r"x(?:_|ǁ(?P<of>\w+?)ǁ)(?P<name>\w+)__mutmut_\d+$")
_SHARED = re.compile(r"""^@pytest\.fixture\(.*scope=["'](?:module|session)["']""", re.MULTILINE)


@dataclass(frozen=True)
class Change:
    """A mistake. function: with its class. old, new: the lines that differ. twin: 0, or how many of
    the same changes come before it in the function.
    """

    file: str
    function: str
    old: str
    new: str
    twin: int = 0

    def order(self, seed: int) -> str:
        """Sorts changes at random. The order of two does not depend on which others there are."""
        return hashlib.sha256(f"{seed} {self!r}".encode()).hexdigest()

    def __str__(self) -> str:
        old, new = (" ".join(text.split()) or "nothing" for text in (self.old, self.new))
        return f"{self.function}: {old}  ->  {new}"


@dataclass(frozen=True)
class Mutant:
    """name: as the tool calls it. line: of the change. result: see CAUGHT; None: not tried yet."""

    name: str
    change: Change
    line: int
    result: int | None

    @property
    def of(self) -> str:
        """The function, as the tool calls it."""
        return self.name.partition("__mutmut_")[0]

    def __str__(self) -> str:
        return f"{self.change.file}:{self.line}: {self.change}"


class Survivor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of KNOWN: a change, and why no test has to notice it."""

    function: str
    old: str
    new: str
    why: str


def _place(layout: Layout) -> Path:
    """The copy of the repository in which the tool works."""
    return layout.build / "mutation"


def _made(layout: Layout) -> Path:
    """Where the tool puts code with mutants, and where tests run."""
    return _place(layout) / "mutants"


def _log(layout: Layout) -> Path:
    return layout.log / "mutation.log"


def known(layout: Layout) -> dict[Change, str]:
    """The survivors that KNOWN lists, with the reasons. LabError: it is not as it has to be."""
    try:
        text = (layout.root / KNOWN).read_bytes()
        files = msgspec.toml.decode(text, type=dict[str, tuple[Survivor, ...]])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LabError(f"{KNOWN}: {error}") from error
    found: dict[Change, str] = {}
    for file, entries in files.items():
        for one in entries:
            change = Change(file, one.function, one.old, one.new)
            if change in found or not one.why:
                raise LabError(f"{KNOWN}: {file}: {change}: twice, or without a reason")
            found[change] = one.why
    return found


def copy(layout: Layout) -> None:
    """Make the copy, of all files that git knows or would add.

    The tool takes its settings and the lab from where it works. Tests run where the mutants are.
    """
    shutil.rmtree(_place(layout), ignore_errors=True)
    listed = Repo(layout.root).text("ls-files", "-z", "-co", "--exclude-standard").split("\0")
    for name in filter(None, listed):
        root = _place(layout) if name.startswith("lab/") else _made(layout)
        if (source := layout.root / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, root / name)
    shutil.copy2(layout.root / SETTINGS, _place(layout) / SETTINGS)


def _run(layout: Layout, names: Iterable[str], tick: Callable[[], None] = lambda: None) -> None:
    """Let the tool try mutants. Its output goes to a log of its own."""
    command = (*COMMAND, "run", "--max-children", str(at_once()), *names)
    with (
        ends_by_exception(),
        _log(layout).open("a") as log,
        # Without a fixed seed the order of tests, which are in sets, differs.
        process.child(
            command, _place(layout), stdout=log, env=os.environ | {"PYTHONHASHSEED": "0"}
        ) as started,
    ):
        while started.poll() is None:
            time.sleep(POLL_S)
            tick()


def _functions(source: str) -> dict[str, int]:
    """The functions of a file that can have mutants, with the lines of their `def`."""
    lines = {}
    for one in ast.parse(source).body:
        if isinstance(one, ast.FunctionDef):
            lines[one.name] = one.lineno
        elif isinstance(one, ast.ClassDef):
            methods = (method for method in one.body if isinstance(method, ast.FunctionDef))
            lines |= {f"{one.name}.{method.name}": method.lineno for method in methods}
    return lines


def _difference(before: Sequence[str], after: Sequence[str]) -> tuple[int, str, str]:
    """How AFTER differs from BEFORE: from which line on, and what is there in both."""

    def alike(pairs: Iterable[tuple[str, str]]) -> int:
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    first = alike(zip(before, after, strict=False))
    last = alike(zip(before[:first:-1], after[:first:-1], strict=False))
    old, new = before[first : len(before) - last], after[first : len(after) - last]
    return first, dedent("\n".join(old)), dedent("\n".join(new))


def _results(meta: Path) -> dict[str, int | None]:
    """The results of the mutants of a file. None, if the tool is just writing them."""
    try:
        results: dict[str, int | None] = json.loads(meta.read_text())["exit_code_by_key"]
    except json.JSONDecodeError:
        return {}
    return results


def _mutants_in(layout: Layout, file: str) -> Iterator[Mutant]:
    """The mutants that the tool has made in FILE."""
    made = _made(layout) / file
    spans = json.loads(Path(f"{made}.spans").read_text())["spans"]
    lines, starts = made.read_text().splitlines(), _functions((_place(layout) / file).read_text())
    seen: Counter[Change] = Counter()

    def text_of(name: str) -> list[str]:
        first, last = spans[name]
        # All copies of a function have names of their own.
        found = [line.replace(f"def {name}(", "def (") for line in lines[first - 1 : last]]
        return found[next(i for i, line in enumerate(found) if "def (" in line) :]

    for name, result in _results(Path(f"{made}.meta")).items():
        short = name.rpartition(".")[2]
        parts = _NAME.match(short)
        assert parts, name
        function = f"{parts['of']}.{parts['name']}" if parts["of"] else parts["name"]
        original = text_of(f"{short.rpartition('_')[0]}_orig")
        first, old, new = _difference(original, text_of(short))
        change = Change(file, function, old, new)
        seen[change] += 1
        yield Mutant(name, replace(change, twin=seen[change] - 1), starts[function] + first, result)


def mutants(layout: Layout) -> list[Mutant]:
    """All mutants that the tool has made."""
    files = sorted(file.relative_to(_made(layout)) for file in _made(layout).rglob("*.py.spans"))
    names = (file.with_suffix("").as_posix() for file in files)
    return [one for name in names for one in _mutants_in(layout, name)]


def _called(layout: Layout) -> set[str]:
    """The functions that tests call, as the tool names them."""
    tests = json.loads((_made(layout) / STATS).read_text())["tests_by_mangled_function_name"]
    return {function for function, names in tests.items() if names}


def chosen(found: Iterable[Mutant], of: Sequence[str], size: int, seed: int) -> list[Mutant]:
    """All mutants in the files OF; or, without any, SIZE of them at random."""
    if of:
        return [one for one in found if one.change.file in of]
    return sorted(found, key=lambda one: one.change.order(seed))[:size]


def _file(test: str) -> str:
    return test.partition("::")[0]


def _shared(layout: Layout) -> set[str]:
    """The files whose tests share fixtures."""
    tests = (_made(layout) / "tests").rglob("test_*.py")
    found = (file for file in tests if _SHARED.search(file.read_text()))
    return {file.relative_to(_made(layout)).as_posix() for file in found}


def limit_tests(layout: Layout, share: float) -> None:
    """Choose among the tests that call a function: the quickest, which take that share of all.

    As a share, since all of them take longer on a busy machine.

    The tool only counts the first test that uses a fixture of a module as one that calls what this
    fixture calls. So all tests of such a module count.
    """
    file = _made(layout) / STATS
    stats = json.loads(file.read_text())
    seconds: dict[str, float] = stats["duration_by_test"]
    most_s = share * sum(seconds.values())
    sharing = {name: [test for test in seconds if _file(test) == name] for name in _shared(layout)}
    for tests in stats["tests_by_mangled_function_name"].values():
        every = {*tests}.union(*(sharing.get(_file(test), ()) for test in tests))
        quickest = sorted(every, key=lambda test: (seconds[test], test))
        sums = accumulate(seconds[test] for test in quickest)
        pairs = zip(quickest, sums, strict=True)
        tests[:] = [test for test, s in pairs if s <= most_s or test == quickest[0]]
    file.write_text(json.dumps(stats))


def _try(layout: Layout, names: Collection[str]) -> None:
    """Let the tool try mutants, and show how far it is."""
    began = time.monotonic()
    metas = [*_made(layout).rglob("*.py.meta")]

    def now() -> tuple[float, str]:
        results = chain.from_iterable(_results(meta).items() for meta in metas)
        done = sum(name in names and result is not None for name, result in results)
        left_s = (time.monotonic() - began) * (len(names) / done - 1) if done else 0
        left = f", about {duration(left_s)} left" if done else ""
        return done, f"{done} of {len(names)}{left}"

    with bar("mutants", len(names), now) as tick:
        _run(layout, names, tick)


def _verdicts(
    every: Iterable[Mutant], tried: Sequence[Mutant], listed: Iterable[Change]
) -> Iterator[str]:
    """A line for each survivor that is not listed, and for each one listed that is none.

    every: the mutants that there are. tried: those that the tool has tried.
    """
    listed, survivors = {*listed}, set[Change]()
    for one in tried:
        change = replace(one.change, twin=0)
        if one.result == SURVIVED or one.result in WITHOUT_TEST:
            survivors.add(change)
            if change not in listed:
                yield f"{one}: no test {'fails' if one.result == SURVIVED else 'runs it'}"
        elif one.result not in CAUGHT:
            yield f"{one}: not tried to the end, status {one.result}"
    there = {replace(one.change, twin=0) for one in every}
    caught = {replace(one.change, twin=0) for one in tried} - survivors
    for change in sorted(listed, key=lambda one: (one.file, str(one))):
        if change not in there:
            yield f"{KNOWN}: {change.file}: {change}: there is no such mutant"
        elif change in caught:
            yield f"{KNOWN}: {change.file}: {change}: a test fails, so it is no survivor"


def mutation(
    subject: Subject, of: Sequence[str] = (), size: int = SIZE, seed: int = SEED
) -> CheckResult:
    """Unit tests fail for mutants of the lab: for all those of the files OF, or for some at random.

    LabError: there is no such file.
    """
    layout, listed = subject.layout, known(subject.layout)
    if missing := [name for name in of if not (layout.root / name).is_file()]:
        raise LabError(f"there is no file {missing[0]}")
    copy(layout)
    _log(layout).unlink(missing_ok=True)
    _run(layout, [NO_MUTANT])
    if not (_made(layout) / STATS).is_file():
        raise WorkFailed(f"mutmut failed, or the tests without mutants; see {_log(layout)}")
    limit_tests(layout, MOST_TESTS)
    called = _called(layout)
    every = [one for one in mutants(layout) if one.of in called]
    wanted = {one.name for one in chosen(every, of, size, seed)}
    if not wanted:
        raise LabError(f"no unit test calls a function of {' '.join(of)} that mutmut can change")
    _try(layout, wanted)
    tried = [one for one in mutants(layout) if one.name in wanted]
    if all(one.result is None for one in tried):
        raise WorkFailed(f"mutmut tried no mutant; see {_log(layout)}")
    problems = tuple(_verdicts(every, tried, listed))
    caught = sum(one.result in CAUGHT for one in tried)
    hung = sum(one.result in TIMED_OUT for one in tried)
    how = f", {hung} by a time limit" if hung else ""
    detail = f"{caught} of {len(tried)} mutants caught{how} ({len(every)} exist)"
    return CheckResult(detail, problems)
