// SPDX-License-Identifier: Apache-2.0 OR MIT
// Shared by tests of sst_get: tables of a database as the function takes them, and its chains.
#ifndef BPFOF_TESTS_SST_LOOKUP_H
#define BPFOF_TESTS_SST_LOOKUP_H

#include <errno.h>
#include <fcntl.h>
#include <rocksdb/db.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "../../check.h"
#include "bpfof.h"
#include "sst.h"
#include "sst_get.h"

#define CHECK_OK(status)                                                                               \
	do {                                                                                           \
		const rocksdb::Status check_ok = (status);                                             \
		CHECK(check_ok.ok(), "%s", check_ok.ToString().c_str());                               \
	} while (0)

// How RocksDB combines a sequence number and a type; all types of this number are visible.
inline uint64_t NewestTag(rocksdb::SequenceNumber number)
{
	return number << 8 | 0xff;
}

// A table of a database, open for reading.
struct Table {
	int fd = -1;
	std::string path;
	std::string smallest, largest;
	sst_table where = {};
	// compression of the (top) index block
	uint8_t compression = 0;
};

// Reads the place of the table's index from its footer.
inline void ReadFooter(Table *table, uint32_t format_version)
{
	bpf_of::sst::Footer footer;
	CHECK_OK(bpf_of::sst::read_footer(table->fd, lseek(table->fd, 0, SEEK_END), &footer));
	CHECK(footer.format_version == format_version, "version %u of %s", footer.format_version,
		table->path.c_str());
	table->where.checksum = footer.checksum;
	table->where.checksum_base = footer.checksum_base;
	table->where.offset = footer.index.offset;
	table->where.size = footer.index.size;
	CHECK(pread(table->fd, &table->compression, 1, table->where.offset + table->where.size) == 1,
		"reading the index's trailer of %s", table->path.c_str());
}

// The live tables of a column family, opened; without its memtables.
class Tables {
    public:
	Tables(rocksdb::DB *db, rocksdb::ColumnFamilyHandle *family, uint32_t format_version,
		uint8_t levels)
	{
		rocksdb::ColumnFamilyMetaData data;
		db->GetColumnFamilyMetaData(family, &data);
		rocksdb::TablePropertiesCollection properties;
		CHECK_OK(db->GetPropertiesOfAllTables(family, &properties));
		for (const auto &level : data.levels) {
			for (const auto &file : level.files) {
				Table table;
				table.path = file.db_path + file.name;
				table.fd = open(table.path.c_str(), O_RDONLY | O_CLOEXEC);
				CHECK(table.fd >= 0, "opening %s: %s", table.path.c_str(),
					strerror(errno));
				table.smallest = file.smallestkey;
				table.largest = file.largestkey;
				ReadFooter(&table, format_version);
				const auto &known = properties.at(table.path);
				table.where.levels = levels;
				table.where.flags =
					(known->index_value_is_delta_encoded ? SST_INDEX_DELTA : 0) |
					(known->index_key_is_user_key ? SST_INDEX_USER_KEYS : 0);
				(level.level == 0 ? newest_ : older_).push_back(table);
			}
		}
	}
	Tables(const Tables &) = delete;
	Tables &operator=(const Tables &) = delete;
	~Tables()
	{
		for (const auto *tables : {&newest_, &older_})
			for (const Table &table : *tables)
				close(table.fd);
	}

	// The tables to search for a key, newest first. Tables of level 0 are always included, so that
	// searches also end before and after all keys of a table.
	std::vector<Table> For(const std::string &key) const
	{
		std::vector<Table> tables = newest_;
		for (const Table &table : older_)
			if (table.smallest <= key && key <= table.largest)
				tables.push_back(table);
		return tables;
	}

	std::vector<Table> All() const
	{
		std::vector<Table> tables = newest_;
		tables.insert(tables.end(), older_.begin(), older_.end());
		return tables;
	}

    private:
	std::vector<Table> newest_, older_;
};

// The outcome of a chain of sst_get.
struct Outcome {
	// 0, or errno from bpfof_result
	int error = 0;
	// the function's code for ECANCELED
	uint32_t code = 0;
	std::string message;
	sst_get_answer answer = {};
	std::string value;

	bool Damaged() const { return error == ECANCELED; }
	bool Absent() const
	{
		return !error && (answer.status == SST_NOT_FOUND || answer.status == SST_DELETED);
	}
};

// Runs chains of sst_get on this machine.
class Chains {
    public:
	explicit Chains(const char *object)
		: bpfof_(bpfof_open(nullptr, nullptr, nullptr)),
		  function_(bpfof_function_load_file(bpfof_, object, nullptr)),
		  reader_(bpfof_reader_open(bpfof_))
	{
		CHECK(bpfof_ && function_ && reader_, "loading %s: %s", object, bpfof_error());
	}
	Chains(const Chains &) = delete;
	Chains &operator=(const Chains &) = delete;
	~Chains()
	{
		bpfof_reader_close(reader_);
		bpfof_function_unload(function_);
		bpfof_close(bpfof_);
	}

	// Must be called before a table is closed.
	void Forget(const Table &table) { bpfof_forget(bpfof_, table.fd); }

	Outcome Get(const std::vector<Table> &tables, const std::string &key, uint64_t newest_tag,
		size_t scratch_size = 4096)
	{
		CHECK(!tables.empty() && tables.size() <= SST_TABLES_MAX, "%zu tables", tables.size());
		const sst_get_request request = {
			newest_tag, uint32_t(key.size()), uint16_t(tables.size()), 0, 0, 0};
		std::string scratch(reinterpret_cast<const char *>(&request), sizeof(request));
		std::vector<int> fds;
		// The files may be listed in any order.
		for (const Table &table : tables) {
			sst_table where = table.where;
			where.file = uint8_t(tables.size() - 1 - (&table - tables.data()));
			scratch.append(reinterpret_cast<const char *>(&where), sizeof(where));
			fds.insert(fds.begin(), table.fd);
		}
		scratch += key;
		const size_t argument_size = scratch.size();
		scratch.resize(scratch_size);
		const sst_table &where = tables[0].where;
		const bpfof_read first = {where.offset, where.size + SST_TRAILER_BYTES,
			uint32_t(tables.size() - 1)};
		bpfof_result result = {};
		chains++;
		const ssize_t size = bpfof_read_pushdown(reader_, fds.data(), fds.size(), &first,
			function_, &scratch[0], scratch.size(), argument_size, &result);
		Outcome outcome;
		if (size < 0) {
			outcome.error = result.error;
			outcome.code = result.value;
			outcome.message = result.message;
			return outcome;
		}
		CHECK(size_t(size) >= sizeof(outcome.answer), "an answer of %zd bytes", size);
		memcpy(&outcome.answer, scratch.data(), sizeof(outcome.answer));
		outcome.value = scratch.substr(sizeof(outcome.answer), size - sizeof(outcome.answer));
		CHECK(outcome.answer.blocks == result.hops, "%u blocks in %u hops",
			outcome.answer.blocks, result.hops);
		return outcome;
	}

	// The number of chains that have run.
	uint64_t chains = 0;

    private:
	bpfof *bpfof_;
	bpfof_function *function_;
	bpfof_reader *reader_;
};

#endif
