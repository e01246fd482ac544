# SPDX-License-Identifier: GPL-2.0-only
"""`make bench WHAT=migrate`: the live migration of a guest that writes, as the guest sees it."""
