/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "engine.h"

#include <cstring>

namespace bpf_of {

Engine::Engine(const Settings &settings) : settings_(settings)
{
	if (!settings.url.empty() || !settings.counters.empty())
		target_ = std::make_unique<Target>(settings);
}

Table *Engine::table(const std::string &file)
{
	std::lock_guard<std::mutex> lock(mutex_);
	std::unique_ptr<Table> &table = tables_[file];

	if (!table)
		table = std::make_unique<Table>(file);
	return table.get();
}

/*
 * What was to be kept may be lost, and the system says so once: the next sync would succeed. So there is none, and
 * nothing is written that would count on it.
 */
int Engine::fail(WT_SESSION *session, const char *path, int error)
{
	WT_EXTENSION_API *const api = connection->get_extension_api(connection);

	has_failed_ = true;
	api->err_printf(api, session,
		"bpfof: %s cannot be synced: %s; nothing is written any more until the database is opened again", path,
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
