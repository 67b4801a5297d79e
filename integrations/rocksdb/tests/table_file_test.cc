/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Every open() of a table returns the same object, at any time, and the last user closes it. Files of
 * different databases are kept apart. */
#include "table_file.h"

#include "check.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

using bpf_of::TableFile;
using bpf_of::TableFiles;

namespace {

constexpr int ROUNDS = 300;
constexpr int THREADS = 4;

size_t open_descriptors()
{
	size_t count = 0;

	for (const auto &entry : std::filesystem::directory_iterator("/proc/self/fd"))
		count += entry.exists();
	return count;
}

void open_together(TableFiles &files, const std::string &path)
{
	std::shared_ptr<const TableFile> opened[THREADS];
	std::atomic<int> ready{0};
	std::vector<std::thread> threads;

	for (auto &file : opened) {
		threads.emplace_back([&] {
			std::shared_ptr<const TableFile> earlier;

			ready++;
			while (ready < THREADS)
				std::this_thread::yield();
			/* This may be the last reference, which closes the file while other threads
			 * open it. */
			check_ok(files.open(path, &earlier), "opening");
			earlier.reset();
			check_ok(files.open(path, &file), "opening");
		});
	}
	for (std::thread &thread : threads)
		thread.join();
	for (const auto &file : opened)
		CHECK(file == opened[0], "two objects for one file");
}

std::shared_ptr<TableFiles> files_without_target()
{
	std::shared_ptr<bpf_of::Target> target;

	check_ok(bpf_of::Target::open(bpf_of::PushdownOptions(), &target), "a session without a target");
	return std::make_shared<TableFiles>(std::move(target));
}

/* Two databases have files of the same number. */
void check_databases(const std::string &path)
{
	const std::string other_path = path + ".other.sst";
	const auto files = files_without_target(), others = files_without_target();
	std::shared_ptr<const TableFile> file, other;
	char bytes[5];

	std::ofstream(other_path) << "other";
	check_ok(files->open(path, &file), "opening");
	check_ok(others->open(other_path, &other), "opening");
	CHECK(file->number() == other->number(), "%d and %d", file->number(), other->number());
	CHECK(files->read({{file, 0, sizeof(bytes)}}, bpf_of::TimeLimit::NONE, bytes) == bpf_of::Fetched::kAll &&
			std::string(bytes, sizeof(bytes)) == "bytes",
		"reading");
	CHECK(files->read({{other, 0, sizeof(bytes)}}, bpf_of::TimeLimit::NONE, bytes) == bpf_of::Fetched::kNot,
		"a file of another database was read");
	std::filesystem::remove(other_path);
}

} /* namespace */

int main(int argc, char **argv)
{
	CHECK(argc == 2, "usage: %s DIRECTORY", argv[0]);
	const std::string path = std::string(argv[1]) + "/table_file.sst";
	const auto files = files_without_target();

	std::ofstream(path) << "bytes";
	const size_t before = open_descriptors();

	for (int round = 0; round < ROUNDS; round++)
		open_together(*files, path);
	std::shared_ptr<const TableFile> file;

	check_ok(files->open(path, &file), "opening");
	CHECK(file->size_bytes() == 5, "its size");
	file.reset();
	CHECK(files->open(path + ".not", &file).IsIOError(), "one that is not there");
	CHECK(open_descriptors() == before, "descriptors stay open");
	check_databases(path);
	std::filesystem::remove(path);
	return 0;
}
