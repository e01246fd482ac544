# SPDX-License-Identifier: GPL-2.0-only
"""Results: their format, the tables made of them, and what is concluded from them."""
