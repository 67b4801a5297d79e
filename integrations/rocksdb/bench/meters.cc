/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "meters.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

namespace bench {

namespace {

namespace fs = std::filesystem;

double seconds(const struct timeval &time)
{
	return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

/* The first number in a file. */
std::optional<double> number_in(const fs::path &path)
{
	std::ifstream file(path);
	double number = 0;

	return file >> number ? std::optional<double>(number) : std::nullopt;
}

} /* namespace */

double own_cpu_s()
{
	struct rusage usage = {};

	getrusage(RUSAGE_SELF, &usage);
	return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

std::optional<double> cpu_s_of(int pid)
{
	std::error_code error;
	std::optional<double> sum;

	for (const auto &task :
		fs::directory_iterator("/proc/" + std::to_string(pid) + "/task", error)) {
		/* Time on a processor, in ns. */
		const std::optional<double> used = number_in(task.path() / "schedstat");

		if (used)
			sum = sum.value_or(0) + *used / 1e9;
	}
	return sum;
}

std::optional<double> energy_j()
{
	std::error_code error;
	std::optional<double> sum;

	for (const auto &zone : fs::directory_iterator("/sys/class/powercap", error)) {
		const std::string name = zone.path().filename();
		/* Packages are intel-rapl:N; names of their parts have another colon. */
		const bool is_package =
			name.rfind("intel-rapl:", 0) == 0 && name.find(':', 11) == std::string::npos;
		const std::optional<double> used =
			is_package ? number_in(zone.path() / "energy_uj") : std::nullopt;

		if (used)
			sum = sum.value_or(0) + *used / 1e6;
	}
	return sum;
}

double stolen_cpu_s()
{
	std::ifstream file("/proc/stat");
	std::string cpu;
	/* user, nice, system, idle, iowait, irq, softirq, steal; in ticks */
	double ticks[8] = {};

	file >> cpu;
	for (double &one : ticks)
		file >> one;
	return file ? ticks[7] / static_cast<double>(sysconf(_SC_CLK_TCK)) : 0;
}

unsigned processors()
{
	return static_cast<unsigned>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
}

} /* namespace bench */
