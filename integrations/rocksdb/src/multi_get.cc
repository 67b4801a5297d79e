/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "lookup.h"
#include "state.h"

#include <rocksdb/snapshot.h>

#include <algorithm>
#include <cerrno>
#include <optional>

namespace bpf_of {

using rocksdb::ColumnFamilyHandle;
using rocksdb::PinnableSlice;
using rocksdb::ReadOptions;
using rocksdb::Slice;
using rocksdb::Status;

namespace {

/* The memory search handles this many keys before their chains are sent, as long as there are more keys:
 * the target searches for them while this machine searches memory for the next ones. */
constexpr size_t PART = 8;
/* The largest number of keys whose chains run at once; each has scratch of its own. */
constexpr size_t BATCH_MAX = 256;
/* Blocks for keys left to RocksDB are fetched in groups of about this many bytes. */
constexpr size_t LEFT_BYTES_MAX = 1 << 20;
/* The largest number of ended chains that one poll takes. */
constexpr size_t POLL_MAX = 64;

/* A column family of the call. */
struct Family {
	ColumnFamilyHandle *handle;
	/* Null if the family cannot be pushed down. */
	VersionTracker *live;
	std::shared_ptr<const View> view;
	/* Whether the tables have changed since the call began, or are not known. Then RocksDB reads all keys of
	 * the family: those that were read before may be of another version than the others, and some changes of
	 * tables, such as of a compaction filter, are hidden by no snapshot. */
	bool is_stale = false;
};

/* A key that memory did not settle. */
struct Missing {
	/* Its place among the keys of the call. */
	size_t key;
	/* Where the search in memory ended. */
	SearchEnd end;
};

/* A key whose chains were added. `first` is the number of the first one. */
struct Pending {
	Missing missing;
	size_t first;
	uint32_t parts;
	uint32_t tables;
	uint64_t deleted_below;
};

/* A key that RocksDB reads. `from` is the table of the first block that was missing. */
struct Left {
	size_t key;
	const TableFile *from;
	uint64_t offset;
	ReadPath why;
};

/* Scratch of the chains of one call. */
class Scratch {
    public:
	/* Returns memory that stays in place. */
	unsigned char *take(size_t bytes)
	{
		if (bytes > left_) {
			left_ = std::max(bytes, CHUNK_BYTES);
			/* Not zeroed. */
			chunks_.emplace_back(new unsigned char[left_]);
			next_ = chunks_.back().get();
		}
		unsigned char *const taken = next_;

		next_ += bytes;
		left_ -= bytes;
		return taken;
	}

    private:
	/* Small enough that malloc() keeps freed chunks instead of returning them to the kernel. */
	static constexpr size_t CHUNK_BYTES = 64 << 10;

	std::vector<std::unique_ptr<unsigned char[]>> chunks_;
	unsigned char *next_ = nullptr;
	size_t left_ = 0;
};

/* The chains of one call. Chains are sent together while their files fit one list. */
class ManyChains {
    public:
	/* `keys`: the largest number of keys. */
	ManyChains(size_t keys, uint64_t newest_tag, bool are_single, bool at_once)
		: newest_tag_(newest_tag), are_single_(are_single), at_once_(at_once),
		  chains_(new struct bpfof_chain[keys * (at_once ? PARTS_MAX : 1)])
	{
		lists_.reserve(keys);
	}

	size_t count() const { return count_; }
	/* The chain with this number; the chains that were added after it follow. */
	const struct bpfof_chain *from(size_t number) const { return &chains_[number]; }

	/* Adds the chains of a key, each with so much scratch, and returns how many. Earlier chains are
	 * sent first if these cannot share their command. */
	uint32_t add(const Reader &reader, Plan *plan, const Slice &key, size_t scratch_bytes)
	{
		const uint32_t parts = parts_of(*plan, at_once_);
		const bool is_alike = count_ > 0 && chains_[count_ - 1].scratch_len == scratch_bytes;

		if (is_closed_ || are_single_ || !is_alike || !lists_.back().add(plan)) {
			leave(reader);
			lists_.emplace_back();
			lists_.back().add(plan);
			is_closed_ = false;
		}
		for (uint32_t i = 0; i < parts; i++) {
			make_chain(&chains_[count_], *plan, Part::of(*plan, parts, i), lists_.back(), key,
				newest_tag_, reader.session().sst_get(), scratch_.take(scratch_bytes), scratch_bytes);
			not_ended(&chains_[count_]);
			count_++;
		}
		return parts;
	}

	/* Sends the chains that were not sent yet. */
	void leave(const Reader &reader)
	{
		if (begun_ == count_)
			return;
		for (size_t i = begun_; i < count_; i++)
			chains_[i].nfds = lists_.back().count();
		const int failed =
			bpfof_submit_many(reader.get(), &chains_[begun_], count_ - begun_);

		running_ += failed ? 0 : count_ - begun_;
		for (size_t i = begun_; failed && i < count_; i++)
			cannot_end(&chains_[i]);
		begun_ = count_;
		is_closed_ = true;
	}

	/* Sends what is submitted, and takes the chains that have ended. */
	void poll(const Reader &reader) { take(reader, 0); }

	/* The same, but waits until all chains have ended, each wait within the limit. Chains that have
	 * not ended by then are as not_ended() says, and the reader must not be used again. */
	void wait(const Reader &reader, const TimeLimit &limit)
	{
		while (running_ > 0) {
			const int64_t left = limit.timeout_us();

			if (take(reader, left) == 0 && left != TimeLimit::NONE)
				break;
		}
	}

    private:
	/* Returns how many chains have ended; less than 0 if the reader has failed. */
	int take(const Reader &reader, int64_t timeout_us)
	{
		struct bpfof_chain *ended[POLL_MAX];
		const int got =
			running_ > 0 ? bpfof_poll_within(reader.get(), ended, POLL_MAX, timeout_us) : 0;

		for (size_t i = 0; got < 0 && i < begun_; i++)
			cannot_end(&chains_[i]);
		running_ = got < 0 ? 0 : running_ - got;
		return got;
	}

	const uint64_t newest_tag_;
	const bool are_single_;
	const bool at_once_;
	size_t count_ = 0;
	/* Chains that were sent, and those of them that have not ended. */
	size_t begun_ = 0, running_ = 0;
	/* Whether the chains of the last list were sent. */
	bool is_closed_ = false;
	const std::unique_ptr<struct bpfof_chain[]> chains_;
	Scratch scratch_;
	std::vector<FileList> lists_;
};

} /* namespace */
/* One MultiGet(), whose keys are all read at one snapshot. */
class PushdownDB::ManyGets {
    public:
	/* `families` has the family of each key. */
	ManyGets(State &state, rocksdb::DB *db, const ReadOptions &at, ColumnFamilyHandle **families,
		const Slice *keys, PinnableSlice *values, Status *statuses)
		: state_(state), moment_(state.moment()), db_(db), at_(at), limit_(at),
		  /* A single key may be read without a snapshot. */
		  newest_tag_(at.snapshot || state.access != Access::kPrimary ? State::newest_tag(db, at) : UINT64_MAX),
		  mode_(state.mode.load(std::memory_order_relaxed)), handles_(families), keys_(keys),
		  values_(values), statuses_(statuses)
	{
	}

	void run(size_t count)
	{
		ways_.resize(count, ReadPath::kMemory);
		read(count);
		for (const ReadPath way : ways_)
			state_.count(way);
	}

    private:
	void read(size_t count)
	{
		sort(count);
		/* The instance is catching up with its primary. */
		if (!state_.is_still(moment_))
			return leave_all();
		/* The answers are correct because of the order of views, memory and versions, as in
		 * Get(): view.h. */
		for (Family &family : families_) {
			if (family.live)
				family.view = family.live->view();
			family.is_stale = !family.view;
		}
		if (mode_ == Mode::kBlocks) {
			search_blocks();
		} else {
			size_t first = 0;

			/* After the deadline RocksDB does not search memory either. */
			for (; first < count && !limit_.has_passed(); first += BATCH_MAX)
				run_chains(first, std::min(first + BATCH_MAX, count));
			for (; first < count; first++)
				time_out(order_[first]);
		}
		/* Some answers may be from before the catch-up with the primary, and some from after
		 * it. */
		if (!state_.is_still(moment_))
			return leave_all();
		for (Family &family : families_)
			family.is_stale = !is_current(family);
		leave_stale();
		/* Some families may have been read before a catch-up that came just now, and others after it. */
		if (!state_.is_still(moment_))
			leave_all();
	}

	/* Sorted neighbours share most of their tables: those of the upper levels. */
	void sort(size_t count)
	{
		for (size_t key = 0; key < count; key++) {
			family_of_.push_back(number_of(handles_[key]));
			order_.push_back(key);
		}
		std::sort(order_.begin(), order_.end(), [&](size_t a, size_t b) {
			return family_of_[a] != family_of_[b] ? family_of_[a] < family_of_[b]
							      : keys_[a].compare(keys_[b]) < 0;
		});
	}

	/* The number of a family in this call. */
	size_t number_of(ColumnFamilyHandle *handle)
	{
		const auto is_it = [&](const Family &family) { return family.handle == handle; };
		const auto found = std::find_if(families_.begin(), families_.end(), is_it);

		if (found != families_.end())
			return found - families_.begin();
		families_.push_back({handle, state_.family(handle), nullptr, false});
		return families_.size() - 1;
	}

	/* Searches memory for some keys, in their order; missing_ then has the keys that were not
	 * settled. */
	void search_memory(size_t first, size_t end)
	{
		missing_.clear();
		for (size_t place = first; place < end; place++) {
			const size_t key = order_[place];
			SearchEnd end;

			/* RocksDB reads the family's keys together. */
			if (families_[family_of_[key]].is_stale)
				continue;
			statuses_[key] = State::search_memory(
				db_, at_, handles_[key], keys_[key], &values_[key], &end);
			if (end.table)
				missing_.push_back({key, std::move(end)});
		}
	}

	/* Finds the tables for each missing key, settles keys that no table can have, and passes the
	 * others to `use`. */
	template <typename Use> void plan(Use use)
	{
		const Family *checked = nullptr;

		for (Missing &missing : missing_) {
			const auto &[key, end] = missing;
			const Slice &wanted = keys_[key];
			Family &family = families_[family_of_[key]];
			Plan plan;
			ReadPath why = ReadPath::kNoTable;

			/* All keys of a family were searched before this check, so one check serves
			 * them all. */
			if (checked != &family) {
				checked = &family;
				family.is_stale = !state_.is_still(moment_) || !is_current(family);
			}
			values_[key].Reset();
			if (family.is_stale)
				continue;
			if (wanted.size() > KEY_BYTES_MAX)
				plainly(key, ReadPath::kOptions);
			else if (state_.is_sample(*family.live, at_))
				leave(missing, ReadPath::kSampled);
			else if (!make_plan(*family.view, State::wanted(wanted, newest_tag_, *family.live, at_), end, &plan, &why))
				leave(missing, why);
			else if (plan.tables > 0)
				use(missing, plan);
			else
				none(missing);
		}
	}

	/* Fetches all blocks that may hold the keys, and lets RocksDB search them. */
	void search_blocks()
	{
		std::vector<size_t> pending;
		std::vector<FileRange> blocks;

		search_memory(0, order_.size());
		plan([&](const Missing &missing, const Plan &plan) {
			const std::vector<FileRange> its = State::blocks_of(plan);

			pending.push_back(missing.key);
			blocks.insert(blocks.end(), its.begin(), its.end());
		});
		read_left();
		if (pending.empty())
			return;
		PrefetchBuffer stage;
		const Fetched fetched = blocks.empty() ? Fetched::kAll
						       : stage.fetch(*state_.files, std::move(blocks),
								 limit_.timeout_us());
		ReadPrefetched scope(stage);

		for (const size_t key : pending) {
			if (fetched == Fetched::kTimedOut)
				time_out(key);
			else
				plainly(key, fetched == Fetched::kAll ? ReadPath::kBlocks : ReadPath::kBusy);
		}
	}

	/* Looks up some keys, in their order, by chains, which are sent as soon as their commands are
	 * full. */
	void run_chains(size_t first, size_t last)
	{
		const bool are_single = mode_ == Mode::kSingleChains;
		const size_t part = are_single ? last - first : PART;
		/* Declared before the reader, which may write to the chains as long as it exists. */
		std::optional<ManyChains> chains;
		std::optional<Reader> reader;
		std::vector<Pending> pending;
		std::optional<Speculation::Read> speculates;

		if (!are_single)
			speculates.emplace(state_.speculation_of_many);
		for (size_t from = first; from < last; from += part) {
			search_memory(from, std::min(from + part, last));
			plan([&](Missing &missing, Plan &plan) {
				const size_t key = missing.key;
				const VersionTracker &live = *families_[family_of_[key]].live;

				if (live.declines().are_likely())
					return leave(missing, ReadPath::kDeclined);
				if (!reader)
					reader.emplace(state_.files->target().session());
				if (!reader->get())
					return plainly(key, ReadPath::kBusy);
				if (!chains)
					chains.emplace(last - first, newest_tag_, are_single,
						speculates && speculates->is_at_once());
				const size_t number = chains->count();
				const uint32_t parts = chains->add(*reader, &plan, keys_[key],
					state_.scratch_bytes_of(live, keys_[key]));

				pending.push_back(
					{std::move(missing), number, parts, plan.tables, plan.deleted_below});
			});
			if (chains && !are_single)
				chains->poll(*reader);
		}
		if (chains)
			chains->leave(*reader);
		/* Meanwhile the target works. */
		read_left();
		if (!chains)
			return;
		chains->wait(*reader, limit_);
		reader.reset();
		take_answers(pending, *chains, speculates ? &*speculates : nullptr);
		read_left();
	}

	void leave(const Missing &missing, ReadPath why)
	{
		left_.push_back({missing.key, missing.end.table, missing.end.offset, why});
	}

	/* RocksDB reads the keys left to it, from blocks that are fetched together for many keys, if
	 * there is a target. */
	void read_left()
	{
		for (size_t first = 0, end; first < left_.size(); first = end) {
			std::vector<FileRange> blocks;
			size_t bytes = 0, of_last = 0;

			for (end = first; end < left_.size() && bytes < LEFT_BYTES_MAX; end++)
				bytes += add_blocks(left_[end], &blocks, &of_last);
			read_left_by(blocks, first, end);
		}
		left_.clear();
	}

	/* Returns how many bytes were added. Keys are sorted: a block that the previous key needs as
	 * well, whose blocks begin at `of_last`, is not added again. */
	size_t add_blocks(const Left &left, std::vector<FileRange> *blocks, size_t *of_last) const
	{
		const Family &family = families_[family_of_[left.key]];
		size_t bytes = 0;

		if (!state_.files->target().session()->has_target())
			return 0;
		const WantedKey wanted = State::wanted(keys_[left.key], newest_tag_, *family.live, at_);

		std::vector<FileRange> added = key_blocks(*family.view, wanted, *left.from, left.offset);
		const auto is_there = [&](const FileRange &block) {
			return std::any_of(blocks->begin() + *of_last, blocks->end(), [&](const FileRange &other) {
				return other.file == block.file && other.offset == block.offset;
			});
		};

		added.erase(std::remove_if(added.begin(), added.end(), is_there), added.end());
		/* If none was added, the next key may share the same earlier blocks. */
		if (!added.empty())
			*of_last = blocks->size();
		for (FileRange &block : added) {
			bytes += block.size;
			blocks->push_back(std::move(block));
		}
		return bytes;
	}

	void read_left_by(std::vector<FileRange> &blocks, size_t first, size_t end)
	{
		PrefetchBuffer stage;
		const Fetched fetched =
			blocks.empty() ? Fetched::kNot
				       : stage.fetch(*state_.files, std::move(blocks), limit_.timeout_us());
		ReadPrefetched scope(stage);

		for (size_t i = first; i < end; i++) {
			if (fetched == Fetched::kTimedOut)
				time_out(left_[i].key);
			else
				plainly(left_[i].key, left_[i].why);
		}
	}

	KeyRead read_of(const Missing &missing, uint32_t tables, uint64_t deleted_below) const
	{
		const size_t key = missing.key;
		const Family &family = families_[family_of_[key]];

		return {keys_[key], *family.live, *family.view, missing.end, limit_, &statuses_[key],
			&values_[key], tables, deleted_below};
	}

	void take_answers(
		const std::vector<Pending> &pending, const ManyChains &chains, Speculation::Read *speculates)
	{
		std::vector<ChainRead> reads;
		Speculation::Needs needs = {0, 0, 0};
		uint64_t late_keys = 0;

		reads.reserve(pending.size());
		for (const Pending &one : pending) {
			reads.push_back(state_.take_chains(chains.from(one.first), one.parts,
				read_of(one.missing, one.tables, one.deleted_below)));
			if (reads.back().is_good() && one.tables > 1) {
				needs.keys++;
				needs.needed += reads.back().found.tables;
				needs.tables += one.tables;
			}
			if (reads.back().way == ReadPath::kTimedOut && one.tables > 1)
				late_keys++;
		}
		if (speculates && late_keys > 0)
			speculates->time_out(needs.keys + late_keys);
		else if (speculates)
			speculates->end(needs);
		state_.read_blobs(&reads, limit_.timeout_us());
		for (size_t i = 0; i < pending.size(); i++) {
			const ReadPath way = State::take_answer(&reads[i]);

			if (reads[i].is_good() || way == ReadPath::kTimedOut)
				ways_[pending[i].missing.key] = way;
			else if (way == ReadPath::kDeclined || way == ReadPath::kFailed)
				leave(pending[i].missing, way);
			else
				plainly(pending[i].missing.key, way);
		}
	}

	/* Whether the tables of a family are those of its view. */
	bool is_current(const Family &family) const
	{
		return !family.is_stale &&
		       state_.is_current(db_, family.live, family.handle, family.view.get());
	}

	void leave_all()
	{
		for (Family &family : families_)
			family.is_stale = true;
		leave_stale();
	}

	/* Leaves keys to RocksDB, all in one call: those of families that are not followed, or whose tables were
	 * just changing. */
	void leave_stale()
	{
		std::vector<size_t> left;
		std::vector<ColumnFamilyHandle *> handles;
		std::vector<Slice> keys;

		for (size_t key = 0; key < family_of_.size(); key++) {
			const Family &family = families_[family_of_[key]];

			if (!family.is_stale)
				continue;
			ways_[key] = family.live ? ReadPath::kStale : ReadPath::kFamily;
			left.push_back(key);
			handles.push_back(family.handle);
			keys.push_back(keys_[key]);
		}
		const size_t count = left.size();
		std::vector<PinnableSlice> values(count);
		std::vector<Status> statuses(count);

		if (count == 0)
			return;
		db_->MultiGet(
			at_, count, handles.data(), keys.data(), values.data(), statuses.data());
		for (size_t i = 0; i < count; i++) {
			PinnableSlice &to = values_[left[i]];

			/* `to` may use a string of the caller's, which a move assignment would
			 * detach. */
			to.Reset();
			if (values[i].IsPinned())
				to = std::move(values[i]);
			else
				to.PinSelf(values[i]);
			statuses_[left[i]] = statuses[i];
		}
	}

	void plainly(size_t key, ReadPath why)
	{
		ways_[key] = why;
		values_[key].Reset();
		statuses_[key] = db_->Get(at_, handles_[key], keys_[key], &values_[key]);
	}

	void time_out(size_t key)
	{
		ways_[key] = ReadPath::kTimedOut;
		statuses_[key] = timed_out();
	}

	void none(const Missing &missing)
	{
		Found none;

		if (State::settle(&none, read_of(missing, 0, 0)))
			ways_[missing.key] = ReadPath::kNoTable;
		else
			plainly(missing.key, ReadPath::kDeclined);
	}

	State &state_;
	/* Taken before everything else that the call reads. */
	const uint64_t moment_;
	rocksdb::DB *const db_;
	const ReadOptions &at_;
	const TimeLimit limit_;
	const uint64_t newest_tag_;
	const Mode mode_;
	ColumnFamilyHandle **const handles_;
	const Slice *const keys_;
	PinnableSlice *const values_;
	Status *const statuses_;
	std::vector<Family> families_;
	/* The number of each key's family. */
	std::vector<size_t> family_of_;
	/* The keys in the order of the search. */
	std::vector<size_t> order_;
	/* The way that each key's answer came. */
	std::vector<ReadPath> ways_;
	/* The keys of the last memory search that were not settled. */
	std::vector<Missing> missing_;
	/* Keys left to RocksDB, for its cache or because chains cannot read them. */
	std::vector<Left> left_;
};

/* Whether RocksDB serves the whole MultiGet(), and why. */
bool PushdownDB::State::leaves_to_rocksdb(const ReadOptions &options,
	ColumnFamilyHandle *const *families, size_t count, ReadPath *why) const
{
	const auto is_followed = [&](const ColumnFamilyHandle *handle) { return family(handle); };

	if (mode.load(std::memory_order_relaxed) == Mode::kPlain)
		*why = ReadPath::kPlain;
	/* With a size limit some keys are not answered. */
	else if (!can_push_down(options) || options.value_size_soft_limit != UINT64_MAX)
		*why = ReadPath::kOptions;
	else if (std::none_of(families, families + count, is_followed))
		*why = ReadPath::kFamily;
	else
		return false;
	return true;
}

void PushdownDB::get_many(const ReadOptions &options, size_t count, ColumnFamilyHandle **families,
	const Slice *keys, PinnableSlice *values, Status *statuses, bool sorted)
{
	ReadOptions at = options;
	std::optional<rocksdb::ManagedSnapshot> snapshot;

#if ROCKSDB_MAJOR >= 9
	/* RocksDB's Get() refuses other activities that MultiGet() accepts. */
	at.io_activity = rocksdb::Env::IOActivity::kUnknown;
#endif
	/* A snapshot takes RocksDB's mutex; without writes it is not needed. */
	if (!at.snapshot && state_->access == Access::kPrimary) {
		snapshot.emplace(db_);
		at.snapshot = snapshot->snapshot();
		/* If a family has inplace_update_support there are no snapshots, and only RocksDB can read several
		 * keys at one moment. */
		if (!at.snapshot && count > 1) {
			state_->count(ReadPath::kOptions, count);
			std::for_each(values, values + count, [](PinnableSlice &value) { value.Reset(); });
			return db_->MultiGet(options, count, families, keys, values, statuses, sorted);
		}
	}
	ManyGets(*state_, db_, at, families, keys, values, statuses).run(count);
}

void PushdownDB::multi_get(const ReadOptions &options, size_t count, ColumnFamilyHandle **families,
	const Slice *keys, PinnableSlice *values, Status *statuses, bool sorted)
{
	ReadPath why;

	if (!state_->leaves_to_rocksdb(options, families, count, &why))
		return get_many(options, count, families, keys, values, statuses, sorted);
	state_->count(why, count);
	for (size_t i = 0; i < count; i++)
		values[i].Reset();
	db_->MultiGet(options, count, families, keys, values, statuses, sorted);
}

#if ROCKSDB_MAJOR >= 9
void PushdownDB::MultiGet(const ReadOptions &options, size_t count, ColumnFamilyHandle **families,
	const Slice *keys, PinnableSlice *values, std::string *timestamps, Status *statuses, bool sorted)
{
	if (!timestamps)
		return multi_get(options, count, families, keys, values, statuses, sorted);
	state_->count(ReadPath::kOptions, count);
	for (size_t i = 0; i < count; i++)
		values[i].Reset();
	db_->MultiGet(options, count, families, keys, values, timestamps, statuses, sorted);
}
#else
void PushdownDB::MultiGet(const ReadOptions &options, ColumnFamilyHandle *family, size_t count,
	const Slice *keys, PinnableSlice *values, Status *statuses, bool sorted)
{
	std::vector<ColumnFamilyHandle *> families(count, family);

	multi_get(options, count, families.data(), keys, values, statuses, sorted);
}

void PushdownDB::MultiGet(const ReadOptions &options, size_t count, ColumnFamilyHandle **families,
	const Slice *keys, PinnableSlice *values, Status *statuses, bool sorted)
{
	multi_get(options, count, families, keys, values, statuses, sorted);
}

std::vector<Status> PushdownDB::MultiGet(const ReadOptions &options,
	const std::vector<ColumnFamilyHandle *> &families, const std::vector<Slice> &keys,
	std::vector<std::string> *values, std::vector<std::string> *timestamps)
{
	if (!timestamps)
		return MultiGet(options, families, keys, values);
	state_->count(ReadPath::kOptions, keys.size());
	return db_->MultiGet(options, families, keys, values, timestamps);
}

std::vector<Status> PushdownDB::MultiGet(const ReadOptions &options,
	const std::vector<ColumnFamilyHandle *> &families, const std::vector<Slice> &keys,
	std::vector<std::string> *values)
{
	const size_t count = keys.size();
	std::vector<ColumnFamilyHandle *> handles = families;
	std::vector<PinnableSlice> found(count);
	std::vector<Status> statuses(count);

	multi_get(options, count, handles.data(), keys.data(), found.data(), statuses.data(), false);
	values->resize(count);
	for (size_t i = 0; i < count; i++)
		(*values)[i].assign(found[i].data(), found[i].size());
	return statuses;
}
#endif

} /* namespace bpf_of */
