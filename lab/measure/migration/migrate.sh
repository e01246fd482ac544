#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# migrate.sh QEMU IMAGE VCPUS MIB MIB_PER_S BEFORE_S AFTER_S SETTING... - migrate a guest that writes.
#
# Once for each SETTING (N, Y: eager_page_split; D: that is Y, and dirty_bits is on; V: that is Y, and
# dirty_bits is auto, and QEMU enables chunks of 2 MiB and, without PML, Dirty bits): what
# docs/migration.md says under "What happens". The guest, IMAGE, works for BEFORE_S seconds before it is
# migrated, and for AFTER_S after that and after being restored; its results are taken out of its memory
# then. With MIGRATE_KVM it goes back before that, by another file, in a third QEMU.
#
# Method: QMP on FIFOs, so that neither sockets nor another program is needed.
#
# Leaves in $LAB_OUT: host, and for each SETTING (N): N.qmp, N.source, N.restored, N.stats; with
# MIGRATE_KVM N.back.qmp, N.back.stats, and N.there, its results from before it went back.
#
# Limits: one vendor's KVM; the VM is the only one of this host, as the parameters are global: it refuses beside
# others, and beside split-bench.sh, whose lock it takes.
# The pool of huge pages and the parameters are put back on every way out, and after SIGKILL by
# "kvm-eager-split restore". Needs a POSIX shell and cat, grep, head, ls, mkfifo, mktemp, rm, sed, sleep,
# uname, xargs (busybox's are enough), and where there is a directory /run, flock of util-linux.
#
# Environment: LAB_OUT, LAB_PROGRESS; MIGRATE_KVM, if another KVM is to have the guest in between: sh runs
# it with `source`, `destination` or `source` again and the setting before each QEMU is started;
# MIGRATE_ROOT, for the tests only: a directory that stands for / when /sys and /proc are read or written.

set -eu
unset QUOTING_STYLE

qemu=$1 image=$2 vcpus=$3 mib=$4 mib_per_s=$5 before_s=$6 after_s=$7
shift 7

HUGE_MIB=2
root=${MIGRATE_ROOT-}
params=$root/sys/module/kvm/parameters
eager_param=$params/eager_page_split
dirty_bits_param=$params/dirty_bits
pool=$root/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages
# That of split-bench.sh, which describes it. Without /run, as in an emulated machine, nothing else runs.
journal=$root/run/kvm-eager-split.journal
locked='' noted='' unrestored='' started='' old_pool='' pool_got=''

say() {
	echo "$*" >>"${LAB_PROGRESS:-/dev/null}"
}

die() {
	echo "migrate: $*" >&2
	cat "$work/qemu.err" >&2 2>/dev/null || :
	exit 1
}

# Nothing may end this early, and a setting that cannot be put back keeps none from it. Signals lead here directly:
# "exit" would restore nothing if a signal came just as this begins.
restore() {
	status=${1:-$?}
	trap '' INT TERM HUP QUIT PIPE
	set +e
	# It may have been started just now, and would outlive this.
	for _ in 1 2 3 4 5; do
		{ [ -z "$started" ] || [ -s "$work/pid" ]; } && break
		sleep 1
	done
	[ ! -s "$work/pid" ] || kill "$(cat "$work/pid")" 2>/dev/null
	put_back "$eager_param" "${old_eager-}"
	# Another KVM, which only MIGRATE_KVM loads, may not have it.
	{ [ -n "${MIGRATE_KVM-}" ] && [ ! -e "$dirty_bits_param" ]; } ||
		put_back "$dirty_bits_param" "${old_dirty_bits-}"
	put_back_pool
	rm -rf "$work"
	[ -z "$noted" ] || [ -n "$unrestored" ] || rm -f "$journal"
	[ -z "$unrestored" ] || status=1
	trap - EXIT
	exit "$status"
}

put_back() {
	[ -n "$2" ] || return 0
	{ echo "$2" >"$1"; } 2>/dev/null && return
	unrestored=yes
	echo "migrate: could not restore $1; by hand: echo $2 > $1" >&2
}

# Without surplus pages, which are others', and freed with them.
pool_size() { echo $(($(cat "$pool") - $(cat "${pool%/*}/surplus_hugepages" 2>/dev/null || echo 0))); }

# Pages that are free and not promised to another process.
pool_free() { echo $(($(cat "${pool%/*}/free_hugepages") - $(cat "${pool%/*}/resv_hugepages" 2>/dev/null || echo 0))); }

# A pool that has got another size since is somebody else's, who may have pages in it.
put_back_pool() {
	now=$(pool_size)
	if [ -n "$old_pool" ] && [ "$now" != "${pool_got:-"$now"}" ]; then
		echo "migrate: $pool is $now, which somebody else has set meanwhile, so it stays; it was $old_pool" >&2
	else
		put_back "$pool" "$old_pool"
	fi
}

# change FILE NEW OLD
change() {
	if [ -n "$locked" ]; then
		by="by split-bench $$
"
		[ -z "$noted" ] || by=''
		noted=yes
		# Monitoring is not root, and has to read it.
		(umask 022 && printf '%s%s %s %s\n' "$by" "${1#"$root"}" "$3" "$2" >>"$journal") 2>/dev/null ||
			die "could not write $journal, so ${1##*/} is not changed"
	fi
	echo "$2" >"$1"
}

# MIGRATE_KVM may need the same lock, as kvm-eager-split reload does.
be_alone() {
	[ -d "$root/run" ] && [ -z "${MIGRATE_KVM-}" ] || return 0
	lock=$root/run/split-bench.lock
	command -v flock >/dev/null || die "there is no command flock: it is in util-linux"
	(umask 077 && : >>"$lock") 2>/dev/null || die "$root/run cannot be written: is it mounted read-only?"
	# QEMU has it, too, and can outlive this.
	exec 9>>"$lock"
	flock -w 1 9 || die "a benchmark, or a test that it has started, is running ($lock)"
	[ ! -e "$journal" ] || die "a benchmark or a reload was killed: kvm-eager-split restore"
	locked=yes
	# shellcheck disable=SC2012 # numbers
	others=$( (cd "$root/proc" && printf '%s\n' [0-9]*/fd | xargs ls -l) 2>/dev/null |
		grep -c '^[^>]* -> anon_inode:kvm-vm$') || :
	[ "$others" -eq 0 ] || die "$others other VM(s) run here, and eager_page_split applies to all of them"
}

# The vendor's module is the one whose KVM found its processor.
two_dimensional() {
	if grep -q '^flags.* svm' "$root/proc/cpuinfo"; then
		cat "$root/sys/module/kvm_amd/parameters/npt"
	else
		cat "$root/sys/module/kvm_intel/parameters/ept"
	fi
}

# The parameter is there without Intel's processor, too.
pml() {
	grep -q '^flags.* svm' "$root/proc/cpuinfo" || cat "$root/sys/module/kvm_intel/parameters/pml"
}

describe_host() {
	echo "version $(uname -r)"
	echo "pml $(pml)"
	echo "tdp $(two_dimensional)"
	echo "tdp_mmu $(cat "$params/tdp_mmu")"
	echo "qemu $("$qemu" --version | head -n 1)"
}

reserve() {
	missing=$((mib / HUGE_MIB - $(pool_free)))
	# A pool that takes the last pages has the host reclaim for minutes, and kill processes.
	needed=$((missing * HUGE_MIB + 64 + mib / 128))
	available=$(($(sed -n 's/^MemAvailable: *\([0-9]*\) kB$/\1/p' "$root/proc/meminfo") / 1024))
	[ "$missing" -le 0 ] || [ "$needed" -le "$available" ] ||
		die "too little memory: wanted $needed MiB, had $available MiB available"
	if [ "$missing" -gt 0 ]; then
		old_pool=$(pool_size)
		change "$pool" $(($(cat "$pool") + missing)) "$old_pool"
		pool_got=$(pool_size)
	fi
	[ "$(pool_free)" -ge $((mib / HUGE_MIB)) ] ||
		die "no $((mib / HUGE_MIB)) free huge pages of $HUGE_MIB MiB: memory is fragmented or short"
}

# start_qemu LOG OPTION...: QEMU with its monitor on descriptors 5 and 6, the guest's console on 7.
start_qemu() {
	log=$1
	shift
	rm -f "$work"/qmp.* "$work"/con.*
	mkfifo "$work/qmp.in" "$work/qmp.out" "$work/con.in" "$work/con.out"
	# Open for reading and writing, so that nothing waits for QEMU to open them.
	exec 5<>"$work/qmp.in" 6<>"$work/qmp.out" 7<>"$work/con.out"
	machine=microvm,pit=off,pic=off,rtc=off,isa-serial=off,acpi=off,x-option-roms=off
	memory=memory-backend-memfd,id=ram,size=${mib}M,hugetlb=on,hugetlbsize=${HUGE_MIB}M,prealloc=on
	started=yes
	{
		"$qemu" -nodefaults -no-user-config -display none \
			-accel "$accel" -cpu host,vmx=off,svm=off -smp "$vcpus" -m "${mib}M" \
			-M "$machine,auto-kernel-cmdline=off,memory-backend=ram" -object "$memory" \
			-bios "$image" \
			-chardev "pipe,id=qmp,path=$work/qmp" -mon chardev=qmp,mode=control \
			-chardev "pipe,id=con,path=$work/con" -device isa-debugcon,iobase=0xe9,chardev=con \
			"$@" 2>>"$work/qemu.err" 5>&- 6>&- 7>&- &
		echo $! >"$work/pid"
		wait $! || :
		echo '{"gone"}' >>"$work/qmp.out"
		echo gone >>"$work/con.out"
	} &
	await '"QMP"'
	ask '"qmp_capabilities"'
}

# await TEXT: read QEMU's lines up to one that has TEXT in it.
await() {
	while IFS= read -r line <&6; do
		printf '%s\n' "$line" >>"$log"
		case $line in
		*'{"gone"}'*) die "QEMU ended unexpectedly" ;;
		*'"error"'* | *'"status": "failed"'*) die "QEMU: $line" ;;
		*"$1"*) return ;;
		esac
	done
}

# ask '"COMMAND"' [', "arguments": {...}']: run a command of QMP.
ask() {
	printf '{"execute": %s%s, "id": %s}\n' "$1" "${2-}" "$1" >&5
	await "\"id\": $1"
}

# The guest's results lie in the second 2 MiB of its memory (guest/load.h).
save_results() {
	ask '"stop"'
	ask '"pmemsave"' ", \"arguments\": {\"val\": 2097152, \"size\": 2097152, \"filename\": \"$1\"}"
}

end_qemu() {
	ask '"quit"'
	wait $!
	rm -f "$work/pid"
	started=''
}

# KVM's own account of the VM: page sizes, splits, faults.
save_stats() {
	for file in "$root"/sys/kernel/debug/kvm/*-*/*; do
		case ${file##*/} in
		pages_* | eager_split_* | dirty_bits | pf_taken | exits) echo "$1 ${file##*/} $(cat "$file")" ;;
		esac
	done
}

# Only the series' kernel has dirty_bits.
set_up() {
	accel=kvm
	case $1 in
	N) eager=N dirty_bits=off ;;
	Y) eager=Y dirty_bits=off ;;
	D) eager=Y dirty_bits=on ;;
	V)
		eager=Y dirty_bits=auto accel=kvm,eager-split-size=2M
		[ "$(pml)" = Y ] || accel=$accel,dirty-bits=on
		;;
	*) die "$1: neither N nor Y nor D nor V" ;;
	esac
	change "$eager_param" "$eager" "$old_eager"
	[ ! -e "$dirty_bits_param" ] || change "$dirty_bits_param" "$dirty_bits" "$old_dirty_bits"
}

await_guest() {
	IFS= read -r line <&7
	[ "$line" = ready ] || die "the guest says: $line"
}

load_kvm() {
	[ -z "${MIGRATE_KVM-}" ] || sh -c "$MIGRATE_KVM" sh "$@" || die "no KVM for $*"
}

# Migrate the guest to a file; it is stopped then.
send() {
	ask '"migrate-set-capabilities"' \
		', "arguments": {"capabilities": [{"capability": "events", "state": true}]}'
	ask '"migrate-set-parameters"' ", \"arguments\": {\"max-bandwidth\": $((mib_per_s << 20))}"
	ask '"migrate"' ", \"arguments\": {\"uri\": \"exec:exec cat >$work/stream\"}"
	await '"status": "completed"'
	# QEMU says so before it has finished, and would not let the guest go on.
	until [ "${line#*'"postmigrate"'}" != "$line" ]; do ask '"query-status"'; done
}

# receive LOG: restore it from that file.
receive() {
	start_qemu "$1" -incoming "exec:exec cat $work/stream"
	ask '"query-status"'
	case $line in
	*'"inmigrate"'*) await '"RESUME"' ;;
	esac
	rm "$work/stream"
}

migrate() {
	load_kvm source "$1"
	set_up "$1"
	start_qemu "$LAB_OUT/$1.qmp"
	await_guest
	sleep "$before_s"
	save_stats before >"$LAB_OUT/$1.stats"
	say "$1: migrating"
	send
	ask '"cont"'
	ask '"query-migrate"'
	save_stats after >>"$LAB_OUT/$1.stats"
	sleep "$after_s"
	save_results "$LAB_OUT/$1.source"
	end_qemu
}

bring_back() {
	receive "$LAB_OUT/$1.back.qmp"
	sleep "$before_s"
	say "$1: bringing it back"
	save_stats before >"$LAB_OUT/$1.back.stats"
	send
	ask '"query-migrate"'
	save_stats after >>"$LAB_OUT/$1.back.stats"
	save_results "$LAB_OUT/$1.there"
	end_qemu
	load_kvm source "$1"
	receive "$work/restored.qmp"
}

check_restored() {
	say "$1: restoring what was migrated"
	load_kvm destination "$1"
	if [ -n "${MIGRATE_KVM-}" ]; then bring_back "$1"; else receive "$work/restored.qmp"; fi
	sleep "$after_s"
	save_results "$LAB_OUT/$1.restored"
	end_qemu
}

work=$(mktemp -d)
trap restore EXIT
trap 'restore 130' INT
trap 'restore 143' TERM
trap 'restore 129' HUP
trap 'restore 131' QUIT
trap 'restore 141' PIPE

be_alone
describe_host >"$LAB_OUT/host"
reserve
old_eager=$(cat "$eager_param")
[ ! -e "$dirty_bits_param" ] || old_dirty_bits=$(cat "$dirty_bits_param")
for setting; do
	say "$setting: starting the guest"
	migrate "$setting"
	check_restored "$setting"
done
