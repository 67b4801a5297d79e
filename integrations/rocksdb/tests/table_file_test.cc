/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Every open() of a table returns the same object, at any time, and the last user closes it. */
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

} /* namespace */

int main(int argc, char **argv)
{
	CHECK(argc == 2, "usage: %s DIRECTORY", argv[0]);
	const std::string path = std::string(argv[1]) + "/table_file.sst";
	std::shared_ptr<bpf_of::Target> target;

	check_ok(bpf_of::Target::open(bpf_of::PushdownOptions(), &target), "a session without a target");
	const auto files = std::make_shared<TableFiles>(std::move(target));

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
	std::filesystem::remove(path);
	return 0;
}
