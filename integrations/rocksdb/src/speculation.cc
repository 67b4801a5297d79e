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
/* One of so many reads counts for what keys need. */
constexpr uint64_t COUNTED_OF = 16;
/* A phase of a comparison has at least so many keys, */
constexpr uint64_t KEYS_OF_A_PHASE = 64;
/* and so many reads: fewer than a phase of single keys, whose times differ more than those of many keys, */
constexpr uint32_t READS_OF_A_PHASE = 8;
/* and so many for each read that was in progress when it began. */
constexpr uint32_t READS_FOR_EACH_BEFORE = 2;
constexpr uint64_t PHASES = 4;
/* Comparisons that decide. */
constexpr uint32_t COMPARISONS = 8;
/* So many comparisons in a row that contradict a decision make it open again. */
constexpr uint32_t CONTRADICTIONS = 2;
/* Counted reads between two comparisons when the result is known: reads in the slower way are fewer
 * than one of a hundred. */
constexpr uint32_t REST = 1600;
/* The share of the tables read at once that must be needed, to begin and to continue. */
constexpr double NEEDED_TO_BEGIN = 0.75;
constexpr double NEEDED_TO_GO_ON = 0.65;
/* Searching at once begins below the first share of the time of searching one by one, and ends above
 * the second. */
constexpr double BEGINS_BELOW = 0.7;
constexpr double ENDS_ABOVE = 0.85;

} /* namespace */

Speculation::Choice Speculation::choose() const
{
	const bool at_once = is_at_once();

	if (speculate_ != Speculate::kWhenFaster)
		return {at_once, false, 0};
	const bool counts = (thread_random() >> 32) % COUNTED_OF == 0;
	const uint64_t phase = phase_.load(std::memory_order_relaxed);
	const bool is_other = phase > 0 && phase % PHASES < 2;

	return {at_once != is_other, counts, phase};
}

bool Speculation::needs_most(const Needs &needs)
{
	const double keys = static_cast<double>(needs.keys);

	averaged_ = std::min(averaged_ + 1, AVERAGED_MAX);
	needed_ += (std::min(needs.needed, needs.tables) / keys - needed_) / averaged_;
	tables_ += (needs.tables / keys - tables_) / averaged_;
	return averaged_ >= AVERAGED_MIN &&
	       needed_ >= tables_ * (is_tried_ ? NEEDED_TO_GO_ON : NEEDED_TO_BEGIN);
}

void Speculation::begin()
{
	comparisons_++;
	log_times_[0] = log_times_[1] = Sum();
	begin_phase(comparisons_ * PHASES);
}

void Speculation::begin_phase(uint64_t phase)
{
	ended_ = ended_before_ = 0;
	ended_keys_ = 0;
	phase_.store(phase, std::memory_order_relaxed);
}

bool Speculation::has_phase_ended() const
{
	return ended_keys_ >= KEYS_OF_A_PHASE && ended_ >= READS_OF_A_PHASE &&
	       ended_ >= READS_FOR_EACH_BEFORE * ended_before_;
}

void Speculation::rest(uint32_t reads)
{
	rest_ = reads;
	phase_.store(0, std::memory_order_relaxed);
}

void Speculation::add(const Choice &choice, Nanoseconds took, const Needs &needs)
{
	const std::unique_lock lock(mutex_, std::try_to_lock);

	/* Readers do not wait for each other: there are other reads. */
	if (!lock)
		return;
	if (choice.counts) {
		is_tried_ = needs_most(needs);
		if (!is_tried_) {
			/* The times will have changed by the next attempt. */
			is_known_ = false;
			log_ratios_ = Sum();
			at_once_.store(false, std::memory_order_relaxed);
			return rest(0);
		}
	}
	const uint64_t phase = phase_.load(std::memory_order_relaxed);

	if (is_tried_ && phase == 0 && choice.counts) {
		if (rest_ == 0)
			return begin();
		rest_--;
	}
	if (phase == 0)
		return;
	if (choice.phase != phase) {
		ended_before_++;
		return;
	}
	if (phase % 2 == 1)
		log_times_[choice.at_once].add(std::log(std::max(2.0, took.count() / static_cast<double>(needs.keys))));
	ended_++;
	ended_keys_ += needs.keys;
	if (!has_phase_ended())
		return;
	if (phase % PHASES == PHASES - 1)
		return compared(log_times_[true].mean() - log_times_[false].mean());
	begin_phase(phase + 1);
}

void Speculation::compared(double log_ratio)
{
	if (is_known_) {
		if (is_faster(log_ratio) == is_at_once()) {
			contradictions_ = 0;
			return rest(REST);
		}
		if (++contradictions_ < CONTRADICTIONS)
			return begin();
		/* The load has changed. */
		is_known_ = false;
		log_ratios_ = Sum();
	}
	log_ratios_.add(log_ratio);
	if (log_ratios_.count < COMPARISONS)
		return begin();
	at_once_.store(is_faster(log_ratios_.mean()), std::memory_order_relaxed);
	is_known_ = true;
	contradictions_ = 0;
	log_ratios_ = Sum();
	rest(REST);
}

bool Speculation::is_faster(double log_ratio) const
{
	return std::exp(log_ratio) < (is_at_once() ? ENDS_ABOVE : BEGINS_BELOW);
}

} /* namespace bpf_of */
