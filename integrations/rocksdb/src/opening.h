/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A database while it is opened: its options are adapted before, and pushdown is put on top
 * afterwards. */
#ifndef BPFOF_ROCKSDB_OPENING_H
#define BPFOF_ROCKSDB_OPENING_H

#include "open.h"
#include "state.h"

namespace bpf_of {

class Opening {
    public:
	/* Connects to the target. `families` are the families to open; their merge operators are
	 * replaced by wrapped ones. Fails as PushdownDB::Open(). */
	static rocksdb::Status begin(const rocksdb::DBOptions &options, const PushdownOptions &pushdown,
		const std::string &path, Access access, std::vector<rocksdb::ColumnFamilyDescriptor> *families,
		std::unique_ptr<Opening> *opening);

	/* Adapts the options with which the database must be opened to be followed. Their Env is valid
	 * as long as this object and the result of end(). */
	void adapt(rocksdb::DBOptions *options) const;

	/* Whether a family is followed; `family` is its place among the families to open. */
	bool is_followed(size_t family) const { return followed_[family] != nullptr; }

	/* Leaves all reads of the database to RocksDB, because it was not opened as begin() expected. */
	void leave_to_rocksdb();

	/* The database was opened. `handles` are the tracker's own handles of all followed families, by
	 * place; null for the default family. */
	PushdownDB *end(rocksdb::DB *opened, const std::vector<rocksdb::ColumnFamilyHandle *> &handles);

    private:
	Opening() = default;

	std::unique_ptr<PushdownDB::State> state_;
	std::shared_ptr<rocksdb::Env> env_;
	/* By place; null for families that cannot be pushed down. */
	std::vector<std::shared_ptr<VersionTracker>> followed_;
};

} /* namespace bpf_of */

#endif
