#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# Usage: split-bench.sh [OPTION]...
#
# Measure KVM's dirty logging with eager_page_split=N and with =Y in one boot. The script runs dirty_log_perf_test for
# each combination of the values that the options list, and prints a table of the times that the test reports. The
# values of eager_page_split and dirty_bits change fastest, so that runs that are compared follow each other directly.
# The script needs root and /dev/kvm. No other VM may run, because eager_page_split applies to the whole host.
#
# It restores every setting that it changes. While it runs, the old values are in /run/kvm-eager-split.journal. If it is
# killed, its next start, or "kvm-eager-split restore", restores them from there.
#
#   --quick            the default: --vcpus "2 8" --writes "100 20" --init-set yes
#                      --backing anonymous_hugetlb_2mb --iterations 2
#   --full             --vcpus "2 4 8 14 16 32 64" --writes "100 80 50 20 5 0" --init-set
#                      both --backing "anonymous_hugetlb_2mb anonymous_thp" --iterations 3
#   --vcpus LIST       numbers of vCPUs, 1-1024 each. If the host lacks a CPU for each vCPU and one for the test,
#                      the table and the results mark the run as overcommitted
#   --writes LIST      percentages of accesses that are writes, 0-100 each
#   --bytes SIZE       memory of each vCPU: a number of bytes, or with K, M or G (powers of 1024); a whole number
#                      of pages of each backing                                     (default: 4M)
#   --backing LIST     memory of the guest: anonymous, anonymous_thp, shmem, anonymous_hugetlb,
#                      anonymous_hugetlb_2mb, anonymous_hugetlb_1gb, shared_hugetlb
#   --init-set WHICH   whether to use KVM_DIRTY_LOG_INITIALLY_SET: yes, no or both
#   --eager LIST       values of eager_page_split: N, Y                             (default: "N Y")
#   --dirty-bits LIST  values of dirty_bits: off, on, auto                          (default: the host's value)
#   --per-vm           choose these two settings for the test's VM alone, by KVM_CAP_EAGER_SPLIT_CHUNK_SIZE and
#                      KVM_CAP_X86_DIRTY_BITS. Meanwhile the host has eager_page_split=Y and, with --dirty-bits,
#                      dirty_bits=auto. Use this where a scheduler may start other VMs
#   --iterations N     number of rounds of dirtying memory, GET and CLEAR, 2-1000
#   --cycles N         number of times that each VM enables logging, does all rounds and disables logging, 1-1000;
#                      cannot be used with --tracked or --pattern clean             (default: 1)
#   --busy N           number of vCPUs that still access memory once all of it is populated (default: all)
#   --pattern WHICH    which accesses are writes. pages: each one by chance. regions: all accesses to a region of
#                      2 MiB, or none of them; huge pages and page tables are counted, too. clean: by chance, but
#                      no access before the first CLEAR, populating included; needs HugeTLB (default: pages)
#   --tracked          measure VMs that are logged before they access any memory, as for frequent snapshots, each
#                      compared with a VM that is logged later; see below
#   --populate LIST    with --tracked: how the guest accesses its memory for the first time: writes, reads; the
#                      latter needs HugeTLB                                         (default: "writes reads")
#   --verify WHEN      when to run the test with -V, which verifies the dirty log and is not timed. first: before
#                      anything is measured. only: measure nothing. no: never. One run for each combination of
#                      --backing, --init-set, --eager and --dirty-bits, with the fewest --vcpus and the most
#                      --writes                                                     (default: first)
#   --no-pin           let the scheduler choose CPUs, even if there is one for each vCPU
#   --test PATH        the program dirty_log_perf_test; a script that wraps it must exec it
#                                                                                   (default: beside this script)
#   --output FILE      append the results to FILE, as JSON lines; either all lines of a test run, or none. FILE
#                      keeps its owner and mode. A symbolic link is refused
#   --resume FILE      like --output, but leave out the runs whose results are in FILE. The machine, the kernel
#                      and the paging mode must be those of its last line
#   --mode MODE        refuse to measure if KVM is not in this paging mode: ept1, ept0, tdp, ept1-nopml or
#                      tdp-nopml. ept also stands for AMD's npt
#   --machine NAME     machine in the results        (default: $LAB_MACHINE, or host if that is not set)
#   --kernel WHICH     kernel in the results: series, peer or base                  (default: series)
#   --keep-going       if a test run fails, measure the others nevertheless
#   --others-ok        measure although other VMs run, which disturbs them. Without this option, if another VM
#                      starts meanwhile, the current run is discarded and nothing more is measured
#   --dry-run          print what would be run, and change nothing; does not need root
#   --quiet            print no progress to stderr; only the table, and errors
#   -h, --help         print this text
#
# Items of a LIST are separated by blanks or commas. The table shows milliseconds, and only the times that depend most
# on eager_page_split. The results contain seconds, and all times. The script also appends its progress to the file or
# FIFO $LAB_PROGRESS, if that is set.
#
# --tracked enables logging before the guest accesses its memory. KVM_GET_DIRTY_LOG also clears the log, so no huge
# page is split ahead of writes. Iterations, at least 3, are a loop of snapshots. In a VM that was populated by
# reads, iteration 1 reads everything again, and iteration 2 is the first that writes. In a VM that was populated by
# writes, all iterations write. --quick then has --writes "100 1" and --iterations 3, --full --writes "100 50 20 5 1".
#
# Wrong results are not measured: with -V the test fails if a page that the guest wrote to is not in the log, or if KVM
# does not split what it has to split. Then the script measures nothing. An unpatched kernel (--kernel base) does not
# split without the TDP MMU, so the script does not verify its eager_page_split=Y.
#
# Exit status: 0: measured. 1: a test run failed, or its result was wrong. 2: wrong input, or the host is not suitable;
# nothing was changed. 130: interrupted (128 + the number of the signal; 143 for TERM, 129 for HUP).
#
# Needs a POSIX shell and the commands awk, cat, chmod, chown, date, dd, dirname, flock, grep, ls, mkdir,
# mktemp, mv, rm, sed, sort, stat, tail, tr, uname, wc, xargs (busybox's are enough; flock is util-linux's, and needed
# only where there is a directory /run).

set -u
# Points in numbers, for awk, and no quotes around names, for ls, whatever the user sets.
export LC_ALL=C
unset QUOTING_STYLE

name=split-bench
# For the tests only: a directory that stands for / when /sys, /proc, /dev and /run are
# read or written.
root=${SPLIT_BENCH_ROOT-}
params=$root/sys/module/kvm/parameters
eager_param=$params/eager_page_split
dirty_bits_param=$params/dirty_bits

# Options. Those of a preset are unset until they are given, see use_preset; not even
# the environment may set them.
unset vcpus_list writes_list init_set backing_list iterations populate_list
preset=quick bytes=4M cycles=1 busy='' pattern=pages eager_list='N Y' test=$(dirname "$0")/dirty_log_perf_test output='' resume=''
machine=${LAB_MACHINE:-host} kernel=series mode=''
pin=1 dry_run=0 keep_going=0 others_ok=0 per_vm=0 tracked=0 quiet=0 verify=first
# Without --dirty-bits what the kernel has, see check_input.
dirty_bits_given='' dirty_bits_list=''

# What has to be undone; empty: nothing. A value is stored before the setting
# is changed, so that a signal in between restores what is there anyway.
eager_was='' dirty_bits_was='' pool_was='' pool_got='' pool_file='' scratch='' output_tmp=''
# Whether the lock is held, and the lines that the journal has of this process.
locked='' noted='' unrestored=''
# $! at the time no test was running; a different $! is a test to be ended.
last_child=

say() { printf '%s: %s\n' "$name" "$*" >&2; }

# Fails, as the command that it reports did.
complain() { say "$@"; return 1; }

# Prints what a command prints, or ends the script: nobody has got what was asked for.
print() {
	text=$("$@")
	{ printf '%s\n' "$text"; } 2>/dev/null && return 0
	complain 'could not write to standard output'
	exit 1
}

# Bad input or an unsuitable host. One line.
refuse() { complain "$@"; exit 2; }

# ---- The journal. These lines are the same in split-bench.sh and kvm-eager-split. ----
# Its first line is "by COMMAND PID". Before COMMAND changes a setting of the host it appends
# "FILE OLD NEW"; it removes the journal once the old values are back. If no process holds
# /run/COMMAND.lock, COMMAND was killed, and left the new values behind. Only root writes to /run.
journal=$root/run/kvm-eager-split.journal

# The value of a setting. Surplus pages of a HugeTLB pool do not count: the kernel frees them
# when their users end, unless their number is written to nr_hugepages.
value_of() {
	value=$(cat "$root$1" 2>/dev/null) || return
	case $1 in
	*/nr_hugepages) echo $((value - $(cat "$root${1%/*}/surplus_hugepages" 2>/dev/null || echo 0))) ;;
	*) echo "$value" ;;
	esac
}

# "COMMAND (process PID)", if there is a journal.
journal_writer() { sed -n '1s/^by \([a-z-]*\) \([0-9]*\)$/\1 (process \2)/p' "$journal" 2>/dev/null; }

# "FILE OLD NOW" of each setting that has a new value of the journal. Any other value was
# set by somebody else since, and must stay.
left_behind() {
	grep -E '^/sys/(module/kvm/parameters/[a-z_]+|kernel/mm/hugepages/hugepages-[0-9]+kB/nr_hugepages)( [A-Za-z0-9]+){2}$' \
		"$journal" 2>/dev/null | while read -r file was new; do
		now=$(value_of "$file") || continue
		case $file in
		# The kernel may have found fewer pages than the pool was to have.
		*/nr_hugepages) [ "$now" -gt "$was" ] && [ "$now" -le "$new" ] ;;
		*) [ "$now" != "$was" ] && [ "$now" = "$new" ] ;;
		esac && echo "$file $was $now"
	done | awk '{ last[$1] = $0 } END { for (file in last) print last[file] }' | sort
}

# Only for who holds the lock of the command that wrote the journal.
restore_left_behind() {
	[ -e "$journal" ] || return 0
	left_behind | {
		failed=0
		while read -r file was now; do
			if { echo "$was" >"$root$file"; } 2>/dev/null; then
				say "restored $file: $was, not $now, which $(journal_writer) left when it was killed"
			else
				say "could not restore $file; by hand: echo $was > $file"
				failed=1
			fi
		done
		[ "$failed" -eq 0 ]
	} && rm -f "$journal"
}
# ---- end of the journal ----

# stderr and LAB_PROGRESS have different readers: a person, and the lab, which
# makes its own estimate from the percentage (its clock is not the machine's).
progress() {
	[ "$quiet" -eq 1 ] || [ ! -t 2 ] || printf '%s: %3d%% %s%s\n' "$name" "$1" "$2" "$(time_left)" >&2
	[ -z "${LAB_PROGRESS-}" ] || { printf '%s%% %s\n' "$1" "$2" >>"$LAB_PROGRESS"; } 2>/dev/null
}

time_left() {
	[ "$work_done" -gt 0 ] && [ "$work_done" -lt "$work_total" ] || return 0
	elapsed=$(($(date +%s) - started))
	printf ', about %s s left' $((elapsed * (work_total - work_done) / work_done))
}

# Every way out leads here, a signal directly: "exit" would end the script, and restore nothing, if a signal came just
# as this begins. A setting that cannot be put back is the one thing that the user must hear of even when all else went
# well.
restore() {
	status=${1:-$?}
	trap '' INT TERM HUP QUIT PIPE
	trap - EXIT
	end_child
	put_back "$eager_param" "$eager_was" || status=1
	put_back "$dirty_bits_param" "$dirty_bits_was" || status=1
	put_back_pool || status=1
	# Not a directory that has taken the name, nor what is in it.
	rm -f ${output_tmp:+"$output_tmp"} 2>/dev/null
	rm -rf ${scratch:+"$scratch"}
	# It stays if a setting could not be restored.
	[ -z "$noted" ] || [ -n "$unrestored" ] || rm -f "$journal"
	[ "$status" -lt 128 ] || complain 'interrupted; the settings of this host are as before'
	exit "$status"
}

put_back() {
	[ -n "$2" ] || return 0
	{ printf '%s\n' "$2" >"$1"; } 2>/dev/null && return 0
	unrestored=yes
	complain "could not restore $1; by hand: echo $2 > $1"
}

# A pool that has got another size since is somebody else's, who may have pages in it.
put_back_pool() {
	now=$(value_of "${pool_file#"$root"}")
	if [ -n "$pool_was" ] && [ -n "$now" ] && [ "$now" != "${pool_got:-"$now"}" ]; then
		say "$pool_file is $now, which somebody else has set meanwhile, so it stays; it was $pool_was"
	else
		put_back "$pool_file" "$pool_was"
	fi
}

# note FILE NEW OLD, before FILE is changed: a killed script restores nothing.
note() {
	line="${1#"$root"} $3 $2"
	case $noted in *"$line;"*) return 0 ;; esac
	[ -n "$locked" ] || return 0
	[ -n "$noted" ] || line="by $name $$
$line"
	noted="$noted$line;"
	# Whoever runs "kvm-eager-split status" is to see it.
	(umask 022 && printf '%s\n' "$line" >>"$journal") 2>/dev/null ||
		complain "could not write $journal, so ${1##*/} is not changed: no space left?"
}

# KILL, because the kernel frees all that a test holds (VM, huge pages), and
# because a test that ignores TERM would keep the pool in use.
end_child() {
	[ "${!-}" != "$last_child" ] || return 0
	kill -KILL "$!" 2>/dev/null
	wait "$!" 2>/dev/null
	last_child=$!
}

# A signal that was ignored at the start stays so, as under nohup: no shell can trap it.
catch_signals() {
	trap restore EXIT
	for signal in 1/HUP 2/INT 3/QUIT 13/PIPE 15/TERM; do
		# shellcheck disable=SC2064 # the number is that of now
		trap "restore $((128 + ${signal%/*}))" "${signal#*/}"
	done
}

parse_options() {
	while [ $# -gt 0 ]; do
		case $1 in
		-h | --help) print sed -n '4,/^$/s/^# \{0,1\}//p' "$0"; exit ;;
		--dry-run | --keep-going | --others-ok | --per-vm | --tracked | --quiet) eval "$(name_of "$1")=1" ;;
		--no-pin) pin=0 ;;
		--quick | --full) preset=${1#--} ;;
		--*=*) set_option "${1%%=*}" "${1#*=}" ;;
		--*)
			[ $# -ge 2 ] || refuse "$1 is unknown, or has no value; see --help"
			set_option "$1" "$2"
			shift
			;;
		*) refuse "unexpected argument '$1'; see --help" ;;
		esac
		shift
	done
}

name_of() { printf '%s' "${1#--}" | tr - _; }
set_option() {
	case $1 in
	--vcpus | --writes | --backing | --eager | --dirty-bits | --populate)
		eval "$(name_of "$1")_list=\$(printf '%s' \"\$2\" | tr ',\\t\\n' '   ')"
		[ "$1" != --dirty-bits ] || dirty_bits_given=yes
		;;
	--bytes | --busy | --cycles | --pattern | --init-set | --iterations | --test | --output | --resume | --machine | --mode | --kernel | --verify)
		eval "$(name_of "$1")=\$2"
		;;
	*) refuse "unknown option $1; see --help" ;;
	esac
}

# What is given explicitly overrides it.
use_preset() {
	[ "$tracked" -eq 0 ] || [ -z "${init_set+given}" ] ||
		refuse '--init-set: with --tracked the log is empty at first, so there is nothing to choose'
	[ "$tracked" -eq 1 ] || [ -z "${populate_list+given}" ] || refuse '--populate: can be used only with --tracked'
	case $preset$tracked in
	quick0) set -- '2 8' '100 20' yes anonymous_hugetlb_2mb 2 ;;
	full0) set -- '2 4 8 14 16 32 64' '100 80 50 20 5 0' both 'anonymous_hugetlb_2mb anonymous_thp' 3 ;;
	# With initially-all-set are the VMs beside those that are tracked.
	quick1) set -- '2 8' '100 1' yes anonymous_hugetlb_2mb 3 ;;
	full1) set -- '2 4 8 14 16 32 64' '100 50 20 5 1' yes anonymous_hugetlb_2mb 3 ;;
	esac
	: "${populate_list=writes reads}"
	: "${vcpus_list=$1}" "${writes_list=$2}" "${init_set=$3}" "${backing_list=$4}" "${iterations=$5}"
}

# In: an option, its list, and the check that each item has to pass.
check_list() {
	option=$1 list=$2 seen=' '
	shift 2
	for item in $list; do
		"$@" "$item"
		case $seen in
		*" $item "*) refuse "$option: '$item' is given twice" ;;
		esac
		seen="$seen$item "
	done
	[ "$seen" != ' ' ] || refuse "$option: the list is empty"
}

# Six digits at most, so that no arithmetic overflows.
in_range() {
	case $3 in
	'' | *[!0-9]* | ???????* | 0?*) false ;;
	*) [ "$3" -ge "$1" ] && [ "$3" -le "$2" ] ;;
	esac || refuse "$option: '$3' is not a whole number from $1 to $2"
}

one_of() {
	for word in $1; do [ "$2" != "${word%,}" ] || return 0; done
	refuse "$option: '$2' is not one of $1"
}

parse_bytes() {
	number=${bytes%[KMGkmg]} unit=1
	case $bytes in
	*[Kk]) unit=1024 ;;
	*[Mm]) unit=1048576 ;;
	*[Gg]) unit=1073741824 ;;
	esac
	case $number in
	'' | *[!0-9]* | 0* | ????????????*) refuse "--bytes: '$bytes' is not a size; 4M and 1G are" ;;
	esac
	size=$((number * unit))
	[ "$size" -le 1099511627776 ] || refuse "--bytes: '$bytes' is more than 1024G"
	[ $((size % 4096)) -eq 0 ] || refuse "--bytes: '$bytes' is not a multiple of 4K"
}

check_backing() {
	mib=$(page_mib_of "$1") || refuse "--backing: '$1' is unknown; see --help for the names"
	[ -n "$mib" ] || refuse "--backing: '$1' needs a kernel with HugeTLB"
	[ "$pattern" != clean ] || [ "$mib" -gt 0 ] || refuse "--backing: '$1' is not HugeTLB memory, which --pattern clean needs"
	case "$tracked $mib $populate_list " in
	'1 0 '*'reads '*) refuse "--backing: '$1' is not HugeTLB memory, which --populate reads needs; use --populate writes" ;;
	esac
	[ "$1" != anonymous_thp ] || mib=2
	# The test rounds up to whole pages: a result would name another size than it has.
	[ "$mib" -eq 0 ] || [ $((size % (mib * 1048576))) -eq 0 ] ||
		refuse "--bytes: '$bytes' is not a whole number of $mib MiB pages ($1);" \
			"$(((size / 1048576 / mib + 1) * mib))M would be"
}

# MiB of a backing's HugeTLB pages, 0 where it has none. Fails for an unknown one.
page_mib_of() {
	case $1 in
	anonymous | anonymous_thp | shmem) echo 0 ;;
	anonymous_hugetlb_2mb) echo 2 ;;
	anonymous_hugetlb_1gb) echo 1024 ;;
	anonymous_hugetlb | shared_hugetlb) awk '/^Hugepagesize:/ { print $2 / 1024 }' "$root/proc/meminfo" ;;
	*) return 1 ;;
	esac
}

check_input() {
	check_list --vcpus "$vcpus_list" in_range 1 1024
	check_list --writes "$writes_list" in_range 0 100
	check_list --eager "$eager_list" one_of 'N, Y'
	# What is not asked for is recorded as it is; a kernel without it is off.
	[ -n "$dirty_bits_given" ] || dirty_bits_list=$(cat "$dirty_bits_param" 2>/dev/null) || dirty_bits_list=off
	[ -z "$dirty_bits_given" ] || check_list --dirty-bits "$dirty_bits_list" one_of 'off, on, auto'
	# With --tracked the third one is the first that is like those that follow.
	option=--iterations in_range $((2 + tracked)) 1000 "$iterations"
	option=--cycles in_range 1 1000 "$cycles"
	[ -z "$busy" ] || for vcpus in $vcpus_list; do option=--busy in_range 1 "$vcpus" "$busy"; done
	parse_bytes
	option=--pattern one_of 'pages, regions, clean' "$pattern"
	[ "$pattern" != regions ] || [ $((size % 2097152)) -eq 0 ] ||
		refuse "--bytes: '$bytes' is not a whole number of regions of 2M (--pattern regions)"
	[ "$tracked $pattern" != '1 clean' ] ||
		refuse '--pattern: clean cannot be used with --tracked; with --populate reads nothing is written before iteration 2'
	case $cycles:$tracked:$pattern in
	1:* | *:0:pages | *:0:regions) ;;
	*) refuse '--cycles: cannot be used with --tracked or --pattern clean; only the first cycle would begin as asked for' ;;
	esac
	option=--init-set one_of 'yes, no, both' "$init_set"
	init_list=$init_set
	[ "$init_set" != both ] || init_list='yes no'
	option=--kernel one_of 'series, peer, base' "$kernel"
	[ -z "$mode" ] || option=--mode one_of 'ept1, ept0, tdp, ept1-nopml, tdp-nopml' "$mode"
	option=--verify one_of 'first, only, no' "$verify"
	case $machine in
	'' | *[!A-Za-z0-9._-]*) refuse "--machine: '$machine' is not a name of letters, digits, '.', '_' and '-'" ;;
	esac
	check_list --populate "$populate_list" one_of 'writes, reads'
	name_loads
	check_list --backing "$backing_list" check_backing
	[ -z "$resume" ] || [ -z "$output" ] || [ "$resume" = "$output" ] ||
		refuse "--resume: names the file of the results, so --output must not name another one, '$output'"
	output=${resume:-$output}
}

# What the runs with the same numbers of a matrix differ by: how memory is populated, and whether it is logged by then. The
# names are those of "make bench WHAT=tracking". Without --tracked there is one such load, and init_list.
name_loads() {
	load_list='writes-not-logged'
	[ "$tracked" -eq 1 ] || return 0
	load_list=
	for load in $populate_list; do load_list="$load_list $load-not-logged $load"; done
}

is_tracked() {
	case $load in *-not-logged) false ;; esac
}

# The matrix: the largest number of vCPUs in it, and the runs that --resume found complete,
# " INIT WRITES VCPUS EAGER BACKING DIRTY_BITS LOAD; ...", with resumed, their lines of results.
largest=0 verified=0 runs_done=0 work_done=0 failures=0 done_runs='' resumed=''

# Calls $1, in order, for each run that is not done, whose values are in the loops'
# variables; stops when it fails.
for_each_run() {
	for backing in $backing_list; do for all_set in $init_list; do for writes in $writes_list; do
		for vcpus in $vcpus_list; do for eager in $eager_list; do for dirty_bits in $dirty_bits_list; do
			for load in $load_list; do
				init=$all_set
				! is_tracked || init=no
				run="$init $writes $vcpus $eager $backing $dirty_bits $load"
				case $done_runs in
				*" $run;"*) ;;
				*) "$1" || return 1 ;;
				esac
			done
		done; done; done
	done; done; done
}

# A run's share of the total time: what grows with its vCPUs and cycles, and starting it.
count_run() {
	[ "$vcpus" -le "$largest" ] || largest=$vcpus
	runs_total=$((runs_total + 1))
	work_total=$((work_total + vcpus * cycles + 2))
}

count_runs() {
	runs_total=0 work_total=0
	for_each_run count_run
}

# Calls $1 for each run that is verified: whatever changes what KVM does, once.
for_each_verified() {
	all_vcpus=$vcpus_list all_writes=$writes_list all_done=$done_runs
	# shellcheck disable=SC2086 # one word per number is wanted
	vcpus_list=$(fewest $all_vcpus) writes_list=$(most $all_writes) done_runs=''
	for_each_run "$1"
	status=$?
	vcpus_list=$all_vcpus writes_list=$all_writes done_runs=$all_done
	return "$status"
}

fewest() {
	found=$1
	for item; do [ "$item" -ge "$found" ] || found=$item; done
	echo "$found"
}

most() {
	found=$1
	for item; do [ "$item" -le "$found" ] || found=$item; done
	echo "$found"
}

test_arguments() {
	arguments="-s $backing -b $size -v $vcpus -w $writes -i $iterations"
	[ "$init" = yes ] || arguments="$arguments -g"
	! is_tracked || arguments="$arguments --tracked"
	case $load in reads*) arguments="$arguments --read-first" ;; esac
	! is_pinned || arguments="$arguments -c $(pin_list)"
	[ -z "$busy" ] || arguments="$arguments --idle=$((vcpus - busy))"
	[ "$pattern" = pages ] || arguments="$arguments --pattern=$pattern"
	[ "$cycles" -eq 1 ] || arguments="$arguments --cycles=$cycles"
	host_eager=$eager host_dirty_bits=$dirty_bits
	[ "$per_vm" -eq 0 ] || choose_per_vm
}

# With "auto", the host decides for the VM.
choose_per_vm() {
	case $eager in N) arguments="$arguments --chunk=0" ;; Y) arguments="$arguments --chunk=1G" ;; esac
	host_eager=Y
	[ -n "$dirty_bits_given" ] || return 0
	case $dirty_bits in on | off) arguments="$arguments --dirty-bits=$dirty_bits" ;; esac
	host_dirty_bits=auto
}

show_run() {
	test_arguments
	show_call
}

show_call() {
	printf 'eager_page_split=%s %s%s %s\n' "$host_eager" "${dirty_bits_given:+dirty_bits=$host_dirty_bits }" "$test" "$arguments"
}

describe_run() {
	crowd='' without='' behind=''
	! is_overcommitted "$vcpus" || crowd=' overcommitted'
	[ "$init" = yes ] || without='without '
	log="${without}initially-all-set"
	[ "$tracked" -eq 0 ] || log="$(is_tracked || echo 'not ')tracked, populated by ${load%-not-logged}"
	[ "$backing" = "$backing_list" ] || behind=", $backing"
	printf '%s%s vCPUs, %s%% writes, %s, eager_page_split=%s%s%s' "$vcpus" "$crowd" "$writes" "$log" \
		"$eager" "${dirty_bits_given:+, dirty_bits=$dirty_bits}" "$behind"
}

show_verified() {
	test_arguments
	arguments="-V $arguments"
	show_call
}

show_plan() {
	[ "$verify" = no ] || { echo 'verified, untimed:'; for_each_verified show_verified; }
	[ "$verify" != only ] || return 0
	printf '%s runs:\n' "$runs_total"
	for_each_run show_run
	for backing in $backing_list; do
		page_mib=$(page_mib_of "$backing")
		[ "$page_mib" -eq 0 ] || printf 'HugeTLB pool while they run: %s pages of %s MiB\n' "$(pool_wanted)" "$page_mib"
	done
	printf 'results: %s\n' "${output:-table only}"
}

check_host() {
	[ -e "$root/dev/kvm" ] || refuse 'there is no /dev/kvm: is KVM loaded, and virtualisation enabled in the firmware?'
	[ -r "$eager_param" ] ||
		refuse "no parameter eager_page_split in /sys/module/kvm/parameters: this kernel's KVM cannot split eagerly"
	[ -z "$dirty_bits_given" ] || [ -r "$dirty_bits_param" ] ||
		refuse "--dirty-bits: no parameter dirty_bits in /sys/module/kvm/parameters: this kernel's KVM cannot log by Dirty bits"
	[ -w "$eager_param" ] || refuse 'not root: only root can change eager_page_split and the HugeTLB pool; try sudo'
	others=$(count_others)
	[ "$others_ok" -eq 1 ] || [ "$others" -eq 0 ] ||
		refuse "$others other VM(s) run here, and eager_page_split applies to all of them; stop them, or use --others-ok"
	case " $backing_list $(cat "$root/sys/kernel/mm/transparent_hugepage/enabled" 2>/dev/null)" in
	*' anonymous_thp '*'[never]'*)
		refuse 'transparent huge pages are off; as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled' ;;
	esac
}

# Thousands of links: a few ls, not a readlink each; nor one ls, as the words of a command have a limit. Anybody can
# open a file whose name ends like that of a VM.
count_others() {
	# shellcheck disable=SC2012 # numbers
	(cd "$root/proc" && printf '%s\n' [0-9]*/fd | xargs ls -l) 2>/dev/null | grep -c '^[^>]* -> anon_inode:kvm-vm$'
}

# Counted before and after each run, as a VM can start at any moment. The parameters are global: it has those
# of the benchmark, dirty_bits for as long as it runs. So nothing more is measured, and they are restored.
check_alone() {
	[ "$others_ok" -eq 0 ] || return 0
	others=$(count_others)
	[ "$others" -ne 0 ] || return 0
	complain "$others other VM(s) started meanwhile: the run '$(describe_run)' is discarded, the settings of this host are" \
		"restored${dirty_bits_given:+; a VM keeps the dirty_bits that it started with}; continue later by --resume, or use --others-ok"
}

# A kernel with both vendors built in has both parameters, whatever the CPU is.
# The TDP MMU needs TDP: its parameter keeps saying Y with ept=N or npt=N.
read_mode() {
	tdp_name=npt tdp_file=$root/sys/module/kvm_amd/parameters/npt
	! grep -q '^flags.* vmx' "$root/proc/cpuinfo" ||
		tdp_name=ept tdp_file=$root/sys/module/kvm_intel/parameters/ept
	[ -r "$tdp_file" ] || refuse "no ${tdp_file#"$root"}: is the vendor's KVM module loaded?"
	ept=$(says grep -q "^[Yy1]" "$tdp_file")
	tdp_mmu=false pml=true
	[ "$ept" = false ] || tdp_mmu=$(says grep -q "^[Yy1]" "$params/tdp_mmu")
	# pml: false where EPT is on and the CPU does not log by itself. PML belongs to EPT:
	# without that its parameter says nothing, and AMD has neither.
	pml_file=$root/sys/module/kvm_intel/parameters/pml
	[ "$tdp_name $ept" != 'ept true' ] || [ ! -r "$pml_file" ] || pml=$(says grep -q "^[Yy1]" "$pml_file")
	release=$(uname -r)
	case $ept$tdp_mmu in
	truetrue) is=tdp ;;
	true*) is=ept1 ;;
	*) is=ept0 ;;
	esac
	[ "$pml" = true ] || is=$is-nopml
	[ "${mode:-$is}" = "$is" ] || refuse "--mode: KVM was loaded as $is, not as $mode: $tdp_name=$ept, tdp_mmu=$tdp_mmu, pml=$pml"
}

# For JSON: whether a command succeeds.
says() { if "$@" 2>/dev/null; then echo true; else echo false; fi; }

# Sets cpus, the number of those that a process may use and that are on, and
# pin_order: one of each core first, since siblings share what is measured.
read_cpus() {
	pin_order=$(awk -v root="$root" '
	# A list as the kernel writes it, "0-3,8"; "0-1023" may stand for CPUs that are not.
	function take(list, set,    parts, ends, i, cpu) {
		for (i = split(list, parts, ","); i > 0; i--) {
			if (split(parts[i], ends, "-") == 1) ends[2] = ends[1]
			for (cpu = ends[1] + 0; cpu <= ends[2] + 0; cpu++) { set[cpu] = 1; if (cpu > last) last = cpu }
		}
	}
	$1 == "Cpus_allowed_list:" { take($2, may) }
	FILENAME ~ /online$/ { take($1, on) }
	END {
		for (cpu = 0; cpu <= last; cpu++) if ((cpu in may) && (cpu in on)) {
			core = cpu
			file = root "/sys/devices/system/cpu/cpu" cpu "/topology/thread_siblings_list"
			getline core <file
			close(file)
			if (core in met) others = others " " cpu; else firsts = firsts " " cpu
			met[core] = 1
		}
		print firsts others
	}' "$root/proc/self/status" "$root/sys/devices/system/cpu/online")
	cpus=$(echo "$pin_order" | wc -w)
}

# The vCPUs and the main thread do not have a CPU each.
is_overcommitted() { [ "$1" -ge "$cpus" ]; }
is_pinned() { [ "$pin" -eq 1 ] && ! is_overcommitted "$vcpus"; }

# As dirty_log_perf_test takes it: the vCPUs' CPUs, then the main thread's. That
# is the first one, which tends to have the host's interrupts.
pin_list() { echo "$pin_order" | awk -v n="$vcpus" '{ for (i = 2; i <= n + 1; i++) printf "%s,", $i; print $1 }'; }

# The test splits the host's use of one global parameter: one at a time. The kernel drops the lock when
# the script ends, however it ends, and the test that it has started. Without /run, as in a machine of the
# lab, nothing else runs.
take_lock() {
	[ -z "$locked" ] && [ -d "$root/run" ] || return 0
	lock_file=$root/run/$name.lock
	command -v flock >/dev/null || refuse 'there is no command flock: it is in util-linux'
	# Not a file that users can open, and lock.
	(umask 077 && : >>"$lock_file") 2>/dev/null || refuse "$root/run cannot be written: is it mounted read-only?"
	exec 9>>"$lock_file"
	# kvm-eager-split status has it for a moment, too.
	flock -w 1 9 || {
		writer=$(journal_writer)
		refuse "another split-bench.sh, or a test that it has started, is running: ${writer:-it has changed nothing yet} ($lock_file)"
	}
	locked=yes
}

# Files of root in a directory that is nobody else's, whatever TMPDIR says. One that was killed
# may have left it.
make_scratch() {
	[ -n "$locked" ] || { scratch=$(mktemp -d); return; }
	scratch=$root/run/$name
	rm -rf "$scratch" && (umask 077 && mkdir "$scratch") 2>/dev/null
}

# Restores what was left by one that was killed, before anything is read from the host.
restore_killed() {
	[ -e "$journal" ] || return 0
	[ ! -e "$eager_param" ] || [ -w "$eager_param" ] ||
		refuse "not root: $(journal_writer) was killed, or is running; see kvm-eager-split status"
	take_lock
	! grep -q '^modules ' "$journal" || refuse "$(journal_writer) is replacing modules, or was killed; see kvm-eager-split status"
	restore_left_behind || exit 2
}

# One 2 MiB page to spare, for a test that aligns its mapping; none of 1 GiB.
pool_wanted() { echo $((largest * size / (page_mib * 1048576) + (page_mib < 1024))); }

# Pages that are free and not promised to another process.
pool_free() { echo $(($(cat "$pool_dir/free_hugepages") - $(cat "$pool_dir/resv_hugepages"))); }

# In: MiB that are wanted and that there are of a HugeTLB pool, and the size of its pages.
too_little() {
	complain "too little memory for the HugeTLB pool: wanted $1 MiB in $3 MiB pages, had $2 MiB;" \
		"use fewer --vcpus or smaller --bytes"
}

# In: MiB that are to be taken. The reserve is for the test itself, KVM's page tables and the host's other
# processes. A pool that takes the last pages has the host reclaim for minutes, and kill processes.
check_memory() {
	needed=$(($1 + 64 + $1 / 128))
	available=$(($(sed -n 's/^MemAvailable: *\([0-9]*\) kB$/\1/p' "$root/proc/meminfo") / 1024))
	[ "$needed" -le "$available" ] || complain "too little memory: wanted $needed MiB, a reserve of" \
		"$((needed - $1)) MiB included, had $available MiB available; use fewer --vcpus or smaller --bytes"
}

grow_pool() {
	pool_dir=$root/sys/kernel/mm/hugepages/hugepages-$((page_mib * 1024))kB
	[ -w "$pool_dir/nr_hugepages" ] || { complain "no HugeTLB pool of $page_mib MiB pages on this host"; return; }
	wanted=$(pool_wanted) had=$(pool_free)
	[ "$had" -lt "$wanted" ] || return 0
	check_memory $(((wanted - had) * page_mib)) || return 1
	# What is written is the number of pages without surplus ones. The kernel makes those permanent
	# before it allocates others, so they are part of the new number, but not of the old one.
	was=$(value_of "${pool_dir#"$root"}/nr_hugepages") || return 1
	pool_new=$(($(cat "$pool_dir/nr_hugepages") + wanted - had))
	note "$pool_dir/nr_hugepages" "$pool_new" "$was" || return 1
	pool_got='' pool_file=$pool_dir/nr_hugepages pool_was=$was
	{ echo "$pool_new" >"$pool_file"; } 2>/dev/null
	pool_got=$(value_of "${pool_file#"$root"}")
	had=$(pool_free)
	[ "$had" -ge "$wanted" ] || too_little $((wanted * page_mib)) $((had * page_mib)) "$page_mib"
}

# Makes the memory of one backing available, and gives back that of the last one.
memory_of=
use_memory() {
	[ "$1" != "$memory_of" ] || return 0
	put_back_pool || return 1
	pool_was=
	page_mib=$(page_mib_of "$1")
	if [ "$page_mib" -gt 0 ]; then grow_pool; else check_memory $((largest * size / 1048576)); fi || return 1
	memory_of=$1
}

# The results may go to a directory of another user, who can put a link in the place of any name there, at
# any moment. So the directory is opened once, a new file has a name that nobody knows and may not be there, and
# whatever is done to a file is done to one that is open.
directory=/proc/self/fd/7
open_directory() {
	[ -n "$output" ] || return 0
	output_name=${output##*/}
	[ ! -L "$output" ] || refuse "--output: '$output' is a symbolic link; name the file itself"
	[ ! -d "$output" ] || refuse "--output: '$output' is a directory"
	[ ! -e "$output" ] || [ -f "$output" ] || refuse "--output: '$output' is not a regular file"
	[ -d "$(dirname "$output")" ] || refuse "--output: there is no directory '$(dirname "$output")'"
	exec 7<"$(dirname "$output")"
}

# Opens the results so far, if there are any, as descriptor 6, and sets has_results. Fails if their name is that of
# another file. To open a FIFO that the owner of the directory has put there just now takes forever.
open_results() {
	has_results=''
	[ -e "$directory/$output_name" ] || return 0
	[ -f "$directory/$output_name" ] && exec 6<"$directory/$output_name" || exit 1
	[ -f /proc/self/fd/6 ] &&
		[ "$(stat -c %d:%i "$directory/$output_name")" = "$(stat -L -c %d:%i /proc/self/fd/6)" ] || exit 1
	has_results=yes
}

# Runs a function in a process of its own, so that a signal ends it: a shell handles none while it waits for the
# foreground. That process opens the results itself: one that it has started would outlive it.
in_background() {
	"$@" &
	wait "$!"
	status=$?
	last_child=$!
	return "$status"
}

# Sets output_tmp to a name that nothing has. Only the name (-u): the file is made later by a shell with -C, which opens none
# that is there, and with the mode that the old one asks for.
name_new() { output_tmp=$(mktemp -u "$directory/.$name.XXXXXX"); }

# Results are worth nothing when they cannot be kept: the room is taken beforehand.
check_output() {
	[ -n "$output" ] || return 0
	name_new
	in_background try_output || {
		[ "$status" -ne 1 ] || complain "--output: another file has taken the place of '$output'"
		exit 2
	}
	rm -f "$output_tmp"
}

# With -C the shell opens no file that is there.
try_output() {
	open_results
	[ -z "$has_results" ] || [ -z "$(tail -c 1 <&6)" ] ||
		refuse "--output: '$output' does not end with a newline; is it a file of JSON lines?"
	# 550 bytes hold a line; the old content is copied, see append_results.
	kib=$((runs_total * (1 + cycles * (2 + 3 * iterations)) * 550 / 1024 + 1))
	[ -z "$has_results" ] || kib=$((kib + $(stat -L -c %s /proc/self/fd/6) / 1024 + 1))
	set -C
	dd if=/dev/zero bs=1024 count="$kib" 2>/dev/null >"$output_tmp" ||
		refuse "--output: no room for $kib KiB beside '$output', or not writable"
}

# The owner and the mode stay, as well.
copy_results() {
	cat <&6 && chown "$(stat -L -c %u:%g /proc/self/fd/6)" /proc/self/fd/8 &&
		chmod "$(stat -L -c %a /proc/self/fd/6)" /proc/self/fd/8
}

all_results() { { [ -z "$has_results" ] || copy_results; } && cat "$scratch/new"; }

# Not into a directory that has taken the name; and the new file, not one that has taken its place.
rename_new() {
	mv -fT "$output_tmp" "$directory/$output_name" &&
		[ "$(stat -c %d:%i "$directory/$output_name")" = "$(stat -L -c %d:%i /proc/self/fd/8)" ]
}

replace_results() {
	open_results
	[ -z "$has_results" ] || umask 077
	set -C
	{ all_results >&8 && rename_new; } 2>/dev/null 8>"$output_tmp"
}

# A copy that replaces the file: there are whole test runs only in it, whatever happens.
append_results() {
	{ cat "$scratch/new" >>"$scratch/all"; } 2>/dev/null || {
		complain "could not keep results for the table in $scratch: no space left?"
		return
	}
	[ -n "$output" ] || return 0
	name_new
	in_background replace_results && return 0
	rm -f "$output_tmp"
	complain "could not write '$output': no space left, or is another file there?"
}

# For awk: what a line of JSON has for a key, MISSING if it has no such key.
# shellcheck disable=SC2016 # that is awk's $0
json_value='
	function value(key, missing,    rest, at) {
		at = index($0, "\"" key "\": ")
		if (!at) return missing
		rest = substr($0, at + length(key) + 4)
		sub(/[,}].*/, "", rest)
		gsub(/"/, "", rest)
		return rest
	}
	function load() {
		return (value("read_first") == "true" ? "reads" : "writes") (value("tracked") == "true" ? "" : "-not-logged")
	}
'

# Out: what is wrong with the file, else an empty line; the last line's MACHINE KERNEL RELEASE
# EPT TDP_MMU PML CPUS, since that is what a matrix was interrupted at; the runs that there
# are of that setting and this memory size, as in done_runs; then the lines of these runs.
read_results() {
	awk -v bytes="$size" -v busy="$busy" -v pattern="$pattern" -v pin="$pin" -v cpus="$cpus" -v n="$iterations" \
		-v cycles="$cycles" -v tracked="$tracked" "$json_value"'
	{
		setting = value("machine") " " value("kernel") " " value("kernel_version") " " value("ept") " " \
			value("tdp_mmu") " " value("pml", "true")
		# The table shows what it has: nothing that a terminal obeys.
		if ($0 !~ /^[{].*[}]$/ || /[[:cntrl:]]/ || split(setting, words, " ") != 6 || value("phase") == "" || value("seconds") !~ /^[0-9]+(\.[0-9]+)?$/) {
			wrong = "cannot be resumed: line " NR " is not a result of this script"
			exit
		}
		if (value("dirty_harvest") != "") {
			wrong = "has the old name dirty_harvest of dirty_bits; run: sed -i s/dirty_harvest/dirty_bits/ FILE"
			exit
		}
		had = value("cpus", "-")
		if (value("bytes_per_vcpu") != bytes || value("idle", 0) != (busy ? value("vcpus") - busy : 0) || value("pattern", "pages") != pattern) next
		# Those that a matrix of this kind has.
		if (tracked ? load() == "writes-not-logged" && value("initially_all_set") != "true" : load() != "writes-not-logged") next
		run = (value("initially_all_set") == "true" ? "yes " : "no ") value("write_percent") " " value("vcpus") " " \
			(value("eager") == "true" ? "Y " : "N ") value("backing") " " value("dirty_bits", "off") " " load()
		pinned = pin == 1 && value("vcpus") + 0 < cpus + 0 ? "true" : "false"
		times[setting, run]++
		if (value("cycle", 1) + 0 > had_cycles[setting, run] + 0) had_cycles[setting, run] = value("cycle", 1)
		if (value("pinned", pinned) != pinned) other[setting] = 1
		of[NR] = setting; line[NR] = $0
	}
	END {
		for (one in times) {
			split(one, parts, SUBSEP)
			if (parts[1] != setting) continue
			done = done " " parts[2] ";"
			if (times[one] != 1 + cycles * (2 + n * (parts[2] ~ /^yes/ ? 3 : 2)) || had_cycles[one] != cycles)
				other[setting] = 1
		}
		if (!wrong && other[setting]) wrong = "contains runs with other --iterations, --cycles or pinning, or a run twice"
		print wrong "\n" setting, had "\n" done
		for (i = 1; i <= NR; i++) if (of[i] == setting) print line[i]
	}'
}

# Sets done_runs, resumed, and the last line's setting.
read_resumed() {
	[ -n "$resume" ] || return 0
	[ -e "$output" ] || refuse "--resume: there is no file '$output'; begin with --output '$output'"
	[ -r "$output" ] || refuse "--resume: '$output' cannot be read"
	{ IFS= read -r wrong; IFS= read -r last_setting; IFS= read -r done_runs; resumed=$(cat); } <<END
$( (open_results && read_results <&6) || echo 'was replaced meanwhile')
END
	[ -z "$wrong" ] || refuse "--resume: '$output' $wrong"
}

check_same_setting() {
	# shellcheck disable=SC2086 # one word per value is wanted
	set -- ${last_setting-}
	[ $# -gt 0 ] || return 0
	for now in "machine $machine" "kernel $kernel" "Linux $release" "$tdp_name $ept" "tdp_mmu $tdp_mmu" \
		"pml $pml" "usable CPUs: $cpus"; do
		[ "$1" = "${now##* }" ] || [ "$1" = - ] ||
			refuse "--resume: '$output' was interrupted on ${now% *} $1, this is ${now##* }"
		shift
	done
}

# From the test's JSON to lines of results. Fails when a time is missing or doubled: the
# test is not the one known.
read_times() {
	head=$(printf '"%s": "%s", ' machine "$machine" kernel "$kernel" kernel_version "$release")
	head=$head$(printf '"%s": %s, ' ept "$ept" tdp_mmu "$tdp_mmu" vcpus "$vcpus" bytes_per_vcpu "$size" \
		backing "\"$backing\"" write_percent "$writes" \
		initially_all_set "$(says [ "$init" = yes ])" eager "$(says [ "$eager" = Y ])")
	tail="\"dirty_bits\": \"$dirty_bits\", "
	[ "$pml" = true ] || tail="$tail\"pml\": false, "
	[ -z "$busy" ] || tail="$tail\"idle\": $((vcpus - busy)), "
	[ "$pattern" = pages ] || tail="$tail\"pattern\": \"$pattern\", "
	! is_tracked || tail="$tail\"tracked\": true, "
	case $load in reads*) tail="$tail\"read_first\": true, " ;; esac
	tail=$tail$(printf '"%s": %s, ' cpus "$cpus" overcommitted "$(says is_overcommitted "$vcpus")" pinned "$(says is_pinned)")
	[ -f "$scratch/json" ] && awk -v n="$iterations" -v cycles="$cycles" -v init="$init" -v tracked="$(says is_tracked)" \
		-v head="$head" -v tail="$tail" "$json_value"'
	# A key and its value, if the test says any.
	function said(key,    is) {
		is = value(key)
		return is == "" || is == "null" ? "" : "\"" key "\": " is ", "
	}
	function of(cycle) { return cycle == 1 ? "" : " of " cycle }
	BEGIN {
		wanted = tracked == "true" ? " enable null populate null" : " populate null enable null"
		for (c = 1; c <= cycles; c++) {
			if (c > 1) wanted = wanted " enable null" of(c)
			for (i = 1; i <= n; i++) wanted = wanted " dirty " i of(c) " get " i of(c) (init == "yes" ? " clear " i of(c) : "")
			wanted = wanted " disable null" of(c)
		}
	}
	# Of a tracked VM it comes behind the phase that it is about, of others before logging is disabled.
	value("record") == "memory" {
		memory[tracked == "true" ? what[count] : "disable null" of(value("cycle", 1))] = said("pages_2m") said("page_tables")
	}
	value("record") == "phase" && value("seconds") ~ /^[0-9]+\.[0-9]+$/ {
		what[++count] = value("phase") " " value("iteration") of(value("cycle", 1))
		found = found " " what[count]
		first[count] = "{" head "\"phase\": \"" value("phase") "\", \"iteration\": " value("iteration") ", " said("cycle") tail
		last[count] = (tracked == "true" ? said("logged") said("pf_taken") : "") "\"seconds\": " value("seconds") "}"
	}
	END {
		for (i = 1; i <= count; i++) print first[i] memory[what[i]] last[i]
		exit found != wanted
	}' "$scratch/json" >"$scratch/new"
}

# KVM reads dirty_bits when the test creates its VM.
set_parameters() {
	test_arguments
	set_one "$eager_param" "$host_eager" "$eager_was" &&
		{ [ -z "$dirty_bits_given" ] || set_one "$dirty_bits_param" "$host_dirty_bits" "$dirty_bits_was"; }
}

# set_one FILE NEW OLD
set_one() {
	note "$@" || return 1
	taken=
	{ echo "$2" >"$1" && read -r taken <"$1"; } 2>/dev/null
	[ "$taken" = "$2" ] && return 0
	complain "${1##*/} did not take the value $2"
}

# In the background, because a shell handles no signal while it waits for a
# command in the foreground.
run_test() {
	rm -f "$scratch/json"
	# shellcheck disable=SC2086 # one word per argument is wanted
	"$test" $arguments -j "$scratch/json" >"$scratch/output" 2>&1 </dev/null &
	wait "$!"
	status=$?
	last_child=$!
	return "$status"
}

# Ends with what the test said, on one line.
failed_run() {
	said=$(grep -v '^[[:space:]]*$' "$scratch/output" | tail -n 3 | tr -s '\n\t ' '   ')
	complain "$(describe_run): $1: ${said:-it printed nothing}"
	failures=$((failures + 1))
	[ "$keep_going" -eq 1 ]
}

# It says what the test says: which page is missing from the log, or what is not split.
verify_run() {
	# In the unpatched kernel the shadow MMU does not split: it only says that it would.
	[ "$kernel $tdp_mmu $eager" != 'base false Y' ] || is_tracked || return 0
	verified=$((verified + 1))
	progress 0 "verifying: $(describe_run)"
	check_alone && use_memory "$backing" && set_parameters || return 1
	arguments="-V $arguments"
	run_test
	check_alone || return 1
	[ "$status" -eq 0 ] || failed_run "wrong, or not verified: the test with -V ended with status $status"
}

verify_all() {
	[ "$verify" != no ] && [ "$runs_total" -gt 0 ] || return 0
	for_each_verified verify_run && [ "$failures" -eq 0 ]
}

measure() {
	progress $((100 * work_done / work_total)) "$((runs_done + 1))/$runs_total $(describe_run)"
	runs_done=$((runs_done + 1))
	work_done=$((work_done + vcpus * cycles + 2))
	check_alone && use_memory "$backing" && set_parameters || return 1
	run_test
	check_alone || return 1
	if [ "$status" -ne 0 ]; then
		failed_run "the test ended with status $status"
	elif ! read_times; then
		failed_run "the test's times are not those of $iterations iterations$([ "$cycles" -eq 1 ] || echo " in each of $cycles cycles")"
	else
		append_results
	fi
}

print_caption() {
	printf '\n%s, Linux %s (%s), %s=%s, tdp_mmu=%s, %s per vCPU; milliseconds\n' "$machine" "$release" "$kernel" \
		"$tdp_name" "$ept" "$tdp_mmu" "$bytes" | sed 's/=true/=Y/g; s/=false/=N/g'
	if [ "$tracked" -eq 1 ]; then explain_tracked; else explain; fi
	! is_overcommitted "$largest" ||
		printf '*: overcommitted, %s CPUs for the vCPUs and the test: the times hold waits for a CPU\n' "$cpus"
	echo
}

explain() {
	cat <<END
N and Y: eager_page_split. Dirty: the first iteration that pays for splitting. Split: the call
before it that splits, with initially-all-set (set) the first CLEAR, else enabling. Log: the next
call that write-protects, with initially-all-set the second CLEAR, else the second GET.
END
	[ "$cycles" -eq 1 ] || echo 'Cycle: enabling, all iterations and disabling, once more in the same VM.'
}

explain_tracked() {
	cat <<END
VMs that are logged before they access any memory. /plain: in units of the same time of a VM that is logged later.
Populate: all memory is accessed for the first time, by writes or by reads. 2 MiB: pages of that size that map it then.
1st, 2nd, last: iterations. By reads, the 1st reads all memory again, and the 2nd is the first that writes; /CLEAR: in
units of the first writes after a CLEAR in a VM that is logged later, with eager_page_split=N. By writes, all write.
Faults: page faults in the 2nd. Logged: pages in the log after the 1st. GET: the call after the last; it clears the log.
END
}

# For awk: times in a table.
digits='
	function digits(x) { return sprintf(x >= 99.95 ? "%.0f" : x >= 9.995 ? "%.1f" : x >= 0.9995 ? "%.2f" : "%.3f", x) }
	function ms(s) { return s == "" ? "-" : digits(s * 1000) }
	function ratio(a, b) { return a == "" || b == "" || b == 0 ? "-" : digits(a / b) }
	function vcpus() { return value("vcpus") (value("vcpus") + 0 >= cpus + 0 ? "*" : "") }
'

# Markdown, aligned so that it reads as it is; a row has the runs that only differ in
# eager_page_split.
print_table() {
	awk -v cpus="$cpus" -v cycles="$cycles" "$json_value$digits"'
	function pair(row, what) { return sprintf(" %7s | %7s |", ms(time[row, "false", what]), ms(time[row, "true", what])) }
	{
		row = sprintf("| %-21s | %-3s | %6s | %-10s | %5s |", value("backing"), \
			value("initially_all_set") == "true" ? "yes" : "no", value("write_percent"), value("dirty_bits", "off"), vcpus())
		if (cycles > 1) row = row sprintf(" %5s |", value("cycle", 1))
		if (!(row in set)) rows[++count] = row
		set[row] = value("initially_all_set") == "true"
		time[row, value("eager"), value("phase") " " value("iteration")] = value("seconds")
	}
	END {
		print "| backing               | set | writes | dirty_bits | vCPUs |" (cycles > 1 ? " cycle |" : "") " dirty N | dirty Y |   N/Y | split N | split Y |   log N |   log Y |"
		print "|-----------------------|-----|-------:|------------|------:|" (cycles > 1 ? "------:|" : "") "--------:|--------:|------:|--------:|--------:|--------:|--------:|"
		for (i = 1; i <= count; i++) {
			row = rows[i]
			first = set[row] ? "dirty 2" : "dirty 1"
			print row pair(row, first) sprintf(" %5s |", ratio(time[row, "false", first], time[row, "true", first])) \
				pair(row, set[row] ? "clear 1" : "enable null") pair(row, set[row] ? "clear 2" : "get 2")
		}
	}' "$scratch/all"
}

# A row for each tracked VM.
print_tracked() {
	awk -v cpus="$cpus" -v n="$iterations" "$json_value$digits"'
	function known(x) { return x == "" ? "-" : x }
	{
		by = load()
		is_tracked = sub(/-not-logged$/, "", by) == 0
		vm = sprintf("| %-21s | %-6s | %6s | %-10s | %5s |", value("backing"), by, value("write_percent"), value("dirty_bits", "off"), vcpus())
		row = vm (value("eager") == "true" ? " Y     |" : " N     |")
		phase = value("phase") " " value("iteration")
		lazy[row] = vm " N     |"
		reads[row] = by == "reads"
		if (is_tracked) {
			if (!(row in seen)) rows[++count] = row
			seen[row] = 1
			time[row, phase] = value("seconds")
			if (phase == "populate null") huge[row] = value("pages_2m")
			if (phase == "get 1") logged[row] = value("logged")
			if (phase == "dirty 2") faults[row] = value("pf_taken")
		} else plain[row, phase] = value("seconds")
	}
	END {
		print "| backing               | by     | writes | dirty_bits | vCPUs | eager | populate | /plain |     1st | /plain |     2nd | /CLEAR |  faults |    last |     GET |   2 MiB |  logged |"
		print "|-----------------------|--------|-------:|------------|------:|-------|---------:|-------:|--------:|-------:|--------:|-------:|--------:|--------:|--------:|--------:|--------:|"
		for (i = 1; i <= count; i++) {
			row = rows[i]
			printf "%s %8s | %6s | %7s | %6s | %7s | %6s | %7s | %7s | %7s | %7s | %7s |\n", row, \
				ms(time[row, "populate null"]), ratio(time[row, "populate null"], plain[row, "populate null"]), \
				ms(time[row, "dirty 1"]), ratio(time[row, "dirty 1"], plain[row, "dirty 1"]), \
				ms(time[row, "dirty 2"]), ratio(time[row, "dirty 2"], reads[row] ? plain[lazy[row], "dirty 2"] : ""), known(faults[row]), \
				ms(time[row, "dirty " n]), ms(time[row, "get " n]), known(huge[row]), known(logged[row])
		}
	}' "$scratch/all"
}

show_results() { print_caption; if [ "$tracked" -eq 1 ]; then print_tracked; else print_table; fi; }

prepare() {
	{ [ -f "$test" ] && [ -x "$test" ]; } || refuse "--test: '$test' is not an executable file"
	# Without a slash the shell would look for it in PATH.
	case $test in */*) ;; *) test=./$test ;; esac
	check_host
	read_mode
	check_same_setting
	catch_signals
	take_lock
	[ ! -e "$journal" ] || refuse "$(journal_writer) was killed just now: start again"
	make_scratch || refuse 'no room for a temporary directory'
	check_output
	# Every backing is tried before the first run, the first one last: it is better to hear of
	# too little memory now than hours later.
	for backing in $backing_list ${backing_list%% *}; do use_memory "$backing" || exit 2; done
	eager_was=$(cat "$eager_param")
	[ -z "$dirty_bits_given" ] || dirty_bits_was=$(cat "$dirty_bits_param")
	# The table has what the file held, too.
	[ -z "$resumed" ] || { printf '%s\n' "$resumed" >"$scratch/all"; } 2>/dev/null ||
		refuse "no room in $scratch for the results of '$output'"
	[ -z "$resume" ] || [ "$quiet" -eq 1 ] ||
		printf '%s: %s of %s runs are still to be measured\n' "$name" "$runs_total" "$runs_wanted" >&2
}

main() {
	parse_options "$@"
	use_preset
	[ "$dry_run" -eq 1 ] || restore_killed
	check_input
	read_cpus
	count_runs
	runs_wanted=$runs_total
	open_directory
	read_resumed
	count_runs
	[ "$dry_run" -eq 0 ] || { print show_plan; exit; }
	prepare
	verify_all || { complain 'nothing was measured: see above'; exit 1; }
	[ "$verify$verified" != only0 ] || { complain 'nothing was verified: no run is left, or this kernel splits nothing'; exit 1; }
	[ "$verify" != only ] || { progress 100 'verified'; exit; }
	started=$(date +%s)
	for_each_run measure || failures=$((failures + 1))
	[ "$failures" -gt 0 ] || progress 100 "$runs_total/$runs_total done"
	[ ! -s "$scratch/all" ] || print show_results
	[ "$failures" -eq 0 ]
}

main "$@"
