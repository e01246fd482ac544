# SPDX-License-Identifier: GPL-2.0-only
"""lab/ has floors: a module imports what is below it, no cycle and nothing from above.

Read from the sources, so that imports inside functions count as well.
"""

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from lab.core.paths import ROOT
from tests.unit.files import write

# From below. Packages of a floor do not know each other, but for ALSO.
FLOORS = (
    {"core"},
    {"series", "machines"},
    {"build"},
    {"results", "page"},
    {"measure", "verify", "submit"},
    {"cli", "__main__"},
)
# A page shows results, and `python -m lab` is the command line.
ALSO = {("page", "results"), ("__main__", "cli")}

Imports = Mapping[str, set[str]]


def name_of(file: Path, root: Path) -> str:
    words = file.relative_to(root).with_suffix("").parts
    return ".".join(words).removesuffix(".__init__")


def _imported(node: ast.AST, package: str) -> Iterator[str]:
    """Whatever a statement may import, modules or what is in them."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        words = package.split(".")[: -node.level + 1 or None] if node.level else []
        module = ".".join([*words, *([node.module] if node.module else [])])
        yield from (f"{module}.{alias.name}" for alias in node.names)


def _module_in(name: str, known: Mapping[str, Path]) -> str:
    """The module that holds NAME, empty if it is none of KNOWN."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name


def imports(root: Path) -> Imports:
    """Module of ROOT/lab -> the others that it imports, at its top or in a function."""
    known = {name_of(file, root): file for file in sorted((root / "lab").rglob("*.py"))}
    found = {}
    for name, file in known.items():
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        nodes = ast.walk(ast.parse(file.read_text()))
        names = (each for node in nodes for each in _imported(node, package))
        found[name] = {_module_in(each, known) for each in names} - {name, ""}
    return found


def _part(module: str) -> str:
    """The package of a module, or what lies beside packages."""
    return module.split(".")[1] if "." in module else module


def _floor(part: str) -> int:
    (floor,) = (number for number, parts in enumerate(FLOORS) if part in parts)
    return floor


def upward(found: Imports) -> list[str]:
    """The imports that do not go down."""
    wrong = []
    for module, others in found.items():
        for other in others:
            here, there = _part(module), _part(other)
            if here != there and (here, there) not in ALSO and _floor(there) >= _floor(here):
                wrong.append(f"{module} imports {other}")
    return wrong


def cycle(found: Imports) -> list[str]:
    """The modules of a cycle, none if there is no cycle."""
    try:
        TopologicalSorter(found).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_every_module_is_in_a_package_that_has_a_floor() -> None:
    assert {_part(module) for module in imports(ROOT)} - {"lab"} == set().union(*FLOORS)


def test_no_import_goes_up() -> None:
    assert upward(imports(ROOT)) == []


def test_no_modules_import_each_other() -> None:
    assert cycle(imports(ROOT)) == []


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A lab that is in order: a kernel that stands on core."""
    files = {
        "__init__.py": "",
        "core/__init__.py": "",
        "core/errors.py": "import os\n",
        "build/__init__.py": "",
        "build/kernel.py": "from lab.core.errors import LabError\nfrom lab.build import tests\n",
        "build/tests.py": "from ..core import errors\n",
    }
    for name, text in files.items():
        write(tmp_path / "lab" / name, text)
    return tmp_path


def _add(root: Path, name: str, line: str) -> Imports:
    with (root / "lab" / name).open("a") as file:
        file.write(line)
    return imports(root)


def test_what_is_in_order(small: Path) -> None:
    found = imports(small)
    assert found["lab.build.kernel"] == {"lab.core.errors", "lab.build.tests"}
    assert found["lab.build.tests"] == {"lab.core.errors"}
    assert (upward(found), cycle(found)) == ([], [])


@pytest.mark.parametrize(
    "line",
    [
        "import lab.build.kernel\n",
        "from lab.build.kernel import build\n",
        "def work():\n    from lab.build import kernel\n",
        "from ..build import kernel\n",
    ],
)
def test_an_import_that_goes_up_is_seen(small: Path, line: str) -> None:
    found = _add(small, "core/errors.py", line)
    assert upward(found) == ["lab.core.errors imports lab.build.kernel"]


def test_a_cycle_is_seen(small: Path) -> None:
    found = _add(small, "build/tests.py", "def work():\n    from lab.build.kernel import build\n")
    assert upward(found) == []
    assert set(cycle(found)) == {"lab.build.kernel", "lab.build.tests"}
