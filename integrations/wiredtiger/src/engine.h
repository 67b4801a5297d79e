/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The state of one open database. */
#ifndef BPFOF_WIREDTIGER_ENGINE_H
#define BPFOF_WIREDTIGER_ENGINE_H

#include "table.h"

#include <set>
#include <unordered_map>

namespace bpf_of {

class Engine {
    public:
	/* Throws Mistake if the settings can never lead to a target. */
	Engine(WT_CONNECTION *connection, const Settings &settings);

	const Settings &settings() const { return settings_; }
	/* Null if the settings name no target. */
	Target *target() const { return settings_.url.empty() ? nullptr : target_.get(); }

	/* The table of this file; it stays in place. */
	Table *table(const std::string &file);
	/* The file of a table is about to get another name, perhaps: what may be deleted in it stays known. */
	void renames(const std::string &from, const std::string &to);
	/* Recovery is over: from now on WiredTiger opens tables only for the program. */
	void started() { is_started_ = true; }
	bool has_started() const { return is_started_; }
	/* Tables are being truncated that are not named, perhaps also some that WiredTiger opens
	 * meanwhile. */
	void begin_truncation();
	void end_truncation() { truncations_--; }
	/* Whether a table that is opened now may be truncated unnoticed: recovery truncates without a
	 * cursor. */
	bool may_be_truncating() const { return !is_started_ || truncations_; }

	/* A sync has failed: reports why, and returns the error of WiredTiger's calls from then on. */
	int fail(WT_SESSION *session, const char *path, int error);
	bool has_failed() const { return has_failed_.load(std::memory_order_relaxed); }

	/* The name by which tables know the file: relative to the database's folder. */
	std::string name_of(const char *path) const;

	/* Sessions that the program has open. */
	void add_session(WT_SESSION *session);
	void remove_session(WT_SESSION *session);
	/* The database is about to be closed, and its sessions with it. */
	void end_sessions();

	WT_CONNECTION *const connection;
	/* The connection's and its sessions' original methods. */
	int (*close_connection)(WT_CONNECTION *, const char *) = nullptr;
	int (*open_session)(WT_CONNECTION *, WT_EVENT_HANDLER *, const char *, WT_SESSION **) = nullptr;
	std::atomic<decltype(WT_SESSION::open_cursor)> open_cursor{nullptr};
	std::atomic<decltype(WT_SESSION::truncate)> truncate{nullptr};
	std::atomic<decltype(WT_SESSION::close)> close{nullptr};

    private:
	void log(const std::string &text);

	const Settings settings_;
	std::mutex mutex_;
	std::unordered_map<std::string, std::unique_ptr<Table>> tables_;
	std::set<WT_SESSION *> sessions_;
	std::atomic<bool> is_started_{false};
	std::atomic<uint32_t> truncations_{0};
	std::atomic<bool> has_failed_{false};
	/* While it is held, the database is not closed. */
	std::mutex logging_;
	bool is_closing_ = false;
	/* Also writes the counters. */
	std::unique_ptr<Target> target_;
};

/* The database of a connection; null if it has none. */
Engine *engine_of(WT_CONNECTION *connection);
/* Wraps the sessions of the connection, and their cursors. False if there are too many connections. */
bool wrap_connection(WT_CONNECTION *connection, Engine *engine);
/* Undoes wrap_connection(), because the connection is closed. */
void unwrap_connection(Engine *engine);

/* Gives the database its file system. */
int set_file_system(WT_CONNECTION *connection, Engine *engine);

} /* namespace bpf_of */

#endif
