/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* DB::Open() and the like, which return a plain pointer up to RocksDB 9, and later a pointer that owns
 * the database. */
#ifndef BPFOF_ROCKSDB_OPEN_H
#define BPFOF_ROCKSDB_OPEN_H

#include <rocksdb/db.h>

#include <memory>

namespace bpf_of {

/* Whether an open database changes, and by whom. */
enum class Access {
	kPrimary,   /* this object */
	kReadOnly,  /* no process */
	kSecondary, /* another instance; this one follows it on demand */
};

/* DB::Open(); its last argument receives the database. */
struct OpenForAll {
	static constexpr Access ACCESS = Access::kPrimary;

	template <typename... Arguments>
	auto operator()(Arguments &&...arguments) const -> decltype(rocksdb::DB::Open(arguments...))
	{
		return rocksdb::DB::Open(arguments...);
	}
};

/* DB::OpenForReadOnly(), likewise. */
struct OpenForReading {
	static constexpr Access ACCESS = Access::kReadOnly;

	bool error_if_wal_file_exists;

	template <typename... Arguments>
	auto operator()(Arguments &&...arguments) const
		-> decltype(rocksdb::DB::OpenForReadOnly(arguments..., error_if_wal_file_exists))
	{
		return rocksdb::DB::OpenForReadOnly(arguments..., error_if_wal_file_exists);
	}
};

/* DB::OpenAsSecondary(), likewise. */
struct OpenFollowing {
	static constexpr Access ACCESS = Access::kSecondary;

	const std::string &secondary_path;

	template <typename Options, typename... Arguments>
	auto operator()(const Options &options, const std::string &path, Arguments &&...arguments) const
		-> decltype(rocksdb::DB::OpenAsSecondary(options, path, secondary_path, arguments...))
	{
		return rocksdb::DB::OpenAsSecondary(options, path, secondary_path, arguments...);
	}
};

template <typename Open, typename... Arguments>
auto open_database_as(int, const Open &open, rocksdb::DB **db, Arguments &&...arguments)
	-> decltype(open(arguments..., static_cast<std::unique_ptr<rocksdb::DB> *>(nullptr)))
{
	std::unique_ptr<rocksdb::DB> opened;
	const rocksdb::Status status = open(arguments..., &opened);

	*db = opened.release();
	return status;
}

template <typename Open, typename... Arguments>
auto open_database_as(long, const Open &open, rocksdb::DB **db, Arguments &&...arguments)
	-> decltype(open(arguments..., db))
{
	*db = nullptr;
	return open(arguments..., db);
}

/* Calls `open` with the arguments, and the place of the result. The caller deletes *db, which is null
 * upon errors. */
template <typename Open, typename... Arguments>
rocksdb::Status open_database_by(const Open &open, rocksdb::DB **db, Arguments &&...arguments)
{
	return open_database_as(0, open, db, arguments...);
}

/* Opens a database as open_database_by(), with DB::Open(). */
template <typename... Arguments> rocksdb::Status open_database(rocksdb::DB **db, Arguments &&...arguments)
{
	return open_database_by(OpenForAll(), db, arguments...);
}

} /* namespace bpf_of */

#endif
