/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Whether the target searches the tables of a key one after the other, until one has it, or several at
 * once. One after the other reads no more than needed; at once takes the time of one read, but some
 * blocks may be read for nothing.
 *
 * At once is better on slow drives, where most keys are in the last of their tables, and worse where
 * processors have no time to spare. So both are tried and timed, and tables are searched at once as
 * long as that takes clearly less time, and most of the blocks would have been read anyway.
 */
#ifndef BPFOF_ROCKSDB_SPECULATION_H
#define BPFOF_ROCKSDB_SPECULATION_H

#include "bpfof/rocksdb.h"
#include "per_processor.h"

#include <atomic>
#include <chrono>
#include <cstdint>

namespace bpf_of {

class Speculation {
    public:
	using Clock = std::chrono::steady_clock;
	using Nanoseconds = std::chrono::duration<double, std::nano>;

	explicit Speculation(Speculate speculate) : speculate_(speculate), at_once_(speculate == Speculate::kAlways) {}

	/* Whether reads search at once, except those that try the other way. */
	bool is_at_once() const { return at_once_.load(std::memory_order_relaxed); }

	/* How to serve a read. */
	struct Choice {
		bool at_once;
		/* Whether to time it: as many reads as try the other way. */
		bool is_timed;
	};
	Choice choose() const;

	/* The totals of keys that were searched in one way: how many of all their tables, in order,
	 * they needed. */
	struct Needs {
		uint64_t keys;
		uint64_t needed;
		uint64_t tables;
	};
	/* Adds a timed read of keys of several tables. */
	void add(bool at_once, Nanoseconds took, const Needs &needs);

	/* One read, timed if its Choice says so. */
	class Read {
	    public:
		explicit Read(Speculation &speculation) : speculation_(speculation), choice_(speculation.choose())
		{
			if (choice_.is_timed)
				begun_ = Clock::now();
		}
		Read(const Read &) = delete;
		Read &operator=(const Read &) = delete;

		bool is_at_once() const { return choice_.at_once; }
		/* The answers have arrived. */
		void end(const Needs &needs)
		{
			if (choice_.is_timed && needs.keys > 0)
				speculation_.add(choice_.at_once, Clock::now() - begun_, needs);
		}

	    private:
		Speculation &speculation_;
		const Choice choice_;
		Clock::time_point begun_{};
	};

    private:
	/* An average of the last reads. */
	class Average {
	    public:
		void add(double one);
		double value() const { return value_.load(std::memory_order_relaxed); }
		/* Whether there were enough values. */
		bool is_known() const;
		void forget() { count_.store(0, std::memory_order_relaxed); }

	    private:
		std::atomic<double> value_{0};
		std::atomic<uint32_t> count_{0};
	};

	const Speculate speculate_;
	/* Not in the cache line that timed reads write. */
	alignas(CACHE_LINE_BYTES) std::atomic<bool> at_once_;
	/* Whether the other way is tried, because most of the tables are needed. */
	std::atomic<bool> is_tried_{false};
	/* Whether there were enough reads of both ways. */
	std::atomic<bool> is_known_{false};
	/* Logarithms of the last time for a key in ns, read one by one ([0]) and at once ([1]), until the
	 * other way has a time as well; 0 if none waits. */
	alignas(CACHE_LINE_BYTES) std::atomic<double> unpaired_[2] = {};
	/* The difference of the logarithms, at once less one by one, of consecutive reads, because load
	 * affects both. With logarithms a few reads that wait for something else do not count for
	 * much. */
	Average log_ratio_;
	/* Averages for a key. */
	Average needed_;
	Average tables_;
};

} /* namespace bpf_of */

#endif
