# SPDX-License-Identifier: GPL-2.0-only
"""Which of the built selftests machines get."""

from pathlib import Path

from lab.build import selftests
from lab.series.pin import PathMap
from tests.unit.files import write


def test_a_program_that_the_tree_has_no_longer_goes(tmp_path: Path) -> None:
    built, stripped = tmp_path / "built", tmp_path / "stripped"
    for name in ("a_test", "x86/b_test"):
        write(tmp_path / selftests.SELFTESTS / f"{name}.c", "")
        write(built / name, "", 0o755).write_bytes(Path("/bin/true").read_bytes())
    for expected in (["a_test", "x86/b_test"], ["a_test"]):
        selftests.strip_new(tmp_path, built, stripped, PathMap({}))
        found = sorted(str(f.relative_to(stripped)) for f in stripped.rglob("*_test"))
        assert found == expected
        (tmp_path / selftests.SELFTESTS / "x86/b_test.c").unlink(missing_ok=True)
