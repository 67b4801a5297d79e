/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Data that many threads use at once, with an instance for each processor, so that they do not write
 * the same memory. */
#ifndef BPFOF_ROCKSDB_PER_PROCESSOR_H
#define BPFOF_ROCKSDB_PER_PROCESSOR_H

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <sched.h>
#include <thread>
#include <utility>
#include <vector>

namespace bpf_of {

constexpr size_t CACHE_LINE_BYTES = 64;

/* A T for each processor, of at most 64; further processors share them. */
template <typename T> class PerProcessor {
    public:
	PerProcessor() : all_(std::clamp(std::thread::hardware_concurrency(), 1u, 64u)) {}

	size_t count() const { return all_.size(); }
	/* The number of the instance of the processor on which the caller runs. */
	size_t here() const { return static_cast<unsigned>(::sched_getcpu()) % all_.size(); }
	T &operator[](size_t number) const { return all_[number].one; }

    private:
	struct alignas(CACHE_LINE_BYTES) Aligned {
		mutable T one;
	};

	const std::vector<Aligned> all_;
};

/* A pointer that is read often and changed seldom. */
template <typename T> class SharedPerProcessor {
    public:
	/* Until store() has returned, load() may return the previous pointer on another processor. */
	std::shared_ptr<T> load() const
	{
		Copy &copy = copies_[copies_.here()];
		std::lock_guard<std::mutex> lock(copy.mutex);

		return copy.pointer;
	}

	void store(const std::shared_ptr<T> &pointer)
	{
		for (size_t i = 0; i < copies_.count(); i++) {
			/* Each copy has a reference count of its own. The old pointer is released after
			 * the lock. */
			std::shared_ptr<T> copy(pointer.get(), [pointer](T *) {});
			std::lock_guard<std::mutex> lock(copies_[i].mutex);

			copies_[i].pointer.swap(copy);
		}
	}

    private:
	struct Copy {
		std::mutex mutex;
		std::shared_ptr<T> pointer;
	};

	const PerProcessor<Copy> copies_;
};

} /* namespace bpf_of */

#endif
