#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
#	lifecycle.sh RELEASE INSTALL
#
# Installs old/*.deb by the shell command INSTALL, upgrades it to new/*.deb, and goes back, in a root file system with
# this kernel. Writes to the current directory:
#
#	moments		what a boot would load, at each moment: "STEP; MOMENT; KVM", where KVM is a version of the series,
#			"stock", or what is wrong
#	told		what each step has printed, and its exit status
#	initrd-WHAT	images, with and without KVM
#
# It looks before and after each command that could take modules away, as dpkg's scripts call them.
set -u
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export DEBIAN_FRONTEND=noninteractive
release=$1 install=$2 here=$PWD tree=/var/lib/dkms/kvm-eager-split
old=$(echo "$here"/old/*.deb) new=$(echo "$here"/new/*.deb)

# Commands of the system, with a look at the modules before and after each; the kernel of the host is another one.
watch() {
	cat >/usr/local/bin/look <<END
#!/bin/sh
# Of all three: a KVM of the series has a version, the kernel's own has none.
found=\$(for module in kvm kvm_amd kvm_intel; do
	version=\$(modinfo -k $release -F version \$module 2>&1) || version="BROKEN: \$version"
	echo "\${version:-stock}"
done | sort -u | paste -sd' ')
echo "\$(cat $here/step); \$*; \$found" >>$here/moments
END
	for command in dkms depmod update-initramfs; do
		cat >"/usr/local/sbin/$command" <<END
#!/bin/sh
look "before $command \$*"
/usr/sbin/$command "\$@"
status=\$?
look "after $command \$*"
exit \$status
END
	done
	# Nothing runs beside it here. apt gives dpkg a PATH of its own.
	printf '#!/bin/sh\nshift 2\nexec "$@"\n' >/usr/local/bin/nice
	printf 'DPkg::Path "%s";\n' "$PATH" >/etc/apt/apt.conf.d/lab
	printf '#!/bin/sh\n[ "$*" != -r ] || exec echo %s\nexec /usr/bin/uname "$@"\n' "$release" >/usr/local/bin/uname
	chmod 755 /usr/local/bin/* /usr/local/sbin/*
}

unwatch() {
	rm -f /usr/local/bin/uname /usr/local/bin/look /usr/local/bin/nice /etc/apt/apt.conf.d/lab
	for command in dkms depmod update-initramfs; do rm -f "/usr/local/sbin/$command"; done
}

# The version of kvm in the image, or none.
image_has() {
	rm -rf /tmp/image
	unmkinitramfs "/boot/initrd.img-$release" /tmp/image
	file=$(find /tmp/image -name 'kvm.*ko*' -type f | head -n 1)
	if [ -z "$file" ]; then echo "no KVM"; else modinfo -F version "$file" | grep . || echo stock; fi
	rm -rf /tmp/image
}

# step NAME COMMAND...
step() {
	echo "$1" >"$here/step"
	look begin
	name=$1
	shift
	{
		echo "# $name"
		"$@" 2>&1
		echo "? $?"
	} | tee -a "$here/told"
	look end
	echo "$name; image; $(image_has)" >>"$here/moments"
}

# with_little KIB DIRECTORY COMMAND...: as if DIRECTORY were on a disk of its own, with little room.
with_little() {
	free=$1 directory=$2
	shift 2
	cp -a "$directory" /tmp/kept
	mount -t tmpfs -o mode=755 none "$directory"
	cp -a /tmp/kept/. "$directory"
	used=$(df -k --output=used "$directory" | tail -n 1)
	mount -o "remount,size=$((used + free))k" "$directory"
	"$@"
	status=$?
	rm -rf /tmp/kept
	cp -a "$directory" /tmp/kept
	umount "$directory"
	find "$directory" -mindepth 1 -delete
	cp -a /tmp/kept/. "$directory"
	rm -rf /tmp/kept
	return $status
}

# The disk gets full once the build has begun.
fills_up() {
	cat >/usr/local/bin/make <<END
#!/bin/sh
case \$* in *" modules"*) cat /dev/zero >/var/lib/dkms/filler 2>/dev/null ;; esac
exec /usr/bin/make "\$@"
END
	chmod 755 /usr/local/bin/make
	"$@"
	status=$?
	rm -f /usr/local/bin/make /var/lib/dkms/filler
	return $status
}

# killed COMMAND...: with all that it has started, once the compiler has made something.
killed() {
	setsid "$@" &
	group=$!
	until ls $tree/*/build/arch/x86/kvm/*.o >/dev/null 2>&1; do
		kill -0 $group || return
		sleep 0.1
	done
	kill -KILL "-$group"
	wait $group
}

# The package of the source has moved on, and the kernel has not.
source_moves_on() {
	for file in /usr/src/linux-source-*.tar.xz; do
		echo "newer" >"$file.new"
		mv "$file.new" "$file"
	done
}

kvm_in_image() {
	echo kvm_amd >>/etc/initramfs-tools/modules
	update-initramfs -u -k "$release"
}

no_kvm_in_image() {
	sed -i '/^kvm_amd$/d' /etc/initramfs-tools/modules
	update-initramfs -u -k "$release"
}

cd old || exit
watch
step install sh -c "$install"
step "image with KVM" kvm_in_image
step "source moves on" source_moves_on
step "no room to unpack" with_little 0 /usr/share/man/man8 dpkg -i "$new"
step "no room to build" with_little 102400 /var/lib/dkms dpkg -i "$new"
step "disk gets full" with_little 614400 /var/lib/dkms fills_up kvm-eager-split install
step "killed" killed dpkg -i "$new"
step "no room to install" with_little 4 "/lib/modules/$release/updates" dpkg --configure -a
step "upgrade" kvm-eager-split install
step "image without KVM" no_kvm_in_image
step "back" dpkg -i "$old"
cp "/boot/initrd.img-$release" "$here/initrd-without-kvm"
kvm_in_image
cp "/boot/initrd.img-$release" "$here/initrd-with-kvm"
unwatch
