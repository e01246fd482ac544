# SPDX-License-Identifier: GPL-2.0-only
"""Configurations are verified; the user's environment stays out; which selftests machines get.

A build that is told to end leaves nothing running, neither make nor what make started.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from lab.build import kernel, selftests
from lab.cli import INTERRUPTED
from lab.core import steps
from lab.core.paths import KINDS, LAYOUT, ROOT, Layout
from lab.results import jsonl
from lab.series.pin import PathMap
from tests.rows import for_each_row
from tests.unit.calls import failed, refused
from tests.unit.fake_kernel import PIN
from tests.unit.files import program, write
from tests.unit.processes import is_gone, started, until

# Takes what merge_config.sh hands over, but has no symbol CONFIG_GONE and turns
# CONFIG_OFF on: what a dependency or a `select` does in the real one.
MAKEFILE = """\
O ?= none
tinyconfig:
\t@mkdir -p $(O) && echo CONFIG_TINY=y > $(O)/.config && echo x >> $(O)/tinyconfigs
olddefconfig:
\t@sed -i -e /CONFIG_GONE/d -e 's/# CONFIG_OFF is not set/CONFIG_OFF=y/' $(O)/.config
bzImage:
\t@mkdir -p $(O)/arch/x86/boot $(O)/include/config
\t@echo image > $(O)/arch/x86/boot/bzImage && echo 6.12 > $(O)/include/config/kernel.release
"""
MERGE = '#!/bin/sh\nshift 2; out=$1/.config; shift 2; cat "$@" >> "$out"\n'


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    program(tree / "scripts/kconfig/merge_config.sh", MERGE)
    write(tree / "Makefile", MAKEFILE)
    return tree


def configure(tree: Path, text: str) -> str:
    kernel.configure(tree, "obj", [write(tree / "fragment.config", text)], tree / "log")
    return (tree / "obj/.config").read_text()


def test_configuration_that_takes(tree: Path) -> None:
    # Nothing is an empty text, too.
    text = 'CONFIG_A=y\nCONFIG_TEXT="x y"\nCONFIG_GONE=""\n# CONFIG_B is not set\n'
    taken = text.replace('CONFIG_GONE=""\n', "")
    assert configure(tree, text) == "CONFIG_TINY=y\n" + taken
    # Over a configuration that there is, one of another's.
    for first in ("CONFIG_C=y\n", 'CONFIG_C=m\nCONFIG_GONE="x"\n'):
        fragments = [tree / "fragment.config"]
        kernel.configure(tree, "obj", fragments, tree / "log", first=first.encode())
        assert (tree / "obj/.config").read_text() == first.partition("CONFIG_GONE")[0] + taken


@for_each_row(
    "line, named", ("CONFIG_GONE=y", "CONFIG_GONE=y"), ("# CONFIG_OFF is not set", "CONFIG_OFF=n")
)
def test_symbol_that_does_not_take(tree: Path, line: str, named: str) -> None:
    for _ in range(2):
        assert f"not accepted: {named};" in refused(configure, tree, f"CONFIG_A=y\n{line}\n")


def test_configured_anew_only_when_a_fragment_changes(tree: Path) -> None:
    for text in ("CONFIG_A=y\n", "CONFIG_A=y\n", "CONFIG_B=y\n"):
        configure(tree, text)
    assert (tree / "obj/tinyconfigs").read_text() == "x\nx\n"
    assert "CONFIG_A" not in (tree / "obj/.config").read_text()


def test_make_that_fails(tree: Path) -> None:
    (tree / "Makefile").write_text("tinyconfig:\n\t@echo the reason; false\n")
    assert "tinyconfig failed" in failed(configure, tree, "CONFIG_A=y\n")
    assert "the reason" in (tree / "log").read_text()


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAKEFLAGS", "KCFLAGS", "ARCH", "O", "LOCALVERSION", "CROSS_COMPILE"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("CCACHE_DIR", "/somewhere")
    monkeypatch.setenv("KBUILD_BUILD_USER", "me")
    env = kernel.build_environment()
    assert not {"MAKEFLAGS", "KCFLAGS", "ARCH", "O", "LOCALVERSION", "CROSS_COMPILE"} & env.keys()
    assert (env["CCACHE_DIR"], env["KBUILD_BUILD_USER"]) == ("/somewhere", "lab")


def test_only_pae_is_32_bit() -> None:
    assert [name for name in kernel.CONFIGS if kernel.arch_of(name) != "x86_64"] == ["pae"]
    assert "ARCH=i386" in kernel.make_command("obj", arch=kernel.arch_of("pae"))
    assert "ARCH=x86_64" in kernel.make_command("obj")


def test_each_command_has_the_architecture(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Mock(wraps=steps.run_logged)
    monkeypatch.setattr(kernel, "run_logged", run)
    monkeypatch.setattr(kernel, "ARCHITECTURES", {"kvm": "i386"})
    monkeypatch.setattr(kernel, "LAYOUT", Layout(tree.parent))
    monkeypatch.setattr(kernel, "source_tree", lambda kind: tree)
    fragment = write(tree.parent / "fragment", "CONFIG_A=y\n")
    monkeypatch.setattr(kernel, "fragments_of", lambda config: [fragment])
    assert kernel.build("base", "kvm").release == "6.12"
    commands = [call.args[1] for call in run.call_args_list]
    made = [command for command in commands if command[0] == "make"]
    assert len(made) == 3
    assert all("ARCH=i386" in command for command in made)
    assert kernel.build("base", "kvm").image.read_text() == "image\n"


def test_what_was_built_lately_is_known_until_a_build_fails(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout(tree.parent)
    source = layout.tree_of("base")
    source.parent.mkdir(parents=True, exist_ok=True)
    tree.rename(source)
    monkeypatch.setattr(kernel, "LAYOUT", layout)
    monkeypatch.setattr(kernel, "source_tree", lambda kind: source)
    fragment = write(tree.parent / "fragment", "CONFIG_A=y\n")
    monkeypatch.setattr(kernel, "fragments_of", lambda config: [fragment])
    begin = time.time() - 1
    assert kernel.built_since(begin, "base", "kvm") is None
    assert kernel.build("base", "kvm") == kernel.built_since(begin, "base", "kvm")
    assert kernel.built_since(begin, "base", "debug") is None
    assert kernel.built_since(time.time() + 60, "base", "kvm") is None
    (source / "Makefile").write_text("")
    failed(kernel.build, "base", "kvm")
    assert kernel.built_since(begin, "base", "kvm") is None


def test_an_older_base_says_otherwise(tmp_path: Path) -> None:
    layout = Layout(tmp_path, "6.12")
    # The later one wins.
    text = "CONFIG_PREEMPT_VOLUNTARY=y\n# CONFIG_KVM is not set\n"
    write(layout.backport / "config" / "kvm.config", text)
    fragments = kernel.fragments_of("kvm-preempt", layout)
    assert [file.name for file in fragments] == ["kvm.config", "kvm.config", "preempt.config"]
    first, both = kernel.wanted(fragments[:1]), kernel.wanted(fragments[:2])
    assert (first["CONFIG_KVM"], both["CONFIG_KVM"]) == ("y", "n")
    newest = kernel.fragments_of("kvm-preempt", LAYOUT.newest)
    assert kernel.fragments_of("kvm-preempt", layout.of("7.3")) == newest


def test_every_kind_has_a_tree_of_its_own_and_a_name_in_the_results(tmp_path: Path) -> None:
    # A kernel that is wrong on purpose is never measured.
    assert set(KINDS) - {"mutants", "topic"} == set(jsonl.KERNELS)
    assert len({Layout(tmp_path).tree_of(kind) for kind in KINDS}) == len(KINDS)
    known = "kvm kvm-preempt debug"
    assert f"no configuration 'x', only: {known}" in refused(kernel.fragments_of, "x")
    assert "no kernel 'x', only: series base peer" in refused(kernel.source_tree, "x")


@pytest.mark.parametrize("config", kernel.CONFIGS)
def test_fragments_exist_and_ask_for_something(config: str) -> None:
    assert kernel.wanted(kernel.fragments_of(config))["CONFIG_KVM"] == "y"


def test_a_program_that_the_tree_has_no_longer_goes(tmp_path: Path) -> None:
    built, stripped = tmp_path / "built", tmp_path / "stripped"
    for name in ("a_test", "x86/b_test"):
        write(tmp_path / selftests.SELFTESTS / f"{name}.c", "")
        write(built / name, "", 0o755).write_bytes(Path("/bin/true").read_bytes())
    for expected in (["a_test", "x86/b_test"], ["a_test"]):
        selftests.strip_new(tmp_path, built, stripped, PathMap({}))
        assert sorted(str(f.relative_to(stripped)) for f in stripped.rglob("*_test")) == expected
        (tmp_path / selftests.SELFTESTS / "x86/b_test.c").unlink(missing_ok=True)


# ---- a build that is told to end -----------------------------------------------

# Ends when it is told to. What it starts says that it was told as well, and takes its time.
MAKE = """\
#!/bin/sh
(trap 'touch told; sleep 1; exit 1' TERM; while :; do sleep 0.1; done) &
echo $$ $! > pids.new
mv pids.new pids
wait
"""
LAB = """
import sys
from pathlib import Path
from lab.core import paths
paths.LAYOUT = paths.Layout(Path(sys.argv[1]))
from lab import cli
from lab.build import kernel
kernel.source_tree = lambda _: paths.LAYOUT.linux
sys.exit(cli.main(["build", sys.argv[2]]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_being_told_twice_changes_nothing(tmp_path: Path, number: signal.Signals) -> None:
    layout = Layout(tmp_path)
    write(layout.pin, PIN)
    # A kernel that is built, so that no space is asked for.
    write(layout.linux / "obj-kvm/arch/x86/boot/bzImage", "")
    program(tmp_path / "bin/make", MAKE)
    env = {"PYTHONPATH": str(ROOT), "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    command = [sys.executable, "-c", LAB, tmp_path, "kvm"]
    with started(command, stderr=subprocess.DEVNULL, env=os.environ | env) as running:
        assert until((layout.linux / "pids").exists)
        pids = [int(word) for word in (layout.linux / "pids").read_text().split()]
        assert len(pids) == 2 and not any(map(is_gone, pids))
        running.send_signal(number)
        assert until((layout.linux / "told").exists)
        running.send_signal(number)
        assert running.wait(timeout=20) in {INTERRUPTED, 128 + number}
        assert all(map(is_gone, pids))
