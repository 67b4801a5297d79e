/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* PushdownOptions as text. */
#include "bpfof/rocksdb.h"

#include <algorithm>
#include <charconv>

namespace bpf_of {

using rocksdb::Status;

namespace {

template <typename Number> bool read(const std::string &text, Number *value)
{
	const char *const end = text.data() + text.size();
	const auto [read_to, error] = std::from_chars(text.data(), end, *value);

	return error == std::errc() && read_to == end;
}

bool read(const std::string &text, bool *value)
{
	*value = text == "true" || text == "1";
	return *value || text == "false" || text == "0";
}

bool read(const std::string &text, std::string *value)
{
	*value = text;
	return true;
}

bool read(const std::string &text, Speculate *value)
{
	if (text == "never")
		*value = Speculate::kNever;
	else if (text == "when-faster")
		*value = Speculate::kWhenFaster;
	else if (text == "always")
		*value = Speculate::kAlways;
	else
		return false;
	return true;
}

/* False if the value is invalid or the name unknown. */
bool set_known(const std::string &name, const std::string &text, PushdownOptions *options, bool *is_known)
{
	const auto is = [&](const char *one) { return name == one; };

	*is_known = true;
	if (is("url"))
		return read(text, &options->url);
	if (is("device"))
		return read(text, &options->device);
	if (is("index_bytes_max"))
		return read(text, &options->index_bytes_max);
	if (is("value_bytes_max"))
		return read(text, &options->value_bytes_max);
	if (is("readers_max"))
		return read(text, &options->readers_max);
	if (is("lanes_max"))
		return read(text, &options->lanes_max);
	if (is("descriptors_max"))
		return read(text, &options->descriptors_max);
	if (is("target_reads"))
		return read(text, &options->target_reads);
	if (is("sample_rate"))
		return read(text, &options->sample_rate);
	if (is("adapt_sampling"))
		return read(text, &options->adapt_sampling);
	if (is("speculate"))
		return read(text, &options->speculate);
	if (is("report"))
		return read(text, &options->report);
	*is_known = false;
	return false;
}

} /* namespace */

Status PushdownOptions::set(const std::string &name, const std::string &value)
{
	bool is_known;

	if (set_known(name, value, this, &is_known))
		return Status::OK();
	return Status::InvalidArgument("pushdown options",
		is_known ? name + " cannot be \"" + value + "\"" +
				   (name == "speculate" ? "; use never, when-faster or always" : "")
			 : "there is no \"" + name +
				   "\"; the settings are url, device, index_bytes_max, value_bytes_max, readers_max, "
				   "lanes_max, descriptors_max, target_reads, sample_rate, adapt_sampling, speculate and report");
}

Status PushdownOptions::parse(const std::string &text, PushdownOptions *options)
{
	for (size_t at = 0; at < text.size();) {
		const size_t end = std::min(text.find(';', at), text.size());
		const std::string setting = text.substr(at, end - at);
		const size_t equals = setting.find('=');
		Status status;

		at = end + 1;
		if (setting.empty())
			continue;
		if (equals == std::string::npos)
			return Status::InvalidArgument("pushdown options",
				"\"" + setting + "\" is not NAME=VALUE; settings are separated by ';'");
		status = options->set(setting.substr(0, equals), setting.substr(equals + 1));
		if (!status.ok())
			return status;
	}
	return Status::OK();
}

} /* namespace bpf_of */
