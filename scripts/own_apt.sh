# Sourced by scripts that take Debian packages apart. They define `fail MESSAGE…`, which exits.

# repository LABEL: where this machine has packages of that label from.
repository() {
	apt-get indextargets --format '$(LABEL) $(REPO_URI)' 'Created-By: Packages' |
		sed -n "/^$1 /{s///p;q}" | grep . ||
		fail "apt knows no repository of $1 here; has apt-get update been run?"
}

# own_apt DIRECTORY ARCHITECTURES SUITE…: an apt of our own. Its lists and packages are in
# DIRECTORY/apt, it believes nothing to be installed, and what this machine has stays as it is.
own_apt() {
	local at=$PWD/$1/apt architectures=$2 suite uri
	shift 2
	mkdir -p "$at"/lists/partial "$at"/archives/partial "$at"/etc/{apt.conf.d,preferences.d}
	: >"$at/status"
	# The keys of the suites may be newer than those this machine has: the packaged ones are signed by those.
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
