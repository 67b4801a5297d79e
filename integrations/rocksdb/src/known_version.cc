/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "known_version.h"

#include <utility>

namespace bpf_of {

using rocksdb::HistogramData;
using rocksdb::Statistics;
using rocksdb::StatsLevel;

namespace {

struct Known {
	uint64_t family, version, acquisitions;
};

/* Number of families whose version a thread remembers. */
constexpr size_t FAMILIES = 64;

/* How often this thread acquired a version, of all families of all databases. */
thread_local uint64_t acquisitions;
thread_local Known known[FAMILIES];

class WatchedStatistics final : public Statistics {
    public:
	explicit WatchedStatistics(std::shared_ptr<Statistics> statistics) : statistics_(std::move(statistics))
	{
		set_stats_level(statistics_ ? statistics_->get_stats_level() : StatsLevel::kDisableAll);
	}

	void recordTick(uint32_t ticker, uint64_t count) override
	{
		if (ticker == rocksdb::NUMBER_SUPERVERSION_ACQUIRES)
			acquisitions++;
		if (!statistics_)
			return;
		/* The program may change the level while the database is open. */
		if (get_stats_level() != statistics_->get_stats_level())
			set_stats_level(statistics_->get_stats_level());
		statistics_->recordTick(ticker, count);
	}
	void recordInHistogram(uint32_t histogram, uint64_t value) override
	{
		if (statistics_)
			statistics_->recordInHistogram(histogram, value);
	}
	void reportTimeToHistogram(uint32_t histogram, uint64_t time) override
	{
		if (statistics_)
			statistics_->reportTimeToHistogram(histogram, time);
	}
	bool HistEnabledForType(uint32_t type) const override
	{
		return statistics_ && statistics_->HistEnabledForType(type);
	}

	uint64_t getTickerCount(uint32_t ticker) const override
	{
		return statistics_ ? statistics_->getTickerCount(ticker) : 0;
	}
	void setTickerCount(uint32_t ticker, uint64_t count) override
	{
		if (statistics_)
			statistics_->setTickerCount(ticker, count);
	}
	uint64_t getAndResetTickerCount(uint32_t ticker) override
	{
		return statistics_ ? statistics_->getAndResetTickerCount(ticker) : 0;
	}
	void histogramData(uint32_t type, HistogramData *data) const override
	{
		if (statistics_)
			statistics_->histogramData(type, data);
	}
	std::string getHistogramString(uint32_t type) const override
	{
		return statistics_ ? statistics_->getHistogramString(type) : "";
	}
	bool getTickerMap(std::map<std::string, uint64_t> *map) const override
	{
		return statistics_ && statistics_->getTickerMap(map);
	}
	rocksdb::Status Reset() override
	{
		return statistics_ ? statistics_->Reset() : rocksdb::Status::OK();
	}
	std::string ToString() const override { return statistics_ ? statistics_->ToString() : ""; }

	const char *Name() const override { return statistics_ ? statistics_->Name() : ""; }
	const rocksdb::Customizable *Inner() const override { return statistics_.get(); }

    private:
	const std::shared_ptr<Statistics> statistics_;
};

} /* namespace */

std::shared_ptr<Statistics> watch_versions(std::shared_ptr<Statistics> statistics)
{
	return std::make_shared<WatchedStatistics>(std::move(statistics));
}

bool is_known_version(uint64_t family, uint64_t version)
{
	const Known &found = known[family % FAMILIES];

	return acquisitions > 0 && found.family == family && found.version == version &&
	       found.acquisitions == acquisitions;
}

void know_version(uint64_t family, uint64_t version)
{
	known[family % FAMILIES] = {family, version, acquisitions};
}

} /* namespace bpf_of */
