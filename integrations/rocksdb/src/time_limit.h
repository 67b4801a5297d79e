/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* ReadOptions::deadline and io_timeout, with RocksDB's meaning. */
#ifndef BPFOF_ROCKSDB_TIME_LIMIT_H
#define BPFOF_ROCKSDB_TIME_LIMIT_H

#include <rocksdb/options.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace bpf_of {

/* How long a call may wait for the target. */
class TimeLimit {
    public:
	/* No limit, as a timeout of libbpfof. */
	static constexpr int64_t NONE = -1;

	explicit TimeLimit(const rocksdb::ReadOptions &options)
		: deadline_(options.deadline), io_timeout_(options.io_timeout)
	{
	}

	/* The timeout of one wait that begins now, in microseconds: NONE, or 0 when the deadline has
	 * passed. */
	int64_t timeout_us() const
	{
		const int64_t io = io_timeout_.count() > 0 ? io_timeout_.count() : NONE;

		if (deadline_.count() == 0)
			return io;
		const int64_t left = std::max<int64_t>(0, (deadline_ - now()).count());

		return io == NONE ? left : std::min(left, io);
	}

	/* Whether the deadline has passed. */
	bool has_passed() const { return deadline_.count() != 0 && now() > deadline_; }

    private:
	/* The time of day, on the clock from which RocksDB computes deadlines. */
	static std::chrono::microseconds now()
	{
		return std::chrono::duration_cast<std::chrono::microseconds>(
			std::chrono::system_clock::now().time_since_epoch());
	}

	const std::chrono::microseconds deadline_;
	const std::chrono::microseconds io_timeout_;
};

/* How reads of files through libbpfof ended. */
enum class Fetched : uint8_t {
	kAll,
	/* Not read: they have to be read in another way. */
	kNot,
	/* The time limit has passed. */
	kTimedOut,
};

} /* namespace bpf_of */

#endif
