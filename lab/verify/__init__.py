# SPDX-License-Identifier: GPL-2.0-only
"""What tests in machines and is no part of `make test`."""
