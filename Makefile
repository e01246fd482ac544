# SPDX-License-Identifier: GPL-2.0-only
# A thin front: the work is done by lab/setup.sh and `python -m lab`.
# ARGS goes to the command, as in `make test ARGS='-k npt0'`. WHAT chooses another measurement
# of `make bench`, or other proofs of `make test`. BASE chooses another kernel: one of base/.

PYTHON := build/venv/bin/python
LAB := $(PYTHON) -m lab

BENCH_WHAT := live tracking cost lock crossover migrate native
TEST_WHAT := quick unit mutants long parity races leaks pae limit migration modules bpf

# Before anything is installed or built: a WHAT that there is, once, for the target that has it.
known = $(and $(filter 1,$(words $(WHAT))),$(filter $(1),$(WHAT)))
check = $(if $(call known,$(2)),,$(error make $(1) WHAT=$(WHAT): unknown, known are: $(2)))
ifneq ($(WHAT),)
$(foreach goal,$(or $(MAKECMDGOALS),help),\
	$(if $(filter bench,$(goal)),$(call check,bench,$(BENCH_WHAT)),\
	$(if $(filter test,$(goal)),$(call check,test,$(TEST_WHAT)),\
	$(error make $(goal) WHAT=$(WHAT): only `make bench` and `make test` have a WHAT))))
endif

# Likewise the base, and a tarball of its kernel.
BASES := $(patsubst base/%.pin,%,$(wildcard base/*.pin))
ifneq ($(BASE),)
$(if $(and $(filter 1,$(words $(BASE))),$(filter $(BASES),$(BASE))),,\
	$(error make BASE=$(BASE): unknown, known are: $(BASES)))
export LAB_BASE := $(BASE)
endif
ifneq ($(BASE),)
$(if $(filter dkms,$(MAKECMDGOALS)),$(error make dkms BASE=$(BASE): the package has the kernels of all bases))
endif
ifneq ($(SOURCE),)
$(foreach goal,$(or $(MAKECMDGOALS),help),$(if $(filter tree,$(goal)),,\
	$(error make $(goal) SOURCE=$(SOURCE): only `make tree` has a SOURCE, which it keeps)))
endif
# For the summary of a test run: when this make began.
export LAB_BEGAN := $(shell date +%s)
DEFAULT_BASE := $(shell sed -n 's/^DEFAULT_BASE = "\(.*\)"$$/\1/p' lab/core/paths.py)
# What `make test` leaves out, and `make test WHAT=long` runs. Other bases than the default one have
# fewer tests, and none that needs the debug kernel.
OTHER_BASE := $(filter-out $(DEFAULT_BASE),$(BASE))
TESTS := $(if $(OTHER_BASE),tests/machines,tests)
LEFT_OUT := $(if $(OTHER_BASE),long or once,long)
# Two of them boot machines. What needs no machine has a worker of its own, see tests/conftest.py.
WORKERS := $(if $(OTHER_BASE),2,3)

.DEFAULT_GOAL := help
.PHONY: help setup tree save check mail build test soak bench report compare reference deb dkms qemu clean \
	$(BENCH_WHAT:%=_bench_%) $(TEST_WHAT:%=_test_%) _bench _test _kernels _mutants

help:
	@echo 'make bench    measure eager_page_split=N and =Y, the unpatched kernel and the ungated baseline, on an emulated machine'
	@echo '              WHAT=live       throughput and stalls of running vCPUs while logging is enabled and disabled'
	@echo '              WHAT=tracking   a guest that is logged from the start, as by VMMs that take frequent snapshots'
	@echo '              WHAT=cost       the cost of splitting one huge page, over memory and vCPUs'
	@echo '              WHAT=lock       how long vCPUs wait for mmu_lock with N and with Y, over vCPUs'
	@echo '              WHAT=crossover  dirty logging by Dirty bits and by write protection, over the share of written pages'
	@echo '              WHAT=migrate    a live migration by QEMU, measured by the guest'
	@echo '              WHAT=native     on this machine, without a guest: page tables in its caches, reads of huge and small pages'
	@echo 'make test     run the tests: KVM selftests in emulated machines, mutants, and tests of the lab itself'
	@echo '              (about 21 minutes on two cores with a warm ccache, 26 without; BASE=7.3: 10)'
	@echo '              WHAT=quick      one test of each paging mode in both machines (a minute and a half once the kernel is built)'
	@echo '              WHAT=unit       only the tests of the lab itself, without a kernel (about four minutes)'
	@echo '              WHAT=mutants    only check that the tests find the mutants'
	@echo '              WHAT=long       tests that take longer than a minute each: long forms of tests, modules, migrations'
	@echo '              WHAT=parity     the packaged KVM selftests, unpatched and patched: the verdicts must agree (25 minutes)'
	@echo '              WHAT=races      an hour of stress on a kernel that reports data races'
	@echo '              WHAT=leaks      build a kernel with kmemleak, and look for memory that a thousand VMs have leaked'
	@echo '              WHAT=pae        build a 32-bit kernel, and run the tests that need one'
	@echo '              WHAT=limit      build a kernel as hosts have, and log VMs near the limit of their cgroup, and while their memory moves'
	@echo '              WHAT=migration  a live migration by QEMU, whose copy must have every write'
	@echo '              WHAT=modules    the modules of `make dkms` in kernels of Debian, and migrations to the KVM of these and back'
	@echo '              WHAT=bpf        run the bpftrace tools of tools/bpftrace in an emulated machine'
	@echo 'make soak     an hour of stress with new seeds, in two machines at a time'
	@echo
	@echo 'make tree     build/linux: the packaged kernel source plus this series, one commit per mail'
	@echo 'make save     write the commits of build/linux back to series/, to the whole files and to base/'
	@echo 'make check    check that tree and save agree, that every mail builds, and that the checkers report nothing'
	@echo 'make build    build the kernel and the KVM selftests'
	@echo 'make mail     the series as mails in build/mail, by topics with a cover letter each; sends nothing'
	@echo "make dkms     a Debian package of KVM alone, as modules for Debian's kernels of all bases (2 minutes);"
	@echo "              ARGS=--newest tests Debian's newest kernels, and ARGS=--add then adds these to base/"
	@echo 'make qemu     a QEMU that can choose settings for its VM, in build/qemu: that of Debian with the patch in qemu/ (8 minutes)'
	@echo 'make deb      installable Debian packages of the kernel, and a boot of them (an hour, 8 GiB)'
	@echo
	@echo 'make report   a page with pictures of the newest results, in build/report; make bench makes it, too'
	@echo "make compare ARGS='A.jsonl B.jsonl'   two results side by side, and which figures changed"
	@echo 'make reference  measure docs/reference/BASE again (an hour), and put its figures into the pages;'
	@echo '              ARGS=--older lists in docs/older.toml which parts are older than the code'
	@echo
	@echo 'make setup    install what the other targets need; they all run it themselves'
	@echo 'make clean    remove build/; refuses if build/linux contains unsaved work'
	@echo
	@echo 'BASE=VERSION  another kernel, for all targets but report, compare, mail and dkms; make tree ARGS=--help'
	@echo '              lists the versions. make tree SOURCE=FILE uses a tarball of that kernel'
	@echo "ARGS='...'    arguments of the command: make bench ARGS=--help, make test ARGS='-k npt0'"

setup:
	@lab/setup.sh $(PACKAGES)

tree: setup
	@$(LAB) tree $(if $(SOURCE),--source '$(SOURCE)') $(ARGS)

# Migrations need a QEMU.
reference: PACKAGES := qemu
save mail soak report compare reference: setup
	@$(LAB) $@ $(ARGS)

check:
	@lab/setup.sh check
	@$(LAB) check $(ARGS)

build: setup
	@$(LAB) tree
	@$(LAB) build $(ARGS)

deb qemu:
	@lab/setup.sh $@
	@$(LAB) $@ $(ARGS)

dkms: setup
	@$(LAB) dkms $(ARGS)

bench: _bench$(WHAT:%=_%)

_bench: setup
	@$(LAB) bench $(ARGS)

_bench_live _bench_tracking _bench_cost _bench_crossover _bench_migrate _bench_native: _bench_%: setup
	@$(LAB) $* $(ARGS)

_bench_lock: setup
	@$(LAB) lockprofile $(ARGS)

test: _test$(WHAT:%=_%)

# A browser, for the tests of the report.
_test _test_unit: PACKAGES := $(if $(OTHER_BASE),,browser)
_test: setup
	@$(LAB) tree
	@$(MAKE) --no-print-directory -j2 _kernels _mutants
	@$(PYTHON) -m pytest -n $(WORKERS) --no-loadscope-reorder -m 'not ($(LEFT_OUT))' $(TESTS) $(ARGS)

# At the same time, as each of them often uses a single processor.
_kernels:
	@$(LAB) build kvm $(if $(OTHER_BASE),,debug )selftests

_mutants:
	@$(LAB) build --kind mutants kvm

_test_quick: setup
	@$(LAB) tree
	@$(LAB) build kvm selftests
	@$(PYTHON) -m pytest -n 2 -m quick tests/machines/test_selftests.py $(ARGS)

_test_unit: setup
	@$(PYTHON) -m pytest -n 2 tests/unit $(ARGS)

_test_mutants: setup
	@$(LAB) tree
	@$(LAB) build kvm selftests
	@$(LAB) build --kind mutants kvm
	@$(PYTHON) -m pytest -n 2 -m mutants tests $(ARGS)

# But for the comparison of verdicts.
_test_long: setup
	@$(LAB) tree
	@$(LAB) build kvm debug selftests
	@$(LAB) build --kind mutants kvm
	@$(PYTHON) -m pytest -n 2 --no-loadscope-reorder -m '$(LEFT_OUT)' --ignore=tests/machines/test_parity.py $(TESTS) $(ARGS)

# One machine at a time, unless ARGS says more: vCPUs that wait for one that the host does not run
# would meet the time limit.
_test_parity: setup
	@$(LAB) tree
	@$(LAB) build kvm
	@$(LAB) build --kind base kvm selftests
	@$(PYTHON) -m pytest -rsx -k svm-qemu tests/machines/test_parity.py $(ARGS)

_test_races: setup
	@$(LAB) soak --races $(ARGS)

_test_leaks: NEEDS := leaks selftests
_test_pae: NEEDS := pae
_test_migration: NEEDS := kvm
_test_bpf: NEEDS := bpf selftests
_test_bpf: PACKAGES := bpf
_test_migration: PACKAGES := qemu
_test_leaks _test_pae _test_migration _test_bpf: _test_%: setup
	@$(LAB) tree
	@$(LAB) build $(NEEDS)
	$(if $(filter migration,$*),@$(LAB) qemu)
	@$(PYTHON) -m pytest -n 2 tests/machines/test_$*.py $(ARGS)

# The package has the kernels of all bases, and on each run the selftests of its own.
MODULES := $(addprefix tests/machines/test_,$(addsuffix .py,modules operators lifecycle))
_test_modules: setup
	$(if $(BASE),,@for base in $$($(LAB) tree --others); do make test BASE=$$base || exit; done)
	@$(LAB) tree
	@$(LAB) build selftests
	@$(PYTHON) -m pytest -n 2 $(MODULES) $(ARGS)

_test_limit: setup
	@$(LAB) tree
	@$(LAB) build host selftests
	@$(LAB) build --kind mutants host
	@$(PYTHON) -m pytest -n 2 -k limit tests/machines/test_limit.py tests/machines/test_mutants.py $(ARGS)

clean:
	@if ls -d build/linux build/*/linux >/dev/null 2>&1; then $(LAB) tree --unsaved; fi
	rm -rf build
