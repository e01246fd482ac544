# SPDX-License-Identifier: GPL-2.0-only
"""`lab run`: one command in one machine."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from lab import machines
from lab.build import kernel, programs32
from lab.core.errors import LabError
from lab.core.paths import KINDS, LAYOUT
from lab.core.steps import say
from lab.machines.job import Job, Machine, MachineFailed


def _pairs(words: Sequence[str], form: str) -> dict[str, str]:
    """Split words of the form NAME=VALUE. Raises LabError, showing the form."""
    pairs = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals and value):
            raise LabError(f"{word}: must look like {form}")
        pairs[name] = value
    return pairs


def _built(machine: Machine, kind: str, config: str, dry_run: bool) -> tuple[Path, Path | None]:
    """The kernel to boot; and a busybox for it if it cannot run the host's, or else None."""
    if machine.name == "host":
        return Path(), None
    if dry_run:
        kernel.fragments_of(config)
        return kernel.image_in(LAYOUT.tree_of(kind), config), None
    image = kernel.build(kind, config).image
    return image, None if kernel.arch_of(config) == kernel.ARCH_64 else programs32.busybox()


def _run(machine: Machine, job: Job) -> int:
    try:
        result = machine.run(job)
    except MachineFailed as failure:
        click.echo(failure.kernel_log, err=True)
        click.echo(f"lab: {machine.name}: {failure}", err=True)
        return failure.exit_code
    sys.stdout.buffer.write(result.output)
    sys.stdout.buffer.flush()
    return result.status


@click.command()
@click.argument("machine")
@click.argument("command", nargs=-1, required=True)
@click.option("-k", "--kind", type=click.Choice(KINDS), default="series")
@click.option("-c", "--config", default="kvm", help="Configuration of the kernel.")
@click.option(
    "-p", "--parameter", multiple=True, metavar="MODULE.NAME=VALUE", help="A module parameter."
)
@click.option("--cpus", type=int, default=2)
@click.option("--memory", "memory_mib", type=int, default=1024, metavar="MIB")
@click.option(
    "--file",
    "files",
    multiple=True,
    metavar="GUEST=HOST",
    help="A file or directory for the machine.",
)
@click.option(
    "--cmdline", multiple=True, metavar="WORD", help="A word of the kernel's command line."
)
@click.option("--timeout", "timeout_s", type=float, default=300, metavar="S")
@click.option("--dry-run", is_flag=True, help="Print what would be run; build and start nothing.")
def command(
    machine: str,
    kind: str,
    config: str,
    parameter: tuple[str, ...],
    files: tuple[str, ...],
    dry_run: bool,
    **given: Any,
) -> int:
    """Run COMMAND in MACHINE (svm-qemu, vmx-bochs or host), and end with its exit status.

    The output of COMMAND goes to stdout, its progress to stderr. If the machine crashes or times
    out, the exit status is 3. Write -- before a COMMAND that has options. Programs for a 32-bit
    kernel (-c pae), except busybox, must be static 32-bit programs.
    """
    chosen = machines.get(machine)
    parameters = _pairs(parameter, "kvm.tdp_mmu=0")
    places = _pairs(files, "/bench/run=scripts/run")
    image, busybox = _built(chosen, kind, config, dry_run)
    job = Job(
        kernel=image,
        parameters=parameters,
        files={inside: Path(file) for inside, file in places.items()},
        on_progress=say,
        busybox=busybox,
        **given,
    )
    if dry_run:
        click.echo(chosen.describe(job))
        return 0
    return _run(chosen, job)
