/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* DB::Open(), which gives a plain pointer up to RocksDB 9, and later one that owns the database. */
#ifndef BPFOF_ROCKSDB_OPEN_H
#define BPFOF_ROCKSDB_OPEN_H

#include <rocksdb/db.h>

#include <memory>

namespace bpf_of {

template <typename... Arguments>
auto open_database_as(int, rocksdb::DB **db, Arguments &&...arguments)
	-> decltype(rocksdb::DB::Open(
		arguments..., static_cast<std::unique_ptr<rocksdb::DB> *>(nullptr)))
{
	std::unique_ptr<rocksdb::DB> opened;
	const rocksdb::Status status = rocksdb::DB::Open(arguments..., &opened);

	*db = opened.release();
	return status;
}

template <typename... Arguments>
auto open_database_as(long, rocksdb::DB **db, Arguments &&...arguments)
	-> decltype(rocksdb::DB::Open(arguments..., db))
{
	*db = nullptr;
	return rocksdb::DB::Open(arguments..., db);
}

/* DB::Open() with the arguments before the last. The caller deletes *db, which is null upon errors. */
template <typename... Arguments>
rocksdb::Status open_database(rocksdb::DB **db, Arguments &&...arguments)
{
	return open_database_as(0, db, arguments...);
}

} /* namespace bpf_of */

#endif
