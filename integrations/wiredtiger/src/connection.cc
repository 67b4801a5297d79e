/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Methods of connections and sessions that this extension replaces, to wrap each cursor and see each
 * truncation. */
#include "cursor.h"
#include "guard.h"

#include <cstring>

namespace bpf_of {

namespace {

/* The most databases that a process may have open at once with this extension. */
constexpr size_t ENGINES_MAX = 64;

struct Entry {
	std::atomic<WT_CONNECTION *> connection{nullptr};
	std::atomic<Engine *> engine{nullptr};
};

Entry entries[ENGINES_MAX];

int truncate(WT_SESSION *session, const char *uri, WT_CURSOR *start, WT_CURSOR *stop, const char *config)
{
	Engine *const engine = engine_of(session->connection);
	Table *const table = table_of(start ? start : stop);
	const bool is_any = !table && (!uri || strncmp(uri, "log:", 4));

	/* Set before the truncation: searches that begin later must see it. */
	if (table)
		table->is_truncated = true;
	if (is_any)
		engine->begin_truncation();
	const int error = engine->truncate.load()(session, uri, start, stop, config);

	if (is_any)
		engine->end_truncation();
	return error;
}

int close(WT_SESSION *session, const char *config)
{
	Engine *const engine = engine_of(session->connection);

	engine->remove_session(session);
	end_session(session);
	return engine->close.load()(session, config);
}

int say_nothing(WT_EVENT_HANDLER *, WT_SESSION *, int, const char *)
{
	return 0;
}

/*
 * Whether recovery is over. WiredTiger 11 lets programs open sessions earlier (WT_EVENT_CONN_READY), but until
 * recovery is over it refuses all cursors in them, except for statistics.
 */
bool has_recovered(Engine *engine)
{
	WT_EVENT_HANDLER quiet = {};
	WT_SESSION *session = nullptr;
	WT_CURSOR *cursor = nullptr;

	quiet.handle_error = say_nothing;
	if (engine->open_session(engine->connection, &quiet, nullptr, &session))
		return false;
	const bool is_open = session->open_cursor(session, "metadata:", nullptr, nullptr, &cursor) == 0;

	session->close(session, nullptr);
	return is_open;
}

void look_whether_started(Engine *engine)
{
	if (!engine->has_started() && has_recovered(engine))
		engine->started();
}

int open_cursor(WT_SESSION *session, const char *uri, WT_CURSOR *to_dup, const char *config, WT_CURSOR **cursor)
{
	Engine *const engine = engine_of(session->connection);

	look_whether_started(engine);
	const int error = engine->open_cursor.load()(session, uri, to_dup, config, cursor);

	if (error)
		return error;
	/* Without memory for the wrapper the cursor stays WiredTiger's own. */
	guarded([&] {
		wrap_cursor(engine, *cursor, config);
		return 0;
	});
	return 0;
}

/* WiredTiger closes the open sessions without calling their methods. */
int close_connection(WT_CONNECTION *connection, const char *config)
{
	Engine *const engine = engine_of(connection);

	engine->end_sessions();
	return engine->close_connection(connection, config);
}

/* Saves WiredTiger's own method of the session in the engine, and replaces it. */
#define BPFOF_WRAP(method, ours)                                                                       \
	do {                                                                                           \
		engine->method = (*session)->method;                                                   \
		(*session)->method = ours;                                                             \
	} while (0)

int open_session(WT_CONNECTION *connection, WT_EVENT_HANDLER *handler, const char *config, WT_SESSION **session)
{
	Engine *const engine = engine_of(connection);

	look_whether_started(engine);
	int error = engine->open_session(connection, handler, config, session);

	if (error)
		return error;
	error = guarded([&] {
		begin_session(*session);
		engine->add_session(*session);
		return 0;
	});
	if (error) {
		(*session)->close(*session, nullptr);
		return error;
	}
	if ((*session)->open_cursor != open_cursor) {
		BPFOF_WRAP(open_cursor, open_cursor);
		BPFOF_WRAP(truncate, truncate);
		BPFOF_WRAP(close, close);
	}
	return 0;
}

} /* namespace */

Engine *engine_of(WT_CONNECTION *connection)
{
	for (Entry &entry : entries)
		if (entry.connection.load(std::memory_order_acquire) == connection)
			return entry.engine.load(std::memory_order_acquire);
	return nullptr;
}

bool wrap_connection(WT_CONNECTION *connection, Engine *engine)
{
	for (Entry &entry : entries) {
		Engine *none = nullptr;

		if (!entry.engine.compare_exchange_strong(none, engine))
			continue;
		engine->open_session = connection->open_session;
		engine->close_connection = connection->close;
		entry.connection.store(connection, std::memory_order_release);
		connection->open_session = open_session;
		connection->close = close_connection;
		return true;
	}
	return false;
}

void unwrap_connection(Engine *engine)
{
	for (Entry &entry : entries) {
		if (!engine || entry.engine.load() != engine)
			continue;
		engine->connection->open_session = engine->open_session;
		engine->connection->close = engine->close_connection;
		entry.connection = nullptr;
		entry.engine = nullptr;
	}
}

} /* namespace bpf_of */
