/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * PushdownDB for programs that use RocksDB's C API: these calls open a database; all other calls are
 * those of <rocksdb/c.h>, as always.
 *
 *     char *error = NULL;
 *     rocksdb_t *db = bpfof_rocksdb_open(options, "url=nvme-tcp://10.0.0.2:4420/nqn.2026-01.io.example:db;"
 *                                                 "device=/dev/nvme1n1", "/mnt/db", &error);
 *
 * `pushdown` has the members of PushdownOptions (bpfof/rocksdb.h) by name: NAME=VALUE, separated by
 * ';'. rocksdb_property_int(db, "bpfof.gets.target", &n) and the like, and rocksdb_property_value(db,
 * "bpfof.stats"), which is JSON, tell how many reads were pushed down. Neither `pushdown` nor a path
 * may be NULL.
 *
 * Errors are reported as by rocksdb_open(): NULL is returned, and the caller frees *error with
 * rocksdb_free().
 */
#ifndef BPFOF_ROCKSDB_C_H
#define BPFOF_ROCKSDB_C_H

#include <rocksdb/c.h>

#ifdef __cplusplus
extern "C" {
#endif

/* As rocksdb_open(); PushdownDB::Open() lists the options it requires. Close it with
 * rocksdb_close(). */
rocksdb_t *bpfof_rocksdb_open(
	const rocksdb_options_t *options, const char *pushdown, const char *path, char **error);

/* As rocksdb_open_column_families(). */
rocksdb_t *bpfof_rocksdb_open_column_families(const rocksdb_options_t *options, const char *pushdown,
	const char *path, int count, const char *const *names,
	const rocksdb_options_t *const *family_options, rocksdb_column_family_handle_t **handles,
	char **error);

/* As rocksdb_open_for_read_only() and rocksdb_open_for_read_only_column_families(). */
rocksdb_t *bpfof_rocksdb_open_for_read_only(const rocksdb_options_t *options, const char *pushdown,
	const char *path, unsigned char error_if_wal_file_exists, char **error);
rocksdb_t *bpfof_rocksdb_open_for_read_only_column_families(const rocksdb_options_t *options,
	const char *pushdown, const char *path, int count, const char *const *names,
	const rocksdb_options_t *const *family_options, rocksdb_column_family_handle_t **handles,
	unsigned char error_if_wal_file_exists, char **error);

/* As rocksdb_open_as_secondary() and rocksdb_open_as_secondary_column_families().
 * rocksdb_try_catch_up_with_primary() applies the primary's changes. */
rocksdb_t *bpfof_rocksdb_open_as_secondary(const rocksdb_options_t *options, const char *pushdown, const char *path,
	const char *secondary_path, char **error);
rocksdb_t *bpfof_rocksdb_open_as_secondary_column_families(const rocksdb_options_t *options, const char *pushdown,
	const char *path, const char *secondary_path, int count, const char *const *names,
	const rocksdb_options_t *const *family_options, rocksdb_column_family_handle_t **handles, char **error);

/*
 * For libraries that open the database themselves, with rocksdb_open(), rocksdb_open_for_read_only() or
 * rocksdb_open_as_secondary(): begin() connects to the target and changes `options`, which may then be used for this
 * database only, and for its default column family; once it is open, end() puts pushdown on top of `db`. If the
 * database could not be opened, pass NULL as `db`. The default column family is pushed down, and families that are
 * created later. If the default family was opened with another comparator or merge operator, or the database by
 * rocksdb_open_with_ttl() and the like, RocksDB serves all reads, and its log says so.
 */
enum bpfof_rocksdb_access {
	BPFOF_ROCKSDB_PRIMARY = 0,   /* rocksdb_open() */
	BPFOF_ROCKSDB_READ_ONLY = 1, /* rocksdb_open_for_read_only() */
	BPFOF_ROCKSDB_SECONDARY = 2, /* rocksdb_open_as_secondary() */
};
struct bpfof_rocksdb_opening;
struct bpfof_rocksdb_opening *bpfof_rocksdb_begin(rocksdb_options_t *options, const char *pushdown, const char *path,
	enum bpfof_rocksdb_access access, char **error);
void bpfof_rocksdb_end(struct bpfof_rocksdb_opening *opening, rocksdb_t *db);

#ifdef __cplusplus
}
#endif

#endif
