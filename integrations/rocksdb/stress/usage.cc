/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "usage.h"

#include "../tests/check.h"

#include <malloc.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <filesystem>

namespace {

uint64_t resident_bytes()
{
	std::FILE *file = std::fopen("/proc/self/statm", "r");
	unsigned long long all, resident;

	CHECK(file && std::fscanf(file, "%llu %llu", &all, &resident) == 2, "no /proc/self/statm");
	std::fclose(file);
	return resident * ::sysconf(_SC_PAGESIZE);
}

bool ends_with(const std::string &text, const std::string &end)
{
	return text.size() >= end.size() &&
	       text.compare(text.size() - end.size(), std::string::npos, end) == 0;
}

void count_descriptors(const std::string &directory, Usage *usage)
{
	std::error_code gone;

	for (const auto &entry : std::filesystem::directory_iterator("/proc/self/fd")) {
		const std::string to = std::filesystem::read_symlink(entry, gone).string();

		usage->descriptors++;
		if (to.compare(0, directory.size(), directory) == 0 && ends_with(to, " (deleted)")) {
			usage->deleted_files++;
			usage->a_deleted_file = to;
		}
	}
	/* Not counting the descriptor of the directory of descriptors itself. */
	usage->descriptors--;
}

uint64_t bytes_below(const std::string &directory)
{
	namespace fs = std::filesystem;
	std::error_code gone;
	uint64_t blocks = 0;

	for (auto at = fs::recursive_directory_iterator(directory, gone);
		at != fs::recursive_directory_iterator(); at.increment(gone)) {
		struct stat file;

		if (::stat(at->path().c_str(), &file) == 0 && S_ISREG(file.st_mode))
			blocks += file.st_blocks;
	}
	return blocks * 512;
}

} /* namespace */

Usage usage(const std::string &directory)
{
	const std::string absolute = std::filesystem::canonical(directory).string();
	struct statvfs all;
	Usage usage;

	/* Freed memory is not a leak. */
	::malloc_trim(0);
	usage.memory_bytes = resident_bytes();
	const struct mallinfo2 heap = ::mallinfo2();

	usage.heap_bytes = heap.uordblks + heap.hblkhd;
	count_descriptors(absolute, &usage);
	CHECK(::statvfs(directory.c_str(), &all) == 0, "%s has no file system", directory.c_str());
	usage.file_bytes = bytes_below(directory);
	const uint64_t taken = (all.f_blocks - all.f_bfree) * all.f_frsize;

	usage.lost_bytes = taken > usage.file_bytes ? taken - usage.file_bytes : 0;
	return usage;
}
