# SPDX-License-Identifier: GPL-2.0-only
"""`lab native`: what KVM's loops over SPTEs and rmap heads take on this machine, caches and all."""
