# SPDX-License-Identifier: GPL-2.0-only
"""Configurations are verified; what the user has in the environment stays out."""

from pathlib import Path

import pytest

from lab import kernel, results
from lab.errors import LabError, WorkFailed
from lab.paths import Layout

# Takes what merge_config.sh hands over, but has no symbol CONFIG_GONE and turns
# CONFIG_OFF on: what a dependency or a `select` does in the real one.
MAKEFILE = """\
O ?= none
tinyconfig:
\t@mkdir -p $(O) && echo CONFIG_TINY=y > $(O)/.config && echo x >> $(O)/tinyconfigs
olddefconfig:
\t@sed -i -e /CONFIG_GONE/d -e 's/# CONFIG_OFF is not set/CONFIG_OFF=y/' $(O)/.config
"""
MERGE = '#!/bin/sh\nshift 2; out=$1/.config; shift 2; cat "$@" >> "$out"\n'


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "Makefile").write_text(MAKEFILE)
    merge = tmp_path / "scripts/kconfig/merge_config.sh"
    merge.parent.mkdir(parents=True)
    merge.write_text(MERGE)
    merge.chmod(0o755)
    return tmp_path


def fragment(tree: Path, text: str) -> Path:
    file = tree / "fragment.config"
    file.write_text(text)
    return file


def configure(tree: Path, text: str) -> str:
    kernel.configure(tree, "obj", [fragment(tree, text)], tree / "log")
    return (tree / "obj/.config").read_text()


def test_configuration_that_takes(tree: Path) -> None:
    text = 'CONFIG_A=y\nCONFIG_TEXT="x y"\n# CONFIG_B is not set\n'
    assert configure(tree, text) == "CONFIG_TINY=y\n" + text


@pytest.mark.parametrize(
    ("line", "named"),
    [("CONFIG_GONE=y", "CONFIG_GONE=y"), ("# CONFIG_OFF is not set", "CONFIG_OFF=n")],
)
def test_symbol_that_does_not_take(tree: Path, line: str, named: str) -> None:
    for _ in range(2):
        with pytest.raises(LabError) as error:
            configure(tree, f"CONFIG_A=y\n{line}\n")
        assert f"did not take: {named};" in str(error.value)


def test_later_fragment_wins(tree: Path) -> None:
    first = tree / "first.config"
    first.write_text("CONFIG_A=y\nCONFIG_NUMBER=1\n")
    (tree / "obj").mkdir()
    config = tree / "obj/.config"
    config.write_text("CONFIG_NUMBER=2\n# CONFIG_A is not set\n")
    second = fragment(tree, "# CONFIG_A is not set\nCONFIG_NUMBER=2\n")
    kernel.verify(config, kernel.wanted([first, second]))
    with pytest.raises(LabError):
        kernel.verify(config, kernel.wanted([second, first]))


def test_configured_anew_only_when_a_fragment_changes(tree: Path) -> None:
    for text in ("CONFIG_A=y\n", "CONFIG_A=y\n", "CONFIG_B=y\n"):
        configure(tree, text)
    assert (tree / "obj/tinyconfigs").read_text() == "x\nx\n"
    assert "CONFIG_A" not in (tree / "obj/.config").read_text()


def test_make_that_fails(tree: Path) -> None:
    (tree / "Makefile").write_text("tinyconfig:\n\t@echo the reason; false\n")
    with pytest.raises(WorkFailed, match="tinyconfig failed") as error:
        configure(tree, "CONFIG_A=y\n")
    assert error.value.exit_code == 1
    assert "the reason" in (tree / "log").read_text()


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAKEFLAGS", "KCFLAGS", "ARCH", "O", "LOCALVERSION", "CROSS_COMPILE"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("CCACHE_DIR", "/somewhere")
    monkeypatch.setenv("KBUILD_BUILD_USER", "me")
    env = kernel.build_environment()
    assert not {"MAKEFLAGS", "KCFLAGS", "ARCH", "O", "LOCALVERSION", "CROSS_COMPILE"} & env.keys()
    assert env["CCACHE_DIR"] == "/somewhere"
    assert env["KBUILD_BUILD_USER"] == "lab"


def test_unknown_names() -> None:
    with pytest.raises(LabError, match="no configuration 'x'; there are kvm, kvm-preempt, debug"):
        kernel.fragments_of("x")
    with pytest.raises(LabError, match="no kernel 'x'; there are series, base, peer"):
        kernel.source_tree("x")


def test_every_kind_has_a_tree_of_its_own_and_a_name_in_the_results(tmp_path: Path) -> None:
    # A kernel that is wrong on purpose is never measured.
    assert set(kernel.KINDS) - {"mutants"} == set(results.KERNELS)
    assert len({Layout(tmp_path).tree_of(kind) for kind in kernel.KINDS}) == len(kernel.KINDS)


@pytest.mark.parametrize("config", kernel.CONFIGS)
def test_fragments_exist_and_ask_for_something(config: str) -> None:
    fragments = kernel.fragments_of(config)
    assert kernel.wanted(fragments)["CONFIG_KVM"] == "y"
