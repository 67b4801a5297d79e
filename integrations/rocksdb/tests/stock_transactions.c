/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A program that uses only RocksDB's API, to be run with libbpfof-rocksdb-preload.so: transactions of
 * both kinds write, read their own writes, and are committed.
 *
 *     stock_transactions DIRECTORY
 */
#include <rocksdb/c.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEYS 1000

static void check_ok(char *error, const char *what)
{
	if (!error)
		return;
	fprintf(stderr, "%s: %s\n", what, error);
	exit(1);
}

static size_t key_of(char *key, int number)
{
	return (size_t)sprintf(key, "key%06d", number);
}

/* Writes in a transaction, reads in it, and ends it: even numbers are rolled back. */
static void use(rocksdb_transaction_t *transaction, int number)
{
	rocksdb_readoptions_t *how = rocksdb_readoptions_create();
	char key[32], *error = NULL;
	const size_t size = key_of(key, number);
	size_t length;

	rocksdb_transaction_put(transaction, key, size, key, size, &error);
	check_ok(error, "writing");
	char *value = rocksdb_transaction_get(transaction, how, key, size, &length, &error);

	check_ok(error, "reading");
	if (!value || length != size || memcmp(value, key, size))
		check_ok(key, "another value than was written");
	rocksdb_free(value);
	(number % 2 ? rocksdb_transaction_commit : rocksdb_transaction_rollback)(transaction, &error);
	check_ok(error, "ending");
	rocksdb_transaction_destroy(transaction);
	rocksdb_readoptions_destroy(how);
}

static void check(char *value, int number)
{
	if (!value != (number % 2 == 0)) {
		fprintf(stderr, "key %d %s\n", number, value ? "was rolled back" : "is not there");
		exit(1);
	}
	rocksdb_free(value);
}

static rocksdb_options_t *all_open(void)
{
	rocksdb_options_t *options = rocksdb_options_create();

	rocksdb_options_set_create_if_missing(options, 1);
	rocksdb_options_set_max_open_files(options, -1);
	return options;
}

static void optimistic(const char *path)
{
	rocksdb_options_t *options = all_open();
	rocksdb_writeoptions_t *writes = rocksdb_writeoptions_create();
	rocksdb_readoptions_t *reads = rocksdb_readoptions_create();
	rocksdb_optimistictransaction_options_t *how = rocksdb_optimistictransaction_options_create();
	char key[32], *error = NULL;
	size_t length;
	rocksdb_optimistictransactiondb_t *db = rocksdb_optimistictransactiondb_open(options, path, &error);

	check_ok(error, "opening");
	for (int i = 0; i < KEYS; i++)
		use(rocksdb_optimistictransaction_begin(db, writes, how, NULL), i);
	rocksdb_t *base = rocksdb_optimistictransactiondb_get_base_db(db);

	for (int i = 0; i < KEYS; i++) {
		char *value = rocksdb_get(base, reads, key, key_of(key, i), &length, &error);

		check_ok(error, "reading");
		check(value, i);
	}
	rocksdb_optimistictransactiondb_close_base_db(base);
	rocksdb_optimistictransactiondb_close(db);
	rocksdb_optimistictransaction_options_destroy(how);
	rocksdb_readoptions_destroy(reads);
	rocksdb_writeoptions_destroy(writes);
	rocksdb_options_destroy(options);
}

static void pessimistic(const char *path)
{
	rocksdb_options_t *options = all_open();
	rocksdb_writeoptions_t *writes = rocksdb_writeoptions_create();
	rocksdb_readoptions_t *reads = rocksdb_readoptions_create();
	rocksdb_transactiondb_options_t *all = rocksdb_transactiondb_options_create();
	rocksdb_transaction_options_t *how = rocksdb_transaction_options_create();
	char key[32], *error = NULL;
	size_t length;
	rocksdb_transactiondb_t *db = rocksdb_transactiondb_open(options, all, path, &error);

	check_ok(error, "opening");
	/* No rollback: without a write of its own before, it fails an assertion in some versions of
	 * RocksDB. */
	for (int i = 1; i < KEYS; i += 2)
		use(rocksdb_transaction_begin(db, writes, how, NULL), i);
	for (int i = 0; i < KEYS; i++) {
		char *value = rocksdb_transactiondb_get(db, reads, key, key_of(key, i), &length, &error);

		check_ok(error, "reading");
		check(value, i);
	}
	rocksdb_transactiondb_close(db);
	rocksdb_transaction_options_destroy(how);
	rocksdb_transactiondb_options_destroy(all);
	rocksdb_readoptions_destroy(reads);
	rocksdb_writeoptions_destroy(writes);
	rocksdb_options_destroy(options);
}

int main(int argc, char **argv)
{
	char path[4096];

	if (argc != 2) {
		fprintf(stderr, "usage: %s DIRECTORY\n", argv[0]);
		return 2;
	}
	snprintf(path, sizeof(path), "%s/optimistic", argv[1]);
	optimistic(path);
	snprintf(path, sizeof(path), "%s/pessimistic", argv[1]);
	pessimistic(path);
	return 0;
}
