# SPDX-License-Identifier: GPL-2.0-only
"""The ungated baseline, kind "peer": the packaged kernel, its own splitter for every shadow page.

What it is measured for, and what it leaves wrong, is in docs/measuring.md.
"""

from dataclasses import replace
from pathlib import Path

from lab.build.mutants import no_whole_file
from lab.core.git import Repo
from lab.core.paths import ROOT
from lab.series.apply import commit_mails
from lab.series.files import read_text
from lab.series.mail import parse
from lab.series.tree import BASE_TAG

PATCH = Path(__file__).with_suffix(".patch")


def commit(repo: Repo) -> str:
    """The id of a commit on top of `base` that holds the baseline; the same base gives the same id.

    No ref, index or work tree changes. LabError: a hunk does not fit, or in more than one place.
    """
    name = PATCH.relative_to(ROOT).as_posix()
    mail = replace(parse(name, read_text(PATCH)), from_newest=True)
    return commit_mails(repo, repo.text("rev-parse", BASE_TAG), [(name, mail)], no_whole_file)
