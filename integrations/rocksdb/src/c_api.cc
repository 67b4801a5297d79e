/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * These structs repeat those of RocksDB's own C API, which only its source file defines: a pointer to
 * the database, or the options themselves. Their layout has never changed.
 */
#include "bpfof/rocksdb_c.h"

#include "opening.h"

#include <rocksdb/merge_operator.h>
#include <rocksdb/options.h>

#include <cstdlib>
#include <cstring>
#include <initializer_list>

struct rocksdb_t {
	rocksdb::DB *rep;
};

struct rocksdb_options_t {
	rocksdb::Options rep;
};

struct rocksdb_column_family_handle_t {
	rocksdb::ColumnFamilyHandle *rep;
#if ROCKSDB_MAJOR >= 9
	/* Whether rocksdb_column_family_handle_destroy() keeps `rep`. */
	bool immortal;
#endif
};

struct bpfof_rocksdb_opening {
	std::unique_ptr<bpf_of::Opening> of;
	/* What the database is to be opened with; all but the Env is the default family's. */
	const rocksdb::Env *env;
	const rocksdb::Comparator *comparator;
	std::shared_ptr<rocksdb::MergeOperator> merge_operator;
};

namespace {

using rocksdb::Status;

/* For a database without a merge operator: never called, because there is nothing to merge. */
class NoMerges final : public rocksdb::MergeOperator {
    public:
	bool FullMergeV2(const MergeOperationInput &, MergeOperationOutput *) const override { return false; }
	const char *Name() const override { return "bpfof.NoMerges"; }
};

/* Stores the error as rocksdb_open() does. */
bool is_error(const Status &status, char **error)
{
	if (status.ok())
		return false;
	std::free(*error);
	*error = ::strdup(status.ToString().c_str());
	return true;
}

/* Parses the options, and refuses NULL, of which no std::string can be made. */
Status take_options(
	const char *pushdown, std::initializer_list<const char *> paths, bpf_of::PushdownOptions *options)
{
	bool is_given = pushdown != nullptr;

	for (const char *path : paths)
		is_given = is_given && path;
	if (!is_given)
		return Status::InvalidArgument("path and pushdown must not be NULL");
	return bpf_of::PushdownOptions::parse(pushdown, options);
}

/* Opens a database by `open`, which gets the parsed PushdownOptions and the place of the result. */
template <typename Open>
rocksdb_t *open_default(const char *pushdown, std::initializer_list<const char *> paths, char **error, Open open)
{
	bpf_of::PushdownOptions ours;
	bpf_of::PushdownDB *db = nullptr;

	if (is_error(take_options(pushdown, paths, &ours), error) || is_error(open(ours, &db), error))
		return nullptr;
	return new rocksdb_t{db};
}

/* The same with column families: `open` also gets their descriptors and the place of their handles. */
template <typename Open>
rocksdb_t *open_families(const char *pushdown, std::initializer_list<const char *> paths, int count,
	const char *const *names, const rocksdb_options_t *const *family_options,
	rocksdb_column_family_handle_t **handles, char **error, Open open)
{
	std::vector<rocksdb::ColumnFamilyDescriptor> families;
	std::vector<rocksdb::ColumnFamilyHandle *> opened;
	bpf_of::PushdownOptions ours;
	bpf_of::PushdownDB *db = nullptr;

	for (int i = 0; i < count; i++)
		families.emplace_back(names[i], family_options[i]->rep);
	if (is_error(take_options(pushdown, paths, &ours), error) ||
		is_error(open(ours, families, &opened, &db), error))
		return nullptr;
	for (int i = 0; i < count; i++) {
		handles[i] = new rocksdb_column_family_handle_t();
		handles[i]->rep = opened[i];
	}
	return new rocksdb_t{db};
}

} /* namespace */

rocksdb_t *bpfof_rocksdb_open(
	const rocksdb_options_t *options, const char *pushdown, const char *path, char **error)
{
	return open_default(pushdown, {path}, error, [&](const auto &ours, auto *db) {
		return bpf_of::PushdownDB::Open(options->rep, ours, path, db);
	});
}

rocksdb_t *bpfof_rocksdb_open_column_families(const rocksdb_options_t *options, const char *pushdown,
	const char *path, int count, const char *const *names,
	const rocksdb_options_t *const *family_options, rocksdb_column_family_handle_t **handles,
	char **error)
{
	return open_families(pushdown, {path}, count, names, family_options, handles, error,
		[&](const auto &ours, const auto &families, auto *opened, auto *db) {
			return bpf_of::PushdownDB::Open(options->rep, ours, path, families, opened, db);
		});
}

rocksdb_t *bpfof_rocksdb_open_for_read_only(const rocksdb_options_t *options, const char *pushdown,
	const char *path, unsigned char error_if_wal_file_exists, char **error)
{
	return open_default(pushdown, {path}, error, [&](const auto &ours, auto *db) {
		return bpf_of::PushdownDB::OpenForReadOnly(options->rep, ours, path, db, error_if_wal_file_exists);
	});
}

rocksdb_t *bpfof_rocksdb_open_for_read_only_column_families(const rocksdb_options_t *options,
	const char *pushdown, const char *path, int count, const char *const *names,
	const rocksdb_options_t *const *family_options, rocksdb_column_family_handle_t **handles,
	unsigned char error_if_wal_file_exists, char **error)
{
	return open_families(pushdown, {path}, count, names, family_options, handles, error,
		[&](const auto &ours, const auto &families, auto *opened, auto *db) {
			return bpf_of::PushdownDB::OpenForReadOnly(
				options->rep, ours, path, families, opened, db, error_if_wal_file_exists);
		});
}

rocksdb_t *bpfof_rocksdb_open_as_secondary(const rocksdb_options_t *options, const char *pushdown, const char *path,
	const char *secondary_path, char **error)
{
	return open_default(pushdown, {path, secondary_path}, error, [&](const auto &ours, auto *db) {
		return bpf_of::PushdownDB::OpenAsSecondary(options->rep, ours, path, secondary_path, db);
	});
}

rocksdb_t *bpfof_rocksdb_open_as_secondary_column_families(const rocksdb_options_t *options, const char *pushdown,
	const char *path, const char *secondary_path, int count, const char *const *names,
	const rocksdb_options_t *const *family_options, rocksdb_column_family_handle_t **handles, char **error)
{
	return open_families(pushdown, {path, secondary_path}, count, names, family_options, handles, error,
		[&](const auto &ours, const auto &families, auto *opened, auto *db) {
			return bpf_of::PushdownDB::OpenAsSecondary(
				options->rep, ours, path, secondary_path, families, opened, db);
		});
}

static Status take_access(enum bpfof_rocksdb_access from, bpf_of::Access *access)
{
	switch (from) {
	case BPFOF_ROCKSDB_PRIMARY:
		*access = bpf_of::Access::kPrimary;
		return Status::OK();
	case BPFOF_ROCKSDB_READ_ONLY:
		*access = bpf_of::Access::kReadOnly;
		return Status::OK();
	case BPFOF_ROCKSDB_SECONDARY:
		*access = bpf_of::Access::kSecondary;
		return Status::OK();
	}
	return Status::InvalidArgument("bpfof_rocksdb_begin", "there is no such access");
}

struct bpfof_rocksdb_opening *bpfof_rocksdb_begin(rocksdb_options_t *options, const char *pushdown, const char *path,
	enum bpfof_rocksdb_access access, char **error)
{
	auto opening = std::make_unique<bpfof_rocksdb_opening>();
	std::vector<rocksdb::ColumnFamilyDescriptor> families = {
		{rocksdb::kDefaultColumnFamilyName, options->rep}};
	bpf_of::PushdownOptions ours;

	bpf_of::Access opened_for = bpf_of::Access::kPrimary;

	if (is_error(take_options(pushdown, {path}, &ours), error) ||
		is_error(take_access(access, &opened_for), error) ||
		is_error(bpf_of::Opening::begin(options->rep, ours, path, opened_for, &families, &opening->of), error))
		return nullptr;
	opening->of->adapt(&options->rep);
	options->rep.merge_operator = families[0].options.merge_operator;
	/* Without a merge operator RocksDB may open the database in a form whose Get() ignores range
	 * deletions and blobs. */
	if (opened_for == bpf_of::Access::kReadOnly && !options->rep.merge_operator)
		options->rep.merge_operator = std::make_shared<NoMerges>();
	opening->env = options->rep.env;
	opening->comparator = options->rep.comparator;
	opening->merge_operator = options->rep.merge_operator;
	return opening.release();
}

/* Whether the database was opened with the options of bpfof_rocksdb_begin(), and nothing is above RocksDB, such as
 * DBWithTTL, whose values differ from those in tables. */
static bool is_as_begun(const struct bpfof_rocksdb_opening &opening, rocksdb::DB *db)
{
	const rocksdb::Options options = db->GetOptions(db->DefaultColumnFamily());

	return db->GetRootDB() == db && options.env == opening.env && options.comparator == opening.comparator &&
	       options.merge_operator == opening.merge_operator;
}

void bpfof_rocksdb_end(struct bpfof_rocksdb_opening *opening, rocksdb_t *db)
{
	if (db && !is_as_begun(*opening, db->rep)) {
		opening->of->leave_to_rocksdb();
		rocksdb::Warn(db->rep->GetOptions().info_log,
			"bpfof_rocksdb_end: nothing is pushed down, because the default column family was not opened with "
			"the options of bpfof_rocksdb_begin(), or not as a plain database");
	}
	if (db)
		db->rep = opening->of->end(db->rep, {nullptr});
	delete opening;
}
