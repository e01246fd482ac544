# SPDX-License-Identifier: GPL-2.0-only
"""Everything that measures and writes results: plan says what is run, and bench runs it."""
