# SPDX-License-Identifier: GPL-2.0-only
"""The lab: fetches and builds the kernel, boots machines, measures, checks the series.

Six floors, from below; imports go down only (pyproject.toml).

    core                      errors, paths, git, locks, processes, progress
    series, machines          mails and commits; what a kernel boots in
    build                     kernels, selftests, `lab run`
    results, page             figures as lines, tables and conclusions; the report
    measure, verify, submit   benchmarks; soak, races; checks, mails, packages
    cli                       the commands
"""
