# SPDX-License-Identifier: GPL-2.0-only
"""lab/ has floors: a module imports what is below it, no cycle and nothing from above.

Imports inside functions count as well. The floors are in pyproject.toml.
"""

import subprocess
import sys
from pathlib import Path

from lab.core.paths import ROOT


def test_every_package_has_a_floor_no_import_goes_up_and_no_modules_import_each_other() -> None:
    command = (Path(sys.executable).with_name("lint-imports"), "--no-cache")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 kept, 0 broken" in done.stdout
