/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Checked reads. */
#include "stress.h"

#include <chrono>
#include <deque>

using rocksdb::Iterator;
using rocksdb::PinnableSlice;
using rocksdb::ReadOptions;
using rocksdb::Slice;
using rocksdb::Status;

namespace {

/* The result of reading one key. */
struct Answer {
	Status status;
	std::string value;
};

/* Reads several keys at once, by one of the two forms of MultiGet(). */
std::vector<Answer> multi_get(const Test &test, rocksdb::DB *db, const ReadOptions &options,
	const std::vector<std::string> &names, bool batched)
{
	const std::vector<Slice> keys(names.begin(), names.end());
	std::vector<Answer> answers(keys.size());

	if (batched) {
		std::vector<PinnableSlice> values(keys.size());
		std::vector<Status> statuses(keys.size());

		db->MultiGet(
			options, test.family, keys.size(), keys.data(), values.data(), statuses.data());
		for (size_t i = 0; i < keys.size(); i++)
			answers[i] = {statuses[i], statuses[i].ok() ? values[i].ToString() : ""};
		return answers;
	}
	std::vector<std::string> values;
	const std::vector<rocksdb::ColumnFamilyHandle *> families(keys.size(), test.family);
	const std::vector<Status> statuses = db->MultiGet(options, families, keys, &values);

	for (size_t i = 0; i < keys.size(); i++)
		answers[i] = {statuses[i], statuses[i].ok() ? values[i] : ""};
	return answers;
}

Answer get(const Test &test, rocksdb::DB *db, const ReadOptions &options, const std::string &key)
{
	PinnableSlice value;
	const Status status = db->Get(options, test.family, key, &value);

	return {status, status.ok() ? value.ToString() : ""};
}

/* Chooses options, none of which changes an answer. */
void choose_options(Random &random, ReadOptions *options)
{
	options->verify_checksums = random.below(8) != 0;
	options->fill_cache = random.below(8) != 0;
}

void choose_iterator_options(Random &random, ReadOptions *options)
{
	choose_options(random, options);
	options->pin_data = random.below(4) == 0;
	options->readahead_size = random.below(4) == 0 ? 16384 : 0;
	options->adaptive_readahead = random.below(4) == 0;
	options->async_io = random.below(4) == 0;
	options->total_order_seek = random.below(2) == 0;
	options->background_purge_on_iterator_cleanup = random.below(4) == 0;
}

/* Both keys were written together, and read together. */
void check_twins(const Answer &one, const Answer &other, uint64_t number)
{
	CHECK(one.status.code() == other.status.code() &&
			std::strtoull(one.value.c_str(), nullptr, 10) ==
				std::strtoull(other.value.c_str(), nullptr, 10),
		"%s: '%s' %s and its twin: '%s' %s", key_of(number).c_str(), one.value.c_str(),
		one.status.ToString().c_str(), other.value.c_str(), other.status.ToString().c_str());
}

/* Reads newest versions and checks them, for one thread. */
class Reader {
    public:
	Reader(Test &test, uint64_t seed) : test_(test), random_(seed), seen_(KEYS), least_(KEYS) {}

	void run()
	{
		for (uint64_t i = 0; !test_.stop; i++) {
			if (i % 512 == 0)
				scan();
			else if (i % 16 == 0)
				read_several();
			else
				read_one();
		}
	}

	void read_one()
	{
		read_one(random_.below(KEYS));
		if (random_.below(32) == 0)
			read_missing();
	}

	void read_one(uint64_t number)
	{
		const std::string key = key_of(number);
		ReadOptions options;

		choose_options(random_, &options);
		const uint64_t least = test_.versions().least(number);
		const auto begun = std::chrono::steady_clock::now();
		const Answer answer = get(test_, test_.db, options, key);
		tell_if_slow(std::chrono::steady_clock::now() - begun);
		check_version(key, answer.status, answer.value, least, test_.versions().most(number),
			&seen_[number]);
		test_.gets++;
	}

	/* Reads all keys by a new iterator. */
	void scan_all(bool forward)
	{
		ReadOptions options;

		choose_iterator_options(random_, &options);
		remember_least();
		std::unique_ptr<Iterator> iterator(test_.db->NewIterator(options, test_.family));

		check_scan(iterator.get(), 0, KEYS, forward);
	}

    private:
	void tell_if_slow(std::chrono::steady_clock::duration taken) const
	{
		const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(taken).count();

		if (test_.settings.slow_ms && static_cast<uint64_t>(ms) > test_.settings.slow_ms)
			std::printf("a Get took %lld ms\n", static_cast<long long>(ms));
	}

	void read_missing()
	{
		const std::string key = missing_key(random_);
		const Answer answer = get(test_, test_.db, ReadOptions(), key);

		CHECK(answer.status.IsNotFound(), "'%s': '%s' %s", key.c_str(), answer.value.c_str(),
			answer.status.ToString().c_str());
		const Answer dropped =
			get(test_, test_.db, ReadOptions(), std::string(DROPPED) + "1050");

		CHECK(dropped.status.IsNotFound() || dropped.value == "dropped", "'%s' %s",
			dropped.value.c_str(), dropped.status.ToString().c_str());
	}

	void read_several()
	{
		const uint64_t count = 2 + random_.below(30);
		const uint64_t twin = TWINS.pick(random_);
		std::vector<uint64_t> numbers = {twin};
		std::vector<std::string> names;
		ReadOptions options;

		while (numbers.size() < count)
			numbers.push_back(random_.below(KEYS));
		numbers.push_back(twin + TO_TWIN);
		for (const uint64_t number : numbers)
			names.push_back(key_of(number));
		choose_options(random_, &options);
		for (const uint64_t number : numbers)
			least_[number] = test_.versions().least(number);
		const std::vector<Answer> answers =
			multi_get(test_, test_.db, options, names, random_.below(2) == 0);

		for (size_t i = 0; i < numbers.size(); i++)
			check_version(names[i], answers[i].status, answers[i].value, least_[numbers[i]],
				test_.versions().most(numbers[i]), &seen_[numbers[i]]);
		check_twins(answers.front(), answers.back(), twin);
		test_.keys_at_once += numbers.size();
	}

	void remember_least()
	{
		for (uint64_t number = 0; number < KEYS; number++)
			least_[number] = test_.versions().least(number);
	}

	/* Reads a range of keys, forward or backward, by an iterator that is sometimes reused. */
	void scan()
	{
		const uint64_t first = random_.below(KEYS);
		const uint64_t last = std::min(KEYS, first + 1 + random_.below(300));
		ReadOptions options;

		choose_iterator_options(random_, &options);
		remember_least();
		std::unique_ptr<Iterator> iterator(test_.db->NewIterator(options, test_.family));

		check_scan(iterator.get(), first, last, random_.below(2) == 0);
		if (random_.below(4) != 0)
			return;
		remember_least();
		check_ok(iterator->Refresh(), "refreshing an iterator");
		check_scan(iterator.get(), first, last, random_.below(2) == 0);
	}

	/* Checks the keys in places from `first` up to, but without, `last`. */
	void check_scan(Iterator *iterator, uint64_t first, uint64_t last, bool forward);

	Test &test_;
	Random random_;
	/* For each key, the newest version that this reader has seen, and the oldest that the current
	 * read may see. */
	std::vector<uint64_t> seen_;
	std::vector<uint64_t> least_;
};

/* The keys' numbers in the order of their names. */
const std::vector<uint64_t> &in_order()
{
	static const std::vector<uint64_t> ORDER = [] {
		std::vector<uint64_t> order(KEYS);

		for (uint64_t number = 0; number < KEYS; number++)
			order[number] = number;
		std::sort(order.begin(), order.end(),
			[](uint64_t one, uint64_t other) { return key_of(one) < key_of(other); });
		return order;
	}();

	return ORDER;
}

void Reader::check_scan(Iterator *iterator, uint64_t first, uint64_t last, bool forward)
{
	const uint64_t begin = forward ? first : last - 1, end = forward ? last : first - 1;
	std::vector<Answer> twins(KEYS);
	std::vector<uint64_t> most(KEYS);

	/* The iterator sees the moment of its creation. */
	for (uint64_t number = 0; number < KEYS; number++)
		most[number] = test_.versions().most(number);
	if (forward)
		iterator->Seek(key_of(in_order()[begin]));
	else
		iterator->SeekForPrev(key_of(in_order()[begin]));
	for (uint64_t place = begin; place != end; place += forward ? 1 : -1) {
		const uint64_t number = in_order()[place];
		const std::string key = key_of(number);
		Answer answer = {Status::NotFound(), ""};

		check_ok(iterator->status(), "iterating");
		if (iterator->Valid() && iterator->key() == key) {
			answer = {Status::OK(), iterator->value().ToString()};
			if (forward)
				iterator->Next();
			else
				iterator->Prev();
		}
		check_version(
			key, answer.status, answer.value, least_[number], most[number], &seen_[number]);
		twins[number] = answer;
		test_.steps++;
	}
	if (last - first < KEYS)
		return;
	for (uint64_t number = TWINS.first; number < TWINS.first + TWINS.keys; number++)
		check_twins(twins[number], twins[number + TO_TWIN], number);
}

/* Compares reads at snapshots, new and old ones, with the plain library's. */
class Comparer {
    public:
	Comparer(Test &test, uint64_t seed) : test_(test), random_(seed) {}

	void run()
	{
		while (!test_.stop) {
			if (snapshots_.size() < SNAPSHOTS)
				snapshots_.push_back(test_.db->GetSnapshot());
			options_ = ReadOptions();
			options_.snapshot = snapshots_[random_.below(snapshots_.size())];
			for (int i = 0; i < 40 && !test_.stop; i++)
				compare_get();
			compare_multi_get();
			compare_iterators();
			if (random_.below(4) != 0)
				release(random_.below(snapshots_.size()));
		}
		while (!snapshots_.empty())
			release(0);
	}

    private:
	static constexpr size_t SNAPSHOTS = 4;

	void release(size_t which)
	{
		test_.db->ReleaseSnapshot(snapshots_[which]);
		snapshots_.erase(snapshots_.begin() + static_cast<ptrdiff_t>(which));
	}

	std::string some_key()
	{
		return random_.below(20) == 0 ? missing_key(random_) : key_of(random_.below(KEYS));
	}

	void check_same(const std::string &key, const Answer &answer, const Answer &plain)
	{
		CHECK(answer.status.code() == plain.status.code() && answer.value == plain.value,
			"'%s' at a snapshot: '%s' %s instead of '%s' %s", key.c_str(),
			answer.value.c_str(), answer.status.ToString().c_str(), plain.value.c_str(),
			plain.status.ToString().c_str());
	}

	void compare_get()
	{
		const std::string key = some_key();

		choose_options(random_, &options_);
		const Answer answer = get(test_, test_.db, options_, key);

		check_same(key, answer, get(test_, test_.db->GetBaseDB(), options_, key));
		test_.gets++;
	}

	void compare_multi_get()
	{
		std::vector<std::string> names;

		for (uint64_t count = 1 + random_.below(40); count > 0; count--)
			names.push_back(some_key());
		choose_options(random_, &options_);
		const bool batched = random_.below(2) == 0;
		const std::vector<Answer> answers =
			multi_get(test_, test_.db, options_, names, batched);
		const std::vector<Answer> plain =
			multi_get(test_, test_.db->GetBaseDB(), options_, names, batched);

		for (size_t i = 0; i < names.size(); i++)
			check_same(names[i], answers[i], plain[i]);
		test_.keys_at_once += names.size();
	}

	/* Moves two iterators in the same way, within bounds or without, and compares them. */
	void compare_iterators()
	{
		const std::string from = some_key(), to = some_key();
		const Slice lower = std::min(from, to), upper = std::max(from, to);
		ReadOptions options = options_;

		choose_iterator_options(random_, &options);
		if (random_.below(2) == 0)
			options.iterate_lower_bound = &lower;
		if (random_.below(2) == 0)
			options.iterate_upper_bound = &upper;
		std::unique_ptr<Iterator> ours(test_.db->NewIterator(options, test_.family));
		std::unique_ptr<Iterator> plain(
			test_.db->GetBaseDB()->NewIterator(options, test_.family));

		for (int i = 0; i < 60; i++) {
			const uint64_t step = random_.below(20);
			const std::string key = some_key();

			for (Iterator *iterator : {ours.get(), plain.get()})
				move(iterator, step, key);
			check_same_place(*ours, *plain, step, key);
			test_.steps++;
		}
	}

	static void move(Iterator *iterator, uint64_t step, const std::string &key)
	{
		if (step == 0)
			iterator->SeekToFirst();
		else if (step == 1)
			iterator->SeekToLast();
		else if (step == 2)
			iterator->SeekForPrev(key);
		else if (step == 3 || !iterator->Valid())
			iterator->Seek(key);
		else if (step < 14)
			iterator->Next();
		else
			iterator->Prev();
	}

	void check_same_place(
		const Iterator &ours, const Iterator &plain, uint64_t step, const std::string &key)
	{
		CHECK(ours.Valid() == plain.Valid() && ours.status().code() == plain.status().code(),
			"step %d, key '%s': valid %d %s instead of %d %s", static_cast<int>(step),
			key.c_str(), ours.Valid(), ours.status().ToString().c_str(), plain.Valid(),
			plain.status().ToString().c_str());
		CHECK(!ours.Valid() || (ours.key() == plain.key() && ours.value() == plain.value()),
			"step %d, key '%s': '%s' instead of '%s'", static_cast<int>(step), key.c_str(),
			ours.key().ToString().c_str(), plain.key().ToString().c_str());
	}

	Test &test_;
	Random random_;
	ReadOptions options_;
	std::deque<const rocksdb::Snapshot *> snapshots_;
};

} /* namespace */

std::vector<std::thread> start_reading(Test &test, uint64_t round)
{
	std::vector<std::thread> threads;

	for (uint64_t i = 0; i < 3; i++)
		threads.emplace_back([&test, seed = 100 * round + i] { Reader(test, seed).run(); });
	for (uint64_t i = 0; i < 2; i++)
		threads.emplace_back(
			[&test, seed = 100 * round + 50 + i] { Comparer(test, seed).run(); });
	return threads;
}

void get_everything(Test &test)
{
	Reader reader(test, 1);

	for (uint64_t number = 0; number < KEYS; number++)
		reader.read_one(number);
}

void scan_everything(Test &test)
{
	Reader reader(test, 1);

	reader.scan_all(true);
	reader.scan_all(false);
}
