# SPDX-License-Identifier: GPL-2.0-only
"""Building kernels of every kind, the KVM selftests, 32-bit programs and QEMU."""
