// SPDX-License-Identifier: Apache-2.0 OR MIT
// table_test FOLDER: bytes written into a table's file stay, also when the disk is full, and the
// extension's data about the file are correct. It fills the file system of FOLDER, which must support
// O_DIRECT.
#include "table.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "by_address.h"
#include "check.h"
#include "page.h"

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kPagesMax = 4000;
constexpr int kWriters = 4;
// Initial free space on the disk. A file that has grown that much is extended by more than the rest.
constexpr uint64_t kLeft = 1300 << 10;
// Pages that are written when there is room again.
constexpr size_t kMore = 200;

// Whether the disk seems to have room, and the error of a write to a full disk.
bool shows_room = false;
int full = ENOSPC;

uint64_t Free(const std::string &folder)
{
	struct statvfs found;

	CHECK(statvfs(folder.c_str(), &found) == 0, "%s: %s", folder.c_str(), strerror(errno));
	return uint64_t(found.f_bavail) * found.f_frsize;
}

// Fills the disk until only `left` bytes are free.
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

// Returns 0 or errno.
int Write(bpf_of::File *file, size_t page)
{
	return file->write(page * kPage, kPage, Content(page).data(), nullptr);
}

// Writes pages until the disk is full, from several threads; returns which were written.
std::vector<char> WriteUntilFull(bpf_of::File *file)
{
	std::vector<char> is_written(kPagesMax, 0);
	std::vector<std::thread> threads;
	std::atomic<size_t> next{0};

	for (int i = 0; i < kWriters; i++)
		threads.emplace_back([&] {
			for (size_t page; (page = next++) < kPagesMax;) {
				const int error = Write(file, page);

				CHECK(error == 0 || error == full, "page %zu: %s", page, strerror(error));
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

// A noted write stays noted while another one, which began before it, is still being noted.
void CheckWriteLog()
{
	constexpr uint64_t kBytes = 4 << 20;
	bpf_of::WriteLog log;
	std::atomic<bool> stop{false};
	std::thread other([&] {
		while (!stop)
			log.note(0, kBytes);
	});
	int lost = 0;

	for (int i = 0; i < 2000; i++) {
		const uint64_t since = log.now();

		log.note(kBytes / 2, 512);
		// Waits until the other one is through.
		while (log.now() < since + 2)
			std::this_thread::yield();
		lost += log.is_clean(kBytes / 2, 512, since);
	}
	stop = true;
	other.join();
	CHECK(lost == 0, "%d times a written page is clean", lost);
}

std::string Packed(uint32_t number)
{
	if (number < 64)
		return std::string(1, char(0x80 | number));
	number -= 8256;
	return std::string("\xe4") + char(number >> 24) + char(number >> 16) + char(number >> 8) + char(number);
}

// The checksums of pages, from their parents or from themselves.
void CheckChecksums(const std::string &path)
{
	const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_DIRECT, 0666);
	bpf_of::Table table("c.wt");
	const uint32_t own = 0xfedcba98, child = 0xf0000001, leaf = 0x80000002;

	CHECK(fd >= 0, "%s: %s", path.c_str(), strerror(errno));
	bpf_of::File file(&table, fd, 0, true);
	std::string page(WT_PAGE_CELLS, 0);

	// An internal page at place 3, and a leaf at place 6.
	for (const auto &address : {"\x10" + Packed(7) + Packed(2) + Packed(1) + Packed(child),
		     "\x20" + Packed(7) + Packed(5) + Packed(2) + Packed(leaf)})
		page += "\x05k" + address;
	page[WT_PAGE_TYPE] = WT_TYPE_ROW_INTERNAL;
	page[WT_PAGE_ENTRIES] = 4;
	page[WT_PAGE_MEMORY_BYTES] = char(page.size());
	memcpy(&page[WT_PAGE_CHECKSUM], &own, sizeof(own));
	page.resize(kPage);
	// Places are in units, whose size is not known at first.
	CHECK(file.write(9 * kPage, kPage, page.data(), nullptr) == 0, "%s", strerror(errno));
	CHECK(!file.checksum(3 * kPage), "a checksum is known before the size of units");
	table.allocation_bytes = kPage;
	CHECK(file.checksum(3 * kPage) == child && file.checksum(6 * kPage) == leaf, "the checksum of a child is wrong");
	CHECK(!file.checksum(4 * kPage) && !file.checksum(9 * kPage), "a checksum is known that was not given");
	CHECK(file.write(9 * kPage, kPage, page.data(), nullptr) == 0, "%s", strerror(errno));
	CHECK(file.checksum(9 * kPage) == own, "the checksum of the page itself is wrong");
	CHECK(!file.checksum(1ull << 60), "a checksum is known at an impossible place");
	unlink(path.c_str());
}

// A page counts as returning only if it was there itself, not because another page was, however far
// apart they are.
void CheckPages()
{
	bpf_of::PageSet pages;

	for (int shift = 0; shift < 32; shift++)
		CHECK(!pages.add(1ull << shift), "page 2^%d was there", shift);
	for (int shift = 0; shift < 32; shift++)
		CHECK(pages.add(1ull << shift), "page 2^%d was not there", shift);
	CHECK(!pages.add(3), "a page next to an added page was there");
	CHECK(!pages.add(~0ull) && !pages.add(~0ull), "an impossible page was there");
}

// Bytes written before the disk was full are there, and free space that other files need was not taken.
void CheckFull(const std::string &folder, const char *how)
{
	const std::string filler = folder + "/filler", path = folder + "/t.wt";

	FillUp(folder, filler, kLeft);
	bpf_of::Table table("t.wt");
	const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_DIRECT, 0666);

	CHECK(fd >= 0, "%s: %s", path.c_str(), strerror(errno));
	bpf_of::File file(&table, fd, 0, true);

	for (size_t page = 0; page < 2; page++)
		CHECK(Write(&file, page) == 0, "page %zu: %s", page, strerror(errno));
	CHECK(shows_room || Free(folder) > kLeft / 10 * 9, "%llu bytes are left",
		static_cast<unsigned long long>(Free(folder)));
	std::vector<char> is_written = WriteUntilFull(&file);
	const size_t before = size_t(std::count(is_written.begin(), is_written.end(), 1));

	CHECK(before > 100, "%zu pages were written", before);
	CHECK(unlink(filler.c_str()) == 0, "%s", strerror(errno));
	// Includes pages that failed: their places are used again.
	is_written.resize(is_written.size() + kMore, 0);
	for (size_t page = 0; page < is_written.size(); page++)
		CHECK(is_written[page] || Write(&file, page) == 0, "page %zu", page);
	size_t lost = 0;

	for (size_t page = 0; page < is_written.size(); page++) {
		std::string content(kPage, 0);

		CHECK(file.read(page * kPage, kPage, &content[0]) == 0, "page %zu", page);
		lost += content != Content(page);
	}
	CHECK(lost == 0, "%zu of %zu pages differ from what was written", lost, is_written.size());
	std::printf("%zu pages until the disk was %s, %zu after that\n", before, how, is_written.size() - before);
	unlink(path.c_str());
}

// Threads that each use addresses of their own, which are unknown before and after.
void CheckAddresses()
{
	constexpr size_t kThreads = 4, kAddresses = 5000;
	bpf_of::ByAddress<size_t> values;
	std::vector<std::thread> threads;
	std::vector<char> memory(kThreads * kAddresses * 16);

	for (size_t thread = 0; thread < kThreads; thread++)
		threads.emplace_back([&, thread] {
			const auto address = [&](size_t i) { return &memory[(i * kThreads + thread) * 16]; };

			for (int round = 0; round < 3; round++) {
				for (size_t i = 0; i < kAddresses; i++) {
					CHECK(!values.find(address(i)), "address %zu is known", i);
					*values.obtain(address(i)) = i + thread;
				}
				for (size_t i = 0; i < kAddresses; i++) {
					size_t *const value = values.find(address(i));

					CHECK(value && value == values.obtain(address(i)) && *value == i + thread,
						"address %zu has another value", i);
				}
				for (size_t i = 0; i < kAddresses; i++)
					values.forget(address(i));
			}
		});
	for (std::thread &thread : threads)
		thread.join();
	CHECK(values.size() == 0, "%zu addresses are known at the end", values.size());
}

} // namespace

extern "C" int fstatvfs(int fd, struct statvfs *found) noexcept
{
	static const auto real = reinterpret_cast<decltype(&fstatvfs)>(dlsym(RTLD_NEXT, "fstatvfs"));
	const int error = real(fd, found);

	if (shows_room)
		found->f_bavail = 1 << 30;
	return error;
}

extern "C" ssize_t pwrite(int fd, const void *from, size_t bytes, off_t offset)
{
	static const auto real = reinterpret_cast<decltype(&pwrite)>(dlsym(RTLD_NEXT, "pwrite"));
	const ssize_t done = real(fd, from, bytes, offset);

	if (done < 0 && errno == ENOSPC)
		errno = full;
	return done;
}

int main(int argc, char **argv)
{
	CHECK(argc == 2, "usage: table_test FOLDER");
	const std::string folder = argv[1];

	CheckAddresses();
	CheckWriteLog();
	CheckChecksums(folder + "/c.wt");
	CheckPages();
	CheckFull(folder, "nearly full");
	shows_room = true;
	CheckFull(folder, "filled by others meanwhile");
	full = EDQUOT;
	CheckFull(folder, "used up by a quota");
	return 0;
}
