# SPDX-License-Identifier: GPL-2.0-only
"""The errors that a user sees as one line."""


class LabError(Exception):
    """Input that the lab cannot work with.

    The text is one line: what was wrong, and what would be right.
    The command line prints it on stderr as "lab: TEXT" and exits with `exit_code`.
    """

    exit_code = 2


class WorkFailed(LabError):
    """The input was fine, the work was not: a build that breaks, a check that fails."""

    exit_code = 1
