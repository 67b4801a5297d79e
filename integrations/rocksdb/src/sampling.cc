/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "sampling.h"

#include "thread_random.h"

#include <algorithm>
#include <utility>

namespace bpf_of {

namespace {

/* The weight of a new time in an average. */
constexpr double OF_AVERAGE = 1.0 / 64;

} /* namespace */

bool Sampling::is_sample() const
{
	return static_cast<double>(thread_random() >> 11) < part() * 0x1p53;
}

void Sampling::add(Kind kind, std::chrono::duration<double, std::nano> took)
{
	std::atomic<double> &average = ns_[static_cast<size_t>(kind)];
	const double old = average.load(std::memory_order_relaxed);

	/* An update by another thread at the same time may be lost. */
	average.store(old == 0 ? took.count() : old + OF_AVERAGE * (took.count() - old),
		std::memory_order_relaxed);
}

void Sampling::adapt(uint64_t memory, uint64_t samples)
{
	const auto ns = [&](Kind kind) {
		return ns_[static_cast<size_t>(kind)].load(std::memory_order_relaxed);
	};
	std::lock_guard<std::mutex> lock(adapting_);
	const double settled = static_cast<double>(memory - std::exchange(memory_, memory));
	const double sampled = static_cast<double>(samples - std::exchange(samples_, samples));

	if (!adapts_ || ns(Kind::kChain) == 0 || ns(Kind::kSample) == 0)
		return;
	const double saved = settled * std::max(0.0, ns(Kind::kChain) - ns(Kind::kMemory));
	const double spent = sampled * std::max(0.0, ns(Kind::kSample) - ns(Kind::kChain));
	const double wanted = part() * (spent > saved ? 0.5 : 2);

	part_.store(std::clamp(wanted, most_ / SPAN, most_), std::memory_order_relaxed);
}

} /* namespace bpf_of */
