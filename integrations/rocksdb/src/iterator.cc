/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "iterator.h"

#include "prefetch_buffer.h"

#include <rocksdb/version.h>

#include <algorithm>
#include <utility>

namespace bpf_of {

using rocksdb::IOStatus;
using rocksdb::Slice;
using rocksdb::Status;

namespace {

/* Bytes fetched when a scan reaches a block that was not fetched; doubles each time. */
constexpr size_t AHEAD_BYTES_MIN = 8 << 10;
constexpr size_t AHEAD_BYTES_MAX = 64 << 10;
/* The stage is emptied when it exceeds this: a scan does not need again what it has passed. */
constexpr size_t STAGE_BYTES_MAX = 256 << 10;
/* The weight of a new scan in the average is 1 / SCANS_OF_AVERAGE. */
constexpr size_t SCANS_OF_AVERAGE = 16;

class PushdownIterator final : public rocksdb::Iterator {
    public:
	PushdownIterator(std::unique_ptr<rocksdb::Iterator> plain, const rocksdb::ReadOptions &options,
		std::shared_ptr<const View> view, std::shared_ptr<VersionTracker> live,
		std::shared_ptr<TableFiles> files, std::shared_ptr<Scans> scans)
		: plain_(std::move(plain)), lower_bound_(options.iterate_lower_bound),
		  upper_bound_(options.iterate_upper_bound), view_(std::move(view)), live_(std::move(live)),
		  files_(std::move(files)), scans_(std::move(scans))
	{
	}
	~PushdownIterator() override { end_scan(); }

	void Seek(const Slice &key) override
	{
		Fetch fetch(*this, begin_scan(&not_before_bound(key)));

		plain_->Seek(key);
	}
	void SeekForPrev(const Slice &key) override
	{
		Fetch fetch(*this, begin_scan(&key));

		plain_->SeekForPrev(key);
	}
	void SeekToFirst() override
	{
		const Slice first;
		Fetch fetch(*this, begin_scan(&not_before_bound(first)));

		plain_->SeekToFirst();
	}
	void SeekToLast() override
	{
		end_scan();
		plain_->SeekToLast();
	}
	void Next() override
	{
		Fetch fetch(*this, nullptr);

		plain_->Next();
	}
	/* Backward scans read block by block. */
	void Prev() override { plain_->Prev(); }

	bool Valid() const override { return plain_->Valid(); }
	Slice key() const override { return plain_->key(); }
	Slice value() const override { return plain_->value(); }
	const rocksdb::WideColumns &columns() const override { return plain_->columns(); }
	Status status() const override { return plain_->status(); }
	Slice timestamp() const override { return plain_->timestamp(); }
	Status Refresh() override
	{
		end_scan();
		view_ = nullptr;
		return plain_->Refresh();
	}
#if ROCKSDB_MAJOR >= 9
	Status Refresh(const rocksdb::Snapshot *snapshot) override
	{
		end_scan();
		view_ = nullptr;
		return plain_->Refresh(snapshot);
	}
	bool PrepareValue() override
	{
		Fetch fetch(*this, nullptr);

		return plain_->PrepareValue();
	}
#endif
#if ROCKSDB_MAJOR * 100 + ROCKSDB_MINOR >= 1108
	void Prepare(const rocksdb::MultiScanArgs &scans) override { plain_->Prepare(scans); }
#endif
	Status GetProperty(std::string name, std::string *value) override
	{
		return plain_->GetProperty(std::move(name), value);
	}

    private:
	/* Serves one call of RocksDB's iterator. `key`: the key that it seeks, or null if it
	 * advances. */
	class Fetch final : public ReadScope {
	    public:
		Fetch(PushdownIterator &of, const Slice *key) : of_(of), key_(key), seeks_(key) {}

		bool read(const TableFile &file, uint64_t offset, size_t size, int64_t timeout_us, char *scratch,
			Slice *result, IOStatus *status) override
		{
			*status = IOStatus::OK();
			/* A merge operator that RocksDB calls may read another database in this scope. */
			if (!of_.files_->has(file))
				return false;
			if (!of_.stage_.serve(file, offset, size, scratch, result)) {
				const Slice *key = std::exchange(key_, nullptr);
				const Fetched fetched =
					key ? of_.fetch_seek(*key, file, timeout_us)
					    : of_.fetch_ahead(file, offset, size, timeout_us);

				if (fetched == Fetched::kTimedOut) {
					*status = timed_out();
					return true;
				}
				if (fetched == Fetched::kNot ||
					!of_.stage_.serve(file, offset, size, scratch, result))
					return false;
			}
			if (!seeks_)
				of_.passed_bytes_ += size;
			return true;
		}

	    private:
		PushdownIterator &of_;
		const Slice *key_;
		const bool seeks_;
	};

	/* The key from which RocksDB searches when it seeks `key`. Followed families use bytewise
	 * order. */
	const Slice &not_before_bound(const Slice &key) const
	{
		return lower_bound_ && key.compare(*lower_bound_) < 0 ? *lower_bound_ : key;
	}

	const Slice *begin_scan(const Slice *key)
	{
		end_scan();
		scanning_ = true;
		ahead_bytes_ = AHEAD_BYTES_MIN;
		return key;
	}

	/* The bytes that a scan reads after its seek predict what the next scan needs. */
	void end_scan()
	{
		stage_.clear();
		if (!std::exchange(scanning_, false))
			return;
		const size_t passed = std::exchange(passed_bytes_, 0);
		const size_t usual = scans_->usual_bytes.load(std::memory_order_relaxed);

		average(&scans_->usual_bytes, passed);
		average(&scans_->deviation_bytes, passed > usual ? passed - usual : usual - passed);
	}

	/* An update by another thread at the same time may be lost. */
	static void average(std::atomic<size_t> *of, size_t added)
	{
		const size_t old = of->load(std::memory_order_relaxed);

		of->store(old - old / SCANS_OF_AVERAGE + added / SCANS_OF_AVERAGE,
			std::memory_order_relaxed);
	}

	/* Fetches the blocks of all tables that the seek needs, starting with the missing one. */
	Fetched fetch_seek(const Slice &key, const TableFile &file, int64_t timeout_us)
	{
		const std::shared_ptr<const View> view = view_ ? view_ : live_->view();

		if (!view)
			return Fetched::kNot;
		/* Fetching too many bytes costs less than another round trip. */
		const size_t usual = scans_->usual_bytes.load(std::memory_order_relaxed) +
				     2 * scans_->deviation_bytes.load(std::memory_order_relaxed);
		std::vector<FileRange> blocks =
			scan_blocks(*view, key, upper_bound_, std::min(usual, AHEAD_BYTES_MAX), file);

		if (blocks.empty())
			return Fetched::kNot;
		const Fetched fetched = stage_.fetch(*files_, std::move(blocks), timeout_us);

		if (fetched == Fetched::kAll)
			scans_->staged.fetch_add(1, std::memory_order_relaxed);
		return fetched;
	}

	Fetched fetch_ahead(const TableFile &file, uint64_t offset, size_t size, int64_t timeout_us)
	{
		if (stage_.size_bytes() > STAGE_BYTES_MAX)
			stage_.clear();
		FileRange range = {file.shared_from_this(), offset, size};

		extend(&range, ahead_bytes_);
		ahead_bytes_ = std::min(2 * ahead_bytes_, AHEAD_BYTES_MAX);
		return stage_.fetch(*files_, {range}, timeout_us);
	}

	/* Extends a range to at least `size` bytes, as far as the file goes. */
	static void extend(FileRange *range, size_t size)
	{
		const uint64_t length = range->file->size_bytes();

		if (range->offset < length)
			range->size = std::max(range->size,
				static_cast<size_t>(
					std::min<uint64_t>(size, length - range->offset)));
	}

	const std::unique_ptr<rocksdb::Iterator> plain_;
	const Slice *const lower_bound_;
	const Slice *const upper_bound_;
	/* The view of the iterator's own version; null if that is not known, or changes. */
	std::shared_ptr<const View> view_;
	const std::shared_ptr<VersionTracker> live_;
	const std::shared_ptr<TableFiles> files_;
	const std::shared_ptr<Scans> scans_;
	PrefetchBuffer stage_;
	size_t ahead_bytes_ = AHEAD_BYTES_MIN;
	bool scanning_ = false;
	size_t passed_bytes_ = 0;
};

} /* namespace */

/* Whether an iterator moves to newer versions by itself. RocksDB before 10 has only one kind that does. */
template <typename Options>
static auto changes_versions(const Options &options, int)
	-> decltype(options.auto_refresh_iterator_with_snapshot != false)
{
	return options.tailing || options.auto_refresh_iterator_with_snapshot;
}

template <typename Options>
static bool changes_versions(const Options &options, long)
{
	return options.tailing;
}

rocksdb::Iterator *make_iterator(std::unique_ptr<rocksdb::Iterator> plain,
	const rocksdb::ReadOptions &options, std::shared_ptr<const View> view,
	std::shared_ptr<VersionTracker> live, std::shared_ptr<TableFiles> files,
	std::shared_ptr<Scans> scans)
{
	std::string version;

	/* A view of another version is not kept: seeks then use the newest view, whose tables are
	 * mostly the same. */
	if (changes_versions(options, 0) ||
		!plain->GetProperty("rocksdb.iterator.super-version-number", &version).ok() || !view ||
		version != std::to_string(view->version))
		view = nullptr;
	return new PushdownIterator(std::move(plain), options, std::move(view), std::move(live), std::move(files),
		std::move(scans));
}

} /* namespace bpf_of */
