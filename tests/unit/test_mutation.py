# SPDX-License-Identifier: GPL-2.0-only
"""make check: mutants of the lab, made by mutmut, and by a fake of it that has any result."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.core.paths import LAYOUT, Layout
from lab.series.files import Series
from lab.submit import check, mutation
from lab.submit.mutation import Change
from lab.submit.subject import CheckResult, Subject
from tests.rows import for_each_row
from tests.unit.calls import failed, lab, refusal, refused
from tests.unit.files import program, write

LIMITS = """\
MOST = 3


# Comments
# and decorators are above the function.
def within(value: int) -> bool:
    return value <= MOST


class Goal:
    def __init__(self, least: int) -> None:
        self.least = least

    def met(self, value: int) -> bool:
        return (
            value
            >= self.least
        )
"""
TESTS = """\
from lab.limits import Goal, within

def test_within():
    assert within(2) and not within(4){more}

def test_goal():
    assert Goal(3).met(3) and not Goal(3).met(2) and Goal(3).met(4)
"""
SETTINGS = """\
[tool.mutmut]
source_paths = ["lab"]
pytest_add_cli_args_test_selection = ["tests/unit"]
"""
EDGE = Change("lab/limits.py", "within", "return value <= MOST", "return value < MOST")
KNOWN = """\
[["lab/limits.py"]]
function = "within"
old = "return value <= MOST"
new = "return value {sign} MOST"
why = "{why}"
"""
SOURCE = """\
def one():
    return 0


class Fake:
    @property
    def idle(self):
        a
        b
        c
        b
        c
"""
# Makes mutants of lab/fake.py, and remembers which ones it was asked to try. Tests call one().
FAKE = """\
#!{python}
import json, pathlib, sys
place = pathlib.Path.cwd() / "mutants"
names = sys.argv[4:]
with (pathlib.Path({notes!r}) / "calls").open("a") as calls:
    print(*sys.argv[1:3], *names, file=calls)
results = json.loads((pathlib.Path({notes!r}) / "results").read_text())
if names == ["none"]:
    if not results:
        sys.exit("the tests fail")
    text, spans = [], {{}}
    for number in ("orig", *range(1, len(results) + 1)):
        name = f"x_one__mutmut_{{number}}"
        spans[name] = [len(text) + 1, len(text) + 2]
        text += [f"def {{name}}():", f"    return {{0 if number == 'orig' else number}}"]
    for number, lines in ("orig", ["a", "b", "c", "b", "c"]), (1, ["a", "b", "d", "c"]):
        name = f"xǁFakeǁidle__mutmut_{{number}}"
        spans[name] = [len(text) + 1, len(text) + 2 + len(lines)]
        text += ["    @property", f"    def {{name}}(self):", *(f"        {{a}}" for a in lines)]
    (place / "lab").mkdir()
    (place / "lab/fake.py").write_text("\\n".join(text))
    (place / "lab/fake.py.spans").write_text(json.dumps({{"version": 1, "spans": spans}}))
    tests = {{"lab.fake.x_one": ["test_fake.py::test"], "lab.fake.xǁFakeǁidle": []}}
    stats = {{"duration_by_test": {{"test_fake.py::test": 1}}}}
    stats["tests_by_mangled_function_name"] = tests
    (place / "mutmut-stats.json").write_text(json.dumps(stats))
codes = {{"lab.fake.xǁFakeǁidle__mutmut_1": None}}
for number, result in enumerate(results, 1):
    name = f"lab.fake.x_one__mutmut_{{number}}"
    codes[name] = result if name in names else None
(place / "lab/fake.py.meta").write_text(json.dumps({{"exit_code_by_key": codes}}))
"""


def repository(root: Path, files: Mapping[str, str]) -> Subject:
    """A repository of these files, in which nothing is known to survive."""
    for name, text in {mutation.KNOWN: "", ".gitignore": "/build/\n", **files}.items():
        write(root / name, text)
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    layout = Layout(root)
    layout.log.mkdir(parents=True)
    return Subject(layout, Series(()), (), ())


@pytest.fixture
def real(tmp_path: Path) -> Subject:
    files = {
        "lab/__init__.py": "",
        "lab/limits.py": LIMITS,
        "tests/unit/test_limits.py": TESTS.format(more=""),
        "pyproject.toml": SETTINGS,
    }
    return repository(tmp_path / "root", files)


def test_mutmut_itself(real: Subject) -> None:
    before = {*real.layout.root.rglob("*")}
    survivor = f"lab/limits.py:7: {EDGE}: no test fails"
    found = mutation.mutation(real)
    assert found.problems == (survivor,)
    assert found.detail == "2 of 3 mutants caught (3 exist)"
    # A test catches it, or it is known.
    (real.layout.root / mutation.KNOWN).write_text(KNOWN.format(sign="<", why="equal, as it is"))
    assert mutation.mutation(real).problems == ()
    write(
        real.layout.root / "tests/unit/test_limits.py",
        TESTS.format(more=" and within(3)"),
    )
    (problem,) = mutation.mutation(real, ("lab/limits.py",)).problems
    assert problem == f"{mutation.KNOWN}: lab/limits.py: {EDGE}: a test fails, so it is no survivor"
    # It works below build/ only.
    after = {*real.layout.root.rglob("*")} - {*real.layout.build.rglob("*")}
    assert after == before - {*real.layout.build.rglob("*")}


class Fake:
    """The subject of a repository for which the fake tool works, and what the tool was told."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self._notes = root, root.parent
        tool = FAKE.format(python=sys.executable, notes=str(self._notes))
        monkeypatch.setattr(mutation, "COMMAND", (str(program(root.parent / "tool", tool)),))
        monkeypatch.setattr(mutation, "POLL_S", 0.01)
        files = {
            "lab/fake.py": SOURCE,
            "pyproject.toml": SETTINGS,
        }
        self.subject = repository(root, files)

    def results(self, *results: int | None) -> None:
        """A mutant for each: one that makes one() return 1, one for 2, and so on."""
        (self._notes / "results").write_text(json.dumps(results))

    def tried(self) -> list[str]:
        """The mutants that the tool was told to try in the end."""
        *_, last = (self._notes / "calls").read_text().splitlines()
        begin, *names = last.split(" lab.fake.x_one__mutmut_")
        assert begin == "run --max-children"
        return names


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    return Fake(tmp_path / "root", monkeypatch)


@for_each_row(
    "result, said",
    (1, None),
    # pytest itself failed; too much processor time; too much memory.
    (3, None),
    (-24, None),
    (-9, None),
    (0, "no test fails"),
    (5, "no test runs it"),
    (33, "no test runs it"),
    (None, "not tried to the end, status None"),
    (2, "not tried to the end, status 2"),
    # A test was not found.
    (255, "not tried to the end, status 255"),
)
def test_results(fake: Fake, result: int | None, said: str | None) -> None:
    fake.results(1, result)
    told = f"lab/fake.py:2: one: return 0  ->  return 2: {said}"
    caught = 2 if said is None else 1
    hung = ", 1 by a time limit" if result == -24 else ""
    verdict = CheckResult(f"{caught} of 2 mutants caught{hung} (2 exist)", (told,) if said else ())
    assert mutation.mutation(fake.subject) == verdict


def test_what_is_known_stands_for_itself_only(fake: Fake) -> None:
    fake.results(0, 1, 0)
    entry = '[["lab/fake.py"]]\nfunction = "one"\nold = "return 0"\nnew = "return {}"\nwhy = "W"\n'
    known = fake.root / mutation.KNOWN
    known.write_text(entry.format(1))
    (problem,) = mutation.mutation(fake.subject).problems
    assert problem.endswith("one: return 0  ->  return 3: no test fails")
    known.write_text("".join(map(entry.format, (1, 2, 3, 4))))
    gone, stale = mutation.mutation(fake.subject).problems[::-1]
    assert stale.endswith("one: return 0  ->  return 2: a test fails, so it is no survivor")
    assert gone.endswith("one: return 0  ->  return 4: there is no such mutant")
    # One that is not tried can be no survivor or one.
    known.write_text(entry.format(2))
    fake.results(1, 1)
    found = [mutation.mutation(fake.subject, size=1, seed=seed).problems for seed in range(9)]
    assert {len(problems) for problems in found} == {0, 1}
    for text, said in (
        (entry.format(1) * 2, "twice, or without a reason"),
        (entry.format(1).replace("W", ""), "twice, or without a reason"),
        (entry.format(1) + "line = 3\n", "unknown field `line`"),
    ):
        known.write_text(text)
        assert said in refused(mutation.mutation, fake.subject)


def test_a_sample_is_the_same_each_time_and_changes_with_its_seed(fake: Fake) -> None:
    def sample(count: int, seed: int) -> set[str]:
        fake.results(*[1] * count)
        assert mutation.mutation(fake.subject, size=10, seed=seed).detail.startswith("10 of 10 ")
        return {*fake.tried()}

    first = sample(40, 1)
    assert len(first) == 10 and sample(40, 1) == first
    assert sample(40, 2) != first
    # Of those that there were, it has the same ones if others come.
    more = sample(80, 1)
    assert {name for name in more if int(name) <= 40} < first
    # All of a file.
    mutation.mutation(fake.subject, ("lab/fake.py",), size=10)
    assert len(fake.tried()) == 80


def test_what_make_check_tries(fake: Fake) -> None:
    fake.results(*[1] * (mutation.SIZE + 1))
    assert check.CHECKS["mutation"].run(fake.subject).detail.startswith(f"{mutation.SIZE} of ")


def test_a_survivor_is_an_error_of_make_check(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "subject_of", lambda _: fake.subject)
    fake.results(1, 0)
    said = lab("check", "--only", "mutation", status=1)
    assert "mutation: lab/fake.py:2: one: return 0  ->  return 2: no test fails\n" in said.out
    fake.results(*[1] * (mutation.SIZE + 1))
    said = lab("check", "--only", "mutation", "--mutants-of", "lab/fake.py")
    assert f"{mutation.SIZE + 1} of {mutation.SIZE + 1} mutants" in said.out
    # It is the same for all bases.
    assert check.bases_to_check(["mutation", "scripts"]) == [LAYOUT.of(LAYOUT.version)]
    assert check.bases_to_check(["mutation", "topics"]) == [LAYOUT.newest]


def test_what_cannot_be_tried(fake: Fake) -> None:
    fake.results()
    assert "mutmut failed, or the tests without mutants; see " in failed(
        mutation.mutation, fake.subject
    )
    fake.results(None, None)
    assert "mutmut tried no mutant; see " in failed(mutation.mutation, fake.subject)
    fake.results(1)
    said = refused(mutation.mutation, fake.subject, ("lab/none.py",))
    assert said == "there is no file lab/none.py"
    said = refused(mutation.mutation, fake.subject, ("pyproject.toml",))
    wanted = "no unit test calls a function of pyproject.toml that mutmut can change"
    assert said == wanted
    assert refusal("check", "--mutants-of", "a.py").endswith("needs --only mutation")


def test_how_far_it_is(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[object] = []

    @contextmanager
    def bar(*words: object) -> Iterator[Callable[[], None]]:
        *_, now = words
        assert callable(now)
        ticks: list[None] = []
        yield lambda: ticks.append(None)
        said.extend([*words[:-1], now()])
        assert ticks

    monkeypatch.setattr(mutation, "bar", bar)
    fake.results(1, 0)
    mutation.mutation(fake.subject)
    assert said == ["mutants", 2, (2, "2 of 2, about 5 s left")]
    said.clear()
    fake.results(None, None)
    failed(mutation.mutation, fake.subject)
    assert said == ["mutants", 2, (0, "0 of 2")]


def test_what_a_mutant_changes(fake: Fake) -> None:
    fake.results(1, 0)
    mutation.mutation(fake.subject)
    method, first, second = mutation.mutants(fake.subject.layout)
    # Lines that are the same before and after it do not count, and each counts once.
    change = Change("lab/fake.py", "Fake.idle", "c\nb", "d")
    assert (method.change, method.line, method.result) == (change, 10, None)
    assert method.name == "lab.fake.xǁFakeǁidle__mutmut_1"
    assert str(method) == "lab/fake.py:10: Fake.idle: c b  ->  d"
    assert (first.line, first.result, second.result) == (2, 1, 0)


def test_which_tests_try_a_mutant(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    made = layout.build / "mutation/mutants"
    write(made / "tests/unit/test_a.py", "@pytest.fixture\n")
    write(made / "tests/unit/test_b.py", '@pytest.fixture(scope="module")\n')
    seconds = {"a.py::slow": 9.0, "a.py::quick": 1.0, "b.py::one": 3.0, "b.py::two": 2.0}
    seconds = {f"tests/unit/test_{name}": time for name, time in seconds.items()}
    slow, quick, one, two = seconds
    tests = {"f": [slow, quick], "g": [one], "h": [slow], "i": [one, quick, slow], "j": []}
    stats = {"duration_by_test": seconds, "tests_by_mangled_function_name": tests, "more": 1}
    file = write(made / mutation.STATS, json.dumps(stats))
    mutation.limit_tests(layout, 7 / 15)
    # The quickest. Of tests that share a fixture all. One always.
    wanted = {"f": [quick], "g": [two, one], "h": [slow], "i": [quick, two, one], "j": []}
    assert json.loads(file.read_text()) == stats | {"tests_by_mangled_function_name": wanted}
    file.write_text(json.dumps(stats))
    mutation.limit_tests(layout, 10 / 15)
    assert json.loads(file.read_text())["tests_by_mangled_function_name"]["f"] == [quick, slow]


def test_every_survivor_that_is_listed_has_a_file() -> None:
    files = {change.file for change in mutation.known(LAYOUT)}
    assert [file for file in files if not (LAYOUT.root / file).is_file()] == []


def test_it_runs_only_if_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def noted(_: Subject, names: Iterable[str], checks: object) -> dict[str, CheckResult]:
        seen.append([*names])
        return {}

    monkeypatch.setattr(check, "bases_to_check", lambda _: [LAYOUT.newest])
    monkeypatch.setattr(check, "subject_of", lambda _: None)
    monkeypatch.setattr(check, "run_checks", noted)
    for only in ((), ("mutation",)):
        assert check.command.callback
        check.command.callback(only=only, files=())
    assert seen == [[name for name in check.CHECKS if name != "mutation"], ["mutation"]]
