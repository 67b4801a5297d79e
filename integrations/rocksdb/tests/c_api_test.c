/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A program in C that opens its databases by bpfof_rocksdb_open() and the like, and then uses only
 * RocksDB's own calls: every answer must be what was written, and mostly from chains.
 */
#include <bpfof/rocksdb_c.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define KEYS 12500u
/* Keys of one rocksdb_multi_get(). */
#define MANY 32u

#define CHECK(condition, ...)                                                               \
	do {                                                                                \
		if (!(condition)) {                                                         \
			fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition);     \
			fprintf(stderr, __VA_ARGS__);                                       \
			fprintf(stderr, "\n");                                              \
			exit(1);                                                            \
		}                                                                           \
	} while (0)

static void check_ok(char *error, const char *what)
{
	CHECK(!error, "%s: %s", what, error);
}

static uint64_t mixed(uint64_t number)
{
	number = (number ^ number >> 30) * 0xbf58476d1ce4e5b9;
	number = (number ^ number >> 27) * 0x94d049bb133111eb;
	return number ^ number >> 31;
}

static size_t key_of(char *key, uint32_t number)
{
	return sprintf(key, "key%08" PRIu32, number);
}

/* The contents of a key, by family; every 5th key is deleted again. */
static int is_deleted(uint32_t number)
{
	return number % 5 == 0;
}

static size_t value_of(char *value, uint32_t number, int family)
{
	return sprintf(value, "%" PRIx64 " of %" PRIu32 " in %d", mixed(number), number, family);
}

static uint64_t property(rocksdb_t *db, const char *name)
{
	uint64_t value;

	CHECK(rocksdb_property_int(db, name, &value) == 0, "there is no property %s", name);
	return value;
}

static uint64_t chains(rocksdb_t *db)
{
	return property(db, "bpfof.gets.target") + property(db, "bpfof.gets.here");
}

static void wait_ready(rocksdb_t *db)
{
	const struct timespec pause = {0, 1000000};

	for (int ms = 0; !property(db, "bpfof.ready"); ms++) {
		CHECK(ms < 20000, "the tables are not known");
		nanosleep(&pause, NULL);
	}
}

static rocksdb_options_t *small_tables(void)
{
	rocksdb_options_t *options = rocksdb_options_create();
	rocksdb_block_based_table_options_t *table = rocksdb_block_based_options_create();

	rocksdb_options_set_create_if_missing(options, 1);
	rocksdb_options_set_create_missing_column_families(options, 1);
	rocksdb_options_set_max_open_files(options, -1);
	rocksdb_options_set_write_buffer_size(options, 64 << 10);
	rocksdb_options_set_target_file_size_base(options, 64 << 10);
	rocksdb_options_set_max_bytes_for_level_base(options, 256 << 10);
	rocksdb_block_based_options_set_no_block_cache(table, 1);
	rocksdb_options_set_block_based_table_factory(options, table);
	rocksdb_block_based_options_destroy(table);
	return options;
}

static void write_all(rocksdb_t *db, rocksdb_column_family_handle_t *family, int number)
{
	rocksdb_writeoptions_t *how = rocksdb_writeoptions_create();
	rocksdb_flushoptions_t *flush = rocksdb_flushoptions_create();
	char *error = NULL;
	char key[32], value[64];

	rocksdb_writeoptions_disable_WAL(how, 1);
	for (uint32_t i = 0; i < KEYS; i++) {
		const uint32_t of = (uint64_t)i * 7919 % KEYS;

		rocksdb_put_cf(db, how, family, key, key_of(key, of), value,
			value_of(value, of, number), &error);
		check_ok(error, "rocksdb_put_cf");
		if (is_deleted(of))
			rocksdb_delete_cf(db, how, family, key, key_of(key, of), &error);
		check_ok(error, "rocksdb_delete_cf");
	}
	rocksdb_flush_cf(db, flush, family, &error);
	check_ok(error, "rocksdb_flush_cf");
	rocksdb_flushoptions_destroy(flush);
	rocksdb_writeoptions_destroy(how);
}

static void check_value(uint32_t number, int family, const char *got, size_t length)
{
	char value[64];
	const size_t wanted = value_of(value, number, family);

	if (number >= KEYS || is_deleted(number))
		CHECK(!got, "key %" PRIu32 " is there", number);
	else
		CHECK(got && length == wanted && !memcmp(got, value, wanted),
			"key %" PRIu32 " of family %d has another value", number, family);
}

static void read_all(rocksdb_t *db, rocksdb_column_family_handle_t *family, int number)
{
	rocksdb_readoptions_t *how = rocksdb_readoptions_create();
	char *error = NULL;
	char key[32];

	/* Includes a few keys that never existed. */
	for (uint32_t i = 0; i < KEYS + 100; i += 3) {
		size_t length;
		char *got = rocksdb_get_cf(db, how, family, key, key_of(key, i), &length, &error);

		check_ok(error, "rocksdb_get_cf");
		check_value(i, number, got, length);
		rocksdb_free(got);
	}
	rocksdb_readoptions_destroy(how);
}

static void read_many(rocksdb_t *db, rocksdb_column_family_handle_t *family, int number)
{
	rocksdb_readoptions_t *how = rocksdb_readoptions_create();
	const rocksdb_column_family_handle_t *families[MANY];
	char text[MANY][32], *keys[MANY], *values[MANY], *errors[MANY];
	size_t sizes[MANY], lengths[MANY];
	uint32_t numbers[MANY];

	for (uint64_t round = 0; round < 100; round++) {
		for (uint32_t i = 0; i < MANY; i++) {
			numbers[i] = mixed(round * MANY + i) % KEYS;
			families[i] = family;
			keys[i] = text[i];
			sizes[i] = key_of(text[i], numbers[i]);
		}
		rocksdb_multi_get_cf(db, how, families, MANY, (const char *const *)keys, sizes, values,
			lengths, errors);
		for (uint32_t i = 0; i < MANY; i++) {
			check_ok(errors[i], "rocksdb_multi_get_cf");
			check_value(numbers[i], number, values[i], lengths[i]);
			rocksdb_free(values[i]);
		}
	}
	rocksdb_readoptions_destroy(how);
}

static void scan(rocksdb_t *db, rocksdb_column_family_handle_t *family, int number)
{
	rocksdb_readoptions_t *how = rocksdb_readoptions_create();
	rocksdb_iterator_t *at = rocksdb_create_iterator_cf(db, how, family);
	const char *first = "key00010001";
	char *error = NULL;

	rocksdb_iter_seek(at, first, strlen(first));
	for (uint32_t i = 10001; i < 12000; i++) {
		size_t length;

		if (is_deleted(i))
			continue;
		CHECK(rocksdb_iter_valid(at), "the scan ends before key %" PRIu32, i);
		const char *got = rocksdb_iter_value(at, &length);

		check_value(i, number, got, length);
		rocksdb_iter_next(at);
	}
	rocksdb_iter_get_error(at, &error);
	check_ok(error, "rocksdb_iter_next");
	rocksdb_iter_destroy(at);
	rocksdb_readoptions_destroy(how);
}

/* Two column families, whose handles are deleted before the database is closed. */
static void families(const char *path, const char *pushdown)
{
	const char *const names[] = {"default", "second"};
	rocksdb_options_t *options = small_tables();
	const rocksdb_options_t *const each[] = {options, options};
	rocksdb_column_family_handle_t *handles[2];
	char *error = NULL;
	rocksdb_t *db = bpfof_rocksdb_open_column_families(
		options, pushdown, path, 2, names, each, handles, &error);

	check_ok(error, "bpfof_rocksdb_open_column_families");
	for (int i = 0; i < 2; i++)
		write_all(db, handles[i], i);
	wait_ready(db);
	for (int i = 0; i < 2; i++) {
		const uint64_t before = chains(db);

		read_all(db, handles[i], i);
		CHECK(chains(db) > before + KEYS / 6, "chains gave few answers");
		read_many(db, handles[i], i);
		CHECK(chains(db) > before + KEYS / 6 + 100 * MANY / 2, "no chains in rocksdb_multi_get");
		scan(db, handles[i], i);
	}
	CHECK(property(db, "bpfof.seeks") > 0, "no seek fetched its blocks at once");

	/* A new family, and a dropped one, are read like the others. */
	rocksdb_column_family_handle_t *third = rocksdb_create_column_family(db, options, "third", &error);

	check_ok(error, "rocksdb_create_column_family");
	write_all(db, third, 2);
	read_all(db, third, 2);
	CHECK(property(db, "bpfof.gets.column-family") == 0, "a new family was not pushed down");
	rocksdb_column_family_handle_destroy(third);
	rocksdb_drop_column_family(db, handles[1], &error);
	check_ok(error, "rocksdb_drop_column_family");
	read_all(db, handles[1], 1);
	for (int i = 0; i < 2; i++)
		rocksdb_column_family_handle_destroy(handles[i]);
	/* The tracker does not need the program's handles. */
	wait_ready(db);
	rocksdb_close(db);
	rocksdb_options_destroy(options);
}

/* Reads the database that families() has left, without its second family. */
static void for_reading(const char *path, const char *pushdown)
{
	const char *const names[] = {"default", "third"};
	const int numbers[] = {0, 2};
	rocksdb_options_t *options = small_tables();
	const rocksdb_options_t *const each[] = {options, options};
	rocksdb_writeoptions_t *how = rocksdb_writeoptions_create();
	rocksdb_column_family_handle_t *handles[2];
	char none[4096 + 8];
	char *error = NULL;
	rocksdb_t *db = bpfof_rocksdb_open_for_read_only_column_families(
		options, pushdown, path, 2, names, each, handles, 0, &error);

	check_ok(error, "bpfof_rocksdb_open_for_read_only_column_families");
	wait_ready(db);
	for (int i = 0; i < 2; i++) {
		const uint64_t before = chains(db);

		read_all(db, handles[i], numbers[i]);
		read_many(db, handles[i], numbers[i]);
		CHECK(chains(db) > before + KEYS / 6 + 100 * MANY / 2, "chains gave few answers");
		scan(db, handles[i], numbers[i]);
		rocksdb_column_family_handle_destroy(handles[i]);
	}
	rocksdb_put(db, how, "key", 3, "value", 5, &error);
	CHECK(error, "it was written to");
	rocksdb_free(error);
	error = NULL;
	rocksdb_close(db);
	/* One of the families is enough. */
	db = bpfof_rocksdb_open_for_read_only(options, pushdown, path, 0, &error);
	check_ok(error, "bpfof_rocksdb_open_for_read_only");
	rocksdb_close(db);
	snprintf(none, sizeof(none), "%s.none", path);
	CHECK(!bpfof_rocksdb_open_for_read_only(options, pushdown, none, 0, &error) && error,
		"there is no database");
	rocksdb_free(error);
	rocksdb_writeoptions_destroy(how);
	rocksdb_options_destroy(options);
}

/* A secondary of the same database, while it is written to. */
static void following(const char *path, const char *pushdown)
{
	const char *const names[] = {"default", "third"};
	rocksdb_options_t *options = small_tables();
	const rocksdb_options_t *const each[] = {options, options};
	rocksdb_writeoptions_t *how = rocksdb_writeoptions_create();
	rocksdb_column_family_handle_t *writing[2], *reading[2];
	char own[4096 + 16];
	char *error = NULL;
	rocksdb_t *primary = rocksdb_open_column_families(options, path, 2, names, each, writing, &error);

	check_ok(error, "rocksdb_open_column_families");
	snprintf(own, sizeof(own), "%s.follower", path);
	rocksdb_t *db = bpfof_rocksdb_open_as_secondary_column_families(
		options, pushdown, path, own, 2, names, each, reading, &error);

	check_ok(error, "bpfof_rocksdb_open_as_secondary_column_families");
	wait_ready(db);
	const uint64_t before = chains(db);

	read_all(db, reading[1], 2);
	read_many(db, reading[1], 2);
	CHECK(chains(db) > before + KEYS / 6 + 100 * MANY / 2, "chains gave few answers");
	rocksdb_put_cf(primary, how, writing[1], "new", 3, "value", 5, &error);
	check_ok(error, "rocksdb_put_cf");
	rocksdb_try_catch_up_with_primary(db, &error);
	check_ok(error, "rocksdb_try_catch_up_with_primary");
	rocksdb_readoptions_t *at = rocksdb_readoptions_create();
	size_t size;
	char *value = rocksdb_get_cf(db, at, reading[1], "new", 3, &size, &error);

	check_ok(error, "rocksdb_get_cf");
	CHECK(value && size == 5, "what the primary has written is missing");
	rocksdb_free(value);
	rocksdb_readoptions_destroy(at);
	for (int i = 0; i < 2; i++) {
		rocksdb_column_family_handle_destroy(reading[i]);
		rocksdb_column_family_handle_destroy(writing[i]);
	}
	rocksdb_close(db);
	/* One of the families is enough. */
	db = bpfof_rocksdb_open_as_secondary(options, pushdown, path, own, &error);
	check_ok(error, "bpfof_rocksdb_open_as_secondary");
	rocksdb_close(db);
	rocksdb_close(primary);
	rocksdb_writeoptions_destroy(how);
	rocksdb_options_destroy(options);
}

/* The program opens the database itself, as libraries do that hide it. */
static void put_on_top(const char *path, const char *pushdown)
{
	rocksdb_options_t *options = small_tables();
	char *error = NULL;
	struct bpfof_rocksdb_opening *opening =
		bpfof_rocksdb_begin(options, pushdown, path, BPFOF_ROCKSDB_PRIMARY, &error);

	check_ok(error, "bpfof_rocksdb_begin");
	rocksdb_t *db = rocksdb_open(options, path, &error);

	check_ok(error, "rocksdb_open");
	bpfof_rocksdb_end(opening, db);
	rocksdb_options_destroy(options);
	wait_ready(db);

	rocksdb_readoptions_t *how = rocksdb_readoptions_create();
	char key[32];

	for (uint32_t i = 0; i < KEYS; i += 7) {
		size_t length;
		char *got = rocksdb_get(db, how, key, key_of(key, i), &length, &error);

		check_ok(error, "rocksdb_get");
		check_value(i, 0, got, length);
		rocksdb_free(got);
	}
	CHECK(chains(db) > KEYS / 14, "chains gave few answers");
	char *stats = rocksdb_property_value(db, "bpfof.stats");

	CHECK(stats && stats[0] == '{' && strstr(stats, ", \"sample-rate\": 0}"), "the statistics are missing or incomplete");
	printf("%s\n", stats);
	rocksdb_free(stats);
	rocksdb_readoptions_destroy(how);
	rocksdb_close(db);
}

/* Values of a database with a time to live are not those of its tables: nothing is pushed down. */
static void not_on_top_of_others(const char *path, const char *pushdown)
{
	char timed[4096 + 8];
	rocksdb_options_t *options = small_tables();
	rocksdb_writeoptions_t *write = rocksdb_writeoptions_create();
	rocksdb_flushoptions_t *flush = rocksdb_flushoptions_create();
	rocksdb_readoptions_t *how = rocksdb_readoptions_create();
	char *error = NULL;

	snprintf(timed, sizeof(timed), "%s.timed", path);
	rocksdb_destroy_db(options, timed, &error);
	check_ok(error, "rocksdb_destroy_db");
	struct bpfof_rocksdb_opening *opening =
		bpfof_rocksdb_begin(options, pushdown, timed, BPFOF_ROCKSDB_PRIMARY, &error);

	check_ok(error, "bpfof_rocksdb_begin");
	rocksdb_t *db = rocksdb_open_with_ttl(options, timed, 1000000, &error);

	check_ok(error, "rocksdb_open_with_ttl");
	bpfof_rocksdb_end(opening, db);
	rocksdb_put(db, write, "key", 3, "value", 5, &error);
	check_ok(error, "rocksdb_put");
	for (int is_flushed = 0; is_flushed < 2; is_flushed++) {
		size_t size = 0;
		char *value = rocksdb_get(db, how, "key", 3, &size, &error);

		check_ok(error, "rocksdb_get");
		CHECK(value && size == 5 && memcmp(value, "value", 5) == 0, "%zu bytes, flushed: %d", size, is_flushed);
		rocksdb_free(value);
		rocksdb_flush(db, flush, &error);
		check_ok(error, "rocksdb_flush");
	}
	CHECK(property(db, "bpfof.gets.plain") == 2, "Gets were pushed down");
	rocksdb_close(db);
	rocksdb_readoptions_destroy(how);
	rocksdb_flushoptions_destroy(flush);
	rocksdb_writeoptions_destroy(write);
	rocksdb_options_destroy(options);
}

/* Nor is it where a database was opened with other options. */
static void not_with_other_options(const char *path, const char *pushdown)
{
	for (int has_other_merge = 0; has_other_merge < 2; has_other_merge++) {
		rocksdb_options_t *options = small_tables(), *other = small_tables();
		rocksdb_readoptions_t *how = rocksdb_readoptions_create();
		char *error = NULL, key[32];
		size_t length;
		struct bpfof_rocksdb_opening *opening =
			bpfof_rocksdb_begin(options, pushdown, path, BPFOF_ROCKSDB_PRIMARY, &error);

		check_ok(error, "bpfof_rocksdb_begin");
		rocksdb_options_set_uint64add_merge_operator(options);
		rocksdb_t *db = rocksdb_open(has_other_merge ? options : other, path, &error);

		check_ok(error, "rocksdb_open");
		bpfof_rocksdb_end(opening, db);
		rocksdb_free(rocksdb_get(db, how, key, key_of(key, 7), &length, &error));
		check_ok(error, "rocksdb_get");
		CHECK(property(db, "bpfof.gets.plain") == 1, "a Get was pushed down, %d", has_other_merge);
		rocksdb_column_family_handle_t *family = rocksdb_create_column_family(db, other, "later", &error);

		check_ok(error, "rocksdb_create_column_family");
		rocksdb_drop_column_family(db, family, &error);
		check_ok(error, "rocksdb_drop_column_family");
		rocksdb_column_family_handle_destroy(family);
		rocksdb_close(db);
		rocksdb_readoptions_destroy(how);
		rocksdb_options_destroy(other);
		rocksdb_options_destroy(options);
	}
}

/*
 * A database of one table. Without a merge operator RocksDB opens it for reading in a special form
 * whose Get() ignores range deletions.
 */
static void for_reading_on_top(const char *path, const char *pushdown)
{
	char alone[4096 + 8];
	rocksdb_options_t *options = small_tables();
	rocksdb_writeoptions_t *write = rocksdb_writeoptions_create();
	rocksdb_flushoptions_t *flush = rocksdb_flushoptions_create();
	rocksdb_writebatch_t *batch = rocksdb_writebatch_create();
	char *error = NULL;

	snprintf(alone, sizeof(alone), "%s.alone", path);
	rocksdb_destroy_db(options, alone, &error);
	check_ok(error, "rocksdb_destroy_db");
	rocksdb_t *db = rocksdb_open(options, alone, &error);

	check_ok(error, "rocksdb_open");
	rocksdb_put(db, write, "deleted", 7, "value", 5, &error);
	rocksdb_put(db, write, "kept", 4, "value", 5, &error);
	check_ok(error, "rocksdb_put");
	/* Keeps the deleted key through the flush. */
	const rocksdb_snapshot_t *snapshot = rocksdb_create_snapshot(db);

	rocksdb_writebatch_delete_range(batch, "d", 1, "e", 1);
	rocksdb_write(db, write, batch, &error);
	rocksdb_flush(db, flush, &error);
	check_ok(error, "rocksdb_flush");
	rocksdb_release_snapshot(db, snapshot);
	rocksdb_close(db);

	struct bpfof_rocksdb_opening *opening =
		bpfof_rocksdb_begin(options, pushdown, alone, BPFOF_ROCKSDB_READ_ONLY, &error);

	check_ok(error, "bpfof_rocksdb_begin");
	db = rocksdb_open_for_read_only(options, alone, 0, &error);
	check_ok(error, "rocksdb_open_for_read_only");
	bpfof_rocksdb_end(opening, db);
	wait_ready(db);
	rocksdb_readoptions_t *how = rocksdb_readoptions_create();

	/* By a chain, and by RocksDB: kPersistedTier covers all of it. */
	for (int tier = 0; tier <= 2; tier += 2) {
		const uint64_t before = chains(db);
		size_t size;

		rocksdb_readoptions_set_read_tier(how, tier);
		char *kept = rocksdb_get(db, how, "kept", 4, &size, &error);
		char *deleted = rocksdb_get(db, how, "deleted", 7, &size, &error);

		check_ok(error, "rocksdb_get");
		CHECK(kept && !deleted, "by read tier %d: %s", tier, deleted ? "a range deletion is ignored" : "lost");
		CHECK((chains(db) > before) == (tier == 0), "chains by read tier %d", tier);
		rocksdb_free(kept);
	}
	rocksdb_close(db);
	rocksdb_readoptions_destroy(how);
	rocksdb_writebatch_destroy(batch);
	rocksdb_flushoptions_destroy(flush);
	rocksdb_writeoptions_destroy(write);
	rocksdb_options_destroy(options);
}

static void says_no(const char *pushdown, const char *path, const char *why)
{
	rocksdb_options_t *options = small_tables();
	char *error = NULL;
	rocksdb_t *db = bpfof_rocksdb_open(options, pushdown, path, &error);

	CHECK(!db && error && strstr(error, why), "\"%s\" gives \"%s\"", pushdown, error);
	rocksdb_free(error);
	rocksdb_options_destroy(options);
}

static void says_no_to_null(const char *pushdown, const char *path)
{
	rocksdb_options_t *options = small_tables();

	for (int i = 0; i < 2; i++) {
		const char *first = i ? pushdown : NULL, *second = i ? NULL : path;
		char *error = NULL;

		CHECK(!bpfof_rocksdb_open(options, first, second, &error) && error, "NULL is accepted");
		CHECK(strstr(error, "path and pushdown must not be NULL"), "%s", error);
		rocksdb_free(error);
		error = NULL;
		CHECK(!bpfof_rocksdb_begin(options, first, second, BPFOF_ROCKSDB_PRIMARY, &error) && error,
			"NULL is accepted");
		rocksdb_free(error);
	}
	rocksdb_options_destroy(options);
}

int main(int argc, char **argv)
{
	char path[4096], pushdown[4096] = "sample_rate=0";
	rocksdb_options_t *options = small_tables();
	char *error = NULL;

	CHECK(argc == 2 || argc == 4, "usage: %s DIRECTORY [URL DEVICE]", argv[0]);
	snprintf(path, sizeof(path), "%s/c_api", argv[1]);
	if (argc == 4)
		snprintf(pushdown, sizeof(pushdown), "url=%s;device=%s;sample_rate=0;speculate=always", argv[2], argv[3]);
	rocksdb_destroy_db(options, path, &error);
	check_ok(error, "rocksdb_destroy_db");
	says_no("sample_rate", path, "\"sample_rate\" is not NAME=VALUE");
	says_no("sample_rate=often", path, "sample_rate cannot be \"often\"");
	says_no("sampel_rate=0", path, "there is no \"sampel_rate\"");
	says_no("speculate=now", path, "speculate cannot be \"now\"; use never, when-faster or always");
	says_no("sample_rate=2", path, "sample_rate must be from 0 to 1");
	says_no("url=nvme-tcp://127.0.0.1:4420/nqn", path, "url and device must be given together");
	says_no_to_null(pushdown, path);
	families(path, pushdown);
	for_reading(path, pushdown);
	following(path, pushdown);
	for_reading_on_top(path, pushdown);
	rocksdb_options_destroy(options);

	/* Reopened with all existing families: RocksDB refuses fewer. */
	options = small_tables();
	const char *const names[] = {"default", "third"};
	const rocksdb_options_t *const each[] = {options, options};
	rocksdb_column_family_handle_t *handles[2];
	rocksdb_t *db = rocksdb_open_column_families(options, path, 2, names, each, handles, &error);

	check_ok(error, "rocksdb_open_column_families");
	rocksdb_drop_column_family(db, handles[1], &error);
	check_ok(error, "rocksdb_drop_column_family");
	for (int i = 0; i < 2; i++)
		rocksdb_column_family_handle_destroy(handles[i]);
	rocksdb_close(db);
	rocksdb_options_destroy(options);
	put_on_top(path, pushdown);
	not_on_top_of_others(path, pushdown);
	not_with_other_options(path, pushdown);
	return 0;
}
