#!/usr/bin/env bash
# Installs the Debian packages in a clean Debian, uses them, and removes them again:
#
#   scripts/deb_test.sh DIRECTORY PACKAGES
#
# PACKAGES has the .deb files. DIRECTORY keeps a minimal Debian of the suite of this machine, with the packages
# that ours depend on, so that only the first run downloads. Needs root. Everything happens in a copy of that
# Debian, with a network of its own that has only loopback. No systemd runs there, so this script runs the commands of
# the units as the units say.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/own_apt.sh

# Packages for building programs with our libraries, besides the dependencies of our packages.
readonly SYSUSERS=systemd-standalone-sysusers
readonly TOOLS=(gcc g++ libc6-dev pkg-config clang)
# Files in which apt and dpkg record their actions.
readonly NOTES='^/(var/(cache|log|lib/(apt|dpkg|systemd))|etc/ld\.so\.cache$|etc/.*-$|etc/\.pwd\.lock$|tmp|proc|sys|dev|debs)(/|$)'
readonly OWN='/etc/bpfof/target.toml'
readonly SOCKET=/run/bpfof-target/control.sock

fail() {
	echo "deb-test: $*" >&2
	exit 1
}

say() {
	echo "deb-test: $*"
}

# base DIRECTORY PACKAGES: the clean Debian, in DIRECTORY/base.
base() {
	local root=$1/base suite uri
	suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
	uri=$(repository Debian)
	if [[ ! -f $root.done ]]; then
		rm -rf "$root"
		debootstrap --variant=minbase "$suite" "$root" "$uri" >"$1/debootstrap.log" ||
			fail "debootstrap failed: $1/debootstrap.log"
		touch "$root.done"
	fi
	# Downloaded, not installed: our packages must name them as dependencies.
	rm -rf "$root/debs"
	mkdir "$root/debs"
	cp "$2"/*.deb "$root/debs/"
	cp /etc/resolv.conf "$root/etc/"
	if ! in_root "$root" apt-get install -qq -y --no-install-recommends --download-only \
		$SYSUSERS "${TOOLS[@]}" $(cd "$root" && printf '/%s\n' debs/*.deb) >/dev/null 2>&1; then
		in_root "$root" apt-get update -qq
		in_root "$root" apt-get install -qq -y --no-install-recommends --download-only \
			$SYSUSERS "${TOOLS[@]}" $(cd "$root" && printf '/%s\n' debs/*.deb) >/dev/null || fail "apt cannot fetch packages"
	fi
}

in_root() {
	local root=$1
	shift
	env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 chroot "$root" "$@"
}

# packages NAME…: their files in the copy.
packages() {
	local name
	for name in "$@"; do
		(cd "$ROOT" && echo debs/"${name}"_*.deb | sed 's|^|/|')
	done
}

# Runs a command in the copy.
run() {
	in_root "$ROOT" "$@"
}

install_packages() {
	run apt-get install -qq -y --no-install-recommends -o Dpkg::Use-Pty=0 "$@" >"$ROOT/tmp/apt.log" 2>&1 ||
		fail "apt-get install $*: $(cat "$ROOT/tmp/apt.log")"
}

purge() {
	run apt-get purge -qq -y --autoremove -o Dpkg::Use-Pty=0 "$@" >"$ROOT/tmp/apt.log" 2>&1 ||
		fail "apt-get purge $*: $(cat "$ROOT/tmp/apt.log")"
}

# All files, and the users and groups.
listing() {
	{
		(cd "$ROOT" && find . -xdev -printf '/%P\n' | grep -Ev "$NOTES")
		cat "$ROOT"/etc/{passwd,group,shadow,gshadow}
	} | LC_ALL=C sort
}

# unit SETTING: prints a setting of the target's unit.
unit() {
	sed -n "s/^$1=//p" "$ROOT/usr/lib/systemd/system/bpfof-target.service"
}

# Runs a command with the user and rights of the unit.
as_unit() {
	run setpriv --reuid "$(unit User)" --regid "$(unit User)" --groups "$(unit SupplementaryGroups)" --no-new-privs \
		--bounding-set=-all --inh-caps=-all "$@"
}

start_target() {
	run install -d -o bpfof -g bpfof -m "$(unit RuntimeDirectoryMode)" "/run/$(unit RuntimeDirectory)"
	as_unit /usr/bin/bpfof config check /etc/bpfof/target.toml >/dev/null || fail "the configuration is refused"
	as_unit $(unit ExecStart) >"$ROOT/tmp/target.log" 2>&1 &
	STARTED=$!
	# The target is ready once it answers.
	until run bpfof ctl version >/dev/null 2>&1; do
		kill -0 $STARTED 2>/dev/null || fail "the target ended: $(cat "$ROOT/tmp/target.log")"
		sleep 0.1
	done
	TARGET=$(pgrep -x bpfof)
}

stop_target() {
	kill -TERM "$TARGET"
	wait $STARTED || fail "the target failed: $(cat "$ROOT/tmp/target.log")"
	rm -r "${ROOT:?}/run/$(unit RuntimeDirectory)"
}

the_target_serves() {
	local url=nvme-tcp://127.0.0.1:4420/nqn.2026-01.io.bpf-of:target answer
	install_packages $(packages bpfof)
	[[ $(run getent passwd bpfof | cut -d : -f 6) == /var/lib/bpfof ]] || fail "there is no user bpfof"
	[[ $(run stat -c %U /var/lib/bpfof) == bpfof ]] || fail "/var/lib/bpfof is not the target's"
	[[ -z $(find "$ROOT/etc/systemd" -name 'bpfof*') ]] || fail "a unit is enabled"
	grep -q '^listen = "127.0.0.1:4420"$' "$ROOT$OWN" || fail "the example does not listen on loopback"
	run dpkg-query -W -f '${Conffiles}' bpfof | grep -q "^ $OWN " || fail "$OWN is not a conffile"
	[[ -z $(run dpkg --verify bpfof) ]] || fail "dpkg --verify: $(run dpkg --verify bpfof)"
	start_target
	[[ $(stat -c %u "/proc/$TARGET") == $(run id -u bpfof) ]] || fail "the target runs as somebody else"
	run bpfof kv create --levels 3 --target "$url" >/dev/null 2>&1 || fail "no database can be made"
	answer=$(run bpfof kv get --target "$url" 7 42)
	[[ $(grep -c . <<<"$answer") == 2 ]] || fail "kv get answers: $answer"
	grep -q 'chain' <<<"$(run bpfof ctl namespaces)" || fail "bpfof ctl knows of no chain"
	stop_target
	say "bpfof: installed, serves as its user on loopback, answers: $(head -n 1 <<<"$answer")"
}

# An administrator's changes stay.
the_configuration_stays() {
	echo '# mine' >>"$ROOT$OWN"
	run dpkg -i $(packages bpfof) >/dev/null
	tail -n 1 "$ROOT$OWN" | grep -qx '# mine' || fail "$OWN was overwritten"
	run apt-get remove -qq -y bpfof >/dev/null 2>&1
	[[ -f $ROOT$OWN ]] || fail "$OWN went without purge"
	say "bpfof: $OWN stays as it is through an installation and a removal"
}

programs_are_built() {
	local examples=/usr/share/doc/libbpfof-dev/examples answer
	install_packages "${TOOLS[@]}" $(packages libbpfof0 libbpfof-dev bpfof-rocksdb bpfof)
	run sh -ec "cd /tmp && cp $examples/* . &&
		clang -O2 -g -target bpf -mcpu=v3 -I\$(pkg-config --variable=functiondir bpfof)/include -c find.bpf.c -o find.bpf.o &&
		cc find.c -o find \$(pkg-config --cflags --libs bpfof) && ./find make records 1000"
	answer=$(run sh -ec 'cd /tmp && ./find get find.bpf.o records - - 7 42')
	grep -q 'value of 42' <<<"$answer" || fail "the example answers: $answer"
	[[ -n $(run readelf -d /tmp/find | grep 'NEEDED.*libbpfof\.so\.0') ]] || fail "the example is not bound to libbpfof.so.0"
	say "libbpfof-dev: the example is built by pkg-config, and answers"
	cat >"$ROOT/tmp/rocks.cc" <<-'PROGRAM'
		#include <bpfof/rocksdb.h>
		#include <cstdio>

		int main()
		{
			rocksdb::Options options;
			options.create_if_missing = true;
			bpf_of::PushdownDB *db;
			rocksdb::Status status = bpf_of::PushdownDB::Open(options, {}, "/tmp/rocks.db", &db);
			std::string value;
			if (status.ok())
				status = db->Put({}, "key", "value");
			if (status.ok())
				status = db->Flush({});
			if (status.ok())
				status = db->Get({}, "key", &value);
			std::printf("%s %s\n", status.ToString().c_str(), value.c_str());
			delete db;
			return !status.ok();
		}
	PROGRAM
	run sh -ec 'cd /tmp && c++ rocks.cc -o rocks $(pkg-config --cflags --libs bpfof-rocksdb) && ./rocks' >"$ROOT/tmp/rocks.log" ||
		fail "the program with RocksDB fails: $(cat "$ROOT/tmp/rocks.log")"
	grep -qx 'OK value' "$ROOT/tmp/rocks.log" || fail "the program with RocksDB says $(cat "$ROOT/tmp/rocks.log")"
	say "bpfof-rocksdb: a program is built by pkg-config, and answers"
}

# A purge of the program does not remove namespaces.
data_stays() {
	echo data >"$ROOT/var/lib/bpfof/disk.img"
	purge bpfof
	[[ -f $ROOT/var/lib/bpfof/disk.img ]] || fail "a namespace in /var/lib/bpfof was removed"
	run getent passwd bpfof >/dev/null || fail "the owner of a namespace in /var/lib/bpfof was removed"
	rm -r "${ROOT:?}/var/lib/bpfof"
	run userdel bpfof
	say "purge of bpfof: files in /var/lib/bpfof stay, and their owner"
}

nothing_is_left() {
	local left
	purge "$@"
	rm -rf "$ROOT"/tmp/*
	left=$(LC_ALL=C comm -13 "$COPY/listing" <(listing))
	[[ -z $left ]] || fail "left after purge of $*: $left"
	say "purge of $*: nothing is left"
}

test_packages() {
	mount --bind "$COPY/root" "$COPY/root"
	mount -t proc proc "$ROOT/proc"
	ip link set lo up
	# The whole of systemd would leave files of its own behind.
	install_packages $SYSUSERS
	listing >"$COPY/listing"
	the_target_serves
	the_configuration_stays
	nothing_is_left bpfof
	programs_are_built
	data_stays
	nothing_is_left libbpfof0 libbpfof-dev bpfof-rocksdb "${TOOLS[@]}"
}

if [[ $# == 2 ]]; then
	[[ $(id -u) == 0 ]] || fail "root is needed, for chroot"
	mkdir -p "$1"
	base "$(realpath "$1")" "$2"
	COPY=$(mktemp -d "$(realpath "$1")/copy-XXXXXX")
	trap 'rm -rf --one-file-system "$COPY"' EXIT
	cp -a --reflink=auto "$1/base" "$COPY/root"
	# Mounts, processes and the network of the test end with it.
	COPY=$COPY ROOT=$COPY/root unshare --pid --mount-proc --net --fork --kill-child "$0"
elif [[ $# == 0 && -n ${COPY:-} && -n ${ROOT:-} ]]; then
	test_packages
else
	fail "usage: scripts/deb_test.sh DIRECTORY PACKAGES"
fi
