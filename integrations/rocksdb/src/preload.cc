/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * For unchanged programs that link RocksDB dynamically: a library that is loaded before librocksdb
 * (LD_PRELOAD), whose DB::Open() and DB::OpenForReadOnly() return a PushdownDB
 *
 *   - where the Env's file system is ours, made by RocksDB's object registry from a string that the
 *     program accepts (--fs_uri of db_bench, say): "bpfof://DEVICE@HOST[:PORT]/NQN", or
 *     "id=bpfof;OPTIONS";
 *   - where the variable BPFOF_ROCKSDB has OPTIONS: for all databases that the process opens.
 *
 * OPTIONS are those of PushdownOptions::parse(). TransactionDB::Open(), OpenAsSecondary() and so on are
 * left to the plain library. So is OptimisticTransactionDB::Open(), although it calls DB::Open(): its
 * transactions cast the result to RocksDB's own class.
 */
#include "bpfof/rocksdb.h"

#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <rocksdb/utilities/object_registry.h>
#include <rocksdb/utilities/optimistic_transaction_db.h>
#include <rocksdb/utilities/transaction_db.h>
#include <rocksdb/version.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>

namespace bpf_of {

using rocksdb::ColumnFamilyDescriptor;
using rocksdb::ColumnFamilyHandle;
using rocksdb::DB;
using rocksdb::Status;

namespace {

constexpr char VARIABLE[] = "BPFOF_ROCKSDB";

/* The machine's file system; it only marks that databases opened on it are to be pushed down. */
class PushdownFileSystem final : public rocksdb::FileSystemWrapper {
    public:
	PushdownFileSystem() : FileSystemWrapper(FileSystem::Default()) {}

	static const char *kClassName() { return "bpfof"; }
	const char *Name() const override { return kClassName(); }
	const PushdownOptions &options() const { return options_; }

	/* "bpfof", or "bpfof://DEVICE@HOST[:PORT]/NQN". */
	static std::unique_ptr<PushdownFileSystem> make(const std::string &uri, std::string *error)
	{
		auto made = std::make_unique<PushdownFileSystem>();
		const std::string rest = uri.substr(std::min(uri.size(), std::strlen("bpfof://")));
		const size_t at = rest.find('@');

		if (!rest.empty() && at == std::string::npos) {
			*error = uri + " is not bpfof://DEVICE@HOST[:PORT]/NQN";
			return nullptr;
		}
		if (!rest.empty()) {
			made->options_.device = rest.substr(0, at);
			made->options_.url = "nvme-tcp://" + rest.substr(at + 1);
		}
		return made;
	}

    protected:
	rocksdb::Status ConfigureOptions(const rocksdb::ConfigOptions &,
		const std::unordered_map<std::string, std::string> &settings,
		std::unordered_map<std::string, std::string> *) override
	{
		for (const auto &[name, value] : settings) {
			const Status status = options_.set(name, value);

			if (!status.ok())
				return status;
		}
		return Status::OK();
	}

    private:
	PushdownOptions options_;
};

int register_all()
{
	const auto library = rocksdb::ObjectLibrary::Default();
	const auto uri =
		rocksdb::ObjectLibrary::PatternEntry("bpfof", true).AddSeparator("://", true);

	library->AddFactory<rocksdb::FileSystem>(uri,
		[](const std::string &text, std::unique_ptr<rocksdb::FileSystem> *made,
			std::string *error) {
			*made = PushdownFileSystem::make(text, error);
			return made->get();
		});
	library->AddFactory<rocksdb::Env>(uri,
		[](const std::string &text, std::unique_ptr<rocksdb::Env> *made, std::string *error) {
			std::shared_ptr<rocksdb::FileSystem> files =
				PushdownFileSystem::make(text, error);

			if (files)
				*made = rocksdb::NewCompositeEnv(files);
			return made->get();
		});
	return 0;
}

[[maybe_unused]] const int REGISTERED = register_all();

/* The function of librocksdb that the function of this name here replaces. */
template <typename Function> Function *next(const char *mangled)
{
	void *const found = dlsym(RTLD_NEXT, mangled);

	if (!found) {
		std::fprintf(stderr, "bpf-of: RocksDB is not loaded after this library: %s\n", dlerror());
		std::abort();
	}
	return reinterpret_cast<Function *>(found);
}

/* Opening a database, with pushdown or without, calls the other form of DB::Open(), which is this
 * library's again. */
thread_local bool is_inside = false;

class Inside {
    public:
	Inside() { is_inside = true; }
	~Inside() { is_inside = was_; }
	Inside(const Inside &) = delete;
	Inside &operator=(const Inside &) = delete;

    private:
	const bool was_ = is_inside;
};

/* The program is compiled for one version of RocksDB, and so is this library. */
bool is_same_version()
{
	const std::string here = std::to_string(ROCKSDB_MAJOR) + "." + std::to_string(ROCKSDB_MINOR) + "." +
				 std::to_string(ROCKSDB_PATCH);
	static const std::string loaded = rocksdb::GetRocksVersionAsString(true);

	return loaded == here;
}

/* Whether a database opened with these options is to be pushed down, and where its settings come
 * from. */
enum class Wish { kNone, kByVariable, kByFileSystem };
Wish wish(const rocksdb::DBOptions &options, PushdownOptions *pushdown, Status *status)
{
	const char *const text = std::getenv(VARIABLE);
	rocksdb::Env *const env = options.env ? options.env : rocksdb::Env::Default();
	const std::shared_ptr<rocksdb::FileSystem> files = env->GetFileSystem();

	/* The name is unique: this library has registered it. */
	if (std::strcmp(files->Name(), PushdownFileSystem::kClassName()) == 0) {
		*pushdown = static_cast<const PushdownFileSystem *>(files.get())->options();
		return Wish::kByFileSystem;
	}
	if (!text)
		return Wish::kNone;
	*status = PushdownOptions::parse(text, pushdown);
	return Wish::kByVariable;
}

/* DB::Open() and the like as the program calls them: `plain` opens without pushdown, and `ours` with
 * it. */
template <typename Options, typename Plain, typename Ours>
Status open(const Options &options, const std::string &path, DB **db, Plain plain, Ours ours)
{
	PushdownDB *opened = nullptr;
	PushdownOptions pushdown;
	Options adapted = options;
	Status status;

	if (is_inside)
		return plain();
	const Inside scope;
	const Wish wanted = wish(options, &pushdown, &status);

	if (wanted == Wish::kNone)
		return plain();
	if (status.ok() && !is_same_version())
		status = Status::NotSupported("the preloaded library was built for another version of RocksDB than the loaded one",
			rocksdb::GetRocksVersionAsString(true));
	if (wanted == Wish::kByFileSystem)
		adapted.env = rocksdb::Env::Default();
	if (status.ok())
		status = ours(adapted, pushdown, &opened);
	*db = opened;
	/* A file system names pushdown explicitly: no fallback. The variable may reach programs it is
	 * not meant for. */
	if (status.ok() || wanted == Wish::kByFileSystem)
		return status;
	std::fprintf(stderr, "bpf-of: %s is opened without pushdown: %s\n", path.c_str(),
		status.ToString().c_str());
	return plain();
}

} /* namespace */
} /* namespace bpf_of */

namespace rocksdb {

Status DB::Open(const Options &options, const std::string &path, DB **db)
{
	using Function = Status(const Options &, const std::string &, DB **);
	static Function *const plain = bpf_of::next<Function>(
		"_ZN7rocksdb2DB4OpenERKNS_7OptionsERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEPPS0_");

	return bpf_of::open(
		options, path, db, [&] { return plain(options, path, db); },
		[&](const Options &adapted, const bpf_of::PushdownOptions &pushdown, bpf_of::PushdownDB **opened) {
			return bpf_of::PushdownDB::Open(adapted, pushdown, path, opened);
		});
}

Status DB::Open(const DBOptions &options, const std::string &path,
	const std::vector<ColumnFamilyDescriptor> &families, std::vector<ColumnFamilyHandle *> *handles,
	DB **db)
{
	using Function = Status(const DBOptions &, const std::string &,
		const std::vector<ColumnFamilyDescriptor> &, std::vector<ColumnFamilyHandle *> *, DB **);
	static Function *const plain = bpf_of::next<Function>(
		"_ZN7rocksdb2DB4OpenERKNS_9DBOptionsERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
		"RKSt6vectorINS_22ColumnFamilyDescriptorESaISD_EEPSC_IPNS_18ColumnFamilyHandleESaISJ_EEPPS0_");

	return bpf_of::open(
		options, path, db, [&] { return plain(options, path, families, handles, db); },
		[&](const DBOptions &adapted, const bpf_of::PushdownOptions &pushdown, bpf_of::PushdownDB **opened) {
			return bpf_of::PushdownDB::Open(adapted, pushdown, path, families, handles, opened);
		});
}

/* RocksDB does not look at `error_if_wal_file_exists` here. */
Status DB::OpenForReadOnly(const Options &options, const std::string &path, DB **db, bool error_if_wal_file_exists)
{
	using Function = Status(const Options &, const std::string &, DB **, bool);
	static Function *const plain = bpf_of::next<Function>(
		"_ZN7rocksdb2DB15OpenForReadOnlyERKNS_7OptionsERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
		"PPS0_b");

	return bpf_of::open(
		options, path, db, [&] { return plain(options, path, db, error_if_wal_file_exists); },
		[&](const Options &adapted, const bpf_of::PushdownOptions &pushdown, bpf_of::PushdownDB **opened) {
			return bpf_of::PushdownDB::OpenForReadOnly(adapted, pushdown, path, opened);
		});
}

Status DB::OpenForReadOnly(const DBOptions &options, const std::string &path,
	const std::vector<ColumnFamilyDescriptor> &families, std::vector<ColumnFamilyHandle *> *handles,
	DB **db, bool error_if_wal_file_exists)
{
	using Function = Status(const DBOptions &, const std::string &, const std::vector<ColumnFamilyDescriptor> &,
		std::vector<ColumnFamilyHandle *> *, DB **, bool);
	static Function *const plain = bpf_of::next<Function>(
		"_ZN7rocksdb2DB15OpenForReadOnlyERKNS_9DBOptionsERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
		"RKSt6vectorINS_22ColumnFamilyDescriptorESaISD_EEPSC_IPNS_18ColumnFamilyHandleESaISJ_EEPPS0_b");

	return bpf_of::open(
		options, path, db,
		[&] { return plain(options, path, families, handles, db, error_if_wal_file_exists); },
		[&](const DBOptions &adapted, const bpf_of::PushdownOptions &pushdown, bpf_of::PushdownDB **opened) {
			return bpf_of::PushdownDB::OpenForReadOnly(
				adapted, pushdown, path, families, handles, opened, error_if_wal_file_exists);
		});
}

/* The other forms call this one. */
Status OptimisticTransactionDB::Open(const DBOptions &options, const OptimisticTransactionDBOptions &how,
	const std::string &path, const std::vector<ColumnFamilyDescriptor> &families,
	std::vector<ColumnFamilyHandle *> *handles, OptimisticTransactionDB **db)
{
	using Function = Status(const DBOptions &, const OptimisticTransactionDBOptions &, const std::string &,
		const std::vector<ColumnFamilyDescriptor> &, std::vector<ColumnFamilyHandle *> *,
		OptimisticTransactionDB **);
	static Function *const plain = bpf_of::next<Function>(
		"_ZN7rocksdb23OptimisticTransactionDB4OpenERKNS_9DBOptionsERKNS_30OptimisticTransactionDBOptionsE"
		"RKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEERKSt6vectorINS_22ColumnFamilyDescriptorESaISG_EE"
		"PSF_IPNS_18ColumnFamilyHandleESaISM_EEPPS0_");
	const bpf_of::Inside scope;

	return plain(options, how, path, families, handles, db);
}

/* WrapDB() casts to RocksDB's own class; WrapStackableDB() accepts a stacked database. */
Status TransactionDB::WrapDB(DB *opened, const TransactionDBOptions &how, const std::vector<size_t> &compacted,
	const std::vector<ColumnFamilyHandle *> &handles, TransactionDB **db)
{
	using Function = Status(DB *, const TransactionDBOptions &, const std::vector<size_t> &,
		const std::vector<ColumnFamilyHandle *> &, TransactionDB **);
	static Function *const plain = bpf_of::next<Function>(
		"_ZN7rocksdb13TransactionDB6WrapDBEPNS_2DBERKNS_20TransactionDBOptionsERKSt6vectorImSaImEE"
		"RKS6_IPNS_18ColumnFamilyHandleESaISC_EEPPS0_");

	if (auto *ours = dynamic_cast<bpf_of::PushdownDB *>(opened))
		return WrapStackableDB(ours, how, compacted, handles, db);
	return plain(opened, how, compacted, handles, db);
}

} /* namespace rocksdb */
