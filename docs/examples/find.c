/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Looks keys up in a file of linked records, each in one round trip to the target.
 *
 *     clang -O2 -g -target bpf -mcpu=v3 -I"$(pkg-config --variable=functiondir bpfof)/include" \
 *           -c find.bpf.c -o find.bpf.o
 *     cc find.c -o find $(pkg-config --cflags --libs bpfof)
 *
 *     ./find make /mnt/records 1000
 *     ./find get find.bpf.o /mnt/records URL /dev/nvme1n1 7 42 900     # at the target
 *     ./find get find.bpf.o /mnt/records - - 7 42 900                  # without one
 */
#include <bpfof.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "records.h"

static int make(const char *path, unsigned long long count)
{
	unsigned long long key;
	FILE *file = fopen(path, "wb");

	if (!file) {
		fprintf(stderr, "find: %s: %s\n", path, strerror(errno));
		return 1;
	}
	for (key = 0; key < count; key++) {
		struct record record;

		memset(&record, 0, sizeof(record));
		record.key = key;
		if (key + BUCKETS < count)
			record.next = (key + BUCKETS) * sizeof(record);
		sprintf(record.value, "value of %llu", key);
		if (fwrite(&record, sizeof(record), 1, file) != 1)
			break;
	}
	if (fclose(file) || key < count) {
		fprintf(stderr, "find: cannot write %s\n", path);
		return 1;
	}
	return 0;
}

static int get(struct bpfof_reader *reader, const struct bpfof_function *find, int fd, const char *key)
{
	struct query query;
	struct bpfof_result result;
	struct bpfof_read first;

	memset(&query, 0, sizeof(query));
	query.key = strtoull(key, NULL, 10);
	first.file = 0;
	first.offset = query.key % BUCKETS * sizeof(struct record);
	first.size = sizeof(struct record);
	/* The argument is the key; the answer takes the whole query. */
	if (bpfof_read_pushdown(reader, &fd, 1, &first, find, &query, sizeof(query),
				sizeof(query.key), &result) < 0) {
		fprintf(stderr, "find: key %s: %s\n", key, bpfof_error());
		return 1;
	}
	printf("%s: %s (%u hops, %s)\n", key, result.length ? query.value : "not found", result.hops,
	       result.executor == BPFOF_AT_TARGET ? "at the target" : "here");
	return 0;
}

static int get_all(struct bpfof *b, const char *object, const char *path, char **keys)
{
	struct bpfof_function *find = bpfof_function_load_file(b, object, "find");
	struct bpfof_reader *reader = bpfof_reader_open(b);
	int fd = open(path, O_RDONLY);
	int failed = 0;

	if (!find || !reader) {
		fprintf(stderr, "find: %s\n", bpfof_error());
		failed = 1;
	} else if (fd < 0) {
		fprintf(stderr, "find: %s: %s\n", path, strerror(errno));
		failed = 1;
	} else if (bpfof_has_target(b) && bpfof_wait_mapped(b, fd, 5000) < 0) {
		/* Not an error: the chains run on this machine. */
		fprintf(stderr, "find: %s\n", bpfof_error());
	}
	for (; !failed && *keys; keys++)
		failed = get(reader, find, fd, *keys);
	if (fd >= 0)
		close(fd);
	bpfof_reader_close(reader);
	bpfof_function_unload(find);
	return failed;
}

int main(int argc, char **argv)
{
	struct bpfof *b;
	int failed;

	if (argc == 4 && !strcmp(argv[1], "make"))
		return make(argv[2], strtoull(argv[3], NULL, 10));
	if (argc < 7 || strcmp(argv[1], "get")) {
		fprintf(stderr, "usage: find make FILE COUNT\n"
				"       find get OBJECT FILE URL|- DEVICE|- KEY...\n");
		return 2;
	}
	if (!strcmp(argv[4], "-"))
		b = bpfof_open(NULL, NULL, NULL);
	else
		b = bpfof_open(argv[4], argv[5], NULL);
	if (!b) {
		fprintf(stderr, "find: %s\n", bpfof_error());
		return 1;
	}
	if (!bpfof_has_target(b))
		fprintf(stderr, "find: without a target%s%s\n", *bpfof_error() ? ": " : "",
			bpfof_error());
	failed = get_all(b, argv[2], argv[3], argv + 6);
	bpfof_close(b);
	return failed;
}
