/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "cursor.h"

#include "by_address.h"
#include "counters.h"
#include "guard.h"
#include "scope.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace bpf_of {

namespace {

/* With a full cache more pages than this are read again after an eviction; with room in the cache,
 * hardly any. */
constexpr uint32_t RETURNING_PERCENT = 12;
/* If more chains for values than this return pages instead, values are requested only now and then. */
constexpr uint32_t DECLINING_PERCENT = 50;

std::atomic<int> mode{BPFOF_WIREDTIGER_VALUES};

/* The extension's data about a session. */
struct Cursors {
	/* Wrapped cursors that are open, and how many of them are detached. */
	std::vector<WT_CURSOR *> open;
	size_t detached = 0;

	/*
	 * WiredTiger keeps a session's snapshot while one of the session's cursors has a position. This
	 * cursor, in WiredTiger's metadata, has a position on behalf of the detached ones. Null until a
	 * search needs it.
	 */
	WT_CURSOR *anchor = nullptr;
	/* The anchor's original methods. */
	int (*reset)(WT_CURSOR *) = nullptr;
	int (*close)(WT_CURSOR *) = nullptr;
};

/* The extension's data about a wrapped cursor, until it is closed. */
struct State {
	Engine *engine = nullptr;
	Table *table = nullptr;
	Cursors *session = nullptr;

	/* The cursor's original methods. */
	int (*search)(WT_CURSOR *) = nullptr;
	int (*search_near)(WT_CURSOR *, int *) = nullptr;
	int (*insert)(WT_CURSOR *) = nullptr;
	int (*update)(WT_CURSOR *) = nullptr;
	int (*remove)(WT_CURSOR *) = nullptr;
	int (*reserve)(WT_CURSOR *) = nullptr;
	int (*modify)(WT_CURSOR *, WT_MODIFY *, int) = nullptr;
	int (*next)(WT_CURSOR *) = nullptr;
	int (*prev)(WT_CURSOR *) = nullptr;
	int (*reset)(WT_CURSOR *) = nullptr;
#if WIREDTIGER_VERSION_MAJOR > 3
	int (*bound)(WT_CURSOR *, const char *) = nullptr;
#endif
	int (*close)(WT_CURSOR *) = nullptr;

	/* The last search was cancelled: the cursor has a key and a value, but no position. */
	bool is_detached = false;
	std::string key, value;

	/* Pages that the cursor will move to. */
	Ahead ahead;
};

/* Never destroyed: threads may end at any time. */
ByAddress<State> &states()
{
	static ByAddress<State> *const all = new ByAddress<State>;

	return *all;
}

/* Entries are never removed: WiredTiger has an array of sessions, which bounds their number. */
ByAddress<Cursors> &sessions()
{
	static ByAddress<Cursors> *const all = new ByAddress<Cursors>;

	return *all;
}

/* Sets the scope of this thread's reads during a call of the cursor. */
class Searching {
    public:
	Searching(const State *state, WT_CURSOR *cursor, Wanted wanted, Ahead *ahead = nullptr)
		: scope_{state->engine, state->table, cursor, wanted, ahead}, outer_(scope)
	{
		const bool is_step = wanted == Wanted::NEXT || wanted == Wanted::PREVIOUS;
		/* A search without a key is left to WiredTiger, which reports the error. */
		const bool is_on = mode.load(std::memory_order_relaxed) != BPFOF_WIREDTIGER_PLAIN &&
				   (is_step || cursor->flags & WT_CURSTD_KEY_SET) && state->engine->target() &&
				   state->table->is_suitable.load(std::memory_order_relaxed);

		scope = is_on ? &scope_ : nullptr;
	}
	~Searching() { scope = outer_; }
	Searching(const Searching &) = delete;
	Searching &operator=(const Searching &) = delete;

	const Scope &found() const { return scope_; }

    private:
	Scope scope_;
	Scope *const outer_;
};

/* A random number below `limit`. */
uint32_t random_below(uint32_t limit)
{
	static thread_local uint64_t state = reinterpret_cast<uintptr_t>(&state) | 1;

	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return uint32_t((state >> 32) * limit >> 32);
}

int reset(WT_CURSOR *cursor);

/* WiredTiger resets all cursors of the session, but does not know of the detached ones: they are reset
 * here. */
int reset_anchor(WT_CURSOR *anchor)
{
	Cursors *const own = sessions().find(anchor->session);

	for (WT_CURSOR *cursor : own->open)
		if (states().find(cursor)->is_detached)
			reset(cursor);
	return own->reset(anchor);
}

/* The session is being closed. */
int close_anchor(WT_CURSOR *anchor)
{
	Cursors *const own = sessions().find(anchor->session);

	own->anchor = nullptr;
	anchor->reset = own->reset;
	anchor->close = own->close;
	return anchor->close(anchor);
}

/* Whether the cursor's session has an anchor, which is opened for the first search that needs it. */
bool has_anchor(const State *state, WT_SESSION *session)
{
	Cursors *const own = state->session;
	WT_CURSOR *anchor;

	if (own->anchor)
		return true;
	if (state->engine->open_cursor.load()(session, "file:WiredTiger.wt", nullptr, "readonly=true", &anchor))
		return false;
	own->reset = anchor->reset;
	own->close = anchor->close;
	anchor->reset = reset_anchor;
	anchor->close = close_anchor;
	own->anchor = anchor;
	return true;
}

/* The cursor gives up the row of a cancelled search; the session gives up its snapshot if no other
 * cursor needs it. */
void leave(State *state)
{
	Cursors *const own = state->session;

	if (!state->is_detached)
		return;
	state->is_detached = false;
	if (--own->detached == 0 && own->anchor)
		own->reset(own->anchor);
}

Wanted wanted_by_search(const State *state, WT_SESSION *session)
{
	const Table *const table = state->table;

	if (mode.load(std::memory_order_relaxed) != BPFOF_WIREDTIGER_VALUES)
		return Wanted::PAGES;
	if (!has_answers(table))
		return Wanted::PAGES;
	if (!table->returning.is_above(RETURNING_PERCENT) ||
		random_below(100) < state->engine->settings().sample_percent)
		return Wanted::PAGES;
	if (table->declining.is_above(DECLINING_PERCENT) && random_below(16))
		return Wanted::PAGES;
	return has_anchor(state, session) ? Wanted::VALUE : Wanted::PAGES;
}

/* Gives the cursor the key of the row whose search was cancelled, and no value. */
void take_key(const State *state, WT_CURSOR *cursor)
{
	cursor->key.data = state->key.data();
	cursor->key.size = state->key.size();
	cursor->flags &= ~(WT_CURSTD_KEY_SET | WT_CURSTD_VALUE_SET);
	cursor->flags |= WT_CURSTD_KEY_EXT;
}

/* Whether the program has not set another key since. */
bool has_its_key(const State *state, const WT_CURSOR *cursor)
{
	return cursor->flags & WT_CURSTD_KEY_SET && cursor->key.data == state->key.data() &&
	       cursor->key.size == state->key.size();
}

/* Gives the cursor the value that a chain has found. */
int take_value(State *state, WT_CURSOR *cursor, const Scope &found)
{
	if (!found.is_found)
		return WT_NOTFOUND;
	const int error = guarded([&] {
		state->key.assign(static_cast<const char *>(cursor->key.data), cursor->key.size);
		state->value.assign(found.value, found.value_bytes);
		return 0;
	});

	if (error) {
		leave(state);
		return error;
	}
	take_key(state, cursor);
	cursor->value.data = state->value.data();
	cursor->value.size = state->value.size();
	cursor->flags |= WT_CURSTD_VALUE_EXT;
	return 0;
}

/* Makes a call that descends by the cursor's key, and needs no position. */
template <typename Call> int with_pages(WT_CURSOR *cursor, const Call &call)
{
	State *const state = states().find(cursor);
	const Searching searching(state, cursor, Wanted::PAGES);

	leave(state);
	return call(state);
}

int search(WT_CURSOR *cursor)
{
	State *const state = states().find(cursor);

	leave(state);
	state->ahead.reposition();
	const Searching searching(state, cursor, wanted_by_search(state, cursor->session), &state->ahead);
	const int error = state->search(cursor);

#if BPFOF_PLANTED == PLANTED_CHAIN_AFTER_SEARCH
	if (error == WT_DUPLICATE_KEY && !run_late(searching.found()))
		return with_pages(cursor, [=](State *own) { return own->search(cursor); });
#endif
	if (error == WT_DUPLICATE_KEY && searching.found().is_answered)
		return take_value(state, cursor, searching.found());
	leave(state);
	return error;
}

/*
 * Positions the cursor at its row, or at a neighbouring one; *beside says on which side. After a
 * cancelled search that is where the search would have ended, unless the row is gone since.
 */
int attach(State *state, WT_CURSOR *cursor, int *beside)
{
	const Searching searching(state, cursor, Wanted::PAGES, &state->ahead);
	const int error = state->search_near(cursor, beside);

	/* The cursor keeps that row, so that the program can try again. */
	if (state->is_detached && error && error != WT_NOTFOUND) {
		take_key(state, cursor);
		return error;
	}
	/* Only now, because WiredTiger has the position: the snapshot is still that of the search. */
	leave(state);
	return error;
}

int search_near(WT_CURSOR *cursor, int *exact)
{
	State *const state = states().find(cursor);

	leave(state);
	state->ahead.reposition();
	return attach(state, cursor, exact);
}

int insert(WT_CURSOR *cursor)
{
	return with_pages(cursor, [=](State *state) { return state->insert(cursor); });
}

int update(WT_CURSOR *cursor)
{
	return with_pages(cursor, [=](State *state) { return state->update(cursor); });
}

int reserve(WT_CURSOR *cursor)
{
	return with_pages(cursor, [=](State *state) { return state->reserve(cursor); });
}

int modify(WT_CURSOR *cursor, WT_MODIFY *entries, int count)
{
	return with_pages(cursor, [=](State *state) { return state->modify(cursor, entries, count); });
}

/* A cursor that removes a row keeps its position. */
int remove(WT_CURSOR *cursor)
{
	State *const attached = states().find(cursor);

	if (attached->is_detached && has_its_key(attached, cursor)) {
		int beside = 0;
		const int error = attach(attached, cursor, &beside);

		if (error && error != WT_NOTFOUND)
			return error;
		/* The row is gone: continue as for any key that was set. */
		if (error || beside)
			take_key(attached, cursor);
	}
	return with_pages(cursor, [=](State *state) { return state->remove(cursor); });
}

/* Moves to the row after the cursor's, or before it. */
int step(WT_CURSOR *cursor, Wanted wanted)
{
	State *const state = states().find(cursor);
	const bool is_next = wanted == Wanted::NEXT;

	if (state->is_detached) {
		int beside;

		/* From the cursor's row, whatever key the program has set since. */
		take_key(state, cursor);
		const int error = attach(state, cursor, &beside);

		/* The cursor may already be at the neighbouring row. */
		if (error || (is_next ? beside > 0 : beside < 0))
			return error;
	}
	const Searching searching(state, cursor, wanted, &state->ahead);
	const int error = is_next ? state->next(cursor) : state->prev(cursor);

	if (error == WT_NOTFOUND)
		state->ahead.release();
	return error;
}

int next(WT_CURSOR *cursor)
{
	return step(cursor, Wanted::NEXT);
}

int prev(WT_CURSOR *cursor)
{
	return step(cursor, Wanted::PREVIOUS);
}

int reset(WT_CURSOR *cursor)
{
	State *const state = states().find(cursor);

	leave(state);
	state->ahead.release();
	return state->reset(cursor);
}

#if WIREDTIGER_VERSION_MAJOR > 3
/* A cursor at a row gets no bounds, and WiredTiger does not know of a row that a chain has answered. */
int bound(WT_CURSOR *cursor, const char *config)
{
	State *const state = states().find(cursor);
	const bool clears = config && strstr(config, "clear");

	return state->is_detached && !clears ? EINVAL : state->bound(cursor, config);
}
#define BPFOF_NEWER_METHODS(of) of(bound)
#else
#define BPFOF_NEWER_METHODS(of) static_cast<void>(0)
#endif

/* Saves WiredTiger's own `cursor->method` in the state, and replaces it. */
#define BPFOF_WRAP(method)                                                                             \
	do {                                                                                           \
		state->method = cursor->method;                                                        \
		cursor->method = method;                                                               \
	} while (0)
#define BPFOF_METHODS(of)                                                                              \
	of(search);                                                                                    \
	of(search_near);                                                                               \
	of(insert);                                                                                    \
	of(update);                                                                                    \
	of(remove);                                                                                    \
	of(reserve);                                                                                   \
	of(modify);                                                                                    \
	of(next);                                                                                      \
	of(prev);                                                                                      \
	of(reset);                                                                                     \
	BPFOF_NEWER_METHODS(of);                                                                       \
	of(close)
/* WiredTiger may cache the closed cursor, and reopen it for its own use. */
#define BPFOF_UNWRAP(method) cursor->method = state->method

int close(WT_CURSOR *cursor)
{
	State *const state = states().find(cursor);
	std::vector<WT_CURSOR *> &open = state->session->open;

	leave(state);
	open.erase(std::remove(open.begin(), open.end(), cursor), open.end());
	state->table->usual_ahead = state->ahead.usual();
	BPFOF_METHODS(BPFOF_UNWRAP);
	states().forget(cursor);
	return cursor->close(cursor);
}

/* Reads WiredTiger's configuration strings as WiredTiger does. */
class Config {
    public:
	Config(WT_SESSION *session, const char *text)
		: api_(session->connection->get_extension_api(session->connection)), session_(session), text_(text)
	{
	}

	/* Empty, or 0, if the name is missing. */
	std::string text(const char *name) const
	{
		const WT_CONFIG_ITEM item = find(name);

		return std::string(item.str, item.len);
	}
	int64_t number(const char *name) const { return find(name).val; }
	bool is_true(const char *name) const
	{
		const WT_CONFIG_ITEM item = find(name);
		const bool is_word = item.type != WT_CONFIG_ITEM::WT_CONFIG_ITEM_BOOL &&
				     item.type != WT_CONFIG_ITEM::WT_CONFIG_ITEM_NUM;

		return item.val || (is_word && item.len);
	}
	bool is_none(const char *name) const
	{
		const std::string value = text(name);

		return value.empty() || value == "none";
	}

    private:
	WT_CONFIG_ITEM find(const char *name) const
	{
		WT_CONFIG_ITEM item;

		if (!text_ || api_->config_get_string(api_, session_, text_, name, &item))
			return {"", 0, 0, WT_CONFIG_ITEM::WT_CONFIG_ITEM_STRING};
		return item;
	}

	WT_EXTENSION_API *const api_;
	WT_SESSION *const session_;
	const char *const text_;
};

/* Determines whether wt_get can read the pages of a table. */
void learn(WT_SESSION *session, Table *table)
{
	WT_EXTENSION_API *const api = session->connection->get_extension_api(session->connection);
	char *found = nullptr;

	if (api->metadata_search(api, session, ("file:" + table->name).c_str(), &found) || !found)
		return;
	const Config metadata(session, found);
	const int64_t bytes = metadata.number("allocation_size");
	const std::string key = metadata.text("key_format"), compressor = metadata.text("block_compressor");

	table->allocation_bytes = uint32_t(bytes);
	/* The numbers of bpfof_decompress(). */
	table->compressor = compressor == "snappy" ? 1 : compressor == "lz4" ? 4 : compressor == "zstd" ? 7 : 0;
	table->is_suitable = bytes >= 512 && bytes <= WT_BLOCK_BYTES_MAX && !key.empty() && key != "r" &&
			     metadata.is_none("collator") && metadata.is_none("huffman_key") &&
			     metadata.is_none("huffman_value") && metadata.is_none("encryption.name");
	table->is_known = true;
	free(found);
}

/* Whether a cursor does more, or less, than move to rows. */
bool is_special(WT_SESSION *session, const char *text)
{
	const Config config(session, text);

	return config.is_true("bulk") || config.is_true("next_random") || !config.text("checkpoint").empty() ||
	       !config.text("dump").empty() || !config.text("debug").empty();
}

} /* namespace */

void wrap_cursor(Engine *engine, WT_CURSOR *cursor, const char *config)
{
	const char *const uri = cursor->internal_uri ? cursor->internal_uri : cursor->uri;

	/* A cursor that is wrapped already was opened inside this call. */
	if (!uri || strncmp(uri, "file:", 5) || cursor->search == search || is_special(cursor->session, config))
		return;
	const std::string name = uri + 5;

	if (name.compare(0, 10, "WiredTiger") == 0)
		return;
	State *const state = states().obtain(cursor);

	state->engine = engine;
	state->table = engine->table(name);
	if (!state->table->is_known)
		learn(cursor->session, state->table);
	state->ahead.begin_as(state->table->usual_ahead);
	state->session = sessions().find(cursor->session);
	state->session->open.push_back(cursor);
	/* Last, because nothing can throw any more. */
	BPFOF_METHODS(BPFOF_WRAP);
}

Table *table_of(const WT_CURSOR *cursor)
{
	const State *const state = cursor && cursor->search == search ? states().find(cursor) : nullptr;

	return state ? state->table : nullptr;
}

void begin_session(const WT_SESSION *session)
{
	Cursors *const own = sessions().obtain(session);

	own->open.clear();
	own->detached = 0;
	own->anchor = nullptr;
}

void end_session(const WT_SESSION *session)
{
	WT_CURSOR *const anchor = sessions().find(session)->anchor;

	if (anchor)
		anchor->close(anchor);
}

bool detach(const WT_CURSOR *cursor)
{
	State *const state = states().find(cursor);
	Cursors *const own = state->session;

	if (!own->detached && own->anchor->next(own->anchor))
		return false;
	own->detached++;
	state->is_detached = true;
	return true;
}

} /* namespace bpf_of */

extern "C" __attribute__((visibility("default"))) void bpfof_wiredtiger_set_mode(enum bpfof_wiredtiger_mode mode)
{
	bpf_of::mode = mode;
}
