/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What WiredTiger calls when it loads the library. */
#include "engine.h"

#include <cerrno>
#include <exception>

extern "C" __attribute__((visibility("default"))) int wiredtiger_extension_init(WT_CONNECTION *connection,
	WT_CONFIG_ARG *config)
{
	WT_EXTENSION_API *const api = connection->get_extension_api(connection);
	bpf_of::Settings settings;
	int major = 0, error = bpf_of::read_settings(api, config, &settings);

	if (error)
		return error;
	api->version(&major, nullptr, nullptr);
	if (major != WIREDTIGER_VERSION_MAJOR) {
		api->err_printf(api, nullptr, "bpfof: this extension was built for WiredTiger %d, and this is %d: build it "
			"with the headers of that (docs/wiredtiger.md)", WIREDTIGER_VERSION_MAJOR, major);
		return EINVAL;
	}
	bpf_of::Engine *engine = nullptr;

	try {
		engine = new bpf_of::Engine(settings);
		engine->connection = connection;
		error = bpf_of::set_file_system(connection, engine);
	} catch (const std::exception &failure) {
		/* There is no memory, or no thread. */
		api->err_printf(api, nullptr, "bpfof: the extension cannot be loaded: %s", failure.what());
		delete engine;
		return ENOMEM;
	}
	if (error) {
		api->err_printf(api, nullptr, "bpfof: the extension must be loaded before the database is open: "
			"extensions=[LIBRARY={early_load=true}]");
		delete engine;
		return error;
	}
	bpf_of::wrap_connection(connection, engine);
	return 0;
}
