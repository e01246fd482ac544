# SPDX-License-Identifier: GPL-2.0-only
# A thin front: the work is done by lab/setup.sh and `python -m lab`.
# ARGS goes to the command, as in `make test ARGS='-k npt0'`.

PYTHON := build/venv/bin/python
LAB := $(PYTHON) -m lab

.DEFAULT_GOAL := help
.PHONY: help setup tree save check mail build peer test soak mutants pae leaks bench cost live migrate crossover report compare reference lockprofile parity deb bpf clean

help:
	@echo 'make bench   measure eager_page_split=N beside =Y, and the peer, on an emulated machine'
	@echo 'make test    run the tests: KVM selftests in emulated machines, seeded bugs, and the lab itself'
	@echo 'make soak    an hour of stress in two machines at a time, new seeds each time'
	@echo 'make pae     build a 32-bit kernel and run the tests that need one (make test skips them without it)'
	@echo 'make leaks   build a kernel with kmemleak and look for what a thousand VMs leave behind'
	@echo
	@echo 'make tree    build/linux: the packaged kernel source plus this series, one commit per mail'
	@echo 'make save    write the commits of build/linux back to series/ and the whole files'
	@echo 'make check   prove that tree and save agree, every mail builds and the checkers are content'
	@echo 'make mail    the series as mails in build/mail, with a cover letter; sends nothing'
	@echo 'make build   build the kernel and the KVM selftests'
	@echo 'make peer    build the kernel to compare with: unpatched, its gates deleted (see docs/measuring.md)'
	@echo 'make cost    what splitting one huge page costs, over memory and vCPUs, with a picture'
	@echo 'make live    what running vCPUs feel: throughput and stalls while logging comes and goes'
	@echo 'make crossover  dirty logging by Dirty bits beside write protection, over what is written'
	@echo 'make migrate a live migration by QEMU, as the guest sees it (vmx-bochs: --machine)'
	@echo 'make report  the newest results as one page with pictures, in build/report; make bench does it, too'
	@echo "make compare ARGS='A.jsonl B.jsonl'   two results side by side, and what moved"
	@echo 'make reference   measure docs/reference anew and check its bounds (an hour to an hour and a half)'
	@echo 'make lockprofile  how long vCPUs wait for mmu_lock, N beside Y, over vCPUs'
	@echo 'make bpf     try the bpftrace tools of tools/bpftrace in an emulated machine, and print what they say'
	@echo 'make mutants only what make test has of seeded bugs: that the tests find them (about 4 minutes)'
	@echo 'make parity  the packaged KVM selftests, unpatched and patched: the same verdicts (about 25 minutes)'
	@echo 'make deb     installable Debian packages of the kernel, and a boot of them (an hour, 8 GiB)'
	@echo 'make setup   install what all of this needs (the others do it by themselves)'
	@echo 'make clean   remove build/; refuses while build/linux holds unsaved work'
	@echo
	@echo "ARGS='...' reaches the command: make bench ARGS=--help, make test ARGS='-k npt0'"

setup:
	@lab/setup.sh

tree: setup
	@$(LAB) tree $(ARGS)

save: setup
	@$(LAB) save $(ARGS)

check:
	@lab/setup.sh check
	@$(LAB) check $(ARGS)

mail: setup
	@$(LAB) mail $(ARGS)

build: setup
	@$(LAB) tree
	@$(LAB) build $(ARGS)

peer: setup
	@$(LAB) build --kind peer kvm $(ARGS)

test: setup
	@$(LAB) tree
	@$(LAB) build kvm debug selftests
	@$(LAB) build --kind mutants kvm
	@$(PYTHON) -m pytest -n 2 --no-loadscope-reorder -m 'not migration' tests $(ARGS)

mutants: setup
	@$(LAB) tree
	@$(LAB) build kvm selftests
	@$(LAB) build --kind mutants kvm
	@$(PYTHON) -m pytest -n 2 -m mutants tests $(ARGS)

pae: setup
	@$(LAB) tree
	@$(LAB) build pae
	@$(PYTHON) -m pytest tests/machines/test_pae.py $(ARGS)

leaks: setup
	@$(LAB) tree
	@$(LAB) build leaks selftests
	@$(PYTHON) -m pytest -n 2 tests/machines/test_leaks.py $(ARGS)

soak: setup
	@$(LAB) soak $(ARGS)

bench: setup
	@$(LAB) bench $(ARGS)

cost: setup
	@$(LAB) cost $(ARGS)

live: setup
	@$(LAB) live $(ARGS)

crossover: setup
	@$(LAB) crossover $(ARGS)

migrate: setup
	@$(LAB) migrate $(ARGS)

report: setup
	@$(LAB) report $(ARGS)

compare: setup
	@$(LAB) compare $(ARGS)

reference: setup
	@$(LAB) reference $(ARGS)

lockprofile: setup
	@$(LAB) lockprofile $(ARGS)

bpf:
	@lab/setup.sh bpf
	@$(LAB) bpf $(ARGS)

parity: setup
	@$(LAB) parity $(ARGS)

deb:
	@lab/setup.sh deb
	@$(LAB) deb $(ARGS)

clean:
	@if [ -d build/linux ]; then $(LAB) tree --unsaved; fi
	rm -rf build
