/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Tests random draws against their distribution, and quantiles against sorted values. */
#include "histogram.h"
#include "zipf.h"

#include <vector>

using bench::Histogram;
using bench::Zipf;

namespace {

/*
 * Chi-squared over the ranks that are expected often enough, with the others together. Its mean is the
 * number of bins, its standard deviation sqrt(2 * bins): five of these off is no accident, and the seed
 * is fixed.
 */
void check_frequencies(uint64_t ranks, double theta)
{
	constexpr uint64_t DRAWS = 400000;
	const Zipf zipf(ranks, theta);
	Random random(ranks);
	std::vector<uint64_t> drawn(ranks);
	double all = 0;

	for (uint64_t rank = 0; rank < ranks; rank++)
		all += std::pow(static_cast<double>(rank + 1), -theta);
	for (uint64_t i = 0; i < DRAWS; i++) {
		const uint64_t rank = zipf.next(random);

		CHECK(rank < ranks, "rank %llu of %llu", static_cast<unsigned long long>(rank),
			static_cast<unsigned long long>(ranks));
		drawn[rank]++;
	}
	double squares = 0, bins = 0, rest_expected = 0, rest_drawn = 0;

	for (uint64_t rank = 0; rank < ranks; rank++) {
		const double expected = DRAWS * std::pow(static_cast<double>(rank + 1), -theta) / all;

		rest_expected += expected;
		rest_drawn += static_cast<double>(drawn[rank]);
		if (rest_expected < 20)
			continue;
		squares += (rest_drawn - rest_expected) * (rest_drawn - rest_expected) / rest_expected;
		bins++;
		rest_expected = rest_drawn = 0;
	}
	CHECK(std::fabs(squares - bins) < 5 * std::sqrt(2 * bins) + 5,
		"%llu ranks, theta %g: chi-squared %g in %g bins",
		static_cast<unsigned long long>(ranks), theta, squares, bins);
}

void check_quantiles()
{
	Histogram histogram, other;
	Random random(1);
	std::vector<uint64_t> values;

	CHECK(histogram.quantile(0.5) == 0, "of nothing");
	for (int i = 0; i < 100000; i++) {
		/* Values of all magnitudes. */
		values.push_back(random.next() >> (24 + random.below(40)));
		(i % 3 ? histogram : other).record(values.back());
	}
	histogram.add(other);
	std::sort(values.begin(), values.end());
	CHECK(histogram.count() == values.size(), "values are lost");
	for (const double share : {0.001, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0}) {
		const double exact = static_cast<double>(
			values[static_cast<size_t>(std::ceil(share * values.size())) - 1]);
		const double found = histogram.quantile(share);

		CHECK(std::fabs(found - exact) <= exact * 0.004 + 0.5, "%g: %g instead of %g", share,
			found, exact);
	}
	histogram.record(UINT64_MAX);
	CHECK(histogram.quantile(1) > 1e12, "the longest of all is lost");
}

} /* namespace */

int main()
{
	for (const double theta : {0.4, 0.7, 0.99, 1.0, 1.1}) {
		for (const uint64_t ranks : {1, 2, 10, 1000, 30000})
			check_frequencies(ranks, theta);
	}
	check_quantiles();
	return 0;
}
