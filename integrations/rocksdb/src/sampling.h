/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Which Gets are left to RocksDB although a chain could serve them: a small share, so that their blocks
 * enter the block cache (BPF-oF §5.2.2).
 *
 * A cache is not always worth that (§6.2). So the share adapts itself: every so many reads, the time
 * that reads settled in memory have saved, compared to chains, is weighed against the extra time of the
 * sampled reads. The share is halved while the cost is larger, and doubled otherwise, between 1 / SPAN
 * of the configured share and that share.
 */
#ifndef BPFOF_ROCKSDB_SAMPLING_H
#define BPFOF_ROCKSDB_SAMPLING_H

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>

namespace bpf_of {

class Sampling {
    public:
	using Clock = std::chrono::steady_clock;

	/* `part`, the configured share, is from 0 to 1. */
	Sampling(double part, bool adapts) : most_(part), adapts_(adapts && part > 0), part_(part) {}

	/* Reads by chains between two adaptations. */
	static constexpr uint64_t WINDOW = 8192;

	/* How a read was served. */
	enum class Kind { kMemory, kChain, kSample };

	/* One read; some of them are timed. */
	class Read {
	    public:
		explicit Read(Sampling &sampling) : sampling_(sampling)
		{
			thread_local uint32_t reads = 0;

			if (sampling.adapts_ && ++reads % TIMED_EVERY == 0)
				begin();
		}
		/* Starts timing the read from here on. */
		void begin()
		{
			if (sampling_.adapts_)
				begun_ = Clock::now();
		}
		/* The read has ended. */
		void end(Kind kind)
		{
			if (begun_ != Clock::time_point{})
				sampling_.add(kind, Clock::now() - begun_);
		}

	    private:
		Sampling &sampling_;
		Clock::time_point begun_{};
	};

	/* Whether to leave a read that memory has not settled to RocksDB. */
	bool is_sample() const;

	/* The current share. */
	double part() const { return part_.load(std::memory_order_relaxed); }

	/* Counts a timed read. */
	void add(Kind kind, std::chrono::duration<double, std::nano> took);

	/* Adapts the share. `memory` and `samples` are the total numbers of reads that memory settled,
	 * and of samples. */
	void adapt(uint64_t memory, uint64_t samples);

    private:
	static constexpr uint32_t TIMED_EVERY = 16;
	static constexpr double SPAN = 16;

	const double most_;
	const bool adapts_;
	std::atomic<double> part_;
	/* Average time of recent reads by Kind, in ns. */
	std::atomic<double> ns_[3] = {};

	std::mutex adapting_;
	/* The totals at the last adaptation. */
	uint64_t memory_ = 0;
	uint64_t samples_ = 0;
};

} /* namespace bpf_of */

#endif
