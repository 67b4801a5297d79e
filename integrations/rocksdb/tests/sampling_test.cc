/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Sampling adapts to the value of its cache. */
#include "sampling.h"

#include "check.h"

#include <initializer_list>

using bpf_of::Sampling;

namespace {

/* Reads that take exactly this long. */
void add(Sampling &sampling, Sampling::Kind kind, std::chrono::microseconds took)
{
	for (int i = 0; i < 100; i++)
		sampling.add(kind, took);
}

/* Reads that take at least this long. */
void read(Sampling &sampling, Sampling::Kind kind, std::chrono::microseconds at_least)
{
	for (int i = 0; i < 100; i++) {
		Sampling::Read read(sampling);

		read.begin();
		const auto end = Sampling::Clock::now() + at_least;

		while (Sampling::Clock::now() < end)
			;
		read.end(kind);
	}
}

void test_adapts()
{
	Sampling sampling(0.01, true);
	uint64_t memory = 0, samples = 0;
	const auto window = [&](uint64_t settled, uint64_t sampled) {
		sampling.adapt(memory += settled, samples += sampled);
		return sampling.part();
	};

	CHECK(window(0, 80) == 0.01, "nothing was measured");
	add(sampling, Sampling::Kind::kMemory, std::chrono::microseconds(1));
	add(sampling, Sampling::Kind::kChain, std::chrono::microseconds(30));
	add(sampling, Sampling::Kind::kSample, std::chrono::microseconds(300));
	/* 80 samples cost about as much as 800 reads from memory save. */
	CHECK(window(10, 80) == 0.005, "%f, and the cache is not worth it", sampling.part());
	for (int i = 0; i < 10; i++)
		window(10, 80);
	CHECK(sampling.part() == 0.01 / 16, "%f, the least", sampling.part());
	CHECK(window(100000, 5) == 0.01 / 8, "%f, and it is worth it", sampling.part());
	for (int i = 0; i < 10; i++)
		window(100000, 5);
	CHECK(sampling.part() == 0.01, "%f, the most", sampling.part());
}

/* Reads are timed. */
void test_times()
{
	Sampling sampling(0.5, true);

	read(sampling, Sampling::Kind::kSample, std::chrono::microseconds(500));
	sampling.adapt(0, 1);
	CHECK(sampling.part() == 0.5, "no chain was timed");
	sampling.add(Sampling::Kind::kChain, std::chrono::microseconds(1));
	sampling.adapt(0, 2);
	CHECK(sampling.part() == 0.25, "%f, and samples take longer", sampling.part());
}

void test_stays()
{
	for (const double part : {0.0, 0.25, 1.0}) {
		Sampling sampling(part, false);
		int sampled = 0;

		read(sampling, Sampling::Kind::kChain, std::chrono::microseconds(1));
		read(sampling, Sampling::Kind::kSample, std::chrono::microseconds(100));
		sampling.adapt(1, 1000);
		for (int i = 0; i < 10000; i++)
			sampled += sampling.is_sample();
		/* The limits are more than ten standard deviations. */
		CHECK(sampled > 10000 * part - 500 && sampled < 10000 * part + 500, "%d of 10000",
			sampled);
		CHECK((part > 0 || sampled == 0) && (part < 1 || sampled == 10000), "%d of 10000",
			sampled);
	}
}

} /* namespace */

int main()
{
	test_adapts();
	test_times();
	test_stays();
	return 0;
}
