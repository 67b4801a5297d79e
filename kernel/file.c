// SPDX-License-Identifier: GPL-2.0
/* Maps of files: versions and extents (XRP section 4.1.3). */

#include <linux/capability.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include "xrp.h"

/* The place of a range of a file on the drive; U64_MAX unless it is contiguous there. */
u64 xrp_translate(const struct xrp_map *map, u64 offset, u64 length)
{
	u32 low = 0, high = map->count;

	while (low < high) {
		u32 middle = low + (high - low) / 2;

		if (map->extents[middle].file_offset <= offset)
			low = middle + 1;
		else
			high = middle;
	}
	if (!low)
		return U64_MAX;
	offset -= map->extents[low - 1].file_offset;
	if (offset >= map->extents[low - 1].length ||
	    length > map->extents[low - 1].length - offset)
		return U64_MAX;
	return map->extents[low - 1].device_offset + offset;
}

static int check_extents(const struct xrp_domain *domain, const struct xrp_map *map)
{
	u64 free_from = 0, mask = (1ULL << domain->block_shift) - 1, end;
	u32 index;

	if (map->length > S64_MAX)
		return -EINVAL;
	for (index = 0; index < map->count; index++) {
		const struct bpfof_xrp_extent *extent = &map->extents[index];

		if ((extent->file_offset | extent->device_offset | extent->length) & mask ||
		    !extent->length || extent->file_offset < free_from)
			return -EINVAL;
		if (check_add_overflow(extent->file_offset, extent->length, &free_from))
			return -EINVAL;
		if (check_add_overflow(extent->device_offset, extent->length, &end) ||
		    end > domain->bytes)
			return -EINVAL;
	}
	return 0;
}

int xrp_file_set(struct xrp_domain *domain, struct bpfof_xrp_file __user *user)
{
	struct bpfof_xrp_file file;
	struct xrp_map *map = NULL;
	size_t bytes;
	int error;

	if (copy_from_user(&file, user, sizeof(file)))
		return -EFAULT;
	if (file.file >= BPFOF_XRP_FILES_MAX || file.extent_count > BPFOF_XRP_EXTENTS_MAX)
		return -EINVAL;
	/* Anybody with the descriptor may remove a map: that only takes blocks away. */
	if (file.extent_count && !capable(CAP_SYS_ADMIN))
		return -EPERM;
	if (file.extent_count) {
		if (!file.version)
			return -EINVAL;
		bytes = file.extent_count * sizeof(map->extents[0]);
		map = kvmalloc(struct_size(map, extents, file.extent_count), GFP_KERNEL_ACCOUNT);
		if (!map)
			return -ENOMEM;
		map->version = file.version;
		map->length = file.length;
		map->count = file.extent_count;
		error = -EFAULT;
		if (copy_from_user(map->extents, u64_to_user_ptr(file.extents), bytes))
			goto free;
		error = check_extents(domain, map);
		if (error)
			goto free;
	}
	mutex_lock(&domain->lock);
	map = rcu_replace_pointer(domain->files[file.file], map,
				  lockdep_is_held(&domain->lock));
	mutex_unlock(&domain->lock);
	/* Wait for chains that use the old map: from then on its blocks may belong to other
	 * files. */
	synchronize_srcu(&domain->srcu);
	kvfree(map);
	return 0;
free:
	kvfree(map);
	return error;
}

void xrp_files_free(struct xrp_domain *domain)
{
	u32 index;

	for (index = 0; index < BPFOF_XRP_FILES_MAX; index++)
		kvfree(rcu_dereference_protected(domain->files[index], true));
}
