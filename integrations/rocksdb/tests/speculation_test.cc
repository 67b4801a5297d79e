/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Tables are searched at once as long as that pays off. */
#include "speculation.h"

#include "check.h"

using bpf_of::Speculate;
using bpf_of::Speculation;

namespace {

constexpr int READS = 60000;
constexpr uint64_t TABLES = 5;

/* The time of reads in both ways, in ns, and the number of tables that they need. */
struct Reads {
	double one_by_one;
	double at_once;
	uint64_t needed;
	uint64_t tables = TABLES;
};

/* Makes reads; returns how many of them were at once. */
int read(Speculation &speculation, const Reads &reads, int count = READS)
{
	int were_at_once = 0;

	for (int i = 0; i < count; i++) {
		const Speculation::Choice choice = speculation.choose();

		were_at_once += choice.at_once;
		if (choice.is_timed())
			speculation.add(choice,
				Speculation::Nanoseconds(choice.at_once ? reads.at_once : reads.one_by_one),
				{1, reads.needed, reads.tables});
	}
	return were_at_once;
}

void test_follows_times()
{
	Speculation speculation(Speculate::kWhenFaster);

	CHECK(read(speculation, {450e3, 100e3, TABLES}) > READS * 9 / 10, "a slow drive is not detected soon");
	CHECK(read(speculation, {450e3, 100e3, TABLES}) < READS, "the other way is not tried");
	read(speculation, {250e3, 240e3, TABLES});
	CHECK(!speculation.is_at_once(), "overloaded processors");
	CHECK(read(speculation, {250e3, 240e3, TABLES}) > 0, "the other way is not tried");
	read(speculation, {450e3, 100e3, TABLES});
	CHECK(speculation.is_at_once(), "slow again");
	/* Load changes both times alike. */
	for (int i = 0; i < 200; i++) {
		const double load = i % 2 ? 1 : 3;

		read(speculation, {load * 450e3, load * 300e3, TABLES}, 500);
	}
	CHECK(speculation.is_at_once(), "it follows the load");
}

/* Processors are busy: a read at once is faster than the others, and slows them down. */
void test_minds_the_others()
{
	Speculation speculation(Speculate::kWhenFaster);
	/* How many of the last reads were at once. */
	double share = 0;
	int were_at_once = 0;

	for (int i = 0; i < 10 * READS; i++) {
		const Speculation::Choice choice = speculation.choose();
		const double wait = 100e3 * (1 + 0.9 * share);

		share += (choice.at_once - share) / 16;
		were_at_once += choice.at_once;
		if (choice.is_timed())
			speculation.add(choice, Speculation::Nanoseconds(choice.at_once ? 0.6 * wait : wait),
				{1, TABLES, TABLES});
	}
	CHECK(!speculation.is_at_once(), "together they are slower");
	CHECK(were_at_once > READS / 60 && were_at_once < READS / 6, "they are tried now and then");
}

void test_follows_needs()
{
	Speculation speculation(Speculate::kWhenFaster);

	CHECK(read(speculation, {450e3, 100e3, 2}) == 0, "tables were read unnecessarily");
	read(speculation, {450e3, 100e3, 4});
	CHECK(speculation.is_at_once(), "most tables are needed");
	read(speculation, {450e3, 100e3, 1});
	CHECK(!speculation.is_at_once(), "the first table is enough");
	/* Most keys need all of their tables, but most tables are not needed. */
	for (int i = 0; i < READS; i++) {
		const bool is_short = i % 5 != 0;

		read(speculation, {450e3, 100e3, is_short ? uint64_t{2} : uint64_t{1}, is_short ? uint64_t{2} : uint64_t{8}}, 1);
	}
	CHECK(!speculation.is_at_once(), "tables count, not keys");
}

void test_late_reads()
{
	Speculation speculation(Speculate::kWhenFaster);
	int timed = 0, tried = 0;

	for (int i = 0; i < 20 * READS; i++) {
		const Speculation::Choice choice = speculation.choose();

		tried += choice.at_once;
		if (choice.is_timed()) {
			const bool is_late = !choice.at_once && ++timed % 100 == 0;

			speculation.add(choice, Speculation::Nanoseconds(is_late ? 20e6 : 100e3),
				{1, TABLES, TABLES});
		}
		CHECK(!speculation.is_at_once(), "a late read counts");
	}
	CHECK(tried > READS / 60, "searching at once is not tried");
}

/* Reads in the way that is tried never end in time: that way is given up after eight comparisons. */
void test_timeouts()
{
	Speculation speculation(Speculate::kWhenFaster);
	int late = 0;

	for (int i = 0; i < READS; i++) {
		Speculation::Read read(speculation);

		if (!read.is_at_once()) {
			read.end({1, TABLES, TABLES});
			continue;
		}
		late++;
		/* Longer than the others take. */
		std::this_thread::sleep_for(std::chrono::microseconds(20));
		read.time_out(1);
	}
	CHECK(!speculation.is_at_once(), "what is never answered is not faster");
	CHECK(late > 0 && late < 2000, "%d of %d reads were late", late, READS);
}

void test_many_keys()
{
	Speculation speculation(Speculate::kWhenFaster);

	int tried = 0;

	/* MultiGets of 64 keys, and of 2. */
	for (int i = 0; i < READS; i++) {
		const Speculation::Choice choice = speculation.choose();
		const uint64_t keys = choice.at_once ? 2 : 64;

		tried += choice.at_once;
		if (choice.is_timed())
			speculation.add(choice, Speculation::Nanoseconds(keys * (choice.at_once ? 90.0 : 100.0)),
				{keys, keys * 5, keys * 5});
		CHECK(!speculation.is_at_once(), "times are of a key");
	}
	CHECK(tried > 500, "searching at once is not tried");
}

void test_stays()
{
	Speculation never(Speculate::kNever), always(Speculate::kAlways);

	CHECK(read(never, {450e3, 100e3, TABLES}) == 0, "it may not");
	CHECK(read(always, {100e3, 450e3, 1}) == READS, "it must");
}

/* Times reads by the clock. */
void test_clock()
{
	Speculation speculation(Speculate::kWhenFaster);

	for (int i = 0; i < READS; i++) {
		Speculation::Read read(speculation);
		const auto end = Speculation::Clock::now() + std::chrono::microseconds(read.is_at_once() ? 1 : 20);

		while (Speculation::Clock::now() < end)
			;
		read.end({1, TABLES, TABLES});
	}
	CHECK(speculation.is_at_once(), "the clock is not read");
}

} /* namespace */

int main()
{
	test_follows_times();
	test_follows_needs();
	test_minds_the_others();
	test_late_reads();
	test_timeouts();
	test_many_keys();
	test_stays();
	test_clock();
	return 0;
}
