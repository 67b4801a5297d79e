/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "settings.h"

#include <cerrno>

namespace bpf_of {

namespace {

bool take_number(const WT_CONFIG_ITEM &value, uint32_t most, uint32_t *number)
{
	if (value.type != WT_CONFIG_ITEM::WT_CONFIG_ITEM_NUM || value.val < 0 || value.val > most)
		return false;
	*number = uint32_t(value.val);
	return true;
}

/* Parses a boolean as WiredTiger does. */
bool take_truth(const WT_CONFIG_ITEM &value, bool *truth)
{
	const bool is_number = value.type == WT_CONFIG_ITEM::WT_CONFIG_ITEM_NUM && (value.val == 0 || value.val == 1);

	if (value.type != WT_CONFIG_ITEM::WT_CONFIG_ITEM_BOOL && !is_number)
		return false;
	*truth = value.val != 0;
	return true;
}

bool take(const std::string &name, const WT_CONFIG_ITEM &value, Settings *settings)
{
	if (name == "url")
		settings->url.assign(value.str, value.len);
	else if (name == "device")
		settings->device.assign(value.str, value.len);
	else if (name == "counters")
		settings->counters.assign(value.str, value.len);
	else if (name == "sample")
		return take_number(value, 100, &settings->sample_percent);
	else if (name == "readers")
		return take_number(value, 128, &settings->readers_max);
	else if (name == "lanes")
		return take_number(value, 128, &settings->lanes_max);
	else if (name == "deadline_ms")
		return take_number(value, 600000, &settings->deadline_ms) && settings->deadline_ms > 0;
	else if (name == "target_reads")
		return take_truth(value, &settings->target_reads);
	else if (name == "log_dsync")
		return take_truth(value, &settings->log_dsync);
	else
		return false;
	return true;
}

} /* namespace */

int read_settings(WT_EXTENSION_API *api, WT_CONFIG_ARG *config, Settings *settings)
{
	WT_CONFIG_PARSER *parser;
	WT_CONFIG_ITEM key, value;
	int error = api->config_parser_open_arg(api, nullptr, config, &parser);

	if (error) {
		api->err_printf(api, nullptr, "bpfof: cannot read the extension's config");
		return error;
	}
	while (!(error = parser->next(parser, &key, &value))) {
		const std::string name(key.str, key.len);

		if (take(name, value, settings))
			continue;
		api->err_printf(api, nullptr,
			"bpfof: invalid setting %s=%.*s; the settings are url, device, counters (a file), sample (0 to 100), "
			"readers (0 to 128), lanes (0 to 128), deadline_ms (1 to 600000), target_reads and log_dsync (true or false)",
			name.c_str(), int(value.len), value.str);
		error = EINVAL;
		break;
	}
	parser->close(parser);
	return error == WT_NOTFOUND ? 0 : error;
}

} /* namespace bpf_of */
