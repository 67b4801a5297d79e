# Sourced by scripts that take Debian packages apart. They define `fail MESSAGE…`, which exits.

# repository LABEL: the address from which this machine gets packages of that label.
repository() {
	apt-get indextargets --format '$(LABEL) $(REPO_URI)' 'Created-By: Packages' |
		sed -n "/^$1 /{s///p;q}" | grep . ||
		fail "apt knows no repository of $1 here; has apt-get update been run?"
}

# own_apt DIRECTORY ARCHITECTURES SUITE…: sets up an apt of our own. Its lists and packages are in DIRECTORY/apt, it
# takes nothing for installed, and it does not change this machine.
own_apt() {
	local at=$PWD/$1/apt architectures=$2 suite uri
	shift 2
	mkdir -p "$at"/lists/partial "$at"/archives/partial "$at"/etc/{apt.conf.d,preferences.d}
	: >"$at/status"
	# The keys of the suites may be newer than this machine's: fetch their package, which is signed by this
	# machine's keys.
	[[ -d $at/keys ]] || {
		(cd "$at" && apt-get download -qq debian-archive-keyring) ||
			fail "apt cannot fetch debian-archive-keyring"
		dpkg-deb -x "$at"/debian-archive-keyring_*.deb "$at/keys"
	}
	for suite in "$@"; do
		if [[ $suite == *-security ]]; then uri=$(repository Debian-Security); else uri=$(repository Debian); fi
		echo "deb [signed-by=$at/keys/usr/share/keyrings/debian-archive-keyring.gpg] $uri $suite main"
	done >"$at/sources.list"
	cat >"$at/apt.conf" <<-CONFIG
		Dir::State "$at";
		Dir::State::status "$at/status";
		Dir::State::lists "$at/lists";
		Dir::Cache "$at";
		Dir::Cache::archives "$at/archives";
		Dir::Etc "$at/etc";
		Dir::Etc::sourcelist "$at/sources.list";
		Dir::Etc::sourceparts "-";
		APT::Architecture "${architectures%% *}";
		APT::Architectures { $(printf '"%s"; ' $architectures)};
		APT::Install-Recommends "false";
		APT::Sandbox::User "";
		Acquire::Languages "none";
		Binary::apt-get::APT::Keep-Downloaded-Packages "true";
	CONFIG
	export APT_CONFIG=$at/apt.conf
	apt-get update -qq || fail "apt cannot read Debian's $*"
}
