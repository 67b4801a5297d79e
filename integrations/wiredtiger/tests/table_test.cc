// SPDX-License-Identifier: Apache-2.0 OR MIT
// table_test FOLDER: what was written into a table's file stays, also when the disk is full. It fills the file system
// of FOLDER, which must take O_DIRECT.
#include "table.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "check.h"

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kPagesMax = 4000;
constexpr int kWriters = 4;
// What is left on the disk at first. A file that has grown so far is made longer by more than the rest.
constexpr uint64_t kLeft = 1300 << 10;
// Pages that are written when there is room again.
constexpr size_t kMore = 200;

uint64_t Free(const std::string &folder)
{
	struct statvfs found;

	CHECK(statvfs(folder.c_str(), &found) == 0, "%s: %s", folder.c_str(), strerror(errno));
	return uint64_t(found.f_bavail) * found.f_frsize;
}

// Takes all but so many bytes of the disk.
void FillUp(const std::string &folder, const std::string &path, uint64_t left)
{
	const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	uint64_t at = 0, step = 64 << 20;

	CHECK(fd >= 0, "%s: %s", path.c_str(), strerror(errno));
	for (uint64_t free; (free = Free(folder)) > left && step >= kPage;) {
		const uint64_t part = std::min(step, free - left);

		if (fallocate(fd, 0, off_t(at), off_t(part)) == 0)
			at += part;
		else
			step /= 2;
	}
	close(fd);
}

std::string Content(size_t page)
{
	std::string content = "page " + std::to_string(page) + " ";

	while (content.size() < kPage)
		content += content;
	content.resize(kPage);
	return content;
}

// 0 or errno.
int Write(bpf_of::File *file, size_t page)
{
	return file->write(page * kPage, kPage, Content(page).data(), nullptr);
}

// Writes pages until the disk is full, from several threads, and says which were written.
std::vector<char> WriteUntilFull(bpf_of::File *file)
{
	std::vector<char> is_written(kPagesMax, 0);
	std::vector<std::thread> threads;
	std::atomic<size_t> next{0};

	for (int i = 0; i < kWriters; i++)
		threads.emplace_back([&] {
			for (size_t page; (page = next++) < kPagesMax;) {
				const int error = Write(file, page);

				CHECK(error == 0 || error == ENOSPC, "page %zu: %s", page, strerror(error));
				if (error)
					return;
				is_written[page] = 1;
			}
		});
	for (std::thread &thread : threads)
		thread.join();
	CHECK(next < kPagesMax, "the disk is not full");
	is_written.resize(next);
	return is_written;
}

} // namespace

int main(int argc, char **argv)
{
	CHECK(argc == 2, "usage: table_test FOLDER");
	const std::string folder = argv[1], filler = folder + "/filler", path = folder + "/t.wt";

	FillUp(folder, filler, kLeft);
	bpf_of::Table table("t.wt");
	const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_DIRECT, 0666);

	CHECK(fd >= 0, "%s: %s", path.c_str(), strerror(errno));
	bpf_of::File file(&table, fd, 0, true);
	std::vector<char> is_written = WriteUntilFull(&file);
	const size_t before = size_t(std::count(is_written.begin(), is_written.end(), 1));

	CHECK(before > 100, "%zu pages were written", before);
	CHECK(unlink(filler.c_str()) == 0, "%s", strerror(errno));
	// Also those that failed: their places are used again.
	is_written.resize(is_written.size() + kMore, 0);
	for (size_t page = 0; page < is_written.size(); page++)
		CHECK(is_written[page] || Write(&file, page) == 0, "page %zu", page);
	size_t lost = 0;

	for (size_t page = 0; page < is_written.size(); page++) {
		std::string content(kPage, 0);

		CHECK(file.read(page * kPage, kPage, &content[0]) == 0, "page %zu", page);
		lost += content != Content(page);
	}
	CHECK(lost == 0, "%zu of %zu pages are not what was written", lost, is_written.size());
	std::printf("%zu pages until the disk was full, %zu after that\n", before, is_written.size() - before);
	unlink(path.c_str());
	return 0;
}
