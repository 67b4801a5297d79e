/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The connection to the target: what libbpfof gives, a reader for each thread, and a new one when it is lost. */
#ifndef BPFOF_WIREDTIGER_SESSION_H
#define BPFOF_WIREDTIGER_SESSION_H

#include "settings.h"

#include <bpfof.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
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
	/* Whether it makes sense to ask for one: some are left, and it was not refused just now. */
	bool may_take() const { return left_.load(std::memory_order_relaxed) > 0 && !is_refusing(); }

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
	/*
	 * Ends the association; nobody is in a call, and none follows but give_back(). Threads that search no more have
	 * the session still.
	 */
	void end();

	bool is_lost() const { return lost_.load(std::memory_order_relaxed); }
	void lose() { lost_.store(true, std::memory_order_relaxed); }

    private:
	explicit Session(uint32_t readers_max);
	bool is_refusing() const;

	const uint64_t number_;
	struct bpfof *bpfof_ = nullptr;
	struct bpfof_function *function_ = nullptr;
	std::atomic<bool> lost_{false};
	std::atomic<int64_t> left_;
	/* When readers may be asked for again after one was refused, in seconds of the steady clock. */
	std::atomic<int64_t> refused_until_{0};
	/* What is known of files, and the readers of threads. */
	std::mutex mutex_;
	std::set<int> files_;
	std::set<struct bpfof_reader *> readers_;
	bool has_ended_ = false;
};

/* Settings that no later attempt would make good. */
struct Mistake : std::runtime_error {
	using std::runtime_error::runtime_error;
};

/* The session of the moment; a thread looks for another one when it is lost. */
class Target {
    public:
	/* Says what an operator wants to know, from a thread of its own. */
	using Log = std::function<void(const std::string &)>;

	/* Throws Mistake if the settings are no way to any target. */
	Target(const Settings &settings, Log log);
	~Target();
	Target(const Target &) = delete;
	Target &operator=(const Target &) = delete;

	/* Null while there is none. */
	std::shared_ptr<Session> session() const { return std::atomic_load(&session_); }
	/* Why there was none at first; empty if there was. */
	const std::string &problem() const { return problem_; }
	/* Its number, 0 while there is none. Costs a load. */
	uint64_t number() const { return number_.load(std::memory_order_acquire); }

    private:
	void keep();
	void write_counters() const;

	const Settings settings_;
	const Log log_;
	std::shared_ptr<Session> session_;
	std::string problem_;
	std::atomic<uint64_t> number_{0};
	std::mutex mutex_;
	std::condition_variable stopping_;
	bool stop_ = false;
	std::thread keeper_;
};

} /* namespace bpf_of */

#endif
