# SPDX-License-Identifier: GPL-2.0-only
"""Entry point of `python -m lab`."""

import os
import sys

# Started with a closed standard input, the lab would take the first file that it opens for it, and
# so would whatever it starts.
for descriptor in range(3):
    try:
        os.fstat(descriptor)
    except OSError:
        os.open(os.devnull, os.O_RDWR)

from lab.cli import main  # noqa: E402 - its imports may open files

sys.exit(main())
