# Sourced by scripts that compile with the tools of another Debian release. They define `fail MESSAGE…`, which
# exits, and source scripts/own_apt.sh.

# own_root DIRECTORY SUITES PACKAGE…: unpacks packages, and what they need, as a root for `inside`. Nothing of
# them is installed here.
own_root() {
	local root=$1 suites=$2 package
	shift 2
	rm -rf "$root" "$root.new" "$root.apt"
	mkdir -p "$root.apt" "$root.new"/usr/{bin,sbin,lib,lib64}
	# Linked as on installed systems, even if packages of older releases have these folders.
	ln -s usr/{bin,sbin,lib,lib64} "$root.new/"
	# Not quoted: suites are separate words.
	own_apt "$root.apt" amd64 $suites
	apt-get install -qq -y --download-only "$@" >/dev/null || fail "apt cannot fetch $*"
	for package in "$root.apt"/apt/archives/*.deb; do
		dpkg-deb --fsys-tarfile "$package" | tar -x -C "$root.new" --keep-directory-symlink ||
			fail "cannot unpack $package"
	done
	rm -rf "$root.apt"
	ln -sf bash "$root.new/usr/bin/sh"
	ln -sf gawk "$root.new/usr/bin/awk"
	mkdir -p "$root.new"/{dev,tmp}
	mknod -m 666 "$root.new/dev/null" c 1 3 2>/dev/null || touch "$root.new/dev/null"
	mv "$root.new" "$root"
}

# inside DIRECTORY COMMAND…: runs a command with DIRECTORY as its root. Needs root, or user namespaces.
inside() {
	local root=$PWD/$1 as
	shift
	as=(chroot "$root")
	[[ $(id -u) == 0 ]] || as=(unshare --map-root-user --root="$root")
	env -i HOME=/ PATH=/usr/sbin:/usr/bin "${as[@]}" "$@"
}
