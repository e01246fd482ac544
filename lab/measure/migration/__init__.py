# SPDX-License-Identifier: GPL-2.0-only
"""`make bench WHAT=migrate`: the live migration of a guest that writes, as the guest sees it.

QEMU migrates a guest of ours inside a machine. load builds the guest and reads what it has
noted, migrate.sh is what the machine runs, timeline puts the guest's notes and QEMU's events
together, command is `lab migrate`.
"""
