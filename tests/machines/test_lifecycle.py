# SPDX-License-Identifier: GPL-2.0-only
"""The package of modules is installed, upgraded and taken back in a root file system of Debian."""

import pytest

from lab.core.locks import locked
from lab.core.paths import BUILD
from lab.submit import lifecycle
from lab.submit.lifecycle import Lifecycle
from tests.builds import building

from .operators import SAME_FOR_ALL, SUITE

# Three builds and a root file system: 26 minutes beside six other compilers on two cores.
MOST_S = 1800
pytestmark = [*SAME_FOR_ALL, pytest.mark.timeout(MOST_S)]

# Step, what it says, its exit status, the KVM that a boot would load meanwhile, and that of the
# initramfs at its end.
STEPS = (
    ("install", "kvm-eager-split: installed for ", 0, "stock OLD", "no KVM"),
    ("image with KVM", "", 0, "OLD", "OLD"),
    ("source moves on", "", 0, "OLD", "OLD"),
    ("no room to unpack", "No space left on device", 1, "OLD", "OLD"),
    ("no room to build", "a build needs 512 MiB in ", 0, "OLD", "OLD"),
    ("disk gets full", "no space left in /var/lib/dkms", 1, "OLD", "OLD"),
    ("killed", "", 137, "OLD", "OLD"),
    ("no room to install", "cannot be copied to /lib/modules/", 0, "OLD", "OLD"),
    ("upgrade", "has KVM, so update-initramfs makes it anew", 0, "OLD NEW", "NEW"),
    ("image without KVM", "", 0, "NEW", "no KVM"),
    ("back", "kvm-eager-split: installed for ", 0, "NEW OLD", "no KVM"),
)


@pytest.fixture(scope="module")
def life() -> Lifecycle:
    with building(), locked(BUILD / "installed.lock"):
        return lifecycle.run(SUITE, "amd64")


def test_working_modules_at_each_moment(life: Lifecycle) -> None:
    known = {life.old: "OLD", life.new: "NEW"}
    found = {step.name: step for step in life.steps}
    assert [*found] == [row[0] for row in STEPS]
    for name, said, status, kvm, image in STEPS:
        step = found[name]
        assert said in step.said
        seen = " ".join(known.get(each, each) for each in step.kvm)
        assert (name, step.status, seen) == (name, status, kvm)
        assert (name, known.get(step.image, step.image)) == (name, image)
