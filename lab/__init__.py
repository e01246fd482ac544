# SPDX-License-Identifier: GPL-2.0-only
"""The lab: fetches and builds the kernel, boots machines, measures, checks the series."""
