# SPDX-License-Identifier: GPL-2.0-only
"""Everything that measures and writes results.

plan says what is run and bench runs it; live, cost, crossover, lockprofile and migration measure
something else each; reference measures what docs/reference holds.
"""
