/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Tables are searched at once as long as that is worth it. */
#include "speculation.h"

#include "check.h"

using bpf_of::Speculate;
using bpf_of::Speculation;
using std::chrono::microseconds;

namespace {

constexpr uint32_t TABLES = 5;

/* Reads that take so long in either way, and need so many tables; how many were at once. */
int read(Speculation &speculation, microseconds one_by_one, microseconds at_once, uint32_t needed, int reads = 20000)
{
	int were_at_once = 0;

	for (int i = 0; i < reads; i++) {
		Speculation::Read read(speculation);
		const auto end = Speculation::Clock::now() + (read.is_at_once() ? at_once : one_by_one);

		were_at_once += read.is_at_once();
		while (Speculation::Clock::now() < end)
			;
		read.end(needed, TABLES);
	}
	return were_at_once;
}

void test_follows_times()
{
	Speculation speculation(Speculate::kWhenFaster);

	read(speculation, microseconds(8), microseconds(2), TABLES);
	CHECK(speculation.is_at_once(), "a slow drive");
	read(speculation, microseconds(4), microseconds(4), TABLES);
	CHECK(!speculation.is_at_once(), "one that has too much to do");
	read(speculation, microseconds(8), microseconds(2), TABLES);
	CHECK(speculation.is_at_once(), "slow again");
}

void test_follows_needs()
{
	Speculation speculation(Speculate::kWhenFaster);

	CHECK(read(speculation, microseconds(8), microseconds(2), 2) == 0, "tables were read for nothing");
	read(speculation, microseconds(8), microseconds(2), 4);
	CHECK(speculation.is_at_once(), "most tables are needed");
	read(speculation, microseconds(8), microseconds(2), 1);
	CHECK(!speculation.is_at_once(), "the first table is enough");
}

void test_a_few_late_reads()
{
	Speculation speculation(Speculate::kWhenFaster);

	for (int i = 0; i < 10; i++) {
		read(speculation, microseconds(5), microseconds(4), TABLES, 2000);
		read(speculation, microseconds(200), microseconds(4), TABLES, 20);
		CHECK(!speculation.is_at_once(), "a few late reads are believed");
	}
}

void test_stays()
{
	Speculation never(Speculate::kNever), always(Speculate::kAlways);

	CHECK(read(never, microseconds(8), microseconds(1), TABLES, 5000) == 0, "it may not");
	CHECK(read(always, microseconds(1), microseconds(8), 1, 5000) == 5000, "it must");
}

} /* namespace */

int main()
{
	test_follows_times();
	test_follows_needs();
	test_a_few_late_reads();
	test_stays();
	return 0;
}
