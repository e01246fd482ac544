# SPDX-License-Identifier: GPL-2.0-only
"""What tests in machines and is no part of `make test`.

soak takes an hour, parity compares with the unpatched kernel, races says whose a data race is, bpf
tries the tools of tools/bpftrace.
"""
