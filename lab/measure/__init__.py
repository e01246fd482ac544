# SPDX-License-Identifier: GPL-2.0-only
"""The commands that measure and write results. For `make bench`, plan says what bench runs."""
