/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The connection to the target, with RAII: the handle of libbpfof, and readers for the calls that need
 * one. */
#ifndef BPFOF_ROCKSDB_SESSION_H
#define BPFOF_ROCKSDB_SESSION_H

#include "bpfof/rocksdb.h"

#include <bpfof.h>

#include "per_processor.h"

#include <atomic>
#include <functional>
#include <mutex>
#include <vector>

namespace bpf_of {

/* A reader, its traffic that was already counted, and since when it is idle, in ms of the steady clock. */
struct PooledReader {
	struct bpfof_reader *reader;
	uint64_t sent;
	uint64_t received;
	int64_t idle_since;
};

class Session {
    public:
	static rocksdb::Status open(const PushdownOptions &options, std::shared_ptr<Session> *session);

	~Session();
	Session(const Session &) = delete;
	Session &operator=(const Session &) = delete;

	struct bpfof *get() const { return bpfof_; }
	const struct bpfof_function *sst_get() const { return function_; }
	/* Whether chains and reads go to a target. */
	bool has_target() const { return has_target_ && !is_lost(); }

	/* One of at most readers_max readers, or a PooledReader without one. Return it with
	 * give_back(), or with give_away() if something is still in flight on it or its connection was
	 * given up. */
	PooledReader take();
	void give_back(PooledReader reader);
	void give_away(PooledReader reader);

	/* Without a target, closes readers that have long been idle: their rings keep the files open that they
	 * have read, and so the space of deleted ones. */
	void close_idle();

	/* Whether a reader has lost its connection to the target. */
	bool is_lost() const { return lost_.load(std::memory_order_relaxed); }
	/* Adds the bytes on all connections, as of when their readers were returned. */
	void count(PushdownStats *stats) const;

    private:
	explicit Session(const PushdownOptions &options) : readers_max_(options.readers_max) {}

	const size_t readers_max_;
	bool has_target_ = false;
	struct bpfof *bpfof_ = nullptr;
	struct bpfof_function *function_ = nullptr;
	std::atomic<bool> lost_{false};

	/* A processor's idle readers, because a reader's connection is that of the processor that used
	 * it last; and the traffic of readers that were returned there. */
	struct Idle {
		std::mutex mutex;
		std::vector<PooledReader> readers;
		uint64_t sent = 0;
		uint64_t received = 0;
	};

	/* Whether a full target was asked for a connection a moment ago. */
	bool is_refusing() const;
	/* An idle reader, or a PooledReader without one. */
	static PooledReader take_idle(Idle &idle);
	/* Counts the reader's new traffic, and keeps the reader unless it was closed. */
	void put(PooledReader reader, uint64_t sent, uint64_t received);

	const PerProcessor<Idle> idle_;
	/* The number of open readers. */
	std::atomic<size_t> readers_{0};
	/* When to ask for readers again after a refusal, in ms of the steady clock. */
	std::atomic<int64_t> refused_until_{0};
};

/* Holds a reader as long as this object lives. */
class Reader {
    public:
	explicit Reader(std::shared_ptr<Session> session)
		: session_(std::move(session)), reader_(session_->take())
	{
	}
	~Reader()
	{
		if (!reader_.reader)
			return;
		const bool gave_lane_up = gave_up_ && !bpfof_reader_is_connected(reader_.reader);

		if (bpfof_in_flight(reader_.reader) == 0 && !gave_lane_up)
			session_->give_back(reader_);
		else
			session_->give_away(reader_);
	}
	Reader(const Reader &) = delete;
	Reader &operator=(const Reader &) = delete;

	/* Null if all are in use, or the target grants no more. */
	struct bpfof_reader *get() const { return reader_.reader; }
	/* A read has timed out. If its connection was given up for that, the target is not considered
	 * lost. */
	void give_up() { gave_up_ = true; }
	const Session &session() const { return *session_; }

    private:
	const std::shared_ptr<Session> session_;
	const PooledReader reader_;
	bool gave_up_ = false;
};

/* The current session: replaced once the target was lost and is reachable again. */
class Target {
    public:
	static rocksdb::Status open(const PushdownOptions &options, std::shared_ptr<Target> *target);

	std::shared_ptr<Session> session() const { return session_.load(); }
	void close_idle() const { session()->close_idle(); }
	/*
	 * Makes a new session if the current one is lost. False if it is not, or if that fails.
	 * `prepare` gets the session before any caller uses it; the object that it returns is released
	 * when all callers use the session. Also closes replaced sessions that are no longer in use,
	 * which may take long.
	 */
	bool reconnect(const std::function<std::shared_ptr<void>(const Session &)> &prepare);
	void count(PushdownStats *stats) const;

    private:
	explicit Target(const PushdownOptions &options) : options_(options) {}

	/* Removes replaced sessions that are no longer in use, and returns them. */
	std::vector<std::shared_ptr<Session>> take_unused();

	const PushdownOptions options_;
	/* One thread at a time makes a new session. */
	std::mutex reconnecting_;
	/* Guarded by reconnecting_: the current session last, before it replaced ones that a call may
	 * still use. */
	std::vector<std::shared_ptr<Session>> sessions_;
	SharedPerProcessor<Session> session_;
	/* Traffic of replaced sessions. */
	std::atomic<uint64_t> sent_{0};
	std::atomic<uint64_t> received_{0};
};

} /* namespace bpf_of */

#endif
