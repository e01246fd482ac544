#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# split-bench.sh - measure eager_page_split=N beside =Y in one boot.
#
# Method: for every combination of backing, log mode, write percentage, vCPU
# count, value of eager_page_split and, if asked for, of dirty_harvest, one run of
# dirty_log_perf_test, whose own times are taken as they are. Both parameters
# change fastest, so that the host has the same history for what is compared.
# Where the CPUs suffice, each vCPU and the test's main thread are pinned to one of
# their own; the test does that itself, so nothing of it outlives the test.
#
# Limits: ept/npt, pml, tdp_mmu and the kernel are fixed at boot, so one invocation
# measures one setting of them; it records which. eager_page_split is global: every
# VM of the host feels it, hence the refusal while other VMs run. dirty_harvest is
# recorded as it was set; where a CPU logs by itself (PML), KVM has no use for it.
#
# Needs a POSIX shell and the commands awk, cat, date, dd, dirname, grep, ls, mktemp,
# mv, readlink, rm, sed, tail, tr, uname, wc (busybox's are enough).
#
# Environment:
#   LAB_PROGRESS       file or FIFO to which progress lines are appended
#   LAB_MACHINE        default of --machine
#   NO_COLOR           no colour on a terminal either
#   SPLIT_BENCH_ROOT   for the tests only: a directory that stands for / when
#                      /sys, /proc, /dev and /run are read or written

set -u

name=split-bench
newline='
'
root=${SPLIT_BENCH_ROOT-}
params=$root/sys/module/kvm/parameters
eager_param=$params/eager_page_split
harvest_param=$params/dirty_harvest
here=$(cd "$(dirname "$0")" && pwd)

# Presets: --quick and --full. What is given explicitly overrides them.
quick_vcpus='2 8'
quick_writes='100 20'
quick_init_set=yes
quick_backing=anonymous_hugetlb_2mb
quick_iterations=2
full_vcpus='2 4 8 14 16 32 64'
full_writes='100 80 50 20 5 0'
full_init_set=both
full_backing='anonymous_hugetlb_2mb anonymous_thp'
full_iterations=3

# Options. Those of a preset are unset until they are given, see use_preset;
# not even the environment may set them.
unset vcpus_list writes_list init_set backing_list iterations
preset=quick
bytes_text=4M
eager_list='N Y'
# Without --harvest what the kernel has, see read_harvest.
harvest_list=
harvest_given=0
pin=1
test_path=
output=
resume=
machine=${LAB_MACHINE:-host}
kernel=series
dry_run=0
keep_going=0
others_ok=0
quiet=0

# Runs that --resume found complete: " ARGUMENTS; ARGUMENTS; ...", see is_done.
done_runs=

# What has to be undone; empty: nothing. A value is stored before the setting
# is changed, so that a signal in between restores what is there anyway.
eager_was=
harvest_was=
pool_was=
pool_file=
lock=
scratch=
output_tmp=
# $! at the time no test was running; a different $! is a test to be ended.
last_child=

usage() {
	cat <<END
Usage: split-bench.sh [OPTION]...

Measure KVM's dirty logging with eager_page_split=N beside =Y: runs
dirty_log_perf_test for each combination, prints tables with the ratio N/Y.
Needs root, /dev/kvm and no other running VM; restores all that it changes.

  --quick            the small matrix, the default: --vcpus "$quick_vcpus"
                     --writes "$quick_writes" --init-set $quick_init_set --backing $quick_backing
                     --iterations $quick_iterations
  --full             the large one: --vcpus "$full_vcpus"
                     --writes "$full_writes" --init-set $full_init_set
                     --backing "$full_backing" --iterations $full_iterations
  --vcpus LIST       vCPU counts, 1-1024 each; counts that leave no CPU for each
                     vCPU and one for the test are measured overcommitted and
                     marked
  --writes LIST      write percentages, 0-100 each
  --bytes SIZE       memory of each vCPU, bytes or with K, M, G (of 1024)
                                                      (default: $bytes_text)
  --backing LIST     memory behind the guest: anonymous, anonymous_thp, shmem,
                     anonymous_hugetlb, anonymous_hugetlb_2mb,
                     anonymous_hugetlb_1gb, shared_hugetlb
  --init-set WHICH   initially-all-set: yes, no or both
  --eager LIST       values of eager_page_split: N, Y        (default: "$eager_list")
  --harvest LIST     values of dirty_harvest: off, on, auto; needs a kernel that has
                     this parameter                  (default: leave it as it is)
  --iterations N     dirty, get and clear rounds, 2-1000
  --no-pin           let the scheduler choose CPUs, even where there are enough
  --test PATH        dirty_log_perf_test, the program itself: a script around it
                     must exec it             (default: beside this script, then PATH)
  --output FILE      append results as JSON lines, those of one test run at a
                     time; they never end in the middle     (default: tables only)
  --resume FILE      like --output, and do not repeat the runs that FILE holds:
                     goes on with a matrix that was interrupted, on the machine,
                     kernel and paging mode of FILE's last line
  --machine NAME     label of the results         (default: \$LAB_MACHINE, else host)
  --kernel WHICH     label of the results: series, peer or base   (default: $kernel)
  --keep-going       measure the rest after a test run that failed
  --others-ok        measure although other VMs run, which disturbs them
  --dry-run          print what would be run and change nothing; needs no root
  --quiet            no progress on stderr; tables and errors only
  -h, --help         this text

Lists are separated by blanks or commas. Times are printed in milliseconds and
stored in seconds. The tables also hold the times in units of the time without
dirty logging, which is that of iteration 1 with initially-all-set (logging is on
there, but nothing is write-protected yet), the shortest one of a row.

Exit status: 0 measured; 1 a test run failed; 2 bad input or refused, nothing
changed; 130 interrupted (128 + the signal's number: 143 TERM, 129 HUP).
END
}

# ---- messages ---------------------------------------------------------------

complain() {
	printf '%s: %s\n' "$name" "$*" >&2
}

# Bad input or an unsuitable host. One line.
refuse() {
	complain "$*"
	exit 2
}

# stderr and LAB_PROGRESS have different readers: a person, and the lab, which
# makes its own estimate from the percentage (its clock is not the machine's).
progress() {
	percent=$1
	text=$2
	[ "$quiet" -eq 1 ] || [ ! -t 2 ] || printf '%s: %3d%% %s%s\n' "$name" "$percent" "$text" "$(time_left)" >&2
	[ -z "${LAB_PROGRESS-}" ] || { printf '%s%% %s\n' "$percent" "$text" >>"$LAB_PROGRESS"; } 2>/dev/null
}

# ---- undoing ----------------------------------------------------------------

# Every way out leads here. A setting that cannot be put back is the one thing
# that the user must hear of even when all else went well.
restore() {
	status=$?
	trap '' INT TERM HUP QUIT PIPE
	trap - EXIT
	end_child
	put_back "$eager_param" "$eager_was" || status=1
	put_back "$harvest_param" "$harvest_was" || status=1
	put_back "$pool_file" "$pool_was" || status=1
	[ -z "$lock" ] || rm -f "$lock"
	[ -z "$output_tmp" ] || rm -f "$output_tmp"
	[ -z "$scratch" ] || rm -rf "$scratch"
	[ "$status" -lt 128 ] || complain 'interrupted; the settings of this host are as before'
	exit "$status"
}

put_back() {
	[ -n "$2" ] || return 0
	{ printf '%s\n' "$2" >"$1"; } 2>/dev/null && return 0
	complain "could not restore $1; by hand: echo $2 > $1"
	return 1
}

# KILL, because the kernel frees all that a test holds (VM, huge pages), and
# because a test that ignores TERM would keep the pool in use.
end_child() {
	[ "${!-}" != "$last_child" ] || return 0
	kill -KILL "$!" 2>/dev/null
	wait "$!" 2>/dev/null
	last_child=$!
}

catch_signals() {
	trap restore EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM
	trap 'exit 129' HUP
	trap 'exit 131' QUIT
	trap 'exit 141' PIPE
}

# ---- input ------------------------------------------------------------------

parse_options() {
	while [ $# -gt 0 ]; do
		case $1 in
		-h | --help) usage; exit 0 ;;
		--dry-run) dry_run=1 ;;
		--keep-going) keep_going=1 ;;
		--others-ok) others_ok=1 ;;
		--no-pin) pin=0 ;;
		--quick | --full) preset=${1#--} ;;
		--quiet) quiet=1 ;;
		--*=*) set_option "${1%%=*}" "${1#*=}" ;;
		--*)
			[ $# -ge 2 ] || refuse "$1 is unknown or lacks its value; see --help"
			set_option "$1" "$2"
			shift
			;;
		*) refuse "unexpected argument '$1'; see --help" ;;
		esac
		shift
	done
}

set_option() {
	case $1 in
	--vcpus) vcpus_list=$(spaced "$2") ;;
	--writes) writes_list=$(spaced "$2") ;;
	--eager) eager_list=$(spaced "$2") ;;
	--harvest) harvest_given=1 harvest_list=$(spaced "$2") ;;
	--bytes) bytes_text=$2 ;;
	--backing) backing_list=$(spaced "$2") ;;
	--init-set) init_set=$2 ;;
	--iterations) iterations=$2 ;;
	--test) test_path=$2 ;;
	--output) output=$2 ;;
	--resume) resume=$2 ;;
	--machine) machine=$2 ;;
	--kernel) kernel=$2 ;;
	*) refuse "unknown option $1; see --help" ;;
	esac
}

use_preset() {
	case $preset in
	quick)
		: "${vcpus_list=$quick_vcpus}" "${writes_list=$quick_writes}"
		: "${init_set=$quick_init_set}" "${backing_list=$quick_backing}"
		: "${iterations=$quick_iterations}"
		;;
	full)
		: "${vcpus_list=$full_vcpus}" "${writes_list=$full_writes}"
		: "${init_set=$full_init_set}" "${backing_list=$full_backing}"
		: "${iterations=$full_iterations}"
		;;
	esac
}

spaced() {
	printf '%s' "$1" | tr ',\t\n' '   '
}

# Six digits at most, so that no arithmetic below overflows.
is_number() {
	case $1 in
	'' | *[!0-9]* | ???????*) return 1 ;;
	0) return 0 ;;
	0*) return 1 ;;
	esac
}

in_range() {
	is_number "$1" && [ "$1" -ge "$2" ] && [ "$1" -le "$3" ]
}

check_list() {
	option=$1
	low=$2
	high=$3
	seen=' '
	for item in $4; do
		in_range "$item" "$low" "$high" ||
			refuse "$option: '$item' is not a whole number from $low to $high"
		once "$option" "$item"
	done
	[ "$seen" != ' ' ] || refuse "$option: the list is empty"
}

once() {
	case $seen in
	*" $2 "*) refuse "$1: '$2' is given twice" ;;
	esac
	seen="$seen$2 "
}

check_eager() {
	seen=' '
	for item in $eager_list; do
		case $item in
		N | Y) once --eager "$item" ;;
		*) refuse "--eager: '$item' is neither N nor Y" ;;
		esac
	done
	[ "$seen" != ' ' ] || refuse '--eager: the list is empty'
}

check_harvest() {
	[ "$harvest_given" -eq 1 ] || return 0
	seen=' '
	for item in $harvest_list; do
		case $item in
		off | on | auto) once --harvest "$item" ;;
		*) refuse "--harvest: '$item' is none of off, on, auto" ;;
		esac
	done
	[ "$seen" != ' ' ] || refuse '--harvest: the list is empty'
}

parse_bytes() {
	number=${bytes_text%[KMGkmg]}
	case $bytes_text in
	*[Kk]) unit=1024 ;;
	*[Mm]) unit=1048576 ;;
	*[Gg]) unit=1073741824 ;;
	*) unit=1 ;;
	esac
	case $number in
	'' | *[!0-9]* | 0* | ????????????*) refuse "--bytes: '$bytes_text' is not a size; 4M and 1G are" ;;
	esac
	bytes=$((number * unit))
	[ "$bytes" -le 1099511627776 ] || refuse "--bytes: '$bytes_text' is more than 1024G"
	[ $((bytes % 4096)) -eq 0 ] || refuse "--bytes: '$bytes_text' is not a multiple of 4K"
}

check_backings() {
	seen=' '
	for item in $backing_list; do
		kib=$(page_kib_of "$item") || refuse "--backing: '$item' is unknown; see --help for the names"
		once --backing "$item"
		[ -n "$kib" ] || refuse "--backing: '$item' needs a kernel with HugeTLB"
		[ "$kib" -eq 0 ] || check_whole_pages "$item" "$kib"
	done
	[ "$seen" != ' ' ] || refuse '--backing: the list is empty'
}

# Size of a backing's HugeTLB pages, 0 where it has none. Fails for an unknown one.
page_kib_of() {
	case $1 in
	anonymous | anonymous_thp | shmem) echo 0 ;;
	anonymous_hugetlb_2mb) echo 2048 ;;
	anonymous_hugetlb_1gb) echo 1048576 ;;
	anonymous_hugetlb | shared_hugetlb) default_page_kib ;;
	*) return 1 ;;
	esac
}

default_page_kib() {
	sed -n 's/^Hugepagesize: *\([0-9]*\) kB$/\1/p' "$root/proc/meminfo"
}

# A HugeTLB mapping cannot be unmapped in part.
check_whole_pages() {
	for count in $vcpus_list; do
		[ $((count * bytes % ($2 * 1024))) -eq 0 ] ||
			refuse "--bytes: $count vCPUs x $bytes_text is not a whole number of $(($2 / 1024)) MiB pages ($1)"
	done
}

check_labels() {
	case $machine in
	'' | *[!A-Za-z0-9._-]*) refuse "--machine: '$machine' is not a name of letters, digits, '.', '_' and '-'" ;;
	esac
	case $kernel in
	series | peer | base) ;;
	*) refuse "--kernel: '$kernel' is none of series, peer, base" ;;
	esac
	case $init_set in
	yes | no) init_list=$init_set ;;
	both) init_list='yes no' ;;
	*) refuse "--init-set: '$init_set' is none of yes, no, both" ;;
	esac
}

find_test() {
	[ -n "$test_path" ] || test_path=$here/dirty_log_perf_test
	[ -x "$test_path" ] || [ "$test_path" != "$here/dirty_log_perf_test" ] ||
		test_path=$(command -v dirty_log_perf_test) ||
		refuse "no dirty_log_perf_test beside this script or in PATH; name one with --test"
	if [ ! -f "$test_path" ] || [ ! -x "$test_path" ]; then
		refuse "--test: '$test_path' is not an executable file"
	fi
	# Without a slash the shell would look in PATH for what was found here.
	case $test_path in
	*/*) ;;
	*) test_path=./$test_path ;;
	esac
}

check_input() {
	check_list --vcpus 1 1024 "$vcpus_list"
	check_list --writes 0 100 "$writes_list"
	check_eager
	check_harvest
	in_range "$iterations" 2 1000 || refuse "--iterations: '$iterations' is not a whole number from 2 to 1000"
	parse_bytes
	check_labels
	check_backings
	[ -z "$resume" ] || [ -z "$output" ] || [ "$resume" = "$output" ] ||
		refuse "--resume: results go to '$resume', so --output '$output' cannot be"
	output=${resume:-$output}
}

# ---- the matrix -------------------------------------------------------------

# Calls "$1 INIT WRITES VCPUS EAGER BACKING HARVEST", in order, for each run that
# is not done; stops when it fails.
for_each_run() {
	for backing in $backing_list; do
		for init in $init_list; do
			for writes in $writes_list; do
				for vcpus in $vcpus_list; do
					for_each_mode "$1" "$init" "$writes" "$vcpus" "$backing" || return 1
				done
			done
		done
	done
}

for_each_mode() {
	for eager in $eager_list; do
		for harvest in $harvest_list; do
			is_done "$2" "$3" "$4" "$eager" "$5" "$harvest" ||
				"$1" "$2" "$3" "$4" "$eager" "$5" "$harvest" || return 1
		done
	done
}

# In: the arguments that for_each_run would call with.
is_done() {
	case $done_runs in
	*" $*;"*) return 0 ;;
	esac
	return 1
}

# A run's share of the total time: what grows with its vCPUs, and starting it.
start_weight=2

count_run() {
	runs_total=$((runs_total + 1))
	work_total=$((work_total + $3 + start_weight))
}

count_runs() {
	runs_total=0
	work_total=0
	for_each_run count_run
	runs_done=0
	work_done=0
}

# Sets the positional parameters of its caller's command: see run_test and show_run.
test_arguments() {
	arguments="-s $5 -b $bytes -v $3 -w $2 -i $iterations"
	[ "$1" = yes ] || arguments="$arguments -g"
	! is_pinned "$3" || arguments="$arguments -c $(pin_list "$3")"
}

show_run() {
	test_arguments "$@"
	printf 'eager_page_split=%s ' "$4"
	[ "$harvest_given" -eq 0 ] || printf 'dirty_harvest=%s ' "$6"
	printf '%s %s\n' "${test_path:-dirty_log_perf_test}" "$arguments"
}

describe_run() {
	set_name=initially-all-set
	[ "$1" = yes ] || set_name='without initially-all-set'
	crowd=
	! is_overcommitted "$3" || crowd=' overcommitted'
	printf '%s%s vCPUs, %s%% writes, %s, eager_page_split=%s' "$3" "$crowd" "$2" "$set_name" "$4"
	[ "$harvest_given" -eq 0 ] || printf ', dirty_harvest=%s' "$6"
	[ "$5" = "$backing_list" ] || printf ', %s' "$5"
}

show_plan() {
	printf '%s runs:\n' "$runs_total"
	for_each_run show_run
	for backing in $backing_list; do
		page_kib=$(page_kib_of "$backing")
		[ "$page_kib" -eq 0 ] ||
			printf 'HugeTLB pool while they run: %s pages of %s MiB\n' "$(pool_wanted)" $((page_kib / 1024))
	done
	printf 'results: %s\n' "${output:-tables only}"
}

# ---- the host ---------------------------------------------------------------

check_host() {
	[ -e "$root/dev/kvm" ] || refuse 'no /dev/kvm: is KVM loaded, and virtualisation on?'
	[ -r "$eager_param" ] ||
		refuse "no parameter eager_page_split in /sys/module/kvm/parameters: this kernel's KVM cannot split eagerly"
	[ "$harvest_given" -eq 0 ] || [ -r "$harvest_param" ] ||
		refuse "--harvest: no parameter dirty_harvest in /sys/module/kvm/parameters: this kernel's KVM cannot log by Dirty bits"
	[ -w "$eager_param" ] || refuse 'not root: it takes root to change eager_page_split and the HugeTLB pool; try sudo'
	[ "$others_ok" -eq 1 ] || check_others
	case " $backing_list " in
	*' anonymous_thp '*) check_thp ;;
	esac
}

check_others() {
	others=$(count_others)
	[ "$others" -eq 0 ] ||
		refuse "$others other VM(s) run here and eager_page_split is global; stop them or give --others-ok"
}

# debugfs has one directory PID-FD per VM. Where it is not mounted, the file
# descriptors tell.
count_others() {
	if [ -d "$root/sys/kernel/debug/kvm" ]; then
		set -- "$root"/sys/kernel/debug/kvm/[0-9]*-[0-9]*
		[ -e "$1" ] || shift
		echo $#
	else
		# shellcheck disable=SC2010,SC2012 # thousands of links: one ls, not a readlink each
		ls -l "$root"/proc/[0-9]*/fd 2>/dev/null | grep -c 'anon_inode:kvm-vm$'
	fi
}

check_thp() {
	! grep -q '\[never\]' "$root/sys/kernel/mm/transparent_hugepage/enabled" 2>/dev/null ||
		refuse 'transparent huge pages are off; as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled'
}

# A kernel with both vendors built in has both parameters, whatever the CPU is.
read_vendor() {
	if grep -q '^flags.* vmx' "$root/proc/cpuinfo"; then
		tdp_file=$root/sys/module/kvm_intel/parameters/ept
		tdp_name=ept
	else
		tdp_file=$root/sys/module/kvm_amd/parameters/npt
		tdp_name=npt
	fi
	[ -r "$tdp_file" ] || refuse "no ${tdp_file#"$root"}: is the vendor's KVM module loaded?"
}

# The TDP MMU needs TDP: its parameter keeps saying Y with ept=N or npt=N.
read_mode() {
	read_vendor
	ept=$(truth "$(cat "$tdp_file")")
	tdp_mmu=false
	[ "$ept" = false ] || [ ! -r "$params/tdp_mmu" ] || tdp_mmu=$(truth "$(cat "$params/tdp_mmu")")
	read_pml
	release=$(uname -r)
}

# pml: false where EPT is on and the CPU does not log by itself. PML belongs to EPT:
# without that its parameter says nothing, and AMD has neither.
read_pml() {
	pml_file=$root/sys/module/kvm_intel/parameters/pml
	pml=true
	has_pml=false
	[ "$tdp_name" = ept ] && [ "$ept" = true ] && [ -r "$pml_file" ] || return 0
	pml=$(truth "$(cat "$pml_file")")
	has_pml=$pml
}

# What is not asked for is recorded as it is; a kernel without it is off.
read_harvest() {
	[ "$harvest_given" -eq 0 ] || return 0
	harvest_list=$(cat "$harvest_param" 2>/dev/null) || harvest_list=off
}

truth() {
	case $1 in
	Y | y | 1) echo true ;;
	*) echo false ;;
	esac
}

# ---- CPUs -------------------------------------------------------------------

# In: CPU_LIST as the kernel writes it, "0-3,8". Out: a CPU per word, those that
# a process may use and that are on; "0-1023" may stand for those that are not.
usable_cpus() {
	awk -v allowed="$(allowed_cpus)" -v online="$(cat "$root/sys/devices/system/cpu/online" 2>/dev/null)" '
	function take(list, set,    parts, ends, i, cpu) {
		for (i = split(list, parts, ","); i > 0; i--) {
			if (split(parts[i], ends, "-") == 1) ends[2] = ends[1]
			for (cpu = ends[1] + 0; cpu <= ends[2] + 0; cpu++) { set[cpu] = 1; if (cpu > last) last = cpu }
		}
	}
	BEGIN {
		last = -1
		take(allowed == "" ? online : allowed, may)
		take(online == "" ? allowed : online, on)
		for (cpu = 0; cpu <= last; cpu++) if ((cpu in may) && (cpu in on)) printf "%d ", cpu
	}'
}

allowed_cpus() {
	sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' "$root/proc/self/status" 2>/dev/null
}

# The CPUs to pin to, one of each core first: siblings share what is measured.
read_cpus() {
	cores=' '
	first_of_core=
	other_of_core=
	cpus=0
	for cpu in $(usable_cpus); do
		cpus=$((cpus + 1))
		core=
		{ read -r core <"$root/sys/devices/system/cpu/cpu$cpu/topology/thread_siblings_list"; } 2>/dev/null
		case $cores in
		*" ${core:-$cpu} "*) other_of_core="$other_of_core $cpu" ;;
		*) first_of_core="$first_of_core $cpu" ;;
		esac
		cores="$cores${core:-$cpu} "
	done
	pin_order="$first_of_core$other_of_core"
}

# The vCPUs and the main thread do not have a CPU each.
is_overcommitted() {
	[ "$1" -ge "$cpus" ]
}

is_pinned() {
	[ "$pin" -eq 1 ] && ! is_overcommitted "$1"
}

# As dirty_log_perf_test takes it: the vCPUs' CPUs, then the main thread's. That
# is the first one, which tends to have the host's interrupts.
pin_list() {
	# shellcheck disable=SC2086 # one word per CPU is wanted
	set -- "$1" $pin_order
	pinned_vcpus=$1
	main_cpu=$2
	shift 2
	list=
	while [ "$pinned_vcpus" -gt 0 ]; do
		list=$list$1,
		pinned_vcpus=$((pinned_vcpus - 1))
		shift
	done
	echo "$list$main_cpu"
}

# The test splits the host's use of one global parameter: one at a time.
take_lock() {
	[ -d "$root/run" ] || return 0
	lock_file=$root/run/split-bench.pid
	holder=$(cat "$lock_file" 2>/dev/null)
	if [ -n "$holder" ] && kill -0 "$holder" 2>/dev/null; then
		refuse "another split-bench.sh runs already (process $holder)"
	fi
	rm -f "$lock_file"
	(set -C; echo "$$" >"$lock_file") 2>/dev/null || refuse "another split-bench.sh started just now ($lock_file)"
	lock=$lock_file
}

# ---- memory -----------------------------------------------------------------

largest_vcpus() {
	largest=0
	for count in $vcpus_list; do
		[ "$count" -le "$largest" ] || largest=$count
	done
	echo "$largest"
}

# One 2 MiB page to spare, for a test that aligns its mapping; none of 1 GiB.
pool_wanted() {
	spare=1
	[ "$page_kib" -lt 1048576 ] || spare=0
	echo $(($(largest_vcpus) * bytes / (page_kib * 1024) + spare))
}

pool_value() {
	cat "$pool_dir/$1" 2>/dev/null || echo 0
}

# Pages that are free and not promised to another process.
pool_free() {
	echo $(($(pool_value free_hugepages) - $(pool_value resv_hugepages)))
}

mib_of_pages() {
	echo $(($1 * page_kib / 1024))
}

grow_pool() {
	pool_dir=$root/sys/kernel/mm/hugepages/hugepages-${page_kib}kB
	[ -w "$pool_dir/nr_hugepages" ] || {
		complain "no HugeTLB pool of $((page_kib / 1024)) MiB pages on this host"
		return 1
	}
	wanted=$(pool_wanted)
	had=$(pool_free)
	[ "$had" -lt "$wanted" ] || return 0
	pool_file=$pool_dir/nr_hugepages
	pool_was=$(cat "$pool_file")
	{ echo $((pool_was + wanted - had)) >"$pool_file"; } 2>/dev/null
	got=$(pool_free)
	[ "$got" -lt "$wanted" ] || return 0
	complain "too little memory for the HugeTLB pool: wanted $(mib_of_pages "$wanted") MiB" \
		"in $((page_kib / 1024)) MiB pages, had $(mib_of_pages "$got") MiB; take fewer --vcpus or smaller --bytes"
	return 1
}

check_memory() {
	wanted_mib=$(($(largest_vcpus) * bytes / 1048576))
	had_mib=$(($(sed -n 's/^MemAvailable: *\([0-9]*\) kB$/\1/p' "$root/proc/meminfo") / 1024))
	[ "$wanted_mib" -ge "$had_mib" ] || return 0
	complain "too little memory: wanted $wanted_mib MiB, had $had_mib MiB; take fewer --vcpus or smaller --bytes"
	return 1
}

# Makes the memory of one backing available, and gives back that of the last one.
memory_of=
use_memory() {
	[ "$1" != "$memory_of" ] || return 0
	put_back "$pool_file" "$pool_was" || return 1
	pool_was=
	page_kib=$(page_kib_of "$1")
	if [ "$page_kib" -gt 0 ]; then grow_pool; else check_memory; fi || return 1
	memory_of=$1
}

# Every backing is tried before the first run, the first one last: it is better
# to hear of too little memory now than hours later.
get_memory() {
	for backing in $backing_list ${backing_list%% *}; do
		use_memory "$backing" || exit 2
	done
}

# ---- output -----------------------------------------------------------------

check_output() {
	[ -n "$output" ] || return 0
	[ ! -d "$output" ] || refuse "--output: '$output' is a directory"
	[ ! -e "$output" ] || [ -f "$output" ] || refuse "--output: '$output' is not a regular file"
	output_dir=$(dirname "$output")
	[ -d "$output_dir" ] || refuse "--output: there is no directory '$output_dir'"
	# Through a symbolic link: the file is replaced, the link must stay.
	[ ! -L "$output" ] || output=$(readlink -f "$output")
	[ ! -s "$output" ] || [ -z "$(tail -c 1 "$output")" ] ||
		refuse "--output: '$output' ends in half a line; is it a file of JSON lines?"
}

# Results are worth nothing when they cannot be kept: take the room beforehand.
# 450 bytes hold a line; the old content is copied, see append_results.
check_room() {
	[ -n "$output" ] || return 0
	lines=$((runs_total * (3 + 3 * iterations)))
	kib=$((lines * 450 / 1024 + 1))
	[ ! -f "$output" ] || kib=$((kib + $(wc -c <"$output") / 1024 + 1))
	output_tmp=$output.tmp.$$
	dd if=/dev/zero of="$output_tmp" bs=1024 count="$kib" 2>/dev/null ||
		refuse "--output: no room for $kib KiB beside '$output', or not writable"
	rm -f "$output_tmp"
}

# A copy that replaces the file: whoever reads it, and whatever happens
# meanwhile, finds whole test runs only.
append_results() {
	[ -n "$output" ] || return 0
	if { { [ ! -e "$output" ] || cat "$output"; } && to_json "$@"; } >"$output_tmp" 2>/dev/null &&
		mv -f "$output_tmp" "$output"; then
		return 0
	fi
	rm -f "$output_tmp"
	complain "could not write '$output': no space left?"
	return 1
}

to_json() {
	awk -v machine="$machine" -v kernel="$kernel" -v release="$release" -v ept="$ept" -v tdp_mmu="$tdp_mmu" \
		-v bytes="$bytes" -v init="$1" -v writes="$2" -v vcpus="$3" -v eager="$4" -v backing="$5" \
		-v harvest="$6" -v pml="$pml" \
		-v cpus="$cpus" -v crowd="$(says is_overcommitted "$3")" -v pinned="$(says is_pinned "$3")" '
	function text(key, value) { return "\"" key "\": \"" value "\", " }
	function bare(key, value) { return "\"" key "\": " value ", " }
	function flag(value) { return value ~ /^(yes|Y)$/ ? "true" : "false" }
	{
		print "{" text("machine", machine) text("kernel", kernel) text("kernel_version", release) \
			bare("ept", ept) bare("tdp_mmu", tdp_mmu) bare("vcpus", vcpus) \
			bare("bytes_per_vcpu", bytes) text("backing", backing) bare("write_percent", writes) \
			bare("initially_all_set", flag(init)) bare("eager", flag(eager)) text("phase", $1) \
			bare("iteration", $2 == "-" ? "null" : $2) text("dirty_harvest", harvest) \
			(pml == "false" ? bare("pml", pml) : "") bare("cpus", cpus) \
			bare("overcommitted", crowd) bare("pinned", pinned) "\"seconds\": " $3 "}"
	}' "$scratch/times"
}

# What a predicate says, for JSON.
says() {
	if "$@"; then echo true; else echo false; fi
}

# ---- resuming ---------------------------------------------------------------

# What a matrix was interrupted at is in the last line of its file.
# Out: "none" for an empty file, "bad NUMBER" for a line that is no result, or
# "last MACHINE KERNEL RELEASE EPT TDP_MMU PML CPUS", then for each time of the same
# setting and memory size: "time INIT WRITES VCPUS EAGER BACKING HARVEST PHASE
# ITERATION|- SECONDS", "other" in place of "time" where the pinning differs.
read_results() {
	awk -v bytes="$bytes" -v pin="$pin" -v cpus="$cpus" '
	function value(key,    rest, at) {
		at = index($0, "\"" key "\": ")
		if (!at) return ""
		rest = substr($0, at + length(key) + 4)
		sub(/[,}].*/, "", rest)
		gsub(/"/, "", rest)
		return rest
	}
	function or_else(found, old) { return found == "" ? old : found }
	function same_pinning() {
		return value("pinned") == "" || (value("pinned") == "true") == (pin == 1 && value("vcpus") + 0 < cpus + 0)
	}
	{
		setting = value("machine") " " value("kernel") " " value("kernel_version") " " value("ept") " " \
			value("tdp_mmu") " " or_else(value("pml"), "true")
		if ($0 !~ /^[{].*[}]$/ || split(setting, words, " ") != 6 || value("phase") == "" || value("seconds") !~ /^[0-9]+(\.[0-9]+)?$/) {
			bad = NR
			exit
		}
		had = value("cpus")
		if (value("bytes_per_vcpu") != bytes) next
		line[++count] = (same_pinning() ? "time " : "other ") \
			(value("initially_all_set") == "true" ? "yes " : "no ") value("write_percent") " " value("vcpus") " " \
			(value("eager") == "true" ? "Y " : "N ") value("backing") " " \
			or_else(value("dirty_harvest"), "off") " " value("phase") " " \
			(value("iteration") == "null" ? "-" : value("iteration")) " " value("seconds")
		of[count] = setting
	}
	END {
		if (bad) print "bad " bad
		else if (!NR) print "none"
		else print "last " setting " " or_else(had, "-")
		for (i = 1; i <= count && !bad; i++) if (of[i] == setting) print line[i]
	}' "$output"
}

# The runs in the times of read_results; fails if one is not that of this invocation.
list_done() {
	printf '%s\n' "$resumed" | awk -v n="$iterations" '
	$1 == "other" { other = 1 }
	$1 == "time" { lines[$2 " " $3 " " $4 " " $5 " " $6 " " $7]++ }
	END {
		for (run in lines) {
			printf " %s;", run
			if (lines[run] != 3 + n * (run ~ /^yes/ ? 3 : 2)) other = 1
		}
		exit other
	}'
}

# Sets done_runs and, for the checks and tables that follow, resumed and last_setting.
resumed=
read_resumed() {
	[ -n "$resume" ] || return 0
	[ -f "$output" ] || refuse "--resume: there is no file '$output'; begin with --output '$output'"
	[ -r "$output" ] || refuse "--resume: '$output' cannot be read"
	resumed=$(read_results)
	last_setting=${resumed%%"$newline"*}
	case $last_setting in
	bad*) refuse "--resume: line ${last_setting#bad } of '$output' is no result of this script" ;;
	none) return 0 ;;
	esac
	done_runs=$(list_done) ||
		refuse "--resume: '$output' holds runs with other --iterations or pinning, or a run twice"
}

check_same_setting() {
	[ "${last_setting:-none}" != none ] || return 0
	# shellcheck disable=SC2086 # see read_results
	set -- $last_setting
	check_same machine "$2" "$machine"
	check_same kernel "$3" "$kernel"
	check_same Linux "$4" "$release"
	check_same "$tdp_name" "$5" "$ept"
	check_same tdp_mmu "$6" "$tdp_mmu"
	check_same pml "$7" "$pml"
	[ "$8" = - ] || check_same 'usable CPUs:' "$8" "$cpus"
}

check_same() {
	[ "$2" = "$3" ] || refuse "--resume: '$output' was interrupted on $1 $2, this is $3"
}

# The tables are those of the whole matrix.
take_resumed() {
	printf '%s\n' "$resumed" | sed -n 's/^time //p' >"$scratch/data"
	[ -z "$resume" ] || [ "$quiet" -eq 1 ] ||
		printf '%s: %s of %s runs are still to be measured\n' "$name" "$runs_total" "$runs_wanted" >&2
}

# ---- one run ----------------------------------------------------------------

# The test prints words around the times; only whole lines of its are taken.
# Out: PHASE ITERATION|- SECONDS
parse_times() {
	sed -n \
		-e 's/^Populate memory time: \([0-9]*\.[0-9]*\)s$/populate - \1/p' \
		-e 's/^Enabling dirty logging time: \([0-9]*\.[0-9]*\)s$/enable - \1/p' \
		-e 's/^Iteration \([0-9]*\) dirty memory time: \([0-9]*\.[0-9]*\)s$/dirty \1 \2/p' \
		-e 's/^Iteration \([0-9]*\) get dirty log time: \([0-9]*\.[0-9]*\)s$/get \1 \2/p' \
		-e 's/^Iteration \([0-9]*\) clear dirty log time: \([0-9]*\.[0-9]*\)s$/clear \1 \2/p' \
		-e 's/^Disabling dirty logging time: \([0-9]*\.[0-9]*\)s$/disable - \1/p' "$1"
}

expected_phases() {
	awk -v n="$iterations" -v init="$1" 'BEGIN {
		print "populate -"; print "enable -"
		for (i = 1; i <= n; i++) {
			print "dirty " i; print "get " i
			if (init == "yes") print "clear " i
		}
		print "disable -"
	}'
}

# A time that is missing or doubled means that the test is not the one known.
all_phases() {
	[ "$(expected_phases "$1")" = "$(sed 's/ [^ ]*$//' "$scratch/times")" ]
}

# KVM reads dirty_harvest when the test creates its VM.
set_parameters() {
	set_one "$eager_param" "$1" || return 1
	[ "$harvest_given" -eq 0 ] || set_one "$harvest_param" "$2"
}

set_one() {
	taken=
	{ echo "$2" >"$1" && read -r taken <"$1"; } 2>/dev/null
	[ "$taken" = "$2" ] && return 0
	complain "${1##*/} did not take the value $2"
	return 1
}

# In the background, because a shell handles no signal while it waits for a
# command in the foreground.
run_test() {
	test_arguments "$@"
	# shellcheck disable=SC2086 # one word per argument is wanted
	"$test_path" $arguments >"$scratch/output" 2>&1 </dev/null &
	wait "$!"
	status=$?
	last_child=$!
	return "$status"
}

# What the test said when it failed, on one line.
last_words() {
	said=$(grep -v '^[[:space:]]*$' "$scratch/output" | tail -n 3 | tr -s '\n\t ' '   ')
	printf '%s' "${said:-it printed nothing}"
}

failed_run() {
	complain "$(describe_run "$1" "$2" "$3" "$4" "$5" "$6"): $7"
	failures=$((failures + 1))
	[ "$keep_going" -eq 1 ]
}

measure() {
	progress $((100 * work_done / work_total)) "$((runs_done + 1))/$runs_total $(describe_run "$@")"
	runs_done=$((runs_done + 1))
	work_done=$((work_done + $3 + start_weight))
	use_memory "$5" || return 1
	set_parameters "$4" "$6" || return 1
	run_test "$@" || {
		failed_run "$@" "the test ended with status $status: $(last_words)"
		return
	}
	parse_times "$scratch/output" >"$scratch/times"
	all_phases "$1" || {
		failed_run "$@" "the test's times are not those of $iterations iterations: $(last_words)"
		return
	}
	append_results "$@" || return 1
	sed "s/^/$1 $2 $3 $4 $5 $6 /" "$scratch/times" >>"$scratch/data"
}

time_left() {
	[ "$work_done" -gt 0 ] && [ "$work_done" -lt "$work_total" ] || return 0
	elapsed=$(($(date +%s) - started))
	printf ', about %s s left' $((elapsed * (work_total - work_done) / work_done))
}

# ---- tables -----------------------------------------------------------------

bold=
plain=
choose_colour() {
	[ -t 1 ] && [ -z "${NO_COLOR-}" ] && [ "${TERM:-dumb}" != dumb ] || return 0
	bold=$(printf '\033[1m')
	plain=$(printf '\033[0m')
}

print_tables() {
	for backing in $backing_list; do
		for init in $init_list; do
			for writes in $writes_list; do
				print_caption "$init" "$writes" "$backing"
				print_table "$init" "$writes" "$backing"
			done
		done
	done
}

print_caption() {
	set_name='initially-all-set'
	why='nothing is write-protected before the first CLEAR, so iteration 2 is the first that pays for splitting'
	[ "$1" = yes ] || {
		set_name='without initially-all-set'
		why='enabling write-protects everything, so iteration 1 is the first that pays for splitting'
	}
	printf '\n%s%s, Linux %s (%s), %s=%s, tdp_mmu=%s, %s%% writes, %s%s\n' "$bold" "$machine" "$release" "$kernel" \
		"$tdp_name" "$(letter "$ept")" "$(letter "$tdp_mmu")" "$2" "$set_name" "$plain"
	printf '%s per vCPU, %s; milliseconds; N and Y: eager_page_split\n(%s)\n' "$bytes_text" "$3" "$why"
	explain_harvest
	printf '(N:1 and Y:1 are in units of the time without dirty logging: see --help)\n'
	! is_overcommitted "$(largest_vcpus)" ||
		printf '(*: overcommitted, %s CPUs for the vCPUs and the test: the times hold waits for a CPU)\n' "$cpus"
	echo
}

# Nothing where it is off as ever.
explain_harvest() {
	[ "$harvest_given" -eq 1 ] || [ "$harvest_list" != off ] || return 0
	others=
	[ "$harvest_list" = "${harvest_list#* }" ] || others='; another value of it stands behind a comma'
	printf '(N and Y: dirty_harvest=%s%s)\n' "${harvest_list%% *}" "$others"
	[ "$has_pml" = false ] || printf '(dirty_harvest changes nothing here: the CPU logs by itself, kvm_intel.pml=Y)\n'
}

letter() {
	if [ "$1" = true ]; then echo Y; else echo N; fi
}

# Markdown, aligned so that it reads as it is: times of N and Y for each value of
# dirty_harvest, and in units of the time without dirty logging. That is the one of
# iteration 1 with initially-all-set, the shortest of a row: logging is on there, and
# nothing is write-protected yet.
print_table() {
	awk -v init="$1" -v writes="$2" -v backing="$3" -v vcpus="$vcpus_list" -v cpus="$cpus" \
		-v harvest="$harvest_list" -v bold="$bold" -v plain="$plain" '
	function digits(x) { return x >= 9.995 ? "%.1f" : x >= 0.9995 ? "%.2f" : "%.3f" }
	function ms(s) { return s == "" ? "-" : sprintf(digits(s * 1000), s * 1000) }
	function ratio(a, b) {
		if (a == "" || b == "" || b == 0) return "-"
		return sprintf(a / b >= 100 ? "%.0f" : digits(a / b), a / b)
	}
	function unit(cell, m) { return sprintf(m == 1 ? " %7s |" : " %9s |", cell) }
	function head(    m, e, name, times, units, rule) {
		for (m = 1; m <= modes; m++) for (e = 1; e <= 2; e++) {
			name = letter[e] (m == 1 ? "" : ", " mode[m])
			times = times sprintf(" %9s |", name)
			units = units unit(name ":1", m)
			rule = rule "----------:|"
		}
		print "| what               | vCPUs |" times sprintf(" %7s |", "N/Y") units
		print "|--------------------|------:|" rule "--------:|--------:|--------:|" substr(rule, 1, 24 * (modes - 1))
	}
	function cells(key, n,    m, e, t, times, units) {
		found = 0
		for (m = 1; m <= modes; m++) for (e = 1; e <= 2; e++) {
			t = time[key, n, letter[e], mode[m]]
			found = found || t != ""
			times = times sprintf(" %9s |", ms(t))
			units = units unit(ratio(t, key ~ /^dirty/ ? unlogged[n] : ""), m)
		}
		return times unit(ratio(time[key, n, "N", mode[1]], time[key, n, "Y", mode[1]]), 1) units
	}
	function rows(what, key,    i, row) {
		for (i = 1; i <= counts; i++) {
			row = cells(key, count[i])
			if (found)
				printf "%s| %-18s | %5s |%s%s\n", what == first ? bold : "", what, \
					count[i] (count[i] + 0 >= cpus + 0 ? "*" : ""), row, what == first ? plain : ""
		}
	}
	$2 != writes || $5 != backing { next }
	$1 == "yes" && $7 == "dirty" && $8 == 1 && (unlogged[$3] == "" || $9 < unlogged[$3]) { unlogged[$3] = $9 + 0 }
	$1 == init { time[$7 " " $8, $3, $4, $6] = $9 }
	END {
		counts = split(vcpus, count, " ")
		modes = split(harvest, mode, " ")
		split("N Y", letter, " ")
		first = init == "yes" ? "dirty, iteration 2" : "dirty, iteration 1"
		head()
		rows(first, init == "yes" ? "dirty 2" : "dirty 1")
		if (init == "yes") { rows("first CLEAR", "clear 1"); rows("second CLEAR", "clear 2") }
		rows("first GET", "get 1"); rows("second GET", "get 2")
		rows("enabling", "enable -"); rows("disabling", "disable -")
		rows(init == "yes" ? "dirty, iteration 1" : "dirty, iteration 2", init == "yes" ? "dirty 1" : "dirty 2")
	}' "$scratch/data"
}

# ---- main -------------------------------------------------------------------

prepare() {
	find_test
	check_output
	check_host
	read_mode
	check_same_setting
	catch_signals
	take_lock
	scratch=$(mktemp -d) || refuse 'no room for a temporary directory (mktemp -d failed)'
	take_resumed
	check_room
	get_memory
	eager_was=$(cat "$eager_param")
	[ "$harvest_given" -eq 0 ] || harvest_was=$(cat "$harvest_param")
}

main() {
	parse_options "$@"
	use_preset
	check_input
	read_cpus
	read_harvest
	count_runs
	runs_wanted=$runs_total
	read_resumed
	count_runs
	if [ "$dry_run" -eq 1 ]; then
		show_plan
		exit 0
	fi
	prepare
	failures=0
	started=$(date +%s)
	for_each_run measure || failures=$((failures + 1))
	[ "$failures" -gt 0 ] || progress 100 "$runs_total/$runs_total done"
	choose_colour
	[ ! -s "$scratch/data" ] || print_tables
	[ "$failures" -eq 0 ]
}

main "$@"
