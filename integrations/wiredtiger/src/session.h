/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The connection to the target: what libbpfof gives, a reader for each thread, and a new one when it is lost. */
#ifndef BPFOF_WIREDTIGER_SESSION_H
#define BPFOF_WIREDTIGER_SESSION_H

#include "settings.h"

#include <bpfof.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

namespace bpf_of {

/* An association with the target, until it is lost. */
class Session {
    public:
	/* Null if there is no target; then bpfof_error() says why, unless none is named. */
	static std::shared_ptr<Session> open(const Settings &settings);
	~Session();
	Session(const Session &) = delete;
	Session &operator=(const Session &) = delete;

	struct bpfof *get() const { return bpfof_; }
	const struct bpfof_function *wt_get() const { return function_; }
	/* Of no other session of the process. */
	uint64_t number() const { return number_; }

	/* A reader for the calling thread, or null. To be given back. */
	struct bpfof_reader *take();
	void give_back(struct bpfof_reader *reader);

	/* Makes a file known that only this process writes. Whether chains can read it. */
	bool add(int fd)
	{
		std::lock_guard<std::mutex> lock(mutex_);

		if (has_ended_ || bpfof_add_own(bpfof_, fd) < 0)
			return false;
		files_.insert(fd);
		return true;
	}
	void forget(int fd)
	{
		std::lock_guard<std::mutex> lock(mutex_);

		if (files_.erase(fd))
			bpfof_forget(bpfof_, fd);
	}
	/* Forgets all files for good. Threads that search no more have the session still, which would keep them open. */
	void forget_all();

	bool is_lost() const { return lost_.load(std::memory_order_relaxed); }
	void lose() { lost_.store(true, std::memory_order_relaxed); }

    private:
	explicit Session(uint32_t readers_max);

	const uint64_t number_;
	struct bpfof *bpfof_ = nullptr;
	struct bpfof_function *function_ = nullptr;
	std::atomic<bool> lost_{false};
	std::atomic<int64_t> left_;
	/* What is known of files. */
	std::mutex mutex_;
	std::set<int> files_;
	bool has_ended_ = false;
};

/* The session of the moment; a thread looks for another one when it is lost. */
class Target {
    public:
	explicit Target(const Settings &settings);
	~Target();
	Target(const Target &) = delete;
	Target &operator=(const Target &) = delete;

	/* Null while there is none. */
	std::shared_ptr<Session> session() const { return std::atomic_load(&session_); }
	/* Its number, 0 while there is none. Costs a load. */
	uint64_t number() const { return number_.load(std::memory_order_acquire); }

    private:
	void keep();
	void write_counters() const;

	const Settings settings_;
	std::shared_ptr<Session> session_;
	std::atomic<uint64_t> number_{0};
	std::mutex mutex_;
	std::condition_variable stopping_;
	bool stop_ = false;
	std::thread keeper_;
};

} /* namespace bpf_of */

#endif
