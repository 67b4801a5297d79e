// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A TCG plugin of QEMU: counts the instructions that the guest executes, on all its processors, in a file that
 * the guest sees as the memory of a device (ivshmem).
 *
 *   cc -O2 -shared -fPIC -DQEMU_PLUGIN_VERSION=N -o count.so count.c
 *   qemu-system-x86_64 -accel tcg,thread=single -plugin count.so,counter=FILE[,profile=FILE] …
 *
 * The count is the first word of the file. The guest writes the second: 0, or the number of the phase that it measures.
 * With profile=, instructions executed during a phase are also counted by block of code, and when the guest ends, that
 * file has a line for each phase and block: number, address of the block, instructions.
 *
 * QEMU must run all processors in one thread, so that no instruction is lost. The following declarations are those of
 * QEMU's qemu-plugin.h, which Debian does not package; they are the same in its versions 1 (QEMU 4.2 to 8.2) and later.
 */
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef uint64_t qemu_plugin_id_t;
typedef struct qemu_info_t qemu_info_t;
struct qemu_plugin_tb;
enum qemu_plugin_cb_flags { QEMU_PLUGIN_CB_NO_REGS };
typedef void (*qemu_plugin_vcpu_tb_trans_cb_t)(qemu_plugin_id_t id, struct qemu_plugin_tb *tb);
typedef void (*qemu_plugin_vcpu_udata_cb_t)(unsigned int vcpu_index, void *userdata);
typedef void (*qemu_plugin_udata_cb_t)(qemu_plugin_id_t id, void *userdata);

void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id, qemu_plugin_vcpu_tb_trans_cb_t cb);
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *tb, qemu_plugin_vcpu_udata_cb_t cb,
					  enum qemu_plugin_cb_flags flags, void *userdata);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t id, qemu_plugin_udata_cb_t cb, void *userdata);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *tb);

__attribute__((visibility("default"))) int qemu_plugin_version = QEMU_PLUGIN_VERSION;

/* Numbers of phases, from 1. */
#define PHASES 128

/* A block of code, one for each translation of it. */
struct block {
	struct block *next;
	uint64_t address, instructions;
	uint64_t *counts; /* by phase, allocated on first use */
};

static volatile uint64_t *counter;
static const char *profile;
static struct block *blocks;

static void executed(unsigned int processor, void *instructions)
{
	(void)processor;
	*counter += (uintptr_t)instructions;
}

static void executed_block(unsigned int processor, void *data)
{
	struct block *block = data;
	uint64_t phase = counter[1];

	(void)processor;
	*counter += block->instructions;
	if (!phase || phase >= PHASES)
		return;
	if (!block->counts)
		block->counts = calloc(PHASES, sizeof(*block->counts));
	if (block->counts)
		block->counts[phase] += block->instructions;
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	size_t instructions = qemu_plugin_tb_n_insns(tb);
	struct block *block = profile ? calloc(1, sizeof(*block)) : NULL;

	(void)id;
	if (!block) {
		qemu_plugin_register_vcpu_tb_exec_cb(tb, executed, QEMU_PLUGIN_CB_NO_REGS, (void *)instructions);
		return;
	}
	*block = (struct block){ .next = blocks, .address = qemu_plugin_tb_vaddr(tb), .instructions = instructions };
	blocks = block;
	qemu_plugin_register_vcpu_tb_exec_cb(tb, executed_block, QEMU_PLUGIN_CB_NO_REGS, block);
}

static void ended(qemu_plugin_id_t id, void *data)
{
	FILE *file = fopen(profile, "w");

	(void)id;
	(void)data;
	for (struct block *block = blocks; file && block; block = block->next) {
		for (int phase = 1; block->counts && phase < PHASES; phase++) {
			if (block->counts[phase])
				fprintf(file, "%d %llx %llu\n", phase, (unsigned long long)block->address,
					(unsigned long long)block->counts[phase]);
		}
	}
	if (!file || fclose(file))
		fprintf(stderr, "count: cannot write %s\n", profile);
}

__attribute__((visibility("default")))
int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv)
{
	const char *path = argc > 0 && !strncmp(argv[0], "counter=", 8) ? argv[0] + 8 : NULL;
	int file = path ? open(path, O_RDWR) : -1;
	void *memory = file < 0 ? MAP_FAILED : mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);

	(void)info;
	if (memory == MAP_FAILED) {
		fprintf(stderr, "count: counter=PATH must name a file of at least 4096 bytes\n");
		return 1;
	}
	close(file);
	counter = memory;
	if (argc > 1 && !strncmp(argv[1], "profile=", 8)) {
		/* QEMU does not keep the arguments. */
		profile = strdup(argv[1] + 8);
		qemu_plugin_register_atexit_cb(id, ended, NULL);
	}
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	return 0;
}
