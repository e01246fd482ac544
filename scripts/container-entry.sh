#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# container-entry.sh COMMAND...: run a command in a container as the owner of /src, so that what it writes belongs to
# the caller. With docker that is the caller's number, with rootless podman the container's root, which is the caller.
set -eu

source=${CONTAINER_SOURCE-/src}
fail() {
	echo "container: $*" >&2
	exit 2
}

[ $# -gt 0 ] || fail "no command is named, as in: podman run --rm -v \"\$PWD:/src:Z\" eager-split make bench"
[ -f "$source/Makefile" ] || fail "$source is not the repository: run this in its directory, with -v \"\$PWD:/src:Z\""
owner=$(stat -c %u "$source") group=$(stat -c %g "$source")
[ "$(id -u)" -ne 0 ] || [ "$owner" -eq 0 ] || {
	# A directory for git and ccache.
	HOME=$(mktemp -d)
	chown "$owner:$group" "$HOME"
	export HOME
	exec setpriv --reuid "$owner" --regid "$group" --clear-groups -- "$@"
}
[ "$(id -u)" -eq "$owner" ] || fail "user $(id -u) does not own $source, which belongs to $owner; with podman: --userns=keep-id"
exec "$@"
