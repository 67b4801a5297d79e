// SPDX-License-Identifier: Apache-2.0 OR MIT
// wt_get OBJECT FOLDER: the storage function against tables that WiredTiger wrote, in all the forms that it
// claims to read: the value of each key, or the pages that the search would have read; and from damaged pages
// an end without a fault. ROUNDS is the number of damaged pages of each form (100).
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "bpfof.h"
#include "check.h"
#include "page.h"

namespace {

constexpr uint8_t kSnappy = 1;
constexpr size_t kScratch = BPFOF_SCRATCH_MAX;

// How a table is made, and what the function must make of it.
struct Form {
	const char *name;
	const char *options;
	int keys;
	size_t key_bytes, value_bytes;
	uint8_t compressor = 0;
	// The smallest percentage of eight hundred existing keys that are answered with a value.
	int values_min = 100;
	// The reason for the others.
	wt_get_reason reason = WT_REASON_NONE;
};

const Form kForms[] = {
	{"papers", "allocation_size=512B,internal_page_max=512B,leaf_page_max=512B", 20000, 16, 16},
	{"4k", "allocation_size=4KB,internal_page_max=4KB,leaf_page_max=4KB", 20000, 16, 100},
	{"default", "", 40000, 16, 16},
	{"prefix", "allocation_size=512B,internal_page_max=512B,leaf_page_max=2KB,prefix_compression=true", 20000, 40, 10},
	{"no truncation", "allocation_size=512B,internal_page_max=1KB,leaf_page_max=1KB,internal_key_truncate=false", 10000, 24, 30},
	{"long keys", "allocation_size=512B,internal_page_max=4KB,leaf_page_max=8KB,leaf_key_max=2KB,internal_key_max=2KB", 3000, 300, 20, 0, 0, WT_REASON_OVERFLOW_KEY},
	{"overflow keys", "allocation_size=512B,internal_page_max=2KB,leaf_page_max=2KB,leaf_key_max=100", 500, 300, 20, 0, 0, WT_REASON_OVERFLOW_KEY},
	{"no values", "allocation_size=512B,internal_page_max=512B,leaf_page_max=512B", 10000, 12, 0},
	{"overflow values", "allocation_size=512B,internal_page_max=2KB,leaf_page_max=2KB,leaf_value_max=50", 500, 16, 900, 0, 0, WT_REASON_OVERFLOW_VALUE},
	{"same values", "allocation_size=512B,internal_page_max=2KB,leaf_page_max=4KB,dictionary=100", 10000, 16, 90},
	{"whole checksums", "allocation_size=512B,internal_page_max=512B,leaf_page_max=512B,checksum=on", 10000, 16, 16},
#ifdef WT_SNAPPY
	{"snappy", "allocation_size=512B,internal_page_max=4KB,leaf_page_max=16KB,block_compressor=snappy", 20000, 16, 60, kSnappy},
	{"snappy unread", "allocation_size=512B,internal_page_max=4KB,leaf_page_max=16KB,block_compressor=snappy", 5000, 16, 60, 0, 0, WT_REASON_COMPRESSED},
#endif
};

std::string Key(const Form &form, int i)
{
	std::string key = std::to_string(i);

	// Some keys are shorter, so that some are prefixes of others.
	if (i % 7 == 0 && form.key_bytes >= 16)
		return std::string(form.key_bytes / 2 - std::min(key.size(), size_t(6)), 'k') + key;
	return std::string(form.key_bytes - std::min(key.size(), form.key_bytes), 'k') + key;
}

std::string Value(const Form &form, int i)
{
	if (std::strstr(form.options, "dictionary"))
		return std::string(form.value_bytes, char('a' + i % 5));
	std::string value;

	while (value.size() < form.value_bytes)
		value += std::to_string(i * 7919LL) + ",";
	value.resize(form.value_bytes);
	return value;
}

uint64_t TakePacked(const std::string &bytes, size_t *at)
{
	const auto byte = [&] { return uint8_t(bytes.at((*at)++)); };
	const uint8_t first = byte();

	if ((first & 0xc0) == 0x80)
		return first & 0x3f;
	if ((first & 0xe0) == 0xc0)
		return ((first & 0x1f) << 8 | byte()) + 64;
	CHECK((first & 0xf0) == 0xe0, "packed %02x", first);
	uint64_t value = 0;

	for (int left = first & 0xf; left; left--)
		value = value << 8 | byte();
	return value + 8256;
}

// A table as WiredTiger left it: its file, the place of its root, and its contents.
struct Table {
	std::string path;
	int fd = -1;
	uint32_t allocation = 4096;
	uint64_t root = 0;
	uint32_t root_bytes = 0;
	std::map<std::string, std::string> rows;
};

void FindRoot(WT_SESSION *session, Table *table)
{
	WT_CURSOR *metadata;
	const char *text;

	CHECK_WT(session->open_cursor(session, "metadata:", nullptr, nullptr, &metadata));
	metadata->set_key(metadata, "file:t.wt");
	CHECK_WT(metadata->search(metadata));
	CHECK_WT(metadata->get_value(metadata, &text));
	const std::string settings = text;
	const size_t unit = settings.find("allocation_size=");
	char *rest;

	table->allocation = std::strtoul(settings.c_str() + unit + 16, &rest, 10);
	table->allocation *= *rest == 'K' ? 1024 : 1;
	const size_t address = settings.rfind("addr=\"");
	CHECK(unit != std::string::npos && address != std::string::npos, "%s", text);
	std::string cookie;

	for (size_t at = address + 6; settings[at] != '"'; at += 2)
		cookie += char(std::stoi(settings.substr(at, 2), nullptr, 16));
	size_t at = 1;
	table->root = (TakePacked(cookie, &at) + 1) * table->allocation;
	table->root_bytes = TakePacked(cookie, &at) * table->allocation;
}

Table Make(const Form &form, const std::string &folder)
{
	Table table;
	WT_CONNECTION *connection;
	WT_SESSION *session;
	WT_CURSOR *cursor;
	const std::string settings = "create,cache_size=200M" WT_EXTENSIONS;
	const std::string options = std::string("key_format=u,value_format=u,") + form.options;

	CHECK_WT(wiredtiger_open(folder.c_str(), nullptr, settings.c_str(), &connection));
	CHECK_WT(connection->open_session(connection, nullptr, nullptr, &session));
	CHECK_WT(session->create(session, "table:t", options.c_str()));
	CHECK_WT(session->open_cursor(session, "table:t", nullptr, nullptr, &cursor));
	for (int i = 0; i < form.keys; i++)
		table.rows.emplace(Key(form, i), Value(form, i));
	for (const auto &row : table.rows) {
		const WT_ITEM key = {row.first.data(), row.first.size(), nullptr, 0, 0};
		const WT_ITEM value = {row.second.data(), row.second.size(), nullptr, 0, 0};

		cursor->set_key(cursor, &key);
		cursor->set_value(cursor, &value);
		CHECK_WT(cursor->insert(cursor));
	}
	CHECK_WT(session->checkpoint(session, nullptr));
	CHECK_WT(cursor->close(cursor));
	FindRoot(session, &table);
	CHECK_WT(connection->close(connection, nullptr));
	table.path = folder + "/t.wt";
	table.fd = open(table.path.c_str(), O_RDWR | O_CLOEXEC);
	CHECK(table.fd >= 0, "opening %s: %s", table.path.c_str(), strerror(errno));
	return table;
}

struct Page {
	uint64_t offset;
	std::string bytes;
};

struct Outcome {
	int error = 0;
	uint32_t code = 0;
	std::string message;
	wt_get_answer answer = {};
	std::string value;
	std::vector<Page> pages;
};

class Chains {
    public:
	explicit Chains(const char *object)
		: bpfof_(bpfof_open(nullptr, nullptr, nullptr)),
		  function_(bpfof_function_load_file(bpfof_, object, nullptr)),
		  reader_(bpfof_reader_open(bpfof_))
	{
		CHECK(bpfof_ && function_ && reader_, "loading %s: %s", object, bpfof_error());
	}
	~Chains()
	{
		bpfof_reader_close(reader_);
		bpfof_function_unload(function_);
		bpfof_close(bpfof_);
	}
	Chains(const Chains &) = delete;
	Chains &operator=(const Chains &) = delete;

	void Forget(const Table &table) { bpfof_forget(bpfof_, table.fd); }

	Outcome Get(const Table &table, const std::string &key, uint8_t flags, uint8_t compressor, uint64_t offset,
		uint32_t bytes, size_t scratch_bytes = kScratch, uint32_t following_bytes = 0,
		const uint32_t *checksum = nullptr)
	{
		wt_get_request request = {};
		std::string scratch;

		request.allocation_bytes = table.allocation;
		request.key_bytes = uint16_t(key.size());
		request.flags = flags;
		request.compressor = compressor;
		request.levels_max = 30;
		request.has_checksum = checksum != nullptr;
		request.checksum = checksum ? *checksum : 0;
		request.following_bytes = following_bytes;
		scratch.assign(reinterpret_cast<const char *>(&request), sizeof(request));
		scratch += key;
		const size_t argument = scratch.size();

		scratch.resize(scratch_bytes);
		const bpfof_read first = {offset, bytes, 0};
		bpfof_result result = {};
		const ssize_t size = bpfof_read_pushdown(reader_, &table.fd, 1, &first, function_, &scratch[0],
			scratch.size(), argument, &result);
		Outcome outcome;

		outcome.error = result.error;
		outcome.code = result.value;
		outcome.message = result.message;
		if (size < 0)
			return outcome;
		CHECK(size_t(size) >= sizeof(outcome.answer), "an answer of %zd bytes", size);
		memcpy(&outcome.answer, scratch.data(), sizeof(outcome.answer));
		CHECK(outcome.answer.pages == result.hops, "%u pages in %u hops", outcome.answer.pages, result.hops);
		if (outcome.answer.status == WT_GET_PAGES)
			Take(scratch.substr(0, size), &outcome);
		else
			outcome.value = scratch.substr(sizeof(outcome.answer), outcome.answer.value_bytes);
		return outcome;
	}

    private:
	static void Take(const std::string &scratch, Outcome *outcome)
	{
		size_t at = sizeof(wt_get_answer) + (outcome->answer.key_bytes + 7) / 8 * 8;

		for (int left = outcome->answer.kept; left; left--) {
			wt_get_page page;

			CHECK(at + sizeof(page) <= scratch.size(), "a page past the end of the answer");
			memcpy(&page, scratch.data() + at, sizeof(page));
			at += sizeof(page);
			CHECK(at + page.bytes <= scratch.size(), "a page longer than the answer");
			outcome->pages.push_back({page.offset, scratch.substr(at, page.bytes)});
			at += (page.bytes + 7) / 8 * 8;
		}
	}

	bpfof *bpfof_;
	bpfof_function *function_;
	bpfof_reader *reader_;
};

// The pages that a chain reads must be those of the file, and end with a leaf.
void CheckPages(const Form &form, const Table &table, const Outcome &outcome)
{
	for (const Page &page : outcome.pages) {
		std::string bytes(page.bytes.size(), 0);

		CHECK(pread(table.fd, &bytes[0], bytes.size(), page.offset) == ssize_t(bytes.size()), "%s",
			strerror(errno));
		CHECK(bytes == page.bytes, "%s: the page at %llu differs", form.name,
			static_cast<unsigned long long>(page.offset));
		uint32_t sum;
		memcpy(&sum, &bytes[WT_PAGE_CHECKSUM], 4);
		CHECK(Crc32c(bytes) == sum, "%s: checksum", form.name);
	}
}

void CheckKey(Chains *chains, const Form &form, const Table &table, const std::string &key, int counts[3])
{
	const auto row = table.rows.find(key);
	const bool is_there = row != table.rows.end();
	const Outcome got = chains->Get(table, key, 0, form.compressor, table.root, table.root_bytes);

	CHECK(!got.error, "%s, %s: %s", form.name, key.c_str(), got.message.c_str());
	switch (got.answer.status) {
	case WT_GET_FOUND:
		CHECK(is_there && got.value == row->second, "%s: %s is %s", form.name, key.c_str(), got.value.c_str());
		counts[is_there]++;
		break;
	case WT_GET_NOT_FOUND:
		CHECK(!is_there, "%s: %s is not found", form.name, key.c_str());
		counts[0]++;
		break;
	default:
		CHECK(got.answer.reason == form.reason || got.answer.reason == WT_REASON_EDGE ||
			      got.answer.reason == WT_REASON_TOO_LARGE,
			"%s: %s is left out because of %d", form.name, key.c_str(), got.answer.reason);
		CHECK(got.answer.reason != WT_REASON_EDGE || !is_there, "%s: %s is not at an edge", form.name, key.c_str());
		CheckPages(form, table, got);
		counts[2]++;
	}
	const Outcome pages = chains->Get(table, key, WT_GET_PAGES_ONLY, form.compressor, table.root, table.root_bytes);

	CHECK(!pages.error && pages.answer.status == WT_GET_PAGES, "%s: %s", form.name, pages.message.c_str());
	CheckPages(form, table, pages);
}

std::vector<std::string> Sample(const Form &form, const Table &table, std::mt19937 *random, size_t count)
{
	std::vector<std::string> keys;

	for (size_t i = 0; i < count; i++) {
		std::string key = Key(form, int((*random)() % form.keys));

		switch ((*random)() % 8) {
		case 0:
			key += '0';
			break;
		case 1:
			key.pop_back();
			break;
		case 2:
			key[(*random)() % key.size()] = char((*random)());
			break;
		default:
			break;
		}
		keys.push_back(key);
	}
	keys.push_back("");
	keys.push_back(table.rows.begin()->first);
	keys.push_back(table.rows.rbegin()->first);
	keys.push_back(std::string(WT_KEY_BYTES_MAX, '\xff'));
	return keys;
}

// Pages on the way to some keys, with a few wrong bytes but the right checksum: each chain ends, with
// any answer or an error other than a fault.
void Damage(Chains *chains, const Form &form, const Table &table, std::mt19937 *random, int rounds)
{
	std::map<int, int> ends;

	for (int round = 0; round < rounds; round++) {
		const std::string key = Key(form, int((*random)() % form.keys));
		const Outcome way = chains->Get(table, key, WT_GET_PAGES_ONLY, form.compressor, table.root, table.root_bytes);

		if (way.pages.empty())
			continue;
		const Page &page = way.pages[(*random)() % way.pages.size()];
		std::string bytes = page.bytes;

		for (int left = 1 + (*random)() % 4; left; left--) {
			const size_t at = (*random)() % 4 ? WT_PAGE_CELLS + (*random)() % (bytes.size() - WT_PAGE_CELLS)
							  : (*random)() % WT_PAGE_CELLS;
			bytes[at] = char((*random)());
		}
		const uint32_t size = uint32_t(bytes.size());
		memcpy(&bytes[WT_PAGE_DISK_BYTES], &size, 4);
		const uint32_t sum = Crc32c(bytes);
		memcpy(&bytes[WT_PAGE_CHECKSUM], &sum, 4);
		CHECK(pwrite(table.fd, bytes.data(), bytes.size(), page.offset) == ssize_t(bytes.size()), "%s",
			strerror(errno));
		fsync(table.fd);
		const Outcome got = chains->Get(table, key, (*random)() % 2, form.compressor, page.offset, size);

		ends[got.error]++;
		CHECK(got.error == 0 || got.error == ECANCELED || got.error == ERANGE || got.error == ELOOP,
			"%s: damage ended with %d: %s", form.name, got.error, got.message.c_str());
		CHECK(pwrite(table.fd, page.bytes.data(), page.bytes.size(), page.offset) == ssize_t(bytes.size()), "%s",
			strerror(errno));
	}
	fsync(table.fd);
	CHECK(ends[0] > 0, "%s: no damaged page had an answer", form.name);
}

// The leaves after that of a key come with it, up to this many bytes: the same ones, in the same order,
// as searches for later keys find them.
void CheckFollowing(Chains *chains, const Form &form, const Table &table, std::mt19937 *random)
{
	std::vector<uint64_t> leaves;
	std::vector<std::string> keys = {""};
	size_t most = 0;

	for (const auto &row : table.rows) {
		const Outcome way = chains->Get(table, row.first, WT_GET_PAGES_ONLY, form.compressor, table.root, table.root_bytes);

		if (!way.pages.empty() && way.pages.back().bytes[WT_PAGE_TYPE] == WT_TYPE_ROW_LEAF &&
			(leaves.empty() || leaves.back() != way.pages.back().offset))
			leaves.push_back(way.pages.back().offset);
		keys.push_back(row.first);
		if (leaves.size() > 60 || keys.size() > 1200)
			break;
	}
	for (int round = 0; round < 200 && leaves.size() > 20; round++) {
		// Sometimes the smallest key of all.
		const std::string &key = keys[round % 8 ? (*random)() % keys.size() : 0];
		const uint32_t wanted = 1 + uint32_t((*random)() % 10000);
		const Outcome got = chains->Get(table, key, WT_GET_PAGES_ONLY, form.compressor, table.root, table.root_bytes,
			kScratch, wanted);
		const Outcome alone = chains->Get(table, key, WT_GET_PAGES_ONLY, form.compressor, table.root, table.root_bytes);

		CHECK(!got.error && got.answer.following <= got.pages.size(), "%s: %s", form.name, got.message.c_str());
		CheckPages(form, table, got);
		const size_t first = got.pages.size() - got.answer.following;
		uint32_t bytes = 0;

		CHECK(first == alone.pages.size(), "%s: %zu pages, but %zu alone", form.name, first, alone.pages.size());
		const auto place = std::find(leaves.begin(), leaves.end(), got.pages[first - 1].offset);
		for (size_t i = first; i < got.pages.size(); i++) {
			const Page &page = got.pages[i];

			bytes += page.bytes.size();
			CHECK(page.bytes[WT_PAGE_TYPE] == WT_TYPE_ROW_LEAF && NumberAt(page.bytes, WT_PAGE_DISK_BYTES) == page.bytes.size(),
				"%s: a page that follows is not a leaf", form.name);
			if (size_t(leaves.end() - place) > i - first + 1)
				CHECK(place[i - first + 1] == page.offset, "%s: the wrong leaf follows", form.name);
		}
		CHECK(bytes <= wanted, "%s: %u bytes follow, but %u were requested", form.name, bytes, wanted);
		most = std::max(most, got.pages.size() - first);
	}
	CHECK(leaves.size() <= 20 || std::strcmp(form.name, "papers") != 0 || most > 8, "%s: at most %zu leaves follow",
		form.name, most);
	if (leaves.size() > 20)
		std::printf("%-16s up to %zu leaves follow\n", form.name, most);
}

// A damaged page is an error, never an answer.
void ChecksumsCount(Chains *chains, const Form &form, const Table &table)
{
	const std::string key = Key(form, form.keys / 2);
	const Outcome way = chains->Get(table, key, WT_GET_PAGES_ONLY, form.compressor, table.root, table.root_bytes);
	const Page &page = way.pages.back();
	std::string bytes = page.bytes;

	bytes[WT_CLEAR_BYTES - 1] ^= 1;
	CHECK(pwrite(table.fd, bytes.data(), bytes.size(), page.offset) > 0, "%s", strerror(errno));
	fsync(table.fd);
	const Outcome got = chains->Get(table, key, 0, form.compressor, table.root, table.root_bytes);

	CHECK(got.error == ECANCELED && got.code == 3, "%s: %d, %u", form.name, got.error, got.code);
	// Valid in itself, but not the page of its address.
	const uint32_t sum = Crc32c(bytes);
	memcpy(&bytes[WT_PAGE_CHECKSUM], &sum, 4);
	CHECK(pwrite(table.fd, bytes.data(), bytes.size(), page.offset) > 0, "%s", strerror(errno));
	fsync(table.fd);
	const Outcome other = chains->Get(table, key, 0, form.compressor, table.root, table.root_bytes);

	// No address leads to the root. Large leaves are not returned; the last page then is the root.
	CHECK(page.offset == table.root || (other.error == ECANCELED && other.code == 3), "%s: %d, %u", form.name,
		other.error, other.code);
	CHECK(pwrite(table.fd, page.bytes.data(), page.bytes.size(), page.offset) > 0, "%s", strerror(errno));
	fsync(table.fd);
	// Only the caller knows the checksum of the first page's address.
	for (const uint32_t wrong : {0u, 1u}) {
		const uint32_t first = NumberAt(way.pages[0].bytes, WT_PAGE_CHECKSUM) ^ wrong;
		const Outcome got = chains->Get(table, key, 0, form.compressor, table.root, table.root_bytes, kScratch, 0, &first);

		CHECK(wrong ? got.error == ECANCELED && got.code == 3 : !got.error, "%s: %d, %u", form.name, got.error, got.code);
	}
}

} // namespace

int main(int argc, char **argv)
{
	CHECK(argc == 3, "usage: wt_get_test OBJECT FOLDER");
	std::mt19937 random(4711);
	const char *rounds = std::getenv("ROUNDS");

	for (const Form &form : kForms) {
		const std::string folder = std::string(argv[2]) + "/" + form.name;

		CHECK(system(("rm -rf '" + folder + "' && mkdir -p '" + folder + "'").c_str()) == 0, "%s", folder.c_str());
		Chains chains(argv[1]);
		const Table table = Make(form, folder);
		int counts[3] = {};

		for (const std::string &key : Sample(form, table, &random, 1500))
			CheckKey(&chains, form, table, key, counts);
		std::printf("%-16s %5d found %4d not %4d left out\n", form.name, counts[1], counts[0], counts[2]);
		CHECK(counts[1] >= form.values_min * 8, "%s: %d values", form.name, counts[1]);
		CHECK(form.reason == WT_REASON_NONE || counts[2] > 0 || std::strcmp(form.name, "long keys") == 0,
			"%s: nothing was left out", form.name);
		CheckFollowing(&chains, form, table, &random);
		ChecksumsCount(&chains, form, table);
		Damage(&chains, form, table, &random, rounds ? atoi(rounds) : 100);
		chains.Forget(table);
		close(table.fd);
	}
	return 0;
}
