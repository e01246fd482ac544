# SPDX-License-Identifier: GPL-2.0-only
"""The series: mails and whole files in the repository, commits in build/linux, and back."""
