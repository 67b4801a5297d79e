/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Whether the target searches the tables of a key one after the other, until one has it, or several at
 * once. One after the other reads no more than is needed; at once takes the time of one read, of which some
 * may be for nothing.
 *
 * At once is better on slow drives, where most keys are in the last of their tables, and worse where
 * processors have no time to spare. So both are tried and timed, and searches are at once as long as that
 * takes clearly less time, and as most of what it reads would have been read anyway.
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

	/* Whether reads are at once, but for those that try the other way. */
	bool is_at_once() const { return at_once_.load(std::memory_order_relaxed); }

	/* How a read goes. */
	struct Choice {
		bool at_once;
		/* It is to be timed: as often as reads that try the other way. */
		bool is_timed;
	};
	Choice choose() const;

	/* What keys have needed together that were searched so: the first `needed` of all their tables. */
	struct Needs {
		uint64_t keys;
		uint64_t needed;
		uint64_t tables;
	};
	/* Adds a timed read of keys of several tables. */
	void add(bool at_once, Nanoseconds took, const Needs &needs);

	/* A read, timed by the clock if that is to be. */
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
		/* It has its answers. */
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
	/* Of the last reads. */
	class Average {
	    public:
		void add(double one);
		double value() const { return value_.load(std::memory_order_relaxed); }
		/* Whether there were enough. */
		bool is_known() const;
		void forget() { count_.store(0, std::memory_order_relaxed); }

	    private:
		std::atomic<double> value_{0};
		std::atomic<uint32_t> count_{0};
	};

	const Speculate speculate_;
	/* Not in the cache line of what timed reads write. */
	alignas(CACHE_LINE_BYTES) std::atomic<bool> at_once_;
	/* Whether the other way is tried: most of the tables are needed. */
	std::atomic<bool> is_tried_{false};
	/* Whether there were enough reads of either way. */
	std::atomic<bool> is_known_{false};
	/* Logarithms of a key's time in ns, of a read one by one and of one at once, each as long as there is none of the
	 * other way; else 0. */
	alignas(CACHE_LINE_BYTES) std::atomic<double> unpaired_[2] = {};
	/* At once less one by one, of reads that followed one another: the load changes both. And a few that wait for
	 * something else do not count for much. */
	Average log_ratio_;
	/* A key's. */
	Average needed_;
	Average tables_;
};

} /* namespace bpf_of */

#endif
