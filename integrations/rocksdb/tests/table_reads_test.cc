/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Tables are read with fewer descriptors than there are tables, also tables that are deleted
 * meanwhile. */
#include "table_reads.h"

#include "check.h"

#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

using bpf_of::TableHandle;
using bpf_of::TableReads;
using rocksdb::FSRandomAccessFile;
using rocksdb::Slice;

namespace {

constexpr size_t TABLES = 60;
constexpr size_t DESCRIPTORS = 8;
constexpr int THREADS = 4;
constexpr int READS = 20000;

size_t open_below(const std::string &directory)
{
	size_t count = 0;

	for (const auto &entry : std::filesystem::directory_iterator("/proc/self/fd")) {
		std::error_code gone;

		count += std::filesystem::read_symlink(entry.path(), gone).string().compare(
				 0, directory.size(), directory) == 0;
	}
	return count;
}

std::string contents(size_t table)
{
	return "contents of table " + std::to_string(table);
}

void read(const TableHandle &handle, size_t table)
{
	const std::string wanted = contents(table);
	std::shared_ptr<FSRandomAccessFile> file;
	char scratch[64];
	Slice found;

	check_ok(handle.file(&file), "opening");
	check_ok(file->Read(0, wanted.size(), rocksdb::IOOptions(), &found, scratch, nullptr), "reading");
	CHECK(found == Slice(wanted), "table %zu is %s", table, found.ToString().c_str());
}

/* Reads tables below `tables` in random order. */
void read_many(const std::vector<std::unique_ptr<TableHandle>> &handles, size_t tables)
{
	std::vector<std::thread> threads;

	for (int thread = 0; thread < THREADS; thread++) {
		threads.emplace_back([&, thread] {
			std::minstd_rand random(thread + 1);

			for (int i = 0; i < READS; i++) {
				const size_t table = random() % tables;

				read(*handles[table], table);
			}
		});
	}
	for (std::thread &thread : threads)
		thread.join();
}

} /* namespace */

int main(int argc, char **argv)
{
	CHECK(argc == 2, "usage: %s DIRECTORY", argv[0]);
	const std::string directory = std::filesystem::canonical(argv[1]).string() + "/reads";
	const auto reads = std::make_shared<TableReads>(rocksdb::FileSystem::Default(), DESCRIPTORS);
	std::vector<std::unique_ptr<TableHandle>> handles(TABLES);
	const auto path = [&](size_t table) { return directory + "/" + std::to_string(table) + ".sst"; };

	std::filesystem::create_directories(directory);
	for (size_t table = 0; table < TABLES; table++) {
		std::ofstream(path(table)) << contents(table);
		check_ok(reads->open(path(table), rocksdb::FileOptions(), &handles[table]), "opening");
	}
	CHECK(open_below(directory) == DESCRIPTORS, "%zu descriptors", open_below(directory));
	read_many(handles, TABLES);
	CHECK(open_below(directory) == DESCRIPTORS, "%zu descriptors", open_below(directory));

	/* Tables about to be deleted are kept open; other tables share the remaining descriptors. */
	constexpr size_t KEPT = 20;

	for (size_t table = 0; table < KEPT; table++) {
		reads->keep(path(table));
		std::filesystem::remove(path(table));
	}
	read_many(handles, TABLES);
	CHECK(open_below(directory) <= KEPT + DESCRIPTORS, "%zu descriptors", open_below(directory));

	/* keep() does not help a table that is not open: opening it fails. */
	std::unique_ptr<TableHandle> none;

	CHECK(reads->open(path(0), rocksdb::FileOptions(), &none).IsPathNotFound(), "one that is not there");
	handles.clear();
	CHECK(open_below(directory) == 0, "%zu descriptors stay open", open_below(directory));
	std::filesystem::remove_all(directory);
	return 0;
}
