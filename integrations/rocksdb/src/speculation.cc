/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "speculation.h"

#include "thread_random.h"

#include <algorithm>
#include <cmath>

namespace bpf_of {

namespace {

/* The averages of needs weigh about so many reads, and are used from so many on. */
constexpr uint32_t AVERAGED_MAX = 256;
constexpr uint32_t AVERAGED_MIN = 32;
/* One of so many reads is timed for its needs. */
constexpr uint64_t READS_OF_A_TIMED = 16;
/* A comparison has four phases, of so many ticks each: reads in the other way until the queues are
 * those of this way; the same, timed; reads as they are; the same, timed. */
constexpr uint64_t READS_OF_A_TICK = 16;
constexpr uint64_t TICKS_OF_A_PHASE = 4;
constexpr uint64_t TICKS_OF_A_COMPARISON = 4 * TICKS_OF_A_PHASE;
/* Timed reads of each way that a comparison needs: fewer than the phase has in most cases. */
constexpr uint32_t READS_OF_A_COMPARISON = 32;
/* Comparisons that decide. */
constexpr uint32_t COMPARISONS = 8;
/* When the result is known, the time between two comparisons is that of so many: reads in the slower
 * way are fewer than one of a hundred. */
constexpr uint64_t REST = 100;
/* The share of the tables read at once that must be needed, to begin and to continue. */
constexpr double NEEDED_TO_BEGIN = 0.75;
constexpr double NEEDED_TO_GO_ON = 0.65;
/* Searching at once begins below the first share of the time of searching one by one, and ends above
 * the second. */
constexpr double BEGINS_BELOW = 0.7;
constexpr double ENDS_ABOVE = 0.85;
void set(std::atomic<bool> *to, bool value)
{
	if (to->load(std::memory_order_relaxed) != value)
		to->store(value, std::memory_order_relaxed);
}

} /* namespace */

Speculation::Choice Speculation::choose()
{
	const bool at_once = is_at_once();

	if (speculate_ != Speculate::kWhenFaster)
		return {at_once, false, 0};
	const uint64_t drawn = thread_random() >> 32;
	const uint64_t tick = drawn % READS_OF_A_TICK == 0
				      ? ticks_.fetch_add(1, std::memory_order_relaxed) + 1
				      : ticks_.load(std::memory_order_relaxed);
	const uint64_t comparison = tick / TICKS_OF_A_COMPARISON;
	const bool rests = is_known_.load(std::memory_order_relaxed) && comparison % REST != 0;

	if (rests || !is_tried_.load(std::memory_order_relaxed))
		return {at_once, drawn % READS_OF_A_TIMED == 1, 0};
	const uint64_t phase = tick % TICKS_OF_A_COMPARISON / TICKS_OF_A_PHASE;
	const bool is_timed = phase % 2 == 1;

	return {at_once != (phase < 2), is_timed, is_timed ? comparison : 0};
}

bool Speculation::needs_most(const Needs &needs)
{
	const double keys = static_cast<double>(needs.keys);

	averaged_ = std::min(averaged_ + 1, AVERAGED_MAX);
	needed_ += (std::min(needs.needed, needs.tables) / keys - needed_) / averaged_;
	tables_ += (needs.tables / keys - tables_) / averaged_;
	const bool was_tried = is_tried_.load(std::memory_order_relaxed);

	return averaged_ >= AVERAGED_MIN &&
	       needed_ >= tables_ * (was_tried ? NEEDED_TO_GO_ON : NEEDED_TO_BEGIN);
}

void Speculation::forget()
{
	log_times_[0] = log_times_[1] = log_ratios_ = Sum();
	set(&is_known_, false);
}

void Speculation::add(const Choice &choice, Nanoseconds took, const Needs &needs)
{
	const std::unique_lock lock(mutex_, std::try_to_lock);

	/* Readers do not wait for each other: there are other reads. */
	if (!lock)
		return;
	const bool is_tried = needs_most(needs);

	set(&is_tried_, is_tried);
	if (!is_tried) {
		/* The times will have changed by the next attempt. */
		forget();
		return set(&at_once_, false);
	}
	if (choice.comparison < comparison_ || choice.comparison == 0)
		return;
	if (choice.comparison > comparison_) {
		comparison_ = choice.comparison;
		log_times_[0] = log_times_[1] = Sum();
	}
	log_times_[choice.at_once].add(std::log(std::max(2.0, took.count() / static_cast<double>(needs.keys))));
	const auto &[one_by_one, at_once] = log_times_;

	if (std::min(one_by_one.count, at_once.count) < READS_OF_A_COMPARISON)
		return;
	compared(at_once.mean() - one_by_one.mean());
	comparison_++;
	log_times_[0] = log_times_[1] = Sum();
}

void Speculation::compared(double log_ratio)
{
	if (is_known_.load(std::memory_order_relaxed)) {
		if (is_faster(log_ratio) == is_at_once())
			return;
		/* Perhaps the load has changed. */
		set(&is_known_, false);
	}
	log_ratios_.add(log_ratio);
	if (log_ratios_.count < COMPARISONS)
		return;
	set(&at_once_, is_faster(log_ratios_.mean()));
	set(&is_known_, true);
	log_ratios_ = Sum();
}

bool Speculation::is_faster(double log_ratio) const
{
	return std::exp(log_ratio) < (is_at_once() ? ENDS_ABOVE : BEGINS_BELOW);
}

} /* namespace bpf_of */
