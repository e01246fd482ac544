#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# Install what the lab needs: the Debian packages of packages.txt that are
# missing, and the Python packages of requirements.txt in build/venv. Each
# argument X adds the packages of packages-X.txt, which only one command needs,
# and LAB_BASE those that the pin of a base names.
# Says nothing when nothing is missing. Exit status 2: it could not be done.
set -eu
# With it, cd goes elsewhere, and prints where.
unset CDPATH

lab=$(cd "$(dirname "$0")" && pwd)
build=$(dirname "$lab")/build
venv=$build/venv
stamp=$venv/.complete
log=$build/log/setup.log

say() {
	printf 'setup: %s\n' "$*"
}

fail() {
	printf 'setup: %s\n' "$*" >&2
	exit 2
}

# There is a Python when this is asked.
packages_of_base() {
	pin=${lab%/*}/base/${LAB_BASE-}.pin
	[ ! -f "$pin" ] || "$venv/bin/python" -c 'import sys, tomllib
print(*tomllib.load(sys.stdin.buffer).get("packages", ()), sep="\n")' <"$pin" 2>>"$log" ||
		fail "$pin cannot be read. See $log"
}

missing_packages() {
	installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "$@" 2>/dev/null |
		sed -n 's/^installed //p')
	printf '%s\n' "$@" | grep -vxF -e "$installed" || :
}

missing_of_base() {
	names=$(packages_of_base)
	# shellcheck disable=SC2086 # one word per package is wanted
	[ -z "$names" ] || missing_packages $names
}

# None, if it is given none.
install_packages() {
	[ $# -gt 0 ] || return 0
	sudo=sudo
	[ "$(id -u)" -ne 0 ] || sudo=
	[ -z "$sudo" ] || command -v sudo >/dev/null ||
		fail "neither root nor sudo; run as root: apt-get install --no-install-recommends $*"
	say "installing Debian packages (about 2 minutes): $*"
	$sudo env DEBIAN_FRONTEND=noninteractive apt-get update >>"$log" 2>&1 || fail "apt-get update failed, is there a network? See $log"
	$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" >>"$log" 2>&1 ||
		fail "apt-get could not install: $*. See $log"
}

# A venv names its own path, and pip may be another Python's next time.
wanted_stamp() {
	printf '%s\n' "$venv"
	sha256sum <"$lab/requirements.txt"
}

venv_complete() {
	[ -x "$venv/bin/python" ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(wanted_stamp)" ]
}

find_python() {
	for candidate in python3 /usr/bin/python3; do
		if "$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
			command -v "$candidate"
			return
		fi
	done
	fail "no Python that is 3.11 or newer and has the venv module (Debian: python3, python3-venv)"
}

# The stamp comes last: without it the next run starts over.
make_venv() {
	say "making build/venv (about 30 seconds)"
	python=$(find_python)
	rm -rf "$venv"
	"$python" -m venv "$venv" >>"$log" 2>&1 || fail "$python could not make $venv. See $log"
	# What is used is compiled then.
	"$venv/bin/pip" install --quiet --no-deps --no-compile -r "$lab/requirements.txt" >>"$log" 2>&1 || {
		rm -rf "$venv"
		fail "pip could not install requirements.txt, is there a network? See $log"
	}
	wanted_stamp >"$stamp"
}

# Names of package lists, for arguments: "packages.txt packages-deb.txt".
lists_of() {
	printf packages.txt
	for name; do
		[ -f "$lab/packages-$name.txt" ] || fail "there is no $lab/packages-$name.txt"
		printf ' packages-%s.txt' "$name"
	done
}

main() {
	lists=$(lists_of "$@")
	command -v dpkg-query >/dev/null || fail "no dpkg-query: the lab needs Debian 12 or one of its kin"
	mkdir -p "$build/log"
	exec 9>"$build/.setup-lock"
	flock 9
	started=$(date +%s)
	# shellcheck disable=SC2046,SC2086 # one word per list and package is wanted, here and below
	missing=$(missing_packages $(cd "$lab" && grep -hv '^#' $lists))
	if [ -z "$missing" ] && venv_complete; then
		missing=$(missing_of_base)
		[ -n "$missing" ] || return 0
	fi
	: >"$log"
	# shellcheck disable=SC2086 # one word per package is wanted
	install_packages $missing
	venv_complete || make_venv
	missing=$(missing_of_base)
	# shellcheck disable=SC2086 # one word per package is wanted
	install_packages $missing
	say "done in $(($(date +%s) - started)) s"
}

main "$@"
