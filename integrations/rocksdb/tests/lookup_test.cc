/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Reading the answers of chains: of one chain, of one without an answer, and of several for the parts
 * of one plan. */
#include "lookup.h"

#include "check.h"

#include <cerrno>
#include <cstring>

using bpf_of::ReadPath;

namespace {

/* Checks the way and the reason that read_answers() returns. */
void check_way(const struct bpfof_chain &chain, ReadPath expected, const char *why)
{
	bpf_of::Found found;
	std::string error;
	const ReadPath way = bpf_of::read_answers(&chain, 1, &found, &error);

	CHECK(way == expected && error == why, "%s (%s) instead of %s (%s)", name(way), error.c_str(),
		name(expected), why);
}

void test_without_answer()
{
	const char *const message = "cannot read /db/000007.sst: Connection timed out";
	struct bpfof_chain chain = {};

	bpf_of::not_ended(&chain);
	check_way(chain, ReadPath::kTimedOut, "");
	bpf_of::cannot_end(&chain);
	check_way(chain, ReadPath::kFailed, "Input/output error");

	/* The chain could not be sent. */
	bpf_of::not_ended(&chain);
	CHECK(!bpfof_open("nowhere", "", nullptr), "a target without an address");
	const std::string why = bpfof_error();

	bpf_of::cannot_end(&chain);
	CHECK(!why.empty(), "no reason");
	check_way(chain, ReadPath::kFailed, why.c_str());

	/* The chain ran on this machine, whose drive has not answered the kernel. */
	bpf_of::not_ended(&chain);
	std::strcpy(chain.result.message, message);
	check_way(chain, ReadPath::kFailed, message);
	bpf_of::cannot_end(&chain);
	CHECK(chain.result.error == ETIMEDOUT, "one that has ended changes");
}

/* Chains of the parts of one plan, with two tables each. */
struct Chains {
	struct bpfof_chain chains[3] = {};
	unsigned char scratch[3][256] = {};

	/* Sets the answer of a part: the blocks it has read, and its result. */
	void answers(int part, uint32_t status, uint32_t table, const std::string &value, const std::string &operand,
		uint64_t sequence = 0)
	{
		const uint32_t operand_size = operand.size();
		const struct sst_get_answer answer = {status, static_cast<__u32>(value.size()), sequence << 8 | 1, table + 1, table,
			operand.empty() ? 0u : 1u, operand.empty() ? 0u : static_cast<__u32>(4 + operand.size())};
		unsigned char *to = scratch[part];

		std::memcpy(to, &answer, sizeof(answer));
		to += sizeof(answer);
		std::memcpy(to, value.data(), value.size());
		to += value.size();
		if (!operand.empty()) {
			std::memcpy(to, &operand_size, 4);
			std::memcpy(to + 4, operand.data(), operand.size());
			to += 4 + operand.size();
		}
		chains[part].scratch = scratch[part];
		chains[part].result = {};
		chains[part].result.length = to - scratch[part];
		chains[part].result.executor = BPFOF_AT_TARGET;
	}
	void fails(int part, int error, int value = 0)
	{
		chains[part].scratch = scratch[part];
		chains[part].result = {};
		chains[part].result.length = -1;
		chains[part].result.error = error;
		chains[part].result.value = value;
		std::strcpy(chains[part].result.message, "no");
	}
	bpf_of::Found read(ReadPath expected)
	{
		bpf_of::Found found;
		std::string error;
		const ReadPath way = bpf_of::read_answers(chains, 3, &found, &error);

		CHECK(way == expected, "%s instead of %s", name(way), name(expected));
		CHECK(way != ReadPath::kFailed || error == "no", "%s", error.c_str());
		return found;
	}
};

/* A range deletion of the last table of a plan. */
void test_hidden()
{
	Chains chains;
	const auto found_below = [&](uint64_t sequence) {
		bpf_of::Found found = chains.read(ReadPath::kTarget);

		found.hide(6, sequence);
		return found.has_value || found.is_blob;
	};

	chains.answers(0, SST_NOT_FOUND, 1, "", "");
	chains.answers(1, SST_NOT_FOUND, 1, "", "");
	for (const uint32_t status : {SST_FOUND, SST_BLOB}) {
		chains.answers(2, status, 1, "value", "", 7);
		CHECK(found_below(0) && found_below(7) && !found_below(8), "a version of the last table");
		/* A version in an earlier table is newer. */
		chains.answers(2, status, 0, "value", "", 7);
		CHECK(found_below(8), "a version of another table");
	}
	chains.answers(2, SST_FOUND, 1, "value", "", 9);
	chains.answers(1, SST_FOUND, 1, "value", "", 7);
	CHECK(found_below(8), "a version of another part");
}

void test_parts()
{
	Chains chains;

	/* The first part that has the key settles it, whatever later parts have. */
	chains.answers(0, SST_NOT_FOUND, 1, "", "");
	chains.answers(1, SST_FOUND, 0, "new", "");
	chains.answers(2, SST_FOUND, 1, "old", "");
	bpf_of::Found found = chains.read(ReadPath::kTarget);
	CHECK(found.has_value && found.value == "new" && found.tables == 3 && found.blocks == 5, "%s, %u tables, %u blocks",
		found.value.ToString().c_str(), found.tables, found.blocks);
	chains.fails(2, EIO);
	found = chains.read(ReadPath::kTarget);
	CHECK(found.value == "new" && found.blocks == 3, "%u blocks", found.blocks);
	chains.fails(2, ECANCELED, DAMAGE_KEY_TOO_LONG);
	CHECK(!chains.read(ReadPath::kTarget).lacks_scratch, "a long key that does not matter");
	bpf_of::not_ended(&chains.chains[2]);
	chains.read(ReadPath::kTarget);
	chains.answers(2, SST_OTHER, 0, "", "");
	chains.read(ReadPath::kTarget);
	chains.answers(1, SST_DELETED, 0, "", "");
	chains.answers(2, SST_FOUND, 0, "old", "");
	CHECK(!chains.read(ReadPath::kTarget).has_value, "a deletion is not an answer");

	/* A failed part that is needed fails the read. */
	chains.answers(1, SST_NOT_FOUND, 1, "", "");
	chains.fails(2, EIO);
	chains.read(ReadPath::kFailed);
	chains.fails(2, ENOENT);
	chains.chains[2].result.status = 0;
	chains.read(ReadPath::kStale);
	chains.fails(2, ECANCELED, DAMAGE_KEY_TOO_LONG);
	CHECK(chains.read(ReadPath::kDeclined).lacks_scratch, "a long key");
	bpf_of::not_ended(&chains.chains[2]);
	chains.read(ReadPath::kTimedOut);
	chains.answers(2, SST_TOO_LONG, 0, "", "");
	CHECK(chains.read(ReadPath::kDeclined).lacks_scratch, "a long value");
	chains.answers(2, SST_OTHER, 0, "", "");
	CHECK(!chains.read(ReadPath::kDeclined).lacks_scratch, "another kind of entry");
	chains.answers(2, SST_NOT_FOUND, 1, "", "");
	found = chains.read(ReadPath::kTarget);
	CHECK(!found.has_value && found.tables == 6 && found.blocks == 6, "%u tables", found.tables);
	chains.fails(0, EIO);
	chains.answers(1, SST_FOUND, 0, "old", "");
	chains.read(ReadPath::kFailed);

	/* Operands of all parts down to a value, oldest first. */
	chains.answers(0, SST_NOT_FOUND, 1, "", "newest");
	chains.answers(1, SST_NOT_FOUND, 1, "", "older");
	chains.answers(2, SST_FOUND, 1, "value", "oldest");
	found = chains.read(ReadPath::kTarget);
	CHECK(found.value == "value" && found.operands.size() == 3 && found.operands[0] == "oldest" &&
			found.operands[1] == "older" && found.operands[2] == "newest",
		"%zu operands", found.operands.size());
	chains.chains[1].result.executor = BPFOF_AT_TARGET + 1;
	chains.read(ReadPath::kTarget);
	chains.answers(1, SST_FOUND, 1, "value", "");
	CHECK(chains.read(ReadPath::kTarget).operands.size() == 1, "operands behind a value");
}

void test_division()
{
	bpf_of::Plan plan;

	for (plan.tables = 1; plan.tables <= SST_TABLES_MAX; plan.tables++) {
		const uint32_t parts = bpf_of::parts_of(plan, true);
		uint32_t next = 0;

		CHECK(parts == std::min(plan.tables, bpf_of::PARTS_MAX) && bpf_of::parts_of(plan, false) == 1, "%u parts",
			parts);
		for (uint32_t i = 0; i < parts; i++) {
			const bpf_of::Part part = bpf_of::Part::of(plan, parts, i);

			CHECK(part.first == next && part.end > part.first && part.end - part.first <= 2, "part %u of %u", i,
				parts);
			next = part.end;
		}
		CHECK(next == plan.tables, "%u tables of %u", next, plan.tables);
	}
}

} /* namespace */

int main()
{
	test_without_answer();
	test_parts();
	test_hidden();
	test_division();
	return 0;
}
