/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The connection to the target: the handle of libbpfof, a reader for each thread, and reconnection. */
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
	/* Null if there is no target; then bpfof_error() says why, unless the settings name none. */
	static std::shared_ptr<Session> open(const Settings &settings);
	~Session();
	Session(const Session &) = delete;
	Session &operator=(const Session &) = delete;

	struct bpfof *get() const { return bpfof_; }
	const struct bpfof_function *wt_get() const { return function_; }
	/* Unique among the sessions of the process. */
	uint64_t number() const { return number_; }

	/* A reader for the calling thread, or null. Return it with give_back(). */
	struct bpfof_reader *take();
	void give_back(struct bpfof_reader *reader);
	/* Whether take() makes sense: some readers are left, and none was refused just now. */
	bool may_take() const { return left_.load(std::memory_order_relaxed) > 0 && !is_refusing(); }

	/* Makes a file known that only this process writes. Returns whether chains can read it. */
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
	/* Forgets all files for good. Idle threads still hold the session, which would otherwise keep
	 * the files open. */
	void forget_all();
	/*
	 * Ends the association. No call is in progress, and only give_back() may follow: idle threads
	 * still hold the session.
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
	/* When to ask for readers again after a refusal, in seconds of the steady clock. */
	std::atomic<int64_t> refused_until_{0};
	/* Guards the known files, and the readers of threads. */
	std::mutex mutex_;
	std::set<int> files_;
	std::set<struct bpfof_reader *> readers_;
	bool has_ended_ = false;
};

/* Settings that can never lead to a target. */
struct Mistake : std::runtime_error {
	using std::runtime_error::runtime_error;
};

/* The current session; a thread reconnects when it is lost. */
class Target {
    public:
	/* Reports messages for the operator, from a thread of its own. */
	using Log = std::function<void(const std::string &)>;

	/* Throws Mistake if the settings can never lead to a target. */
	Target(const Settings &settings, Log log);
	~Target();
	Target(const Target &) = delete;
	Target &operator=(const Target &) = delete;

	/* Null while there is none. */
	std::shared_ptr<Session> session() const { return std::atomic_load(&session_); }
	/* Why there was no session at first; empty if there was one. */
	const std::string &problem() const { return problem_; }
	/* The session's number, 0 while there is none. Costs one load. */
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
