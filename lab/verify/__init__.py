# SPDX-License-Identifier: GPL-2.0-only
"""Tests in machines that are not part of `make test`: soaking, and data races."""
