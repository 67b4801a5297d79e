/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "engine.h"

#include "cursor.h"

#include <cstring>

namespace bpf_of {

Engine::Engine(WT_CONNECTION *connection, const Settings &settings) : connection(connection), settings_(settings)
{
	if (settings.url.empty() && settings.counters.empty())
		return;
	target_ = std::make_unique<Target>(settings, [this](const std::string &text) { log(text); });
	if (target_->problem().empty())
		return;
	WT_EXTENSION_API *const api = connection->get_extension_api(connection);

	api->err_printf(api, nullptr, "bpfof: searches use plain reads until the target can be reached: %s",
		target_->problem().c_str());
}

void Engine::log(const std::string &text)
{
	std::lock_guard<std::mutex> lock(logging_);

	/* Before and after that, WiredTiger is at work in the session that would report the message. */
	if (!is_started_ || is_closing_)
		return;
	WT_EXTENSION_API *const api = connection->get_extension_api(connection);

	api->err_printf(api, nullptr, "bpfof: %s", text.c_str());
}

void Engine::add_session(WT_SESSION *session)
{
	std::lock_guard<std::mutex> lock(mutex_);

	sessions_.insert(session);
}

void Engine::remove_session(WT_SESSION *session)
{
	std::lock_guard<std::mutex> lock(mutex_);

	sessions_.erase(session);
}

void Engine::end_sessions()
{
	{
		std::lock_guard<std::mutex> lock(logging_);

		is_closing_ = true;
	}
	std::lock_guard<std::mutex> lock(mutex_);

	for (const WT_SESSION *session : sessions_)
		end_session(session);
}

Table *Engine::table(const std::string &file)
{
	std::lock_guard<std::mutex> lock(mutex_);
	std::unique_ptr<Table> &table = tables_[file];

	if (!table)
		table = std::make_unique<Table>(file);
	return table.get();
}

void Engine::renames(const std::string &from, const std::string &to)
{
	{
		std::lock_guard<std::mutex> lock(mutex_);
		const auto found = tables_.find(from);

		if (found == tables_.end() || !found->second->has_deleted)
			return;
	}
	table(to)->has_deleted = true;
}

/*
 * Data that should be durable may be lost, and the system reports that only once: the next sync would
 * succeed. So there is no further sync, and no further write that would rely on one.
 */
int Engine::fail(WT_SESSION *session, const char *path, int error)
{
	WT_EXTENSION_API *const api = connection->get_extension_api(connection);

	has_failed_ = true;
	api->err_printf(api, session,
		"bpfof: cannot sync %s: %s; writes are refused until the database is opened again", path,
		strerror(error));
	return WT_PANIC;
}

std::string Engine::name_of(const char *path) const
{
	const std::string home = std::string(connection->get_home(connection)) + "/";

	return strncmp(path, home.c_str(), home.size()) ? path : path + home.size();
}

void Engine::begin_truncation()
{
	truncations_++;
	std::lock_guard<std::mutex> lock(mutex_);

	for (auto &table : tables_)
		table.second->is_truncated = true;
}

} /* namespace bpf_of */
