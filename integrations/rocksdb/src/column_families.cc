/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Column families that are created and dropped while the database is open. */
#include "state.h"

namespace bpf_of {

using rocksdb::ColumnFamilyDescriptor;
using rocksdb::ColumnFamilyHandle;
using rocksdb::ColumnFamilyOptions;
using rocksdb::Status;

/* Some versions of RocksDB allow changes of families in databases that are open for reading only. */
static Status is_read_only()
{
	return Status::NotSupported("the database is open for reading only");
}

void PushdownDB::State::add(
	std::shared_ptr<VersionTracker> tracker, rocksdb::DB *db, ColumnFamilyHandle *handle)
{
	if (tracker)
		families->follow(handle->GetID(), std::move(tracker), db, handle, false);
}

template <typename Create>
Status PushdownDB::create(
	const ColumnFamilyOptions &options, const std::string &name, ColumnFamilyHandle **handle, Create create)
{
	if (state_->access != Access::kPrimary)
		return is_read_only();
	ColumnFamilyDescriptor family(name, options);
	std::shared_ptr<VersionTracker> tracker = state_->follow(&family);
	const Status status = create(family.options);

	if (status.ok())
		state_->add(std::move(tracker), db_, *handle);
	return status;
}

Status PushdownDB::CreateColumnFamily(
	const ColumnFamilyOptions &options, const std::string &name, ColumnFamilyHandle **handle)
{
	return create(options, name, handle, [&](const ColumnFamilyOptions &adapted) {
		return db_->CreateColumnFamily(adapted, name, handle);
	});
}

Status PushdownDB::CreateColumnFamilies(const ColumnFamilyOptions &options,
	const std::vector<std::string> &names, std::vector<ColumnFamilyHandle *> *handles)
{
	std::vector<ColumnFamilyDescriptor> families;

	for (const std::string &name : names)
		families.emplace_back(name, options);
	return CreateColumnFamilies(families, handles);
}

Status PushdownDB::CreateColumnFamilies(
	const std::vector<ColumnFamilyDescriptor> &families, std::vector<ColumnFamilyHandle *> *handles)
{
	std::vector<ColumnFamilyDescriptor> adapted = families;
	std::vector<std::shared_ptr<VersionTracker>> trackers;

	handles->clear();
	if (state_->access != Access::kPrimary)
		return is_read_only();
	for (ColumnFamilyDescriptor &family : adapted)
		trackers.push_back(state_->follow(&family));
	const Status status = db_->CreateColumnFamilies(adapted, handles);

	/* Upon failure `handles` has the families that were created before it. */
	for (size_t i = 0; i < handles->size(); i++)
		state_->add(std::move(trackers[i]), db_, (*handles)[i]);
	return status;
}

Status PushdownDB::CreateColumnFamilyWithImport(const ColumnFamilyOptions &options, const std::string &name,
	const rocksdb::ImportColumnFamilyOptions &how, const rocksdb::ExportImportFilesMetaData &metadata,
	ColumnFamilyHandle **handle)
{
	return create(options, name, handle, [&](const ColumnFamilyOptions &adapted) {
		return db_->CreateColumnFamilyWithImport(adapted, name, how, metadata, handle);
	});
}

#if ROCKSDB_MAJOR >= 9
Status PushdownDB::CreateColumnFamilyWithImport(const ColumnFamilyOptions &options, const std::string &name,
	const rocksdb::ImportColumnFamilyOptions &how,
	const std::vector<const rocksdb::ExportImportFilesMetaData *> &metadata, ColumnFamilyHandle **handle)
{
	return create(options, name, handle, [&](const ColumnFamilyOptions &adapted) {
		return db_->CreateColumnFamilyWithImport(adapted, name, how, metadata, handle);
	});
}
#endif

Status PushdownDB::DropColumnFamily(ColumnFamilyHandle *family)
{
	if (state_->access != Access::kPrimary)
		return is_read_only();
	const Status status = StackableDB::DropColumnFamily(family);

	if (status.ok())
		state_->families->drop(family->GetID());
	return status;
}

Status PushdownDB::DropColumnFamilies(const std::vector<ColumnFamilyHandle *> &families)
{
	/* As RocksDB does: one after the other, until one cannot be dropped. */
	for (ColumnFamilyHandle *family : families) {
		const Status status = DropColumnFamily(family);

		if (!status.ok())
			return status;
	}
	return Status::OK();
}

} /* namespace bpf_of */
