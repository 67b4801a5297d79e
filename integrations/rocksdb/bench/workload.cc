/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "workload.h"

#include <cstdlib>

namespace bench {

using rocksdb::Slice;
using rocksdb::Status;

namespace {

constexpr double YCSB_THETA = 0.99;
constexpr uint32_t LENGTH_MAX = 10000;

Workload mix(Pick pick, double theta, unsigned updates)
{
	Workload workload;

	workload.pick = pick;
	workload.theta = theta;
	workload.updates = updates;
	return workload;
}

/* The core workloads of YCSB. Operations are reads unless set otherwise. */
bool parse_ycsb(char letter, Workload *workload)
{
	const unsigned updates = letter == 'a' ? 50 : letter == 'b' ? 5 : 0;

	if (letter < 'a' || letter > 'f')
		return false;
	*workload = mix(letter == 'd' ? Pick::kLatest : Pick::kZipf, YCSB_THETA, updates);
	if (letter == 'd' || letter == 'e')
		workload->inserts = 5;
	if (letter == 'e') {
		workload->scans = 95;
		workload->scan_length = 100;
		workload->is_scan_random = true;
	}
	if (letter == 'f')
		workload->read_modify_writes = 50;
	return true;
}

/* Workloads with a number after the colon. */
bool parse_numbered(const std::string &kind, const std::string &number, Workload *workload)
{
	char *end = nullptr;
	const double value = std::strtod(number.c_str(), &end);

	if (number.empty() || *end != '\0')
		return false;
	if (kind == "zipf") {
		*workload = mix(Pick::kZipf, value, 0);
		return value >= 0.01 && value <= 2;
	}
	if (!(value >= 1 && value <= LENGTH_MAX) || value != std::floor(value))
		return false;
	*workload = Workload();
	if (kind == "multiget") {
		workload->keys_of_read = static_cast<uint32_t>(value);
	} else if (kind == "scan") {
		workload->scans = 100;
		workload->scan_length = static_cast<uint32_t>(value);
	} else {
		return false;
	}
	return true;
}

} /* namespace */

const char *const WORKLOADS =
	"  uniform       reads of random keys\n"
	"  5050          half of them updates\n"
	"  zipf:THETA    reads by Zipf's distribution, THETA from 0.01 to 2\n"
	"  a b c d e f   YCSB's core workloads, Zipf 0.99\n"
	"  twitter19     75 % reads, the others updates, Zipf 0.7\n"
	"  twitter37     63 % reads, the others updates, Zipf 0.4\n"
	"  multiget:N    MultiGet() of N random keys, which counts as one operation\n"
	"  scan:N        N keys from a random one on\n";

bool parse_workload(const std::string &name, Workload *workload)
{
	const size_t colon = name.find(':');
	bool is_known = true;

	if (colon != std::string::npos)
		is_known = parse_numbered(name.substr(0, colon), name.substr(colon + 1), workload);
	else if (name == "uniform")
		*workload = Workload();
	else if (name == "5050")
		*workload = mix(Pick::kUniform, 0, 50);
	/* Shares and skews of clusters 19 and 37 of Twitter's caches, as BPF-oF §6.1 gives them. */
	else if (name == "twitter19")
		*workload = mix(Pick::kZipf, 0.7, 25);
	else if (name == "twitter37")
		*workload = mix(Pick::kZipf, 0.4, 37);
	else
		is_known = name.size() == 1 && parse_ycsb(name[0], workload);
	workload->name = name;
	return is_known;
}

Status World::insert()
{
	std::lock_guard<std::mutex> lock(inserting_);
	const uint64_t index = keys_.load(std::memory_order_relaxed);
	const std::string key = key_of(index);
	const Status status = db_->Put(rocksdb::WriteOptions(), key, value_of(key, shape_.value_bytes));

	if (status.ok())
		keys_.store(index + 1, std::memory_order_release);
	return status;
}

Status Client::operate()
{
	uint64_t drawn = random_.below(100);
	const auto is_next = [&](unsigned share) {
		const bool is = drawn < share;

		drawn -= is ? 0 : share;
		return is;
	};

	if (is_next(workload_.updates))
		return write(pick());
	if (is_next(workload_.inserts))
		return world_.insert();
	if (is_next(workload_.read_modify_writes)) {
		const std::string key = pick();
		const Status status = read(key);

		return status.ok() ? write(key) : status;
	}
	if (is_next(workload_.scans))
		return scan(pick());
	return workload_.keys_of_read > 0 ? read_many() : read(pick());
}

std::string Client::pick()
{
	const uint64_t keys = world_.keys();

	if (workload_.pick == Pick::kUniform)
		return key_of(random_.below(keys));
	const uint64_t rank = zipf_.next(random_);

	return key_of(workload_.pick == Pick::kLatest ? keys - 1 - rank : rank);
}

Status Client::check(const std::string &key, const Status &status, const Slice &value) const
{
	if (!status.ok())
		return Status::Corruption("no value for key " + key, status.ToString());
	if (!is_value_of(key, value, world_.shape()))
		return Status::Corruption("wrong value of key " + key, value);
	return status;
}

Status Client::read(const std::string &key)
{
	rocksdb::DB *db = world_.db();

	value_.Reset();
	return check(
		key, db->Get(rocksdb::ReadOptions(), db->DefaultColumnFamily(), key, &value_), value_);
}

Status Client::read_many()
{
	const size_t count = workload_.keys_of_read;
	std::vector<std::string> keys(count);
	std::vector<rocksdb::PinnableSlice> values(count);
	std::vector<Status> statuses(count);
	rocksdb::DB *db = world_.db();

	for (std::string &key : keys)
		key = pick();
	const std::vector<Slice> slices(keys.begin(), keys.end());

	db->MultiGet(rocksdb::ReadOptions(), db->DefaultColumnFamily(), count, slices.data(),
		values.data(), statuses.data());
	for (size_t i = 0; i < count; i++) {
		const Status status = check(keys[i], statuses[i], values[i]);

		if (!status.ok())
			return status;
	}
	return Status::OK();
}

Status Client::write(const std::string &key)
{
	return world_.db()->Put(rocksdb::WriteOptions(), key, value_of(key, world_.shape().value_bytes));
}

Status Client::scan(const std::string &first)
{
	const std::unique_ptr<rocksdb::Iterator> iterator(
		world_.db()->NewIterator(rocksdb::ReadOptions()));
	const uint64_t length = workload_.is_scan_random ? 1 + random_.below(workload_.scan_length)
							 : workload_.scan_length;
	std::string before;

	iterator->Seek(first);
	if (iterator->Valid() && iterator->key() != first)
		return Status::Corruption("a scan does not begin with key " + first, iterator->key());
	for (uint64_t i = 0; i < length && iterator->Valid(); i++, iterator->Next()) {
		const Slice key = iterator->key();

		if (key.compare(before) <= 0 ||
			!is_value_of(key, iterator->value(), world_.shape()))
			return Status::Corruption("wrong entry in a scan after key " + before, key);
		before.assign(key.data(), key.size());
	}
	/* The first key exists, so there must be at least one. */
	return before.empty() && iterator->status().ok()
		       ? Status::Corruption("no value for key " + first + " in a scan")
		       : iterator->status();
}

} /* namespace bench */
