# SPDX-License-Identifier: GPL-2.0-only
"""The report: one self-contained HTML page and its Markdown twin, from files of results."""
