/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "families.h"

#include <algorithm>

namespace bpf_of {

/* Initial number of slots. */
constexpr uint32_t SLOTS_LEAST = 64;

Families::Families(bool is_secondary) : is_secondary_(is_secondary)
{
	made_.push_back(std::make_unique<Slots>(SLOTS_LEAST));
	slots_ = made_.back().get();
}

std::shared_ptr<VersionTracker> Families::share(uint32_t number) const
{
	std::lock_guard<std::mutex> lock(mutex_);
	const auto found = std::find_if(followed_.begin(), followed_.end(),
		[&](const Followed &family) { return family.number == number; });

	return found == followed_.end() ? nullptr : found->tracker;
}

std::vector<std::shared_ptr<VersionTracker>> Families::all() const
{
	std::lock_guard<std::mutex> lock(mutex_);
	std::vector<std::shared_ptr<VersionTracker>> trackers;

	for (const Followed &family : followed_)
		trackers.push_back(family.tracker);
	return trackers;
}

void Families::put(uint32_t number, VersionTracker *tracker)
{
	Slots *slots = made_.back().get();

	if (number >= slots->count) {
		made_.push_back(std::make_unique<Slots>(std::max(2 * slots->count, number + 1)));
		for (uint32_t i = 0; i < slots->count; i++)
			made_.back()->trackers[i] = slots->trackers[i].load();
		slots = made_.back().get();
	}
	slots->trackers[number] = tracker;
	slots_ = slots;
}

void Families::follow(uint32_t number, std::shared_ptr<VersionTracker> tracker, rocksdb::DB *db,
	rocksdb::ColumnFamilyHandle *handle, bool is_own)
{
	tracker->start(db, handle, is_own);
	std::lock_guard<std::mutex> lock(mutex_);

	put(number, tracker.get());
	followed_.push_back({number, std::move(tracker), handle, is_own, false});
}

void Families::drop(uint32_t number)
{
	std::lock_guard<std::mutex> lock(mutex_);

	for (Followed &family : followed_)
		family.is_dropped = family.is_dropped || family.number == number;
}

void Families::stop()
{
	for (const auto &tracker : all())
		tracker->stop();
}

void Families::OnTableFileCreated(const rocksdb::TableFileCreationInfo &info)
{
	/* A tracker recognizes its tables by the family's name, which a dropped family may have had,
	 * too. */
	std::lock_guard<std::mutex> lock(mutex_);

	for (const Followed &family : followed_) {
		if (!family.is_dropped)
			family.tracker->created(info);
	}
}

void Families::OnTableFileDeleted(const rocksdb::TableFileDeletionInfo &info)
{
	for (const auto &tracker : all())
		tracker->deleted(info);
}

void Families::OnExternalFileIngested(rocksdb::DB *, const rocksdb::ExternalFileIngestionInfo &)
{
	for (const auto &tracker : all())
		tracker->poke();
}

void Families::poke(uint32_t number)
{
	if (const auto tracker = share(number))
		tracker->poke();
}

void Families::OnColumnFamilyHandleDeletionStarted(rocksdb::ColumnFamilyHandle *handle)
{
	const uint32_t number = handle->GetID();
	std::shared_ptr<VersionTracker> last;
	{
		std::lock_guard<std::mutex> lock(mutex_);

		const auto found = std::find_if(followed_.begin(), followed_.end(), [&](const Followed &family) {
			/* In a secondary instance the program has one handle of each family, and can
			 * get no other except for the default family. */
			const bool is_last = family.is_dropped || (is_secondary_ && family.handle);

			/* A tracker deletes its own handle itself. */
			return family.number == number && (family.handle == handle ? !family.is_own : is_last);
		});

		if (found == followed_.end())
			return;
		last = std::move(found->tracker);
		put(number, nullptr);
		followed_.erase(found);
	}
	/* Not under the lock: stop() deletes the tracker's own handle, which calls this function
	 * again. */
	last->stop();
}

} /* namespace bpf_of */
