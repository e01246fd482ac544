# SPDX-License-Identifier: GPL-2.0-only
"""lab/ has floors: a module imports what is below it, no cycle and nothing from above.

Imports inside functions count as well.
"""

from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

from tests.rows import for_each_row
from tests.unit.files import write

# From above. Packages of a floor do not know each other.
FLOORS = (
    {"__main__"},
    {"cli"},
    {"measure", "verify", "submit"},
    {"page"},
    {"results"},
    {"build"},
    {"series", "machines"},
    {"core"},
)


def imports(package: str) -> grimp.ImportGraph:
    return grimp.build_graph(package, cache_dir=None)


def upward(found: grimp.ImportGraph, package: str) -> list[str]:
    """The imports that do not go down."""
    layers = [grimp.Layer(*floor, independent=True) for floor in FLOORS]
    wrong = found.find_illegal_dependencies_for_layers(layers, containers={package})
    return [
        " imports ".join([*sorted(route.heads), *route.middle, *sorted(route.tails)])
        for each in wrong
        for route in each.routes
    ]


def cycle(found: grimp.ImportGraph) -> list[str]:
    """The modules of a cycle, none if there is no cycle."""
    try:
        TopologicalSorter(
            {name: found.find_modules_directly_imported_by(name) for name in found.modules}
        ).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_every_package_has_a_floor_no_import_goes_up_and_no_modules_import_each_other() -> None:
    found = imports("lab")
    parts = {name.split(".")[1] for name in found.modules if "." in name}
    assert parts == set().union(*FLOORS)
    assert upward(found, "lab") == []
    assert cycle(found) == []


@for_each_row(
    "name, wrong, circle",
    ("nothing", [], set()),
    ("core/errors", ["small.core.errors imports small.build.kernel"], None),
    ("build/tests", [], {"small.build.kernel", "small.build.tests"}),
)
def test_what_a_lab_does_wrong_is_seen(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    wrong: list[str],
    circle: set[str] | None,
) -> None:
    files = {
        "__init__": "",
        **{f"{part}/__init__": "" for floor in FLOORS for part in floor},
        "core/errors": "import os\n",
        "build/kernel": "from small.core.errors import LabError\nfrom small.build import tests\n",
        "build/tests": "from ..core import errors\n",
    }
    line = "\ndef work():\n    from small.build.kernel import build\n"
    for each, text in files.items():
        write(tmp_path / "small" / f"{each}.py", text + (line if each == name else ""))
    monkeypatch.syspath_prepend(tmp_path)
    found = imports("small")
    assert upward(found, "small") == wrong
    assert circle is None or set(cycle(found)) == circle
