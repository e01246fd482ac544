# SPDX-License-Identifier: GPL-2.0-only
"""What is built of a kernel tree: kernels of every kind, the selftests, 32-bit programs."""
