# SPDX-License-Identifier: GPL-2.0-only
"""The ungated baseline, kind "peer": the packaged kernel whose splitter serves all shadow pages.

docs/measuring.md says what it is compared with, and what it does wrong.
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
    """Make a commit on top of `base` that holds the baseline, and return its id.

    The same base gives the same id. No ref, index or work tree changes. LabError: a hunk does not
    apply, or fits in more than one place.
    """
    name = PATCH.relative_to(ROOT).as_posix()
    mail = replace(parse(name, read_text(PATCH)), from_newest=True)
    return commit_mails(repo, repo.text("rev-parse", BASE_TAG), [(name, mail)], no_whole_file)
