# SPDX-License-Identifier: GPL-2.0-only
"""`lab migrate`: migrate a guest that writes, lazily and eagerly split, and show what it felt.

There is a boot for each paging mode. docs/migration.md, "What happens", says what is migrated in
it.
"""

import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from lab import machines
from lab.build import kernel
from lab.core.errors import LabError, WorkFailed
from lab.core.paths import BUILD, KINDS
from lab.core.steps import say, step
from lab.machines import Job, Machine
from lab.machines.paging import Mode
from lab.machines.parameters import TRUE
from lab.machines.qemu import QEMU
from lab.measure.migration import load as guest
from lab.measure.migration.load import Load
from lab.measure.migration.timeline import Migration, parse_events, parse_stats, records
from lab.measure.options import EITHER
from lab.measure.plan import MEMORY_MIB, SPARE_MIB, logs_by_itself
from lab.page import command as page
from lab.page import migration as shown
from lab.results import notation, origin
from lab.results.files import output_file, output_option, write_records
from lab.results.notation import OFF, ON

CONFIG = "kvm"
SCRIPT = Path(__file__).parent / "migrate.sh"
INSIDE = "/migrate"
# What is migrated: with eager_page_split=N; with Y; with dirty_bits=on as well; and with
# dirty_bits=auto and a QEMU that enables splitting, 2 MiB at a time, and Dirty bits.
EAGER = ("N", "Y")
BITS, ASKED = "D", "V"
DIRTY_BITS = {BITS: ON, ASKED: "qemu"}
# Keep WARNs off the serial port, where one takes half a simulated second. The kernel's log has
# them.
QUIET = ("loglevel=4",)
# CPUs in addition to those of vCPUs: for QEMU's main thread, the migration thread, and the reader
# of the stream.
MORE_CPUS = 3
SOME = click.IntRange(1, 1_000_000)


@dataclass(frozen=True)
class Default:
    """Defaults for a machine.

    mib_per_s: the bandwidth limit of the migration.
    before_s, after_s: how many seconds the guest works before it is migrated; and after that, and
        after it is restored.
    estimate_s: host seconds for a paging mode, on two cores.
    """

    load: Load
    mib_per_s: int
    before_s: float
    after_s: float
    estimate_s: int


DEFAULTS = {
    "svm-qemu": Default(Load(2, 16, 100, 63, 1), 128, 1, 1, 40),
    "vmx-bochs": Default(Load(4, 8, 500, 63, 1), 128, 0.5, 0.3, 310),
    "host": Default(Load(4, 16, 5000, 63, 1), 1024, 1, 1, 15),
}


@dataclass(frozen=True)
class MigrationBoot:
    """A boot and its migrations. tdp: the value of ept or npt; None for that of the host."""

    machine: str
    kernel: str
    tdp: bool | None
    load: Load
    mib_per_s: int
    qemu: Path = QEMU

    @property
    def label(self) -> str:
        mode = (
            "its own paging mode" if self.tdp is None else notation.paging(self.machine, self.tdp)
        )
        return f"{self.machine}, {self.kernel}, {mode}"

    @property
    def settings(self) -> tuple[str, ...]:
        """The settings of its migrations. On `host` only N and Y: it may have PML."""
        if self.kernel != "series":
            return EAGER
        asked = (ASKED,) if self.qemu != QEMU else ()
        if self.tdp is None or logs_by_itself(self.machine, Mode(self.tdp, tdp_mmu=False)):
            return (*EAGER, *asked)
        return (*EAGER, BITS, *asked)

    @property
    def parameters(self) -> dict[str, str]:
        return {} if self.tdp is None else Mode(self.tdp).parameters(self.machine, self.kernel)


def migration_job(machine: Machine, boot: MigrationBoot, image: Path, load: Path) -> Job:
    usual = DEFAULTS[machine.name]
    words = (boot.load.vcpus, boot.load.mib, boot.mib_per_s, usual.before_s, usual.after_s)
    # Three times the guest: its memory, and the stream with pages that are sent again. And QEMU
    # with its libraries, in archive and file system.
    mib = 3 * boot.load.mib + SPARE_MIB
    files = {
        f"{INSIDE}/migrate.sh": SCRIPT,
        f"{INSIDE}/qemu": boot.qemu,
        f"{INSIDE}/load.bin": load,
    }
    script, *programs = files
    return Job(
        kernel=image,
        command=("sh", script, *programs, *map(str, words), *boot.settings),
        parameters=boot.parameters,
        cpus=min(boot.load.vcpus + MORE_CPUS, machine.max_cpus),
        memory_mib=max(MEMORY_MIB, mib),
        files=files,
        timeout_s=1800,
        cmdline=QUIET if machine.lockstep else (),
    )


def _migration(boot: MigrationBoot, setting: str, files: Mapping[str, bytes]) -> Migration:
    """A migration, read from files that came back. WorkFailed: one is missing, or wrong."""
    try:
        return Migration(
            boot.load,
            parse_events(files[f"{setting}.qmp"].decode()),
            guest.parse(files[f"{setting}.source"]),
            guest.parse(files[f"{setting}.restored"]),
            parse_stats(files[f"{setting}.stats"].decode()),
            by_dirty_bits=setting == BITS or (setting == ASKED and b"pml Y" not in files["host"]),
        )
    except KeyError as error:
        raise WorkFailed(f"{boot.label}: no file {error}") from error


def collect(boot: MigrationBoot, files: Mapping[str, bytes]) -> Iterator[dict[str, Any]]:
    """The records of a boot. WorkFailed: they do not have the requested settings."""
    if "host" not in files:
        raise WorkFailed(f"{boot.label}: no file 'host'")
    facts = dict(line.split(" ", 1) for line in files["host"].decode().splitlines())
    tdp = facts["tdp"] in TRUE
    if boot.tdp not in (None, tdp):
        raise WorkFailed(f"{boot.label}: the paging mode did not take effect")
    common = {
        "machine": boot.machine,
        "kernel": boot.kernel,
        "kernel_version": facts["version"],
        "qemu": facts["qemu"],
        "ept": tdp,
        "tdp_mmu": tdp and facts["tdp_mmu"] in TRUE,
    }
    for setting in boot.settings:
        set_to = {"eager": setting != "N", "dirty_bits": DIRTY_BITS.get(setting, OFF)}
        for record in records(_migration(boot, setting, files)):
            yield {"record": record["record"], **common, **set_to} | record


def measure(machine: Machine, plan: Sequence[MigrationBoot]) -> list[dict[str, Any]]:
    """Build what is needed, run all boots, and return the records in the order of the plan."""
    load = guest.build(plan[0].load, BUILD / "migrate")
    image = Path() if machine.name == "host" else kernel.build(plan[0].kernel, CONFIG).image
    of = {} if machine.name == "host" else origin.measured("migrate")
    estimate = f"{DEFAULTS[machine.name].estimate_s} s"
    found: list[dict[str, Any]] = []
    for number, boot in enumerate(plan, 1):
        with step(f"Migrating, {number} of {len(plan)}: {boot.label}", estimate):
            result = machine.run(migration_job(machine, boot, image, load))
        result.check(boot.label)
        found += (one | of for one in collect(boot, result.files))
    return found


def migration_boots(
    machine: Machine, kind: str, modes: Sequence[bool], load: Load, mib_per_s: int
) -> list[MigrationBoot]:
    """The boots: one for each value of ept or npt; `host` has one mode only.

    LabError: a guest that the machine has no room for.
    """
    load.check()
    if load.vcpus > machine.max_cpus:
        raise LabError(f"--vcpus: {load.vcpus}; {machine.name} has up to {machine.max_cpus} CPUs")
    chosen = [None] if machine.name == "host" else modes
    return [MigrationBoot(machine.name, kind, tdp, load, mib_per_s) for tdp in chosen]


@click.command()
@click.option("--machine", "name", default="svm-qemu", help=", ".join(machines.NAMES))
@click.option(
    "--tdp",
    type=click.Choice([*EITHER]),
    default="both",
    help="EPT or NPT on, off, or both; not for host.",
)
@click.option("--kernel", "kind", type=click.Choice(KINDS[:3]), default="series")
@click.option("--vcpus", type=int, help="vCPUs of the guest.")
@click.option("--mib", "mib_per_vcpu", type=int, help="Memory of each vCPU, MiB.")
@click.option("--rate", type=SOME, help="Requests that each vCPU serves in a second.")
@click.option("--reads", type=click.IntRange(0, SOME.max), help="Pages that a request reads.")
@click.option("--writes", type=SOME, help="Pages that a request writes.")
@click.option(
    "--bandwidth", "mib_per_s", type=SOME, help="Bandwidth limit of the migration, MiB/s."
)
@click.option(
    "--qemu",
    type=click.Path(path_type=Path),
    help="QEMU of `make qemu`, which also chooses settings for its VM.",
)
@output_option
@click.option("--dry-run", is_flag=True, help="Show what would be run.")
def command(
    name: str,
    tdp: str,
    kind: str,
    mib_per_s: int | None,
    qemu: Path | None,
    output: Path | None,
    dry_run: bool,
    **chosen: int | None,
) -> None:
    """Migrate a guest that serves requests, by QEMU and to a file, with eager_page_split=N and =Y.

    Without PML, the guest is also migrated with dirty_bits=on (not on `host`).

    Print how long the guest's requests took, by its own TSC. Write JSON lines, and draw the report.
    A copy of the guest is restored from the file, and verifies that no write was lost. Times of
    vmx-bochs are simulated, those of host are real. svm-qemu only shows that migration works.
    """
    machine = machines.get(name)
    usual = DEFAULTS[name]
    load = replace(usual.load, **{k: v for k, v in chosen.items() if v is not None})
    most = usual.mib_per_s if mib_per_s is None else mib_per_s
    plan = migration_boots(machine, kind, EITHER[tdp], load, most)
    if qemu:
        ask = ("sh", "-c", '"$0" -help', qemu.absolute())
        said = subprocess.run(ask, capture_output=True, text=True, check=False).stdout
        if "dirty-bits=" not in said:
            raise LabError(
                f"--qemu: {qemu} is not a QEMU with the option dirty-bits=; run `make qemu`"
            )
        plan = [replace(boot, qemu=qemu) for boot in plan]
    if dry_run:
        for boot in plan:
            job = migration_job(machine, boot, Path("bzImage"), Path("load.bin"))
            click.echo(f"{boot.label}: {job.shape}")
            click.echo(f"  {' '.join(job.command)}")
        return
    if not shutil.which(str(QEMU)):
        raise LabError(f"needs {QEMU}: apt-get install --no-install-recommends qemu-system-x86")
    file = output_file(output, "migrate")
    say(
        f"migrate: {load.vcpus} vCPUs x {load.mib_per_vcpu} MiB, {load.rate} requests a second"
        f" each, {', '.join(plan[-1].settings)}, in {len(plan)} boots of {name}"
    )
    found = measure(machine, plan)
    write_records(file, found)
    page.present("migrate", shown.migration_tables(found), file, draw=output is None)
