/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Code that the checks of calls.c share: where chains run, and the contents of the files. */
#define _GNU_SOURCE
#include <bpfof.h>
#include <errno.h>
#include <fcntl.h>
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition) check((condition) != 0, #condition, __FILE__, __LINE__)

static const char *object, *paths[2], *url, *device;
/* Where chains must run. */
static uint32_t executor = BPFOF_HERE;
static uint32_t lanes_max;

static void check(int good, const char *condition, const char *file, int line)
{
	if (!good) {
		fprintf(stderr, "%s:%d: %s (errno %d, %s)\n", file, line, condition, errno,
			bpfof_error());
		exit(1);
	}
}

static int opened(int index)
{
	int fd = open(paths[index], O_RDONLY);

	CHECK(fd >= 0);
	return fd;
}

static struct bpfof *session(uint32_t flags)
{
	struct bpfof_options options = BPFOF_OPTIONS_INIT;
	struct bpfof *b;

	options.flags = flags;
	options.lanes_max = lanes_max;
	options.retries = 5;
	options.patience_us = 2000000;
	b = bpfof_open(url, device, &options);
	CHECK(b);
	CHECK(bpfof_has_target(b) == (url != NULL));
	return b;
}

static void map(struct bpfof *b, int fd)
{
	if (url) {
		CHECK(bpfof_wait_mapped(b, fd, 10000) == 0);
	} else {
		CHECK(bpfof_wait_mapped(b, fd, -1) == -1 && errno == ENOTCONN);
	}
}

static uint64_t bytes(uint64_t from, uint64_t length, unsigned modulus)
{
	uint64_t sum = 0;

	while (length--)
		sum += from++ % modulus;
	return sum;
}
