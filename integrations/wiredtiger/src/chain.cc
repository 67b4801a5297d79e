/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What WiredTiger's reads of pages come to. A chain runs inside the read of the first page that is not in the
 * cache: until that returns, WiredTiger holds the lock of the page's reference, so that nothing below it can be
 * read in, changed, freed or written, and what is in the file is the present state of it.
 */
#include "scope.h"

#include "counters.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace bpf_of {

thread_local Scope *scope = nullptr;

namespace {

/* Pages of less than this fit into scratch together. */
constexpr size_t PAGE_KEPT_MAX = BPFOF_SCRATCH_MAX - sizeof(wt_get_request) - WT_KEY_BYTES_MAX;
/* No tree has more levels. */
constexpr uint8_t LEVELS_MAX = 24;
/* Chains of one search: the second if pages of the first were written meanwhile. */
constexpr uint32_t CHAINS_MAX = 2;

/* What a thread has for its chains. */
struct Thread {
	~Thread() { leave(); }

	void leave()
	{
		if (reader)
			session->give_back(reader);
		reader = nullptr;
		session.reset();
	}

	/* A reader of the session of the moment; null if there is none. */
	struct bpfof_reader *reader_of(Target *target)
	{
		const uint64_t number = target->number();

		if (session && session->number() == number && !session->is_lost())
			return reader;
		leave();
		if (!number)
			return nullptr;
		session = target->session();
		if (session)
			reader = session->take();
		/* Without a reader now, it has none as long as the session lasts. */
		return reader;
	}

	std::shared_ptr<Session> session;
	struct bpfof_reader *reader = nullptr;
	alignas(8) char scratch[BPFOF_SCRATCH_MAX];
};

/* On the heap, because a library that is loaded late has little room for such variables. */
Thread &thread()
{
	static thread_local std::unique_ptr<Thread> own = std::make_unique<Thread>();

	return *own;
}

/* Takes a page from what the search's chain has given. */
bool take_staged(File *file, uint64_t offset, size_t bytes, void *to)
{
	for (const char *at = scope->pages; at < scope->pages_end;) {
		wt_get_page page;

		memcpy(&page, at, sizeof(page));
		at += sizeof(page);
		if (page.offset == offset && page.bytes == bytes) {
			memcpy(to, at, bytes);
			/* After it was copied: what is written from now on would not be seen by a read either. */
			if (file->log().is_clean(offset, bytes, scope->since))
				return true;
			counters().add(BPFOF_COUNTER(rewritten));
			return false;
		}
		at += (page.bytes + 7) & ~7ull;
	}
	return false;
}

/* Whether the pages of this answer are what they say; the target is not trusted with this process's memory. */
bool stage(const char *answer, size_t size, uint64_t since)
{
	wt_get_answer header;
	memcpy(&header, answer, sizeof(header));
	const char *const end = answer + size;
	const char *at = answer + sizeof(header);

	if (header.key_bytes > WT_KEY_BYTES_MAX || size_t(end - at) < ((header.key_bytes + 7) & ~7u))
		return header.kept == 0;
	at += (header.key_bytes + 7) & ~7u;
	scope->pages = at;
	for (uint32_t left = header.kept; left; left--) {
		wt_get_page page;

		if (size_t(end - at) < sizeof(page))
			return false;
		memcpy(&page, at, sizeof(page));
		at += sizeof(page);
		if (page.bytes > size_t(end - at) || ((page.bytes + 7) & ~7ull) > size_t(end - at))
			return false;
		at += (page.bytes + 7) & ~7ull;
	}
	scope->pages_end = at;
	scope->since = since;
	return true;
}

/* Counts what ended a chain, and whether the target is gone. */
void note_failure(Thread *thread, const bpfof_result &result)
{
	if (!bpfof_reader_is_connected(thread->reader) || result.error == ECONNRESET || result.error == ENOTCONN)
		thread->session->lose();
	if (result.error != ESTALE)
		note_error(result.message);
	counters().add(result.error == ESTALE ? BPFOF_COUNTER(stale) : BPFOF_COUNTER(failed));
}

/* Runs the chain of the search from this page on. Whether it has an answer, or pages. */
bool run(Thread *thread, File *file, uint64_t offset, size_t bytes)
{
	Table *const table = file->table();
	const WT_ITEM &key = scope->cursor->key;
	const bool wants_value = scope->wanted == Wanted::VALUE;
	const bpfof_read first = {offset, uint32_t(bytes), 0};
	const int fd = file->fd();
	const uint64_t since = file->log().now();
	wt_get_request request = {};
	bpfof_result result;

	request.allocation_bytes = table->allocation_bytes.load(std::memory_order_relaxed);
	request.key_bytes = uint16_t(key.size);
	request.flags = wants_value ? 0 : WT_GET_PAGES_ONLY;
	request.compressor = table->compressor.load(std::memory_order_relaxed);
	request.levels_max = LEVELS_MAX;
	memcpy(thread->scratch, &request, sizeof(request));
	memcpy(thread->scratch + sizeof(request), key.data, key.size);
	scope->chains++;
	scope->pages = scope->pages_end = nullptr;
	counters().add(BPFOF_COUNTER(round_trips));
	const ssize_t size = bpfof_read_pushdown(thread->reader, &fd, 1, &first, thread->session->wt_get(),
		thread->scratch, sizeof(thread->scratch), sizeof(request) + key.size, &result);

	if (size < 0) {
		note_failure(thread, result);
		return false;
	}
	wt_get_answer answer;

	if (size_t(size) < sizeof(answer)) {
		counters().add(BPFOF_COUNTER(failed));
		return false;
	}
	memcpy(&answer, thread->scratch, sizeof(answer));
	counters().add(BPFOF_COUNTER(chain_pages), answer.pages);
	if (wants_value)
		table->declining.count(answer.status == WT_GET_PAGES && answer.reason != WT_REASON_EDGE);
	if (answer.status == WT_GET_PAGES) {
		if (wants_value)
			counters().add(BPFOF_COUNTER(declined) + (answer.reason < WT_REASONS ? answer.reason : 0));
		else
			table->descending.count(answer.kept > 1);
		counters().add(BPFOF_COUNTER(staged));
		return stage(thread->scratch, size, since);
	}
	if (!wants_value || answer.value_bytes > size - sizeof(answer) ||
		(answer.status != WT_GET_FOUND && answer.status != WT_GET_NOT_FOUND)) {
		counters().add(BPFOF_COUNTER(failed));
		return false;
	}
	scope->is_answered = true;
	scope->is_found = answer.status == WT_GET_FOUND;
	scope->value = thread->scratch + sizeof(answer);
	scope->value_bytes = answer.value_bytes;
	counters().add(scope->is_found ? BPFOF_COUNTER(values) : BPFOF_COUNTER(absent));
	return true;
}

/* One page, as it is. */
int read_plainly(Thread *thread, File *file, uint64_t offset, size_t bytes, void *to)
{
	if (thread && thread->reader) {
		struct bpfof_file_read read = {};

		read.fd = file->fd();
		read.offset = offset;
		read.data = to;
		read.size = bytes;
		counters().add(BPFOF_COUNTER(round_trips));
		if (bpfof_read_files(thread->reader, &read, 1) == 0 && read.length == bytes) {
			counters().add(BPFOF_COUNTER(target_reads));
			return 0;
		}
		if (!bpfof_reader_is_connected(thread->reader))
			thread->session->lose();
	}
	counters().add(BPFOF_COUNTER(file_reads));
	return file->read(offset, bytes, to);
}

/* Whether chains of this search begin here. */
bool is_worth_it(const File *file, uint64_t offset, size_t bytes)
{
	const Table *const table = file->table();

	if (!scope || scope->table != table || scope->is_answered || scope->chains >= CHAINS_MAX ||
		scope->cursor->key.size > WT_KEY_BYTES_MAX)
		return false;
	/* At the beginning of the file is no page. */
	if (!offset || bytes > WT_BLOCK_BYTES_MAX || bytes < WT_CLEAR_BYTES)
		return false;
	if (scope->wanted == Wanted::VALUE)
		return true;
	return bytes <= PAGE_KEPT_MAX;
}

/* In a table of which searches miss but one page there is nothing to fetch together. */
bool is_flat(Table *table)
{
	static thread_local uint32_t looks = 0;

	return !table->descending.is_above(2) && ++looks % 32;
}

} /* namespace */

#if BPFOF_PLANTED == PLANTED_CHAIN_AFTER_SEARCH
bool run_late(const Scope &found)
{
	/* As if the network were slow, now and then. */
	static std::atomic<uint32_t> calls{0};

	if (calls++ % 4 == 0)
		usleep(3000);
	if (found.late_file)
		run(&thread(), found.late_file, found.late_offset, found.late_bytes);
	return found.is_answered;
}
#endif

int read_page(File *file, Engine *engine, uint64_t offset, size_t bytes, void *to)
{
	Target *const target = engine->target();

	if (!target || !(scope || engine->settings().target_reads)) {
		counters().add(BPFOF_COUNTER(file_reads));
		file->table()->returning.count(file->note_page(offset));
		return file->read(offset, bytes, to);
	}
	if (scope && scope->table == file->table() && take_staged(file, offset, bytes, to)) {
		counters().add(BPFOF_COUNTER(staged_pages));
		file->table()->returning.count(file->note_page(offset));
		return 0;
	}
	Thread &own = thread();
#if BPFOF_PLANTED == PLANTED_CHAIN_AFTER_SEARCH
	if (own.reader_of(target) && is_worth_it(file, offset, bytes) && scope->wanted == Wanted::VALUE &&
		file->is_shared_with(own.session.get())) {
		scope->late_file = file;
		scope->late_offset = offset;
		scope->late_bytes = bytes;
		return WT_DUPLICATE_KEY;
	}
#endif
	const bool has_reader = own.reader_of(target) && file->is_shared_with(own.session.get());

	if (has_reader && is_worth_it(file, offset, bytes) &&
		(scope->wanted == Wanted::VALUE || !is_flat(file->table())) && run(&own, file, offset, bytes)) {
		if (scope->is_answered)
			return WT_DUPLICATE_KEY;
		if (take_staged(file, offset, bytes, to)) {
			file->table()->returning.count(file->note_page(offset));
			return 0;
		}
	}
	file->table()->returning.count(file->note_page(offset));
	return read_plainly(has_reader && engine->settings().target_reads ? &own : nullptr, file, offset, bytes, to);
}

} /* namespace bpf_of */
