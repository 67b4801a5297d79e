/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The connection to the target, with RAII: what libbpfof gives, and readers for those who need one. */
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

/* A reader, and what of its traffic was counted. */
struct PooledReader {
	struct bpfof_reader *reader;
	uint64_t sent;
	uint64_t received;
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

	/* One of at most readers_max readers, or one without reader. To be given back, or away if something is
	 * still in flight on it, or its connection was given up. */
	PooledReader take();
	void give_back(PooledReader reader);
	void give_away(PooledReader reader);

	/* Whether a reader has lost its connection to the target. */
	bool is_lost() const { return lost_.load(std::memory_order_relaxed); }
	/* Adds bytes on all connections, as far as their readers were given back. */
	void count(PushdownStats *stats) const;

    private:
	explicit Session(const PushdownOptions &options) : readers_max_(options.readers_max) {}

	const size_t readers_max_;
	bool has_target_ = false;
	struct bpfof *bpfof_ = nullptr;
	struct bpfof_function *function_ = nullptr;
	std::atomic<bool> lost_{false};

	/* Readers that nobody uses, of a processor: a reader's connection is that of the processor that has used it
	 * last. And the traffic of readers that were given back there. */
	struct Idle {
		std::mutex mutex;
		std::vector<PooledReader> readers;
		uint64_t sent = 0;
		uint64_t received = 0;
	};

	/* Whether a target that is full was asked a moment ago. */
	bool is_refusing() const;
	/* One of them, or one without reader. */
	static PooledReader take_idle(Idle &idle);
	/* Counts what has come since, and keeps the reader unless it was closed. */
	void put(PooledReader reader, uint64_t sent, uint64_t received);

	const PerProcessor<Idle> idle_;
	/* How many there are in all. */
	std::atomic<size_t> readers_{0};
	/* When readers may be asked for again after one was refused, in ms of the steady clock. */
	std::atomic<int64_t> refused_until_{0};
};

/* A reader for as long as this lives. */
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
	/* A read has timed out. If the connection went with it, the target is not lost. */
	void give_up() { gave_up_ = true; }
	const Session &session() const { return *session_; }

    private:
	const std::shared_ptr<Session> session_;
	const PooledReader reader_;
	bool gave_up_ = false;
};

/* The session of the moment: another one once the target was lost and is there again. */
class Target {
    public:
	static rocksdb::Status open(const PushdownOptions &options, std::shared_ptr<Target> *target);

	std::shared_ptr<Session> session() const { return session_.load(); }
	/*
	 * Makes a new session if this one was lost. False if that does not succeed, or none was. `prepare` is called
	 * with it before anybody uses it; what that returns goes when all use it. And closes sessions that are over
	 * once nobody uses them, which may take long.
	 */
	bool reconnect(const std::function<std::shared_ptr<void>(const Session &)> &prepare);
	void count(PushdownStats *stats) const;

    private:
	explicit Target(const PushdownOptions &options) : options_(options) {}

	/* Takes sessions that are over and that nobody uses. */
	std::vector<std::shared_ptr<Session>> take_unused();

	const PushdownOptions options_;
	/* One thread at a time makes a new session. */
	std::mutex reconnecting_;
	/* With that: the session, and before it those that are over, which a call may still use. */
	std::vector<std::shared_ptr<Session>> sessions_;
	SharedPerProcessor<Session> session_;
	/* Traffic of sessions that are over. */
	std::atomic<uint64_t> sent_{0};
	std::atomic<uint64_t> received_{0};
};

} /* namespace bpf_of */

#endif
