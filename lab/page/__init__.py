# SPDX-License-Identifier: GPL-2.0-only
"""The report: one self-contained HTML page and its Markdown twin, from files of results.

sections turns results into tables and pictures (plots), those of live, dirty_bits and migration
with a module each; render writes both pages, command is `lab report`. Only what is there is shown:
for what is missing, the page says which command would measure it.
"""
