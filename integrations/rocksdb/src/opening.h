/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A database while it is opened: before that its options are adapted, and after it what reads is put on top. */
#ifndef BPFOF_ROCKSDB_OPENING_H
#define BPFOF_ROCKSDB_OPENING_H

#include "open.h"
#include "state.h"

namespace bpf_of {

class Opening {
    public:
	/* Connects to the target. `families` are those that will be opened, with the merge operators that they
	 * have then. As PushdownDB::Open(). */
	static rocksdb::Status begin(const rocksdb::DBOptions &options, const PushdownOptions &pushdown,
		const std::string &path, Access access, std::vector<rocksdb::ColumnFamilyDescriptor> *families,
		std::unique_ptr<Opening> *opening);

	/* What the database is to be opened with, or it is not followed. The Env is good as long as this, and
	 * what end() makes. */
	void adapt(rocksdb::DBOptions *options) const;

	/* Whether a family is followed, by its place among those that are opened. */
	bool is_followed(size_t family) const { return followed_[family] != nullptr; }

	/* The database was opened. `handles` are the tracker's own of all families that are followed, by
	 * place; null for the default family. */
	PushdownDB *end(rocksdb::DB *opened, const std::vector<rocksdb::ColumnFamilyHandle *> &handles);

    private:
	Opening() = default;

	std::unique_ptr<PushdownDB::State> state_;
	std::shared_ptr<rocksdb::Env> env_;
	/* By place; null for those that cannot be pushed down. */
	std::vector<std::shared_ptr<VersionTracker>> followed_;
};

} /* namespace bpf_of */

#endif
