// SPDX-License-Identifier: Apache-2.0 OR MIT
// tables_test OBJECT DIRECTORY: tables that newer versions of RocksDB wrote (tables/make.py), read by
// the host's index and by the storage function: each key starting at the index, and at the block that
// the host names; then the same tables damaged.
#include <sys/mman.h>
#include <sys/stat.h>

#include <dirent.h>

#include <algorithm>
#include <memory>

#include "sst.h"
#include "sst_lookup.h"

namespace {

using bpf_of::sst::Footer;
using bpf_of::sst::Handle;
using bpf_of::sst::Index;
using rocksdb::Status;

constexpr int KEYS = 400;
constexpr size_t INDEX_BYTES_MAX = 1 << 20;

// Keys as make.py makes them.
std::string KeyOf(int number)
{
	char key[32];
	snprintf(key, sizeof(key), "row%05d", number / 3);
	return key + std::string(number % 3 * 5, static_cast<char>('a' + number % 7));
}

std::string ValueOf(int number)
{
	return std::string(20 + number % 50, static_cast<char>('A' + number % 26));
}

// A copy of a table in memory, which may be damaged.
class Copy {
    public:
	explicit Copy(const std::string &path) : is_partitioned_(Has(path, "partitioned"))
	{
		const int from = open(path.c_str(), O_RDONLY | O_CLOEXEC);
		struct stat stat;
		CHECK(from >= 0 && !fstat(from, &stat), "opening %s: %s", path.c_str(), strerror(errno));
		bytes.resize(stat.st_size);
		CHECK(read(from, &bytes[0], bytes.size()) == ssize_t(bytes.size()), "%s", path.c_str());
		close(from);
		table.path = path;
		table.fd = memfd_create("table", MFD_CLOEXEC);
		CHECK(pwrite(table.fd, bytes.data(), bytes.size(), 0) == ssize_t(bytes.size()), "writing");
	}
	Copy(const Copy &) = delete;
	Copy &operator=(const Copy &) = delete;
	~Copy() { close(table.fd); }

	static bool Has(const std::string &path, const char *word)
	{
		return path.find(word) != std::string::npos;
	}

	void Put(size_t at, char byte) { CHECK(pwrite(table.fd, &byte, 1, at) == 1, "byte %zu", at); }

	// Reads footer and index, and the place where chains begin that read the index themselves.
	Status Read(Footer *footer, std::unique_ptr<Index> *index)
	{
		Status status = bpf_of::sst::read_footer(table.fd, bytes.size(), footer);

		if (!status.ok())
			return status;
		table.where.offset = footer->index.offset;
		table.where.size = footer->index.size;
		table.where.levels = is_partitioned_ ? 2 : 1;
		table.where.flags = SST_INDEX_DELTA | SST_INDEX_USER_KEYS;
		table.where.checksum = footer->checksum;
		table.where.checksum_base = footer->checksum_base;
		return Index::read(
			table.fd, *footer, {true, true, is_partitioned_}, INDEX_BYTES_MAX, index);
	}

	// The same, starting at a data block.
	Table From(const Handle &block) const
	{
		Table found = table;

		found.where.offset = block.offset;
		found.where.size = block.size;
		found.where.levels = 0;
		return found;
	}

	std::string bytes;
	Table table;

    private:
	bool is_partitioned_;
};

void CheckFound(const Outcome &outcome, int number, const Copy &copy)
{
	CHECK(outcome.error == 0, "key %d of %s: %s", number, copy.table.path.c_str(),
		outcome.message.c_str());
	CHECK(outcome.answer.status == SST_FOUND && outcome.value == ValueOf(number), "key %d of %s: '%s'",
		number, copy.table.path.c_str(), outcome.value.c_str());
}

void CheckAnswers(Chains *chains, Copy *copy)
{
	Footer footer;
	std::unique_ptr<Index> index;
	CHECK_OK(copy->Read(&footer, &index));
	const std::string version = "format" + std::to_string(footer.format_version);
	CHECK(Copy::Has(copy->table.path, version.c_str()), "%s", copy->table.path.c_str());
	CHECK(footer.checksum_base != 0, "%s", copy->table.path.c_str());
	for (int number = 0; number < KEYS; number++) {
		const std::string key = KeyOf(number);
		Handle block;

		CHECK(index->seek(key, UINT64_MAX, &block), "%s", key.c_str());
		CheckFound(chains->Get({copy->table}, key, UINT64_MAX), number, *copy);
		CheckFound(chains->Get({copy->From(block)}, key, UINT64_MAX), number, *copy);
		CHECK(chains->Get({copy->table}, key + '\0', UINT64_MAX).Absent(), "%s", key.c_str());
	}
	// Found in both tables, and in the second only.
	Table before = copy->table;
	CheckFound(chains->Get({before, copy->table}, KeyOf(7), UINT64_MAX), 7, *copy);
	// A block of another table, or at another place, must have a wrong checksum.
	if (footer.checksum == SST_CHECKSUM_NONE)
		return;
	before.where.checksum_base ^= 1;
	CHECK(chains->Get({before}, KeyOf(7), UINT64_MAX).code == DAMAGE_CHECKSUM, "another base");
	before.where.checksum_base = 0;
	CHECK(chains->Get({before}, KeyOf(7), UINT64_MAX).code == DAMAGE_CHECKSUM, "no base");
}

// Flips a bit of each byte from the metaindex to the end, and of some bytes before.
void CheckDamage(Chains *chains, Copy *copy)
{
	Footer footer;
	std::unique_ptr<Index> index;
	CHECK_OK(copy->Read(&footer, &index));
	const bool is_verified = footer.checksum != SST_CHECKSUM_NONE;
	const size_t size = copy->bytes.size(), metaindex = footer.metaindex.offset;
	for (size_t at = metaindex % 7; at < size; at += at < metaindex ? 7 : 1) {
		copy->Put(at, static_cast<char>(copy->bytes[at] ^ 1 << at % 8));
		Footer damaged;
		const Status status = copy->Read(&damaged, &index);
		// All of these bytes are covered by a checksum, unless the footer says that there are
		// none.
		CHECK(!is_verified || at < metaindex || !status.ok() || damaged.checksum == SST_CHECKSUM_NONE, "byte %zu of %zu in %s", at, size,
			copy->table.path.c_str());
		CHECK(!status.ok() || damaged.index.offset + damaged.index.size < size, "byte %zu", at);
		const int number = static_cast<int>(at % KEYS);
		if (status.ok()) {
			const Outcome outcome = chains->Get({copy->table}, KeyOf(number), UINT64_MAX);
			if (is_verified && !outcome.Damaged())
				CheckFound(outcome, number, *copy);
		}
		copy->Put(at, copy->bytes[at]);
	}
	for (size_t cut = 0; cut < size; cut += 101) {
		Footer none;
		CHECK(!bpf_of::sst::read_footer(copy->table.fd, cut, &none).ok(), "%zu bytes", cut);
	}
}

std::vector<std::string> TablesOf(const std::string &directory)
{
	std::vector<std::string> paths;
	DIR *opened = opendir(directory.c_str());
	CHECK(opened, "%s: %s", directory.c_str(), strerror(errno));
	while (const dirent *entry = readdir(opened)) {
		if (Copy::Has(entry->d_name, ".sst"))
			paths.push_back(directory + "/" + entry->d_name);
	}
	closedir(opened);
	std::sort(paths.begin(), paths.end());
	return paths;
}

} // namespace

int main(int count, char **arguments)
{
	CHECK(count == 3, "usage: tables_test OBJECT DIRECTORY, the compiled sst_get.bpf.c and tables");
	Chains chains(arguments[1]);
	const std::vector<std::string> paths = TablesOf(arguments[2]);
	CHECK(!paths.empty(), "no table in %s", arguments[2]);
	for (const std::string &path : paths) {
		Copy copy(path);
		CheckAnswers(&chains, &copy);
		CheckDamage(&chains, &copy);
		chains.Forget(copy.table);
	}
	printf("%zu tables, %llu lookups\n", paths.size(), (unsigned long long)chains.chains);
	return 0;
}
