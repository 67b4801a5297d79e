/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "lookup.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace bpf_of {

static_assert(sizeof(struct sst_get_answer) + PushdownOptions::VALUE_BYTES_MAX <= BPFOF_SCRATCH_MAX,
	"the longest value fits scratch");
static_assert(SST_TABLES_MAX <= BPFOF_FILES_MAX, "the files of a plan fit a list");

size_t scratch_bytes_for(uint32_t value_bytes_max, bool merges)
{
	/* Room for the request and a key of a block, or for the answer without its value. */
	constexpr size_t LEAST = sizeof(struct sst_get_request) +
				 SST_TABLES_MAX * sizeof(struct sst_table) + 4 * USUAL_KEY_BYTES_MAX;

	/* Operands share scratch with the request. */
	if (merges)
		return std::min<size_t>(LEAST + value_bytes_max, BPFOF_SCRATCH_MAX);
	return std::max(LEAST, sizeof(struct sst_get_answer) + value_bytes_max);
}

bool FileList::add(Plan *plan)
{
	const size_t before = count_;

	for (uint32_t i = 0; i < plan->tables; i++) {
		const int *const found = std::find(fds_, fds_ + count_, plan->fds[i]);
		const size_t place = found - fds_;

		if (place == BPFOF_FILES_MAX) {
			count_ = before;
			return false;
		}
		if (place == count_)
			fds_[count_++] = plan->fds[i];
		plan->starts[i].file = static_cast<__u8>(place);
	}
	return true;
}

void make_chain(struct bpfof_chain *chain, const Plan &plan, const Part &part, const FileList &files,
	const rocksdb::Slice &key, uint64_t newest_tag, const struct bpfof_function *sst_get, unsigned char *scratch,
	size_t scratch_bytes)
{
	const uint32_t tables = part.end - part.first;
	const struct sst_table *const starts = plan.starts + part.first;
	const struct sst_get_request request = {
		newest_tag, static_cast<__u32>(key.size()), static_cast<__u16>(tables), 0, 0, 0};
	const size_t tables_size = tables * sizeof(struct sst_table);

	std::memcpy(scratch, &request, sizeof(request));
	std::memcpy(scratch + sizeof(request), starts, tables_size);
	std::memcpy(scratch + sizeof(request) + tables_size, key.data(), key.size());
	chain->fds = files.fds();
	chain->nfds = files.count();
	chain->first = {starts->offset, starts->size + SST_TRAILER_BYTES, starts->file};
	chain->function = sst_get;
	chain->scratch = scratch;
	chain->scratch_len = scratch_bytes;
	chain->argument_len = sizeof(request) + tables_size + key.size();
	chain->user = nullptr;
}

void not_ended(struct bpfof_chain *chain)
{
	chain->result.length = -1;
	chain->result.error = ETIMEDOUT;
	chain->result.message[0] = 0;
}

/* A read on this machine may time out, too, but has a message. */
static bool has_not_ended(const struct bpfof_chain &chain)
{
	const struct bpfof_result &result = chain.result;

	return result.length < 0 && result.error == ETIMEDOUT && !result.message[0];
}

void cannot_end(struct bpfof_chain *chain)
{
	struct bpfof_result &result = chain->result;

	if (!has_not_ended(*chain))
		return;
	result.error = EIO;
	std::snprintf(result.message, sizeof(result.message), "%s", bpfof_error());
}

void run_within(struct bpfof_reader *reader, struct bpfof_chain *chains, size_t count, const TimeLimit &limit)
{
	struct bpfof_chain *ended[PARTS_MAX];
	int64_t left = limit.timeout_us();

	for (size_t i = 0; i < count; i++)
		not_ended(&chains[i]);
	if (count == 1 && left == TimeLimit::NONE) {
		if (bpfof_read_pushdown_batch(reader, chains, count) < 0)
			cannot_end(&chains[0]);
		return;
	}
	if (left == 0)
		return;
	if (bpfof_submit_many(reader, chains, count) < 0) {
		/* The batch call reports what is wrong with the chains. */
		if (bpfof_read_pushdown_batch(reader, chains, count) < 0)
			for (size_t i = 0; i < count; i++)
				cannot_end(&chains[i]);
		return;
	}
	for (size_t running = count; running > 0; left = limit.timeout_us()) {
		const int got = bpfof_poll_within(reader, ended, count, left);

		for (size_t i = 0; got < 0 && i < count; i++)
			cannot_end(&chains[i]);
		if (got < 0 || (got == 0 && left != TimeLimit::NONE))
			return;
		running -= got;
	}
}

/* Whether the function has aborted the chain with this code. */
static bool has_aborted(const struct bpfof_chain &chain, uint32_t code)
{
	const struct bpfof_result &result = chain.result;

	return result.length < 0 && result.error == ECANCELED && result.value == code;
}

/* Splits operands: sizes and bytes. False if they are cut off. */
static bool take_operands(rocksdb::Slice bytes, uint32_t count, std::vector<rocksdb::Slice> *operands)
{
	for (uint32_t size; count > 0; count--) {
		if (bytes.size() < sizeof(size))
			return false;
		std::memcpy(&size, bytes.data(), sizeof(size));
		bytes.remove_prefix(sizeof(size));
		if (size > bytes.size())
			return false;
		operands->emplace_back(bytes.data(), size);
		bytes.remove_prefix(size);
	}
	return bytes.empty();
}

static constexpr char CUT_OFF[] = "the answer of the storage function is truncated";

/* As read_answers(), for a single chain. */
static ReadPath read_answer(const struct bpfof_chain &chain, Found *found, std::string *error)
{
	const struct bpfof_result &result = chain.result;
	const char *bytes = static_cast<const char *>(chain.scratch);
	struct sst_get_answer answer;

	if (result.length < 0) {
		if (has_not_ended(chain))
			return ReadPath::kTimedOut;
		*error = result.message[0] ? result.message : std::strerror(result.error);
		found->lacks_scratch = has_aborted(chain, DAMAGE_KEY_TOO_LONG);
		/* A call could not pay for the block, and a further one cannot either. */
		if (found->lacks_scratch || has_aborted(chain, DAMAGE_COMPRESSED) || result.error == ETIME)
			return ReadPath::kDeclined;
		/* RocksDB has deleted a table that the target does not know: there is a newer version.
		 * A target without the function reports ENOENT, too, but with an NVMe status. */
		return result.error == ENOENT && result.status == 0 ? ReadPath::kStale : ReadPath::kFailed;
	}
	/* The answer comes from another machine: check its length. */
	if (result.length < static_cast<ssize_t>(sizeof(answer))) {
		*error = CUT_OFF;
		return ReadPath::kFailed;
	}
	std::memcpy(&answer, bytes, sizeof(answer));
	found->blocks = answer.blocks;
	found->tables = answer.table + 1;
	found->is_whole = answer.status != SST_NOT_FOUND;
	found->sequence = answer.tag >> 8;
	found->lacks_scratch = answer.status == SST_TOO_LONG;
	if (answer.status == SST_OTHER || answer.status == SST_TOO_LONG || answer.status > SST_BLOB)
		return ReadPath::kDeclined;
	const size_t size = result.length - sizeof(answer);

	bytes += sizeof(answer);
	found->is_blob = answer.status == SST_BLOB;
	found->has_value = answer.status == SST_FOUND || found->is_blob;
	if (answer.value_size > size ||
		!take_operands({bytes + answer.value_size, size - answer.value_size}, answer.operands,
			&found->operands)) {
		*error = CUT_OFF;
		return ReadPath::kFailed;
	}
	found->value = rocksdb::Slice(bytes, answer.value_size);
	return result.executor == BPFOF_AT_TARGET ? ReadPath::kTarget : ReadPath::kHere;
}

/* Appends the results of the tables that follow. */
static void append(Found *found, Found older)
{
	older.operands.insert(older.operands.end(), found->operands.begin(), found->operands.end());
	older.tables += found->tables;
	older.blocks += found->blocks;
	*found = std::move(older);
}

ReadPath read_answers(const struct bpfof_chain *chains, uint32_t parts, Found *found, std::string *error)
{
	ReadPath way = read_answer(chains[0], found, error);

	for (uint32_t i = 1; i < parts; i++) {
		const bool goes_on = (way == ReadPath::kTarget || way == ReadPath::kHere) && !found->is_whole;
		std::string its_error;
		Found older;
		const ReadPath its_way = read_answer(chains[i], &older, &its_error);

		if (!goes_on) {
			found->blocks += older.blocks;
			continue;
		}
		append(found, std::move(older));
		way = its_way;
		*error = std::move(its_error);
	}
	return way;
}

} /* namespace bpf_of */
