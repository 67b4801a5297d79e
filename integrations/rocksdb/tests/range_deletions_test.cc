/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Range deletions of tables: reading those that RocksDB writes, and finding those that cover a key. */
#include "check.h"
#include "formats.h"
#include "sst.h"

#include <fcntl.h>
#include <rocksdb/sst_file_writer.h>
#include <rocksdb/table.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

using bpf_of::RangeDeletion;
using bpf_of::RangeDeletions;

namespace {

constexpr size_t PLENTY = 1 << 20;

/* Few keys, so that many deletions have the same bounds; one key is empty. */
std::string key_of(Random &random)
{
	const uint64_t number = random.below(24);

	return std::string(number / 8, 'k') + (number % 8 ? std::to_string(number % 8) : "");
}

std::vector<RangeDeletion> some(Random &random, uint64_t count)
{
	std::vector<RangeDeletion> deletions;

	for (uint64_t i = 0; i < count; i++)
		deletions.push_back({key_of(random), key_of(random), random.below(20)});
	return deletions;
}

std::optional<uint64_t> covering(const std::vector<RangeDeletion> &deletions, const std::string &key, uint64_t newest)
{
	std::optional<uint64_t> found;

	for (const RangeDeletion &deletion : deletions) {
		if (deletion.first <= key && key < deletion.end && deletion.sequence <= newest)
			found = std::max(found, std::optional<uint64_t>(deletion.sequence));
	}
	return found;
}

/* Every query must be answered as by checking each deletion. */
void test_covering()
{
	Random random(1);
	size_t covered = 0, free = 0;

	for (int round = 0; round < 2000; round++) {
		const std::vector<RangeDeletion> deletions = some(random, random.below(12));
		const std::unique_ptr<RangeDeletions> made = RangeDeletions::make(deletions, PLENTY);

		CHECK(made, "no memory for %zu deletions", deletions.size());
		for (int i = 0; i < 40; i++) {
			const std::string key = key_of(random);
			const uint64_t newest = i % 4 ? random.below(21) : UINT64_MAX >> 8;
			const std::optional<uint64_t> expected = covering(deletions, key, newest);

			CHECK(made->covering(key, newest) == expected, "'%s' at %llu", key.c_str(),
				static_cast<unsigned long long>(newest));
			covered += expected.has_value();
			free += !expected.has_value();
		}
	}
	CHECK(covered > 10000 && free > 10000, "%zu keys are covered, %zu are not", covered, free);
}

/* Memory is limited: for many overlapping ranges it grows with the square of their number. */
void test_memory()
{
	std::vector<RangeDeletion> deletions;

	for (uint64_t i = 0; i < 1000; i++) {
		const std::string number = std::to_string(1000 + i);

		deletions.push_back({"a" + number, "b" + number, i});
	}
	CHECK(!RangeDeletions::make(deletions, 1000 * 1000 * sizeof(uint64_t) / 2), "half a million numbers fit the limit");
	const std::unique_ptr<RangeDeletions> made = RangeDeletions::make(deletions, 16 << 20);

	CHECK(made && made->memory_bytes() > 1000 * 1000 * sizeof(uint64_t) && made->memory_bytes() < 9 << 20,
		"%zu bytes", made ? made->memory_bytes() : 0);
	CHECK(made->covering("azzz", 500) == std::optional<uint64_t>(500), "all of them cover it");
	/* In tables for ingestion all have the same number. */
	for (RangeDeletion &deletion : deletions)
		deletion.sequence = 0;
	const std::unique_ptr<RangeDeletions> alike = RangeDeletions::make(deletions, PLENTY);

	CHECK(alike && alike->memory_bytes() < 300, "%zu bytes", alike ? alike->memory_bytes() : 0);
	CHECK(alike->covering("azzz", 0) && alike->covering("b1998", 0) && !alike->covering("b1999", 0), "one range");
}

struct Read {
	rocksdb::Status status;
	std::vector<RangeDeletion> deletions;
};

Read read_from(const std::string &path, size_t max_bytes)
{
	const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
	const off_t size = ::lseek(fd, 0, SEEK_END);
	bpf_of::sst::Footer footer;
	Read read;

	CHECK(fd >= 0, "%s cannot be opened", path.c_str());
	read.status = bpf_of::sst::read_footer(fd, size, &footer);
	if (read.status.ok())
		read.status = bpf_of::sst::read_range_deletions(fd, footer, max_bytes, &read.deletions);
	::close(fd);
	return read;
}

std::string make_table(const std::string &directory, uint32_t format, const std::vector<RangeDeletion> &deletions)
{
	rocksdb::Options options;
	rocksdb::BlockBasedTableOptions table;
	const std::string path = directory + "/ranges.sst";

	table.format_version = format;
	options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
	rocksdb::SstFileWriter writer(rocksdb::EnvOptions(), options);

	check_ok(writer.Open(path), "making a table");
	check_ok(writer.Put("key", "value"), "adding a key");
	for (const RangeDeletion &deletion : deletions)
		check_ok(writer.DeleteRange(deletion.first, deletion.end), "adding a range deletion");
	check_ok(writer.Finish(), "finishing a table");
	return path;
}

/* Range deletions that RocksDB has written are read; no other bytes are taken for them. */
void test_tables(const std::string &directory, uint32_t format)
{
	Random random(2);
	std::vector<RangeDeletion> written;

	for (int i = 0; i < 50; i++) {
		const std::string first = key_of(random), end = first + key_of(random) + "z";

		written.push_back({first, end, 0});
	}
	const std::string path = make_table(directory, format, written);
	const Read read = read_from(path, PLENTY);

	check_ok(read.status, "reading range deletions");
	CHECK(!read.deletions.empty(), "none of %zu", written.size());
	for (int i = 0; i < 1000; i++) {
		const std::string key = key_of(random) + key_of(random);
		const uint64_t newest = i % 2 ? 0 : UINT64_MAX >> 8;

		CHECK(covering(read.deletions, key, newest) == covering(written, key, newest), "'%s'", key.c_str());
	}
	CHECK(read_from(path, 100).status.IsMemoryLimit(), "a block larger than the limit");

	std::stringstream bytes;

	bytes << std::ifstream(path, std::ios::binary).rdbuf();
	size_t refused = 0, same = 0;

	for (int i = 0; i < 2000; i++) {
		std::string damaged = bytes.str();

		damaged[random.below(damaged.size())] ^= 1 << random.below(8);
		std::ofstream(path, std::ios::binary | std::ios::trunc) << damaged;
		const Read again = read_from(path, PLENTY);

		/* Some bytes are not read here. */
		refused += !again.status.ok();
		same += again.status.ok() && again.deletions.size() == read.deletions.size();
	}
	CHECK(refused > 100 && refused + same == 2000, "%zu damages are refused, %zu change nothing", refused, same);

	const std::string without = make_table(directory, format, {});

	const Read none = read_from(without, PLENTY);

	check_ok(none.status, "reading a table without range deletions");
	CHECK(none.deletions.empty(), "%zu range deletions", none.deletions.size());
	CHECK(::unlink(without.c_str()) == 0, "%s stays", without.c_str());
}

} /* namespace */

int main()
{
	char directory[] = "/dev/shm/range_deletions_test.XXXXXX";

	CHECK(::mkdtemp(directory), "no directory");
	test_covering();
	test_memory();
	for (uint32_t format = 2; format <= NEWEST_FORMAT; format++)
		test_tables(directory, format);
	CHECK(::rmdir(directory) == 0, "%s stays", directory);
	return 0;
}
