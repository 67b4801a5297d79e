/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Every call of libbpfof, with and without a target, checked.
 *
 *     calls OBJECT FILE0 FILE1 [URL DEVICE [LANES]]
 *
 * Byte i of the files is i % 251 and i % 241. With URL and DEVICE all chains must run at the target; when this program
 * prints "kill", the test must kill the target and write a line to standard input. With LANES readers share
 * connections, at most that many.
 */
#include "calls.h"

#define THREADS 4
#define CHAINS 500

/* One chain over two files with reads of two sizes in a hop; its answer is checked. */
static void sum_chain(struct bpfof_reader *reader, const struct bpfof_function *sum, const int *fds,
		      uint64_t size, uint64_t more)
{
	struct bpfof_read first = { 8, 16, 0 };
	struct bpfof_result result;
	uint64_t words[16] = { 0 };

	words[1] = 2;
	words[2] = size;
	words[3] = more;
	CHECK(bpfof_read_pushdown(reader, fds, 2, &first, sum, words, sizeof(words), 32, &result) == 48);
	CHECK(words[0] == bytes(100, size + more, 251) + bytes(101, size, 241));
	CHECK(words[4] == 2 && words[5] == size + more);
	CHECK(result.length == 48 && result.error == 0 && result.message[0] == 0);
	CHECK(result.hops == 2 && result.executor == executor && result.status == 0);
}

static void blocking(struct bpfof *b, struct bpfof_reader *reader, const int *fds)
{
	struct bpfof_function *sum = bpfof_function_load_file(b, object, "sum");
	struct bpfof_function *fill = bpfof_function_load_file(b, object, "fill");
	static unsigned char scratch[BPFOF_SCRATCH_MAX];
	struct bpfof_read first = { 0, 0, 1 };
	uint32_t sizes[] = { 1, 7, 512, 4097, 16384 };
	size_t i, byte;

	CHECK(sum && fill);
	sum_chain(reader, sum, fds, 10, 0);
	sum_chain(reader, sum, fds, 3000, 5000);
	/* Scratch of every size, a first read in the second file, no result. */
	for (i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		first.size = sizes[i];
		first.offset = 1000 * i;
		CHECK(bpfof_read_pushdown(reader, fds, 2, &first, fill, scratch, sizes[i], 0, NULL) ==
		      (ssize_t)sizes[i]);
		for (byte = 0; byte < sizes[i]; byte++)
			CHECK(scratch[byte] == (first.offset + byte) % 241);
	}
	bpfof_function_unload(sum);
	bpfof_function_unload(fill);
}

/* Reads without a function: across blocks, across the end, of two files at once. */
static void plain_reads(struct bpfof_reader *reader, const int *fds)
{
	static unsigned char data[3][20000];
	struct bpfof_file_read reads[] = {
		{ fds[0], 5, sizeof(data[0]), data[0], 0 },
		{ fds[1], 4000, 300, data[1], 0 },
		{ fds[0], UINT64_C(1) << 40, 10, data[2], 7 },
		{ fds[1], 0, 0, NULL, 7 },
	};
	uint64_t sent[2], received[2];
	size_t byte;

	CHECK(bpfof_reader_traffic(reader, &sent[0], &received[0]) == 0);
	CHECK(bpfof_read_files(reader, reads, 4) == 0);
	CHECK(reads[0].length == sizeof(data[0]) && reads[1].length == 300);
	CHECK(reads[2].length == 0 && reads[3].length == 0);
	for (byte = 0; byte < sizeof(data[0]); byte++)
		CHECK(data[0][byte] == (byte + 5) % 251);
	for (byte = 0; byte < 300; byte++)
		CHECK(data[1][byte] == (byte + 4000) % 241);
	CHECK(bpfof_reader_traffic(reader, &sent[1], &received[1]) == 0);
	/* Through the target if there is one, otherwise not. */
	CHECK(bpfof_reader_is_connected(reader) == (url != NULL));
	CHECK((received[1] - received[0] > 20300) == (url != NULL));
	CHECK((sent[1] > sent[0]) == (url != NULL));
	CHECK(bpfof_read_files(reader, NULL, 0) == 0);
	CHECK(bpfof_read_files(reader, NULL, 1) == -1 && errno == EINVAL);
	reads[1].data = NULL;
	CHECK(bpfof_read_files(reader, reads, 2) == -1 && errno == EINVAL);
	reads[1].fd = -1;
	CHECK(bpfof_read_files(reader, reads, 2) == -1 && errno == EBADF);
	CHECK(bpfof_reader_traffic(reader, NULL, received) == -1 && errno == EINVAL);
}

/* A chain of "fail" that must end with this error and status. */
static void fails(struct bpfof_reader *reader, const struct bpfof_function *fail, int fd,
		  uint64_t how, int error, uint32_t status)
{
	struct bpfof_read first = { 0, 8, 0 };
	struct bpfof_result result;

	errno = 0;
	CHECK(bpfof_read_pushdown(reader, &fd, 1, &first, fail, &how, 8, 8, &result) == -1);
	CHECK(errno == error && result.error == error && result.length == -1);
	CHECK(result.status == status && *result.message && !strncmp(result.message, bpfof_error(), 255));
	if (how == 1)
		CHECK(result.value == 42 && result.hops == 1);
}

static void chain_errors(struct bpfof *b, struct bpfof_reader *reader, const int *fds)
{
	struct bpfof_function *fail = bpfof_function_load_file(b, object, "fail");
	struct bpfof_function *fill = bpfof_function_load_file(b, object, "fill");
	struct bpfof_read first = { 0, 64, 0 };
	struct bpfof_result result;
	char scratch[32];

	CHECK(fail && fill);
	fails(reader, fail, fds[0], 1, ECANCELED, 0x709);
	fails(reader, fail, fds[0], 2, EFAULT, 0x708);
	fails(reader, fail, fds[0], 3, ETIME, 0x707);
	fails(reader, fail, fds[0], 4, EPROTO, 0x70a);
	fails(reader, fail, fds[0], 5, EPROTO, 0x70a);
	fails(reader, fail, fds[0], 6, ERANGE, 0x704);
	/* An answer longer than scratch. */
	CHECK(bpfof_read_pushdown(reader, fds, 1, &first, fill, scratch, 32, 0, &result) == -1);
	CHECK(errno == EMSGSIZE && result.status == 0x70a);
	/* No scratch, no answer. */
	CHECK(bpfof_read_pushdown(reader, fds, 1, &first, fail, NULL, 0, 0, &result) == 0);
	first.size = 1;
	CHECK(bpfof_read_pushdown(reader, fds, 1, &first, fill, NULL, 0, 0, &result) == -1);
	CHECK(errno == EMSGSIZE && result.status == 0x70d);
	bpfof_function_unload(fail);
	bpfof_function_unload(fill);
}

static void call_errors(struct bpfof *b, struct bpfof_reader *reader, const int *fds)
{
	struct bpfof_function *fill = bpfof_function_load_file(b, object, "fill");
	struct bpfof_read first = { 0, 8, 0 }, wrong = { 0, 8, 1 }, empty = { 0, 0, 0 };
	static char scratch[BPFOF_SCRATCH_MAX + 1];
	int many[BPFOF_FILES_MAX + 1], bad = -1, pipes[2], writes, own, folder = open("/", O_RDONLY);
	struct bpfof_result result;

	CHECK(fill && folder >= 0 && pipe(pipes) == 0);
	memset(many, 0, sizeof(many));
#define REFUSED(errno_value, call) CHECK((errno = 0, (call) == -1 && errno == (errno_value) && *bpfof_error()))
	REFUSED(EINVAL, bpfof_read_pushdown(NULL, fds, 1, &first, fill, scratch, 8, 0, NULL));
	REFUSED(EINVAL, bpfof_read_pushdown(reader, NULL, 1, &first, fill, scratch, 8, 0, NULL));
	REFUSED(EINVAL, bpfof_read_pushdown(reader, fds, 0, &first, fill, scratch, 8, 0, NULL));
	REFUSED(EINVAL, bpfof_read_pushdown(reader, fds, 1, NULL, fill, scratch, 8, 0, NULL));
	REFUSED(EINVAL, bpfof_read_pushdown(reader, fds, 1, &first, NULL, scratch, 8, 0, NULL));
	REFUSED(EINVAL, bpfof_read_pushdown(reader, fds, 1, &first, fill, NULL, 8, 0, NULL));
	REFUSED(EINVAL, bpfof_read_pushdown(reader, fds, 1, &first, fill, scratch, 8, 9, NULL));
	REFUSED(EINVAL, bpfof_read_pushdown(reader, fds, 1, &wrong, fill, scratch, 8, 0, NULL));
	REFUSED(EINVAL, bpfof_read_pushdown(reader, fds, 1, &empty, fill, scratch, 8, 0, NULL));
	REFUSED(E2BIG, bpfof_read_pushdown(reader, fds, 1, &first, fill, scratch, sizeof(scratch), 0, &result));
	CHECK(result.error == E2BIG && result.length == -1 && strstr(result.message, "16384"));
	REFUSED(E2BIG, bpfof_read_pushdown(reader, many, BPFOF_FILES_MAX + 1, &first, fill, scratch, 8, 0, NULL));
	REFUSED(EBADF, bpfof_read_pushdown(reader, &bad, 1, &first, fill, scratch, 8, 0, NULL));
	bad = 9999;
	REFUSED(EBADF, bpfof_read_pushdown(reader, &bad, 1, &first, fill, scratch, 8, 0, NULL));
	REFUSED(EINVAL, bpfof_read_pushdown(reader, pipes, 1, &first, fill, scratch, 8, 0, NULL));
	REFUSED(EISDIR, bpfof_read_pushdown(reader, &folder, 1, &first, fill, scratch, 8, 0, NULL));
	writes = open(object, O_WRONLY);
	REFUSED(EBADF, bpfof_add(b, writes));
	REFUSED(EINVAL, bpfof_add(NULL, fds[0]));
	REFUSED(ENOENT, bpfof_forget(b, writes));
	REFUSED(EBADF, bpfof_add_own(b, writes));
	REFUSED(EINVAL, bpfof_add_own(NULL, fds[0]));
	REFUSED(EINVAL, bpfof_refresh(NULL, fds[0]));
	REFUSED(EBADF, bpfof_refresh(b, 9999));
	own = open(object, O_RDONLY);
	CHECK(bpfof_add_own(b, own) == 0);
	REFUSED(EEXIST, bpfof_add_own(b, own));
	CHECK(bpfof_refresh(b, own) == 0);
	CHECK(bpfof_read_pushdown(reader, &own, 1, &first, fill, scratch, 8, 0, NULL) >= 0);
	CHECK(bpfof_forget(b, own) == 0);
	close(own);
	REFUSED(EINVAL, bpfof_submit(reader, NULL));
	REFUSED(EINVAL, bpfof_poll(reader, NULL, 1, 0));
	REFUSED(EINVAL, (int)bpfof_read_pushdown_batch(reader, NULL, 1));
	CHECK(bpfof_function_load(b, "no object", 9, NULL) == NULL && errno == ENOEXEC);
	CHECK(bpfof_function_load(b, NULL, 9, NULL) == NULL && errno == EINVAL);
	CHECK(bpfof_function_load_file(b, object, NULL) == NULL && errno == EINVAL);
	CHECK(strstr(bpfof_error(), "sum, fill, count, fail"));
	CHECK(bpfof_function_load_file(b, object, "none") == NULL && errno == ENOENT);
	CHECK(bpfof_function_load_file(b, "/no/such/file", "fill") == NULL && errno == ENOENT);
	CHECK(bpfof_function_load_file(NULL, object, "fill") == NULL && errno == EINVAL);
	CHECK(bpfof_reader_open(NULL) == NULL && errno == EINVAL);
	close(writes);
	close(folder);
	close(pipes[0]);
	close(pipes[1]);
	bpfof_function_unload(fill);
}

static void open_errors(void)
{
	struct bpfof_options options = BPFOF_OPTIONS_INIT;
	struct { struct bpfof_options known; uint32_t unknown; } longer;
	struct bpfof *b;

	CHECK(!bpfof_open("http://localhost/", "/dev/null", NULL) && errno == EINVAL);
	CHECK(!bpfof_open("nvme-tcp://127.0.0.1:1/nqn.x", NULL, NULL) && errno == EINVAL);
	CHECK(!bpfof_open("nvme-tcp://127.0.0.1:1/nqn.x", "/no/such", NULL) && errno == ENOENT);
	options.flags = 128;
	CHECK(!bpfof_open(NULL, NULL, &options) && errno == EINVAL);
	options.flags = 0;
	options.queue_depth = 5000;
	CHECK(!bpfof_open(NULL, NULL, &options) && errno == EINVAL);
	options.queue_depth = 128;
	options.reserved = 1;
	CHECK(!bpfof_open(NULL, NULL, &options) && errno == EINVAL);
	options.reserved = 0;
	options.size = 0;
	CHECK(!bpfof_open(NULL, NULL, &options) && errno == EINVAL);
	/* Options of a program that was compiled with a later version, or with an earlier one. */
	options.size = sizeof(longer);
	memset(&longer, 0, sizeof(longer));
	longer.known = options;
	bpfof_close(b = bpfof_open(NULL, NULL, &longer.known));
	CHECK(b);
	longer.unknown = 1;
	CHECK(!bpfof_open(NULL, NULL, &longer.known) && errno == E2BIG);
	options.size = sizeof(size_t) + 4;
	bpfof_close(b = bpfof_open(NULL, NULL, &options));
	CHECK(b);
	/* No target listens: an error only with BPFOF_NO_FALL_BACK. */
	b = bpfof_open("nvme-tcp://127.0.0.1:1/nqn.x", paths[0], NULL);
	CHECK(b && !bpfof_has_target(b) && strstr(bpfof_error(), "cannot connect"));
	bpfof_close(b);
	options.size = sizeof(options);
	options.flags = BPFOF_NO_FALL_BACK;
	CHECK(!bpfof_open("nvme-tcp://127.0.0.1:1/nqn.x", paths[0], &options) && errno == ECONNREFUSED);
	CHECK(!bpfof_open(NULL, NULL, &options) && errno == EINVAL);
	/* A mistake in the URL is an error even if falling back is allowed. */
	CHECK(!bpfof_open("nvme-tcp://127.0.0.1:1/nqn.x?tls-psk=/no/such", paths[0], NULL));
	CHECK(errno == EACCES && strstr(bpfof_error(), "/no/such"));
	bpfof_close(NULL);
	bpfof_reader_close(NULL);
	bpfof_function_unload(NULL);
}

struct piece {
	struct bpfof_chain chain;
	unsigned char scratch[64];
};

static void prepare(struct piece *piece, size_t index, const int *fds,
		    const struct bpfof_function *fill)
{
	memset(piece, 0xee, sizeof(*piece));
	piece->chain.fds = fds;
	piece->chain.nfds = 2;
	piece->chain.first.offset = index * 13;
	piece->chain.first.size = 1 + index % 64;
	piece->chain.first.file = index % 2;
	piece->chain.function = fill;
	piece->chain.scratch = piece->scratch;
	piece->chain.scratch_len = sizeof(piece->scratch);
	piece->chain.argument_len = 0;
	piece->chain.user = piece;
}

static void right(const struct piece *piece, size_t index)
{
	const struct bpfof_result *result = &piece->chain.result;
	size_t byte;

	CHECK(result->error == 0 && result->length == (ssize_t)(1 + index % 64));
	CHECK(result->executor == executor && result->hops == 1 && piece->chain.user == piece);
	for (byte = 0; byte < 1 + index % 64; byte++)
		CHECK(piece->scratch[byte] == (index * 13 + byte) % (index % 2 ? 241 : 251));
}

/* Chains in flight, with a blocking call among them, and a batch; more chains than the queue holds. */
static void many(struct bpfof *b, struct bpfof_reader *reader, const int *fds)
{
	struct bpfof_function *fill = bpfof_function_load_file(b, object, "fill");
	struct piece *pieces = (struct piece *)calloc(CHAINS, sizeof(*pieces));
	struct bpfof_chain *chains = (struct bpfof_chain *)calloc(CHAINS, sizeof(*chains)), *ended[7];
	struct bpfof_read first = { 5, 3, 0 };
	unsigned char scratch[3];
	size_t i, back = 0;
	int got;

	CHECK(fill && pieces && chains);
	CHECK(bpfof_poll(reader, ended, 7, -1) == 0);
	for (i = 0; i < CHAINS; i++) {
		prepare(&pieces[i], i, fds, fill);
		CHECK(bpfof_submit(reader, &pieces[i].chain) == 0);
		if (i == CHAINS / 2)
			CHECK(bpfof_read_pushdown(reader, fds, 1, &first, fill, scratch, 3, 0, NULL) == 3);
	}
	CHECK(scratch[0] == 5 && scratch[2] == 7 && bpfof_in_flight(reader) == CHAINS);
	while ((got = bpfof_poll(reader, ended, 7, -1)) > 0) {
		for (i = 0; i < (size_t)got; i++) {
			struct piece *piece = (struct piece *)ended[i]->user;

			right(piece, (size_t)(piece - pieces));
			/* Each chain is returned once. */
			piece->chain.user = NULL;
		}
		back += (size_t)got;
	}
	CHECK(got == 0 && back == CHAINS && bpfof_in_flight(reader) == 0);

	for (i = 0; i < CHAINS; i++) {
		prepare(&pieces[i], i, fds, fill);
		chains[i] = pieces[i].chain;
		if (i == 9)
			chains[i].nfds = 0;
		if (i == 10)
			chains[i].first.offset = 1ull << 40;
	}
	CHECK(bpfof_read_pushdown_batch(reader, chains, CHAINS) == CHAINS - 2);
	CHECK(chains[9].result.error == EINVAL && chains[9].result.length == -1);
	CHECK(chains[10].result.error == ERANGE && strstr(chains[10].result.message, "outside"));
	for (i = 0; i < CHAINS; i++) {
		pieces[i].chain = chains[i];
		if (i != 9 && i != 10)
			right(&pieces[i], i);
	}
	CHECK(bpfof_read_pushdown_batch(reader, NULL, 0) == 0);

	/* Chains submitted together, and one submitted alone. */
	for (i = 0; i < CHAINS; i++) {
		prepare(&pieces[i], i, fds, fill);
		chains[i] = pieces[i].chain;
		chains[i].user = &pieces[i];
	}
	chains[9].nfds = 1;
	REFUSED(EINVAL, bpfof_submit_many(reader, chains, CHAINS));
	chains[9].nfds = chains[8].nfds;
	CHECK(bpfof_in_flight(reader) == 0);
	CHECK(bpfof_submit_many(reader, chains, CHAINS - 1) == 0);
	CHECK(bpfof_submit(reader, &chains[CHAINS - 1]) == 0);
	for (back = 0; (got = bpfof_poll(reader, ended, 7, -1)) > 0; back += (size_t)got)
		for (i = 0; i < (size_t)got; i++) {
			struct piece *piece = (struct piece *)ended[i]->user;

			piece->chain = *ended[i];
			right(piece, (size_t)(piece - pieces));
			ended[i]->user = NULL;
		}
	CHECK(got == 0 && back == CHAINS && bpfof_in_flight(reader) == 0);
	CHECK(bpfof_submit_many(reader, NULL, 0) == 0);
	REFUSED(EINVAL, bpfof_submit_many(reader, NULL, 1));
	REFUSED(EINVAL, bpfof_submit_many(NULL, chains, 1));
	free(chains);
	free(pieces);
	bpfof_function_unload(fill);
}

/* Chains of one call, and one that was submitted before; more chains than one command takes. */
static void many_of_a_kind(struct bpfof *b, struct bpfof_reader *reader, const int *fds)
{
	struct bpfof_function *fill = bpfof_function_load_file(b, object, "fill");
	struct bpfof_function *fail = bpfof_function_load_file(b, object, "fail");
	struct bpfof_entry *entries = (struct bpfof_entry *)calloc(CHAINS, sizeof(*entries));
	struct piece *pieces = (struct piece *)calloc(CHAINS, sizeof(*pieces)), other;
	struct bpfof_chain *ended;
	uint64_t how[2] = { 1, 0 };
	size_t i;

	CHECK(fill && fail && entries && pieces);
	for (i = 0; i < CHAINS; i++) {
		prepare(&pieces[i], i, fds, fill);
		memset(&entries[i], 0xee, sizeof(entries[i]));
		entries[i].first = pieces[i].chain.first;
		entries[i].scratch = pieces[i].scratch;
		entries[i].argument_len = i % 64;
	}
	entries[10].first.offset = 1ull << 40;
	prepare(&other, 7, fds, fill);
	CHECK(bpfof_submit(reader, &other.chain) == 0);
	CHECK(bpfof_read_pushdown_many(reader, fds, 2, fill, 64, entries, CHAINS) == CHAINS - 1);
	CHECK(entries[10].result.error == ERANGE && entries[10].result.length == -1);
	for (i = 0; i < CHAINS; i++) {
		pieces[i].chain.result = entries[i].result;
		if (i != 10)
			right(&pieces[i], i);
	}
	CHECK(bpfof_poll(reader, &ended, 1, -1) == 1 && ended == &other.chain);
	right(&other, 7);
	CHECK(bpfof_in_flight(reader) == 0);

	/* Each chain ends in its own way. */
	for (i = 0; i < 2; i++) {
		entries[i].first.offset = 0;
		entries[i].first.size = 8;
		entries[i].first.file = 0;
		entries[i].scratch = &how[i];
		entries[i].argument_len = 8;
	}
	CHECK(bpfof_read_pushdown_many(reader, fds, 1, fail, 8, entries, 2) == 1);
	CHECK(entries[0].result.error == ECANCELED && entries[0].result.value == 42);
	CHECK(entries[1].result.error == 0 && entries[1].result.length == 0);

	CHECK(bpfof_read_pushdown_many(reader, fds, 2, fill, 64, NULL, 0) == 0);
	CHECK(bpfof_read_pushdown_many(reader, fds, 2, fill, 64, NULL, 1) == -1 && errno == EINVAL);
	CHECK(bpfof_read_pushdown_many(reader, fds, 2, NULL, 8, entries, 2) == -1 && errno == EINVAL);
	CHECK(bpfof_read_pushdown_many(NULL, fds, 2, fill, 8, entries, 2) == -1 && errno == EINVAL);
	CHECK(bpfof_read_pushdown_many(reader, fds, 0, fill, 8, entries, 2) == -1 && errno == EINVAL);
	CHECK(bpfof_read_pushdown_many(reader, fds, BPFOF_FILES_MAX + 1, fill, 8, entries, 2) == -1 &&
	      errno == E2BIG);
	entries[1].argument_len = 9;
	CHECK(bpfof_read_pushdown_many(reader, fds, 2, fill, 8, entries, 2) == -1 && errno == EINVAL);
	CHECK(strstr(bpfof_error(), "entries[1]"));
	entries[1].argument_len = 8;
	entries[1].first.size = 0;
	CHECK(bpfof_read_pushdown_many(reader, fds, 2, fill, 8, entries, 2) == -1 && errno == EINVAL);
	entries[1].first.size = 8;
	entries[1].first.file = 2;
	CHECK(bpfof_read_pushdown_many(reader, fds, 2, fill, 8, entries, 2) == -1 && errno == EINVAL);
	CHECK(strstr(bpfof_error(), "entries[1]") && bpfof_in_flight(reader) == 0);
	free(entries);
	free(pieces);
	bpfof_function_unload(fill);
	bpfof_function_unload(fail);
}

/* A descriptor number that is reused; a deleted file; bpfof_forget(). */
static void descriptors(struct bpfof *b, struct bpfof_reader *reader)
{
	struct bpfof_function *fill = bpfof_function_load_file(b, object, "fill");
	struct bpfof_read first = { 1000, 1, 0 };
	struct bpfof_result result;
	unsigned char scratch[1];
	int fd = opened(0);

	map(b, fd);
	CHECK(bpfof_read_pushdown(reader, &fd, 1, &first, fill, scratch, 1, 0, NULL) == 1);
	CHECK(scratch[0] == 1000 % 251);
	CHECK(close(fd) == 0 && opened(1) == fd);
	map(b, fd);
	CHECK(bpfof_read_pushdown(reader, &fd, 1, &first, fill, scratch, 1, 0, NULL) == 1);
	CHECK(scratch[0] == 1000 % 241);
	CHECK(bpfof_forget(b, fd) == 0);
	CHECK(bpfof_forget(b, fd) == -1 && errno == ENOENT);
	close(fd);
	/* Open for writing as well, so that there is no lease; and the name by which it was opened is gone. */
	CHECK(link(paths[0], "spare") == 0);
	fd = open("spare", O_RDWR);
	CHECK(fd >= 0 && unlink("spare") == 0);
	map(b, fd);
	CHECK(bpfof_read_pushdown(reader, &fd, 1, &first, fill, scratch, 1, 0, &result) == 1);
	CHECK(scratch[0] == 1000 % 251 && result.executor == executor);
	CHECK(bpfof_forget(b, fd) == 0);
	close(fd);
	bpfof_function_unload(fill);
}

/* A path that is added before its file exists: it is mapped once the file is there. */
static void known_later(struct bpfof *b)
{
	const int number = -2;
	char bytes[8192];
	int fd;

	if (!url)
		return;
	memset(bytes, 7, sizeof(bytes));
	unlink("later");
	CHECK(bpfof_add_path(b, "later", number) == 0);
	CHECK(bpfof_wait_mapped(b, number, -1) == -1 && errno == ENOENT);
	fd = open("later", O_WRONLY | O_CREAT, 0600);
	CHECK(fd >= 0 && write(fd, bytes, sizeof(bytes)) == sizeof(bytes) && close(fd) == 0);
	CHECK(bpfof_wait_mapped(b, number, -1) == 0);
	CHECK(bpfof_forget(b, number) == 0 && unlink("later") == 0);
}

/* Signals to the process are left to the program, which waits for them. */
static void signals(void)
{
	struct timespec longest = { 10, 0 };
	sigset_t set, before;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	CHECK(pthread_sigmask(SIG_BLOCK, &set, &before) == 0);
	CHECK(kill(getpid(), SIGUSR1) == 0);
	CHECK(sigtimedwait(&set, NULL, &longest) == SIGUSR1);
	CHECK(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
}

static int open_descriptors(void)
{
	DIR *folder = opendir("/proc/self/fd");
	int count = 0;

	CHECK(folder);
	while (readdir(folder))
		count++;
	closedir(folder);
	return count;
}

/* A call that fails keeps none of its files. */
static void forgotten(struct bpfof *b, struct bpfof_reader *reader)
{
	struct bpfof_function *fill = bpfof_function_load_file(b, object, "fill");
	struct bpfof_read first = { 0, 8, 0 };
	int fds[] = { opened(0), 9999 }, before = open_descriptors();
	char scratch[8];

	CHECK(fill);
	REFUSED(EBADF, bpfof_read_pushdown(reader, fds, 2, &first, fill, scratch, 8, 0, NULL));
	CHECK(open_descriptors() == before + 1);
	CHECK(bpfof_forget(b, fds[0]) == 0);
	CHECK(open_descriptors() == before);
	close(fds[0]);
	bpfof_function_unload(fill);
}

struct worker {
	pthread_t thread;
	struct bpfof *b;
	const struct bpfof_function *sum;
	const int *fds;
};

/* With BPFOF_STABLE_FDS the library does not check again which file a descriptor refers to. */
static void stable_descriptors(void)
{
	struct bpfof *b = session(BPFOF_STABLE_FDS);
	struct bpfof_reader *reader = bpfof_reader_open(b);
	struct bpfof_function *fill = bpfof_function_load_file(b, object, "fill");
	struct bpfof_read first = { 1000, 1, 0 };
	unsigned char scratch[1];
	int fd = opened(0);

	CHECK(reader && fill);
	map(b, fd);
	CHECK(close(fd) == 0);
	CHECK(bpfof_read_pushdown(reader, &fd, 1, &first, fill, scratch, 1, 0, NULL) == 1);
	CHECK(scratch[0] == 1000 % 251);
	CHECK(bpfof_forget(b, fd) == 0);
	CHECK(bpfof_read_pushdown(reader, &fd, 1, &first, fill, scratch, 1, 0, NULL) == -1);
	/* By now the number may belong to a connection. */
	CHECK(errno == EBADF || errno == EINVAL);
	bpfof_function_unload(fill);
	bpfof_reader_close(reader);
	bpfof_close(b);
}

static void *work(void *given)
{
	struct worker *worker = (struct worker *)given;
	struct bpfof_reader *reader = bpfof_reader_open(worker->b);
	int i;

	CHECK(reader && !*bpfof_error());
	for (i = 1; i <= 200; i++)
		sum_chain(reader, worker->sum, worker->fds, (uint64_t)i, 3);
	CHECK(bpfof_add(worker->b, -1) == -1 && strstr(bpfof_error(), "descriptor -1"));
	bpfof_reader_close(reader);
	return NULL;
}

static void threads(struct bpfof *b, const int *fds)
{
	struct worker workers[THREADS];
	struct bpfof_function *sum = bpfof_function_load_file(b, object, "sum");
	int i;

	CHECK(sum);
	for (i = 0; i < THREADS; i++) {
		workers[i].b = b;
		workers[i].sum = sum;
		workers[i].fds = fds;
		CHECK(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
	}
	for (i = 0; i < THREADS; i++)
		CHECK(pthread_join(workers[i].thread, NULL) == 0);
	bpfof_function_unload(sum);
}

/* A call that does not wait long enough gets no answer, and an answer that comes later does no harm. */
static void in_time(struct bpfof *b, const int *fds)
{
	struct bpfof_reader *reader = bpfof_reader_open(b), *other = bpfof_reader_open(b);
	struct bpfof_function *fill = bpfof_function_load_file(b, object, "fill");
	struct bpfof_function *sum = bpfof_function_load_file(b, object, "sum");
	struct bpfof_file_read read;
	struct bpfof_chain *ended;
	struct piece piece;
	char bytes[100];
	int i;

	CHECK(reader && other && fill && sum);
	memset(&read, 0, sizeof(read));
	read.fd = fds[0];
	read.size = sizeof(bytes);
	read.data = bytes;
	CHECK(bpfof_read_files_within(other, &read, 1, 60000000) == 0 && read.length == 100);
	CHECK(bpfof_read_files_within(other, &read, 1, -1) == 0 && bytes[99] == 99);
	for (i = 0; i < 20; i++) {
		prepare(&piece, 3, fds, fill);
		CHECK(bpfof_submit(reader, &piece.chain) == 0);
		/* The chain may have ended all the same. */
		CHECK(bpfof_poll_within(reader, &ended, 1, 1) >= 0);
		bpfof_reader_close(reader);
		/* Other readers are not disturbed. */
		sum_chain(other, sum, fds, 10, 0);
		CHECK(reader = bpfof_reader_open(b));
	}
	prepare(&piece, 3, fds, fill);
	CHECK(bpfof_submit(reader, &piece.chain) == 0);
	CHECK(bpfof_poll_within(reader, &ended, 1, 60000000) == 1 && ended == &piece.chain);
	right(&piece, 3);
	REFUSED(EINVAL, bpfof_poll_within(reader, NULL, 1, 0));
	if (url) {
		REFUSED(ETIMEDOUT, bpfof_read_files_within(reader, &read, 1, 0));
		if (lanes_max)
			CHECK(bpfof_read_files_within(reader, &read, 1, -1) == 0);
	}
	bpfof_reader_close(other);
	bpfof_reader_close(reader);
	bpfof_function_unload(sum);
	bpfof_function_unload(fill);
}

/* Handles may be closed in any order; chains in flight are then given up. */
static void order(void)
{
	struct bpfof *b = session(0);
	struct bpfof_reader *reader = bpfof_reader_open(b);
	struct bpfof_function *fill = bpfof_function_load_file(b, object, "fill");
	struct bpfof_function *sum = bpfof_function_load_file(b, object, "sum");
	int fds[2];
	struct piece piece;

	fds[0] = opened(0);
	fds[1] = opened(1);
	map(b, fds[0]);
	map(b, fds[1]);
	bpfof_close(b);
	sum_chain(reader, sum, fds, 10, 0);
	prepare(&piece, 3, fds, fill);
	CHECK(bpfof_submit(reader, &piece.chain) == 0 && bpfof_in_flight(reader) == 1);
	bpfof_reader_close(reader);
	bpfof_function_unload(sum);
	bpfof_function_unload(fill);
	close(fds[0]);
	close(fds[1]);
}

/* The test kills the target meanwhile. */
static void target_gone(struct bpfof *b, struct bpfof_reader *reader, const int *fds)
{
	struct bpfof *strict = session(BPFOF_NO_FALL_BACK);
	struct bpfof_reader *strict_reader = bpfof_reader_open(strict);
	struct bpfof_reader *reads = bpfof_reader_open(strict);
	struct bpfof_function *fill = bpfof_function_load_file(strict, object, "fill");
	struct bpfof_function *sum = bpfof_function_load_file(b, object, "sum");
	struct bpfof_function *count = bpfof_function_load_file(b, object, "count");
	struct bpfof_read first = { 0, 8, 0 };
	struct bpfof_reader *late;
	char scratch[8], line[8];
	struct bpfof_file_read read;
	int tries;

	memset(&read, 0, sizeof(read));
	read.fd = fds[0];
	read.size = sizeof(scratch);
	read.data = scratch;

	map(strict, fds[0]);
	CHECK(bpfof_read_pushdown(strict_reader, fds, 1, &first, fill, scratch, 8, 0, NULL) == 8);
	CHECK(reads && bpfof_read_files(reads, &read, 1) == 0 && read.length == 8);
	CHECK(count && bpfof_read_pushdown(reader, fds, 1, &first, count, NULL, 0, 0, NULL) == 0);
	printf("kill\n");
	fflush(stdout);
	CHECK(fgets(line, sizeof(line), stdin) != NULL);
	CHECK(bpfof_read_pushdown(strict_reader, fds, 1, &first, fill, scratch, 8, 0, NULL) == -1);
	CHECK(errno == ECONNRESET || errno == ENOTCONN || errno == ESTALE);
	CHECK(bpfof_read_pushdown(strict_reader, fds, 1, &first, fill, scratch, 8, 0, NULL) == -1);
	/* None of these calls may be tried again by the library. */
	for (tries = 0; tries < 3; tries++) {
		CHECK(bpfof_read_files(reads, &read, 1) == -1);
		CHECK(errno == ECONNRESET || errno == ENOTCONN);
		CHECK(bpfof_read_pushdown(reader, fds, 1, &first, count, NULL, 0, 0, NULL) == -1);
		CHECK(errno == ECONNRESET || errno == ENOTCONN);
	}
	/* The kernel may still be closing the target's port, and connections that have not been used lately. */
	for (tries = 0; (late = bpfof_reader_open(strict)) && tries < 10; tries++) {
		bpfof_reader_close(late);
		sleep(1);
	}
	CHECK(!late);
	CHECK(errno == ECONNREFUSED || errno == ECONNRESET || errno == ENOTCONN);
	executor = BPFOF_HERE;
	sum_chain(reader, sum, fds, 10, 0);
	bpfof_function_unload(count);
	bpfof_function_unload(sum);
	bpfof_function_unload(fill);
	bpfof_reader_close(reads);
	bpfof_reader_close(strict_reader);
	bpfof_close(strict);
}

static void hear(int level, const char *line)
{
	CHECK(level >= BPFOF_LOG_ERROR && level <= BPFOF_LOG_DEBUG && line);
}

int main(int argc, char **argv)
{
	struct bpfof *b;
	struct bpfof_reader *reader;
	int fds[2];

	CHECK(argc == 4 || argc == 6 || argc == 7);
	CHECK(bpfof_version() == BPFOF_VERSION && !strncmp(bpfof_version_string(), "0.1.0", 6));
	CHECK(!*bpfof_error());
	CHECK(bpfof_set_log(hear, 0) == -1 && errno == EINVAL);
	CHECK(bpfof_set_log(hear, BPFOF_LOG_DEBUG) == 0);
	object = argv[1];
	paths[0] = argv[2];
	paths[1] = argv[3];
	open_errors();
	if (argc >= 6) {
		url = argv[4];
		device = argv[5];
		executor = BPFOF_AT_TARGET;
	}
	if (argc == 7)
		lanes_max = (uint32_t)strtoul(argv[6], NULL, 10);
	b = session(0);
	reader = bpfof_reader_open(b);
	CHECK(reader);
	fds[0] = opened(0);
	fds[1] = opened(1);
	map(b, fds[0]);
	map(b, fds[1]);
	blocking(b, reader, fds);
	plain_reads(reader, fds);
	chain_errors(b, reader, fds);
	call_errors(b, reader, fds);
	many(b, reader, fds);
	many_of_a_kind(b, reader, fds);
	descriptors(b, reader);
	stable_descriptors();
	known_later(b);
	signals();
	/* Only without a target: with one, a thread opens and closes descriptors meanwhile. */
	if (!url)
		forgotten(b, reader);
	threads(b, fds);
	in_time(b, fds);
	order();
	if (url)
		target_gone(b, reader, fds);
	bpfof_reader_close(reader);
	bpfof_close(b);
	close(fds[0]);
	close(fds[1]);
	printf("done\n");
	return 0;
}
