// Texture and surface objects as kernels use them: texels in memory, and how coordinates select them.
//
// Ownership: one process-wide table of objects by 64-bit handle. find() shares ownership, so an object that is
//   destroyed too early is stale but never freed memory. A kernel launched before the destruction still finds it, as on
//   a GPU, whose descriptors remain, as long as it is among the last kRemovedKept removed. The application owns the
//   texels: the AddressSpace is checked before each access.
// Threads: any. Errors: null for an unknown handle.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "common/mutex.h"

namespace gpupool::softgpu {

enum class TexelFormat : std::uint8_t { u8, u16, u32, s8, s16, s32, f16, f32 };
enum class AddressMode : std::uint8_t { wrap, clamp, mirror, border };

// One mipmap level. `depth` counts layers (and faces) if there are any.
struct TexelGrid {
    std::uint64_t address = 0;
    std::uint32_t width = 1, height = 1, depth = 1;
    std::uint64_t row_bytes = 0, slice_bytes = 0;
    std::uint64_t size_bytes = 0;  // from the first texel to the last
};

struct Texture {
    std::vector<TexelGrid> levels;
    TexelFormat format = TexelFormat::u8;
    std::uint8_t channels = 1;
    std::uint32_t texel_bytes = 1;
    std::uint32_t layers = 0;
    bool surface = false;
    bool buffer = false;  // linear memory; reads outside return zero
    bool linear = false;  // filter within a level
    bool linear_levels = false;
    bool normalized_coordinates = false;
    bool unit_range = false;  // integers are read as [0, 1] or [-1, 1]
    bool srgb = false;
    AddressMode modes[3] = {AddressMode::clamp, AddressMode::clamp, AddressMode::clamp};
    float border[4] = {0, 0, 0, 0};
    float level_bias = 0, lowest_level = 0, highest_level = 0;
};

class TextureTable {
  public:
    static TextureTable& instance();

    static constexpr std::size_t kRemovedKept = 4096;

    std::uint64_t add(Texture texture);
    void remove(std::uint64_t handle);
    // Finds the object that the handle meant at `generation`.
    std::shared_ptr<const Texture> find(std::uint64_t handle, std::uint32_t generation) const;
    std::uint32_t generation() const noexcept { return generation_.load(std::memory_order_acquire); }

  private:
    struct Entry {
        std::shared_ptr<const Texture> texture;
        std::uint32_t removed_at = ~0U;  // first generation without it
    };

    mutable SharedMutex mutex_;
    std::unordered_map<std::uint64_t, Entry> textures_ GP_GUARDED_BY(mutex_);
    std::deque<std::uint64_t> removed_ GP_GUARDED_BY(mutex_);  // oldest first
    std::uint64_t next_ GP_GUARDED_BY(mutex_) = 1;
    std::atomic<std::uint32_t> generation_{1};
};

// A warp's cache of recently used objects, for one launch. An entry is valid until the table or the address space
// changes.
struct TextureCache {
    struct Entry {
        std::uint64_t handle = 0;
        std::uint32_t table_generation = 0;
        std::uint32_t space_generation = 0;
        std::shared_ptr<const Texture> texture;
    };
    static constexpr std::size_t kEntries = 4;
    Entry entries[kEntries];

    // Null if there was no such object at the table's generation, or its memory is gone.
    const Texture* find(std::uint64_t handle, std::uint32_t generation);
};

// An access of one instruction to an object. Numbers are slots of the frame.
struct TextureAccess {
    enum class Kind : std::uint8_t { f32, s32, u32, b8, b16, b32, b64 };
    enum class Outside : std::uint8_t { trap, clamp, zero };

    std::uint32_t results[4] = {~0U, ~0U, ~0U, ~0U};  // of a store: the values to store
    std::uint32_t coordinates[3] = {~0U, ~0U, ~0U};
    std::uint32_t layer = ~0U;
    std::uint32_t level = ~0U;
    std::uint32_t offsets[3] = {~0U, ~0U, ~0U};                                // in texels
    std::uint32_t along_x[3] = {~0U, ~0U, ~0U}, along_y[3] = {~0U, ~0U, ~0U};  // tex.grad
    std::uint8_t dimensions = 1;
    std::uint8_t elements = 4;
    std::uint8_t gathered = 0;  // of tld4: the component
    bool cube = false;
    bool integer_coordinates = false;
    Kind kind = Kind::f32;
    Outside outside = Outside::trap;
};

}  // namespace gpupool::softgpu
