/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What becomes of a chain that has no answer: only one that has not ended is out of time. */
#include "lookup.h"

#include "check.h"

#include <cerrno>
#include <cstring>

using bpf_of::ReadPath;

namespace {

/* How it is read, and why, as the program is told. */
void check_way(const struct bpfof_chain &chain, ReadPath expected, const char *why)
{
	bpf_of::Found found;
	std::string error;
	const ReadPath way = bpf_of::read_answer(chain, &found, &error);

	CHECK(way == expected && error == why, "%s (%s) instead of %s (%s)", name(way), error.c_str(),
		name(expected), why);
}

} /* namespace */

int main()
{
	const char *const message = "cannot read /db/000007.sst: Connection timed out";
	struct bpfof_chain chain = {};

	bpf_of::not_ended(&chain);
	check_way(chain, ReadPath::kTimedOut, "");
	bpf_of::cannot_end(&chain);
	check_way(chain, ReadPath::kFailed, "");

	/* It ran on this machine, whose drive has not answered the kernel. */
	bpf_of::not_ended(&chain);
	std::strcpy(chain.result.message, message);
	check_way(chain, ReadPath::kFailed, message);
	bpf_of::cannot_end(&chain);
	CHECK(chain.result.error == ETIMEDOUT, "one that has ended changes");
	return 0;
}
