/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Serves WiredTiger's reads of pages. A chain runs inside the read of the first page that is not in the
 * cache: until the read returns, WiredTiger holds the lock of the page's reference, so that no page
 * below it can be read in, changed, freed or written, and the file has their present state.
 */
#include "scope.h"

#include "counters.h"
#include "cursor.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace bpf_of {

thread_local Scope *scope = nullptr;

namespace {

/* The largest page that fits into scratch beside the request and a key. */
constexpr size_t PAGE_KEPT_MAX = BPFOF_SCRATCH_MAX - sizeof(wt_get_request) - WT_KEY_BYTES_MAX;
/* No tree has more levels. */
constexpr uint8_t LEVELS_MAX = 24;
/* Chains of one search: the second if pages of the first were written meanwhile. */
constexpr uint32_t CHAINS_MAX = 2;

/* A thread's resources for its chains. */
struct Thread {
	~Thread() { leave(); }

	void leave()
	{
		if (reader)
			session->give_back(reader);
		reader = nullptr;
		session.reset();
	}

	/* A reader of the current session; null if there is none. */
	struct bpfof_reader *reader_of(Target *target)
	{
		const uint64_t number = target->number();

		if (!session || session->number() != number || session->is_lost()) {
			leave();
			if (!number)
				return nullptr;
			session = target->session();
		}
		if (!reader && session && session->may_take())
			reader = session->take();
		return reader;
	}

	/* Memory for this many bytes, valid until the next call. */
	char *room(size_t bytes)
	{
		if (pages.size() < bytes)
			pages.resize(bytes);
		return pages.data();
	}

	std::shared_ptr<Session> session;
	struct bpfof_reader *reader = nullptr;
	std::vector<char> pages;
	alignas(8) char scratch[BPFOF_SCRATCH_MAX];
};

/* On the heap, because a library that is loaded late has little room for thread-local variables. */
Thread &thread()
{
	static thread_local std::unique_ptr<Thread> own = std::make_unique<Thread>();

	return *own;
}

/* Takes a page from the answer of the search's chain. */
bool take_staged(File *file, uint64_t offset, size_t bytes, void *to)
{
	for (const char *at = scope->pages; at < scope->pages_end;) {
		wt_get_page page;

		memcpy(&page, at, sizeof(page));
		at += sizeof(page);
		if (page.offset == offset && page.bytes == bytes) {
			memcpy(to, at, bytes);
			/* Checked after the copy: a read would not see later writes either. */
			if (file->log().is_clean(offset, bytes, scope->since))
				return true;
			counters().add(BPFOF_COUNTER(rewritten));
			return false;
		}
		at += (page.bytes + 7) & ~7ull;
	}
	return false;
}

/* Takes a page that was read ahead for the cursor. */
bool take_ahead(File *file, uint64_t offset, size_t bytes, void *to)
{
	bool was_written = false;

	if (!scope->ahead || !scope->ahead->take(file, offset, bytes, to, &was_written)) {
		if (was_written)
			counters().add(BPFOF_COUNTER(rewritten));
		return false;
	}
	counters().add(BPFOF_COUNTER(ahead_pages));
	return true;
}

/* Keeps the pages from `at` to the end of the staged pages for the cursor's next rows. */
void keep_ahead(File *file, const char *at)
{
	scope->ahead->begin(file, scope->since);
	while (at < scope->pages_end) {
		wt_get_page page;

		memcpy(&page, at, sizeof(page));
		at += sizeof(page);
		scope->ahead->add(page.offset, at, page.bytes);
		at += (page.bytes + 7) & ~7ull;
	}
}

/* Whether the pages of this answer are consistent; the target is not trusted with this process's
 * memory. */
bool stage(File *file, const char *answer, size_t size, uint64_t since)
{
	wt_get_answer header;
	memcpy(&header, answer, sizeof(header));
	const char *const end = answer + size;
	const char *at = answer + sizeof(header);

	if (header.key_bytes > WT_KEY_BYTES_MAX || size_t(end - at) < ((header.key_bytes + 7) & ~7u))
		return header.kept == 0;
	at += (header.key_bytes + 7) & ~7u;
	scope->pages = at;
	const char *following = nullptr;

	for (uint32_t left = header.kept; left; left--) {
		wt_get_page page;

		if (left == header.following)
			following = at;
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
	if (following && scope->ahead)
		keep_ahead(file, following);
	return true;
}

/* Counts the failure of a chain, and notes if the target is lost. */
void note_failure(Thread *thread, const bpfof_result &result)
{
	if (!bpfof_reader_is_connected(thread->reader) || result.error == ECONNRESET || result.error == ENOTCONN ||
		result.error == EHOSTUNREACH)
		thread->session->lose();
	if (result.error != ESTALE)
		note_error(result.message);
	counters().add(result.error == ESTALE ? BPFOF_COUNTER(stale) : BPFOF_COUNTER(failed));
}

/* Bytes of the leaves after the missing one that are worth asking for. */
uint32_t wanted_ahead()
{
	if (!scope->ahead || scope->wanted == Wanted::VALUE)
		return 0;
	return scope->wanted == Wanted::PAGES ? scope->ahead->wanted_by_search() : scope->ahead->wanted_by_step();
}

/* Runs the chain of the search, starting with this page. Whether it has an answer, or pages. */
bool run(Thread *thread, File *file, uint64_t offset, size_t bytes)
{
	/* A step to the next row descends along the leftmost children: no key is smaller than this
	 * one. */
	static const WT_ITEM none = {"", 0, nullptr, 0, 0};
	Table *const table = file->table();
	const WT_ITEM &key = scope->wanted == Wanted::NEXT ? none : scope->cursor->key;
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
	request.checksum = file->checksum(offset);
	request.has_checksum = request.checksum != 0;
	request.levels_max = LEVELS_MAX;
	request.following_bytes = wanted_ahead();
	memcpy(thread->scratch, &request, sizeof(request));
	memcpy(thread->scratch + sizeof(request), key.data, key.size);
	scope->chains++;
	scope->pages = scope->pages_end = nullptr;
	counters().add(BPFOF_COUNTER(round_trips));
	const ssize_t size = bpfof_read_pushdown(thread->reader, &fd, 1, &first, thread->session->wt_get(),
		thread->scratch, sizeof(thread->scratch), sizeof(request) + key.size, &result);

	if (size < 0) {
		note_failure(thread, result);
		if (wants_value && result.error != ESTALE)
			table->declining.count(true);
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
		return stage(file, thread->scratch, size, since);
	}
	if (!wants_value || answer.value_bytes > size - sizeof(answer) ||
		(answer.status != WT_GET_FOUND && answer.status != WT_GET_NOT_FOUND)) {
		counters().add(BPFOF_COUNTER(failed));
		return false;
	}
	/* Without this the cancelled search would lose its snapshot. */
	if (answer.status == WT_GET_FOUND && !detach(scope->cursor)) {
		scope->wanted = Wanted::PAGES;
		return false;
	}
	scope->is_answered = true;
	scope->is_found = answer.status == WT_GET_FOUND;
	scope->value = thread->scratch + sizeof(answer);
	scope->value_bytes = answer.value_bytes;
	counters().add(scope->is_found ? BPFOF_COUNTER(values) : BPFOF_COUNTER(absent));
	return true;
}

/* The places of this page and of the leaves that the cursor will move to, as far as they are known. */
size_t find_ahead(const File *file, uint64_t offset, size_t bytes, Place places[Ahead::PAGES_MAX])
{
	const uint32_t unit = file->table()->allocation_bytes.load(std::memory_order_relaxed);
	const Neighbours &neighbours = file->neighbours();
	const bool is_behind = scope->wanted != Wanted::PREVIOUS;
	size_t count = 1;

	places[0] = {offset, uint32_t(bytes)};
	for (uint32_t left = wanted_ahead(); count < Ahead::PAGES_MAX; count++) {
		const uint64_t at = places[count - 1].offset;
		const Place place = is_behind ? neighbours.behind(at, unit) : neighbours.before(at, unit);

		if (!place.bytes || !place.offset || place.bytes > left || file->is_behind_end(place.offset + place.bytes))
			break;
		left -= place.bytes;
		places[count] = place;
	}
	return count;
}

/*
 * Reads the page together with those that the cursor will move to, in one round trip. False if there
 * are none, or it failed.
 */
bool read_ahead(Thread *thread, File *file, uint64_t offset, size_t bytes, void *to)
{
	Place places[Ahead::PAGES_MAX];
	struct bpfof_file_read reads[Ahead::PAGES_MAX];
	const size_t count = scope->ahead ? find_ahead(file, offset, bytes, places) : 1;
	const uint64_t since = file->log().now();
	size_t ranges = 0, total = 0;

	if (count == 1)
		return false;
	for (size_t i = 0; i < count; i++)
		total += places[i].bytes;
	char *const data = thread->room(total);
	char *at = data;

	/* Adjacent pages are one read. */
	for (size_t i = 0; i < count; at += places[i++].bytes) {
		if (i && places[i].offset == places[i - 1].offset + places[i - 1].bytes) {
			reads[ranges - 1].size += places[i].bytes;
			continue;
		}
		reads[ranges++] = {file->fd(), places[i].offset, places[i].bytes, at, 0};
	}
	counters().add(BPFOF_COUNTER(round_trips));
	if (bpfof_read_files(thread->reader, reads, ranges) < 0) {
		if (!bpfof_reader_is_connected(thread->reader))
			thread->session->lose();
		return false;
	}
	for (size_t i = 0; i < ranges; i++)
		if (reads[i].length != reads[i].size)
			return false;
	memcpy(to, data, bytes);
	scope->ahead->begin(file, since);
	at = data + places[0].bytes;
	for (size_t i = 1; i < count; at += places[i++].bytes)
		scope->ahead->add(places[i].offset, at, places[i].bytes);
	return true;
}

/* Reads one page by itself. */
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

/* Whether this is a page of the scope's table, and not one that eviction or other work reads. */
bool is_in_scope(const File *file, uint64_t offset, size_t bytes)
{
	/* There is no page at the beginning of the file. */
	return scope && scope->table == file->table() && !scope->is_answered && offset && bytes >= WT_CLEAR_BYTES &&
	       bytes <= WT_BLOCK_BYTES_MAX;
}

/* Whether a chain is to begin here. */
bool is_worth_it(size_t bytes)
{
	if (scope->chains >= CHAINS_MAX || scope->wanted == Wanted::PREVIOUS)
		return false;
	/* A row search that looks for a neighbouring row has no key any more: the field points into a
	 * page. */
	if (scope->wanted != Wanted::NEXT &&
		(!(scope->cursor->flags & WT_CURSTD_KEY_EXT) || scope->cursor->key.size > WT_KEY_BYTES_MAX))
		return false;
	return scope->wanted == Wanted::VALUE || bytes <= PAGE_KEPT_MAX;
}

/* Where searches in a table miss only one page each, there is nothing to fetch together. */
bool is_flat(Table *table)
{
	static thread_local uint32_t looks = 0;

	return !table->descending.is_above(2) && ++looks % 32;
}

} /* namespace */

#if BPFOF_PLANTED == PLANTED_CHAIN_AFTER_SEARCH
bool run_late(const Scope &found)
{
	/* Simulates a slow network, now and then. */
	static std::atomic<uint32_t> calls{0};

	if (calls++ % 4 == 0)
		usleep(3000);
	if (found.late_file)
		run(&thread(), found.late_file, found.late_offset, found.late_bytes);
	return found.is_answered;
}
#endif

namespace {

/* Reads the page by a chain, or with pages that the cursor will move to. Whether that succeeded, or the
 * search is answered. */
bool read_together(Thread *own, File *file, uint64_t offset, size_t bytes, void *to)
{
	/*
	 * Checked again, because of events since the search began: only now does it have a snapshot,
	 * which may include a truncation; and the parent page was read, which may mark this one as
	 * deleted. Also, WiredTiger compares a page with the checksum of its address; a page that it
	 * does not receive must be compared by the chain.
	 */
	if (scope->wanted == Wanted::VALUE && (!has_answers(file->table()) || !file->checksum(offset)))
		scope->wanted = Wanted::PAGES;
#if BPFOF_PLANTED == PLANTED_CHAIN_AFTER_SEARCH
	if (scope->wanted == Wanted::VALUE && is_worth_it(bytes)) {
		scope->late_file = file;
		scope->late_offset = offset;
		scope->late_bytes = bytes;
		return true;
	}
#endif
	if (scope->wanted != Wanted::VALUE && read_ahead(own, file, offset, bytes, to))
		return true;
	/* After a wait in vain the search does not wait again. */
	if (own->session->is_lost() || !is_worth_it(bytes) || (scope->wanted != Wanted::VALUE && is_flat(file->table())))
		return false;
	return run(own, file, offset, bytes) && (scope->is_answered || take_staged(file, offset, bytes, to));
}

/* Takes the page from the search's or the cursor's pages, reads it together with others, or by
 * itself. */
int read_in_scope(File *file, Engine *engine, uint64_t offset, size_t bytes, void *to)
{
	const bool is_ours = is_in_scope(file, offset, bytes);
	Thread &own = thread();

	if (is_ours && take_staged(file, offset, bytes, to)) {
		counters().add(BPFOF_COUNTER(staged_pages));
		return 0;
	}
	if (is_ours && take_ahead(file, offset, bytes, to))
		return 0;
	const bool has_reader = own.reader_of(engine->target()) && file->is_shared_with(own.session.get());

	if (is_ours && has_reader && read_together(&own, file, offset, bytes, to))
		return scope->is_called_off() ? WT_DUPLICATE_KEY : 0;
	return read_plainly(has_reader && engine->settings().target_reads ? &own : nullptr, file, offset, bytes, to);
}

} /* namespace */

int read_page(File *file, Engine *engine, uint64_t offset, size_t bytes, void *to)
{
	int error;

	if (!engine->target() || !(scope || engine->settings().target_reads)) {
		counters().add(BPFOF_COUNTER(file_reads));
		error = file->read(offset, bytes, to);
	} else {
		error = read_in_scope(file, engine, offset, bytes, to);
		if (scope && scope->table == file->table() &&
			(scope->wanted == Wanted::NEXT || scope->wanted == Wanted::PREVIOUS))
			scope->ahead->step(bytes);
	}
	if (!error)
		file->note_read(offset, bytes, to);
	return error;
}

} /* namespace bpf_of */
