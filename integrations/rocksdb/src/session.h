/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The connection to the target, with RAII: what libbpfof gives, and readers for those who need one. */
#ifndef BPFOF_ROCKSDB_SESSION_H
#define BPFOF_ROCKSDB_SESSION_H

#include "bpfof/rocksdb.h"

#include <bpfof.h>

#include <mutex>
#include <vector>

namespace bpf_of {

class Session {
    public:
	static rocksdb::Status open(const PushdownOptions &options, std::shared_ptr<Session> *session);

	~Session();
	Session(const Session &) = delete;
	Session &operator=(const Session &) = delete;

	struct bpfof *get() const { return bpfof_; }
	const struct bpfof_function *sst_get() const { return function_; }

	/* One of at most readers_max readers, or null. To be given back. */
	struct bpfof_reader *take();
	void give_back(struct bpfof_reader *reader);

    private:
	explicit Session(const PushdownOptions &options) : readers_max_(options.readers_max) {}

	size_t readers_max_;
	struct bpfof *bpfof_ = nullptr;
	struct bpfof_function *function_ = nullptr;

	std::mutex mutex_;
	/* Those that nobody uses, and how many there are in all. */
	std::vector<struct bpfof_reader *> idle_;
	size_t readers_ = 0;
};

/* A reader for as long as this lives. */
class Reader {
    public:
	explicit Reader(Session &session) : session_(session), reader_(session.take()) {}
	~Reader()
	{
		if (reader_)
			session_.give_back(reader_);
	}
	Reader(const Reader &) = delete;
	Reader &operator=(const Reader &) = delete;

	struct bpfof_reader *get() const { return reader_; }

    private:
	Session &session_;
	struct bpfof_reader *reader_;
};

} /* namespace bpf_of */

#endif
