# SPDX-License-Identifier: GPL-2.0-only
"""The command line: a group whose commands are imported when they are used."""

import errno
import importlib
import os
import sys
from collections.abc import Sequence

import click

from lab.core.errors import LabError
from lab.core.lookup import check_known
from lab.core.paths import BASE_VARIABLE, DEFAULT_BASE, LAYOUT, LOG
from lab.core.signals import ends_by_exception
from lab.machines import MachineFailed

# One row per command: its name, the module that holds it, the attribute there.
COMMANDS = {
    "tree": ("lab.series.tree", "command"),
    "save": ("lab.series.save", "command"),
    "check": ("lab.submit.check", "command"),
    "mail": ("lab.submit.mailout", "command"),
    "build": ("lab.build.command", "command"),
    "bench": ("lab.measure.bench", "bench"),
    "cost": ("lab.measure.cost", "command"),
    "soak": ("lab.verify.soak", "command"),
    "live": ("lab.measure.live", "command"),
    "tracking": ("lab.measure.tracking", "command"),
    "crossover": ("lab.measure.crossover", "command"),
    "native": ("lab.measure.native.command", "command"),
    "migrate": ("lab.measure.migration.command", "command"),
    "report": ("lab.page.command", "command"),
    "compare": ("lab.page.comparison", "command"),
    "reference": ("lab.measure.reference", "command"),
    "lockprofile": ("lab.measure.lockprofile", "command"),
    "deb": ("lab.submit.packages", "command"),
    "dkms": ("lab.submit.newest", "command"),
    "qemu": ("lab.build.qemu", "command"),
    "run": ("lab.build.run", "command"),
}

# Commands without --base: they concern all bases, as results do, or none.
OF_ALL_BASES = {"report", "compare", "mail", "qemu", "dkms"}

SETTINGS = {"help_option_names": ["-h", "--help"], "show_default": True}

INTERRUPTED = 130


def _choose(context: click.Context, option: click.Parameter, version: str | None) -> None:
    """Choose a base for this process and all that it starts. LabError: there is no such base."""
    if version:
        check_known(LAYOUT.versions, version, "base")
        os.environ[BASE_VARIABLE] = version


BASE_OPTION = click.Option(
    ["--base"],
    envvar=BASE_VARIABLE,
    callback=_choose,
    expose_value=False,
    is_eager=True,
    metavar="VERSION",
    help=f"Base, i.e. kernel version: {', '.join(LAYOUT.versions)} (default {DEFAULT_BASE}).",
)


class LazyGroup(click.Group):
    """A group that imports a command's module only when the command is wanted."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name]
        found = getattr(importlib.import_module(module), attribute)
        assert isinstance(found, click.Command)
        if cmd_name not in OF_ALL_BASES and BASE_OPTION not in found.params:
            found.params.append(BASE_OPTION)
        return found


@click.group(cls=LazyGroup, context_settings=SETTINGS)
def cli() -> None:
    """Build, run and measure the kernel series. The targets of the Makefile call these commands."""


def _complain(line: str, status: int) -> int:
    print(f"lab: {line}", file=sys.stderr)
    return status


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    arguments: the words after `python -m lab`; the process's own without it.
    0: done. 1: the work failed. 2: bad input, nothing changed. 3: the machine
    crashed or timed out. 130: interrupted. 128+n: signal n told it to end (SystemExit).
    """
    try:
        with ends_by_exception():
            status = cli.main(arguments, prog_name="lab", standalone_mode=False)
    except click.Abort:
        return _complain("interrupted", INTERRUPTED)
    except click.ClickException as error:
        return _complain(error.format_message(), error.exit_code)
    except LabError as error:
        return _complain(str(error), error.exit_code)
    except MachineFailed as failure:
        log = LOG / "failed-machine.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(failure.kernel_log)
        return _complain(f"{failure}; its console: {log}", failure.exit_code)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return _complain(f"no space left for {error.filename or 'the output'}", 2)
    return status if isinstance(status, int) else 0
