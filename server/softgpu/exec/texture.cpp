#include "server/softgpu/exec/texture.h"

#include "server/softgpu/exec/address_space.h"

namespace gpupool::softgpu {

TextureTable& TextureTable::instance() {
    static TextureTable& table = *new TextureTable;
    return table;
}

std::uint64_t TextureTable::add(Texture texture) {
    auto shared = std::make_shared<const Texture>(std::move(texture));
    const Lock lock(mutex_);
    const std::uint64_t handle = next_++;
    textures_.emplace(handle, Entry{std::move(shared)});
    return handle;
}

void TextureTable::remove(std::uint64_t handle) {
    const Lock lock(mutex_);
    const auto found = textures_.find(handle);
    if (found == textures_.end()) {
        return;
    }
    found->second.removed_at = generation_.fetch_add(1, std::memory_order_release) + 1;
    removed_.push_back(handle);
    if (removed_.size() <= kRemovedKept) {
        return;
    }
    textures_.erase(removed_.front());
    removed_.pop_front();
}

std::shared_ptr<const Texture> TextureTable::find(std::uint64_t handle, std::uint32_t generation) const {
    const SharedLock lock(mutex_);
    const auto found = textures_.find(handle);
    return found == textures_.end() || found->second.removed_at <= generation ? nullptr : found->second.texture;
}

const Texture* TextureCache::find(std::uint64_t handle, std::uint32_t generation) {
    Entry& entry = entries[handle % kEntries];
    const std::uint32_t table = TextureTable::instance().generation();
    const std::uint32_t space = AddressSpace::instance().generation();
    if (entry.texture != nullptr && entry.handle == handle && entry.table_generation == table &&
        entry.space_generation == space) {
        return entry.texture.get();
    }
    entry = {handle, table, space, TextureTable::instance().find(handle, generation)};
    if (entry.texture == nullptr) {
        return nullptr;
    }
    for (const TexelGrid& grid : entry.texture->levels) {
        if (AddressSpace::instance().covers(grid.address, grid.size_bytes)) {
            continue;
        }
        entry.texture = nullptr;
        break;
    }
    return entry.texture.get();
}

}  // namespace gpupool::softgpu
