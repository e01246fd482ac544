# SPDX-License-Identifier: GPL-2.0-only
"""What everything else stands on: errors, paths, git, locks, processes, threads, progress."""
