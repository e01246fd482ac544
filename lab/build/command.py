# SPDX-License-Identifier: GPL-2.0-only
"""`lab build`: kernels and the KVM selftests."""

import click

from lab.build import kernel, programs32, selftests
from lab.core.paths import KINDS
from lab.core.steps import say


@click.command()
@click.argument("what", nargs=-1, type=click.Choice([*kernel.CONFIGS, "selftests"]))
@click.option("--kind", type=click.Choice(KINDS), default="series")
def command(what: tuple[str, ...], kind: str) -> None:
    """Build kernels and the KVM selftests. Without arguments: the kernel kvm, and the selftests."""
    for name in what or ("kvm", "selftests"):
        if name == "selftests":
            say(str(selftests.build(kind)))
        else:
            built = kernel.build(kind, name)
            say(f"{built.image}: {built.release}")
            if kernel.arch_of(name) != kernel.ARCH_64:
                say(str(programs32.busybox()))
