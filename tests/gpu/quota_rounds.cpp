// Allocates device memory by every path in turn, in random order and sizes, until nothing fits.
//
//   paths    each path once: what it took comes back
//   quota    only when named: for a device whose size is a quota, all of which is free at the beginning. In each of
//            rounds=N (10) rounds with seed=N (1) the program gets its quota to the granule and no more, and the
//            account is zero after it has freed everything.

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tests/gpu/driver.h"

namespace {

using namespace gpupool::programs;

constexpr size_t kMiB = 1u << 20, kGranule = 2 * kMiB, kPart = 32 * kMiB;

enum class Path {
    plain,   // cuMemAlloc
    pitch,   // cuMemAllocPitch
    stream,  // cuMemAllocAsync
    pool,    // cuMemAllocFromPoolAsync of a pool of the program
    mapped,  // cuMemCreate and cuMemMap
    array,   // cuArrayCreate
    mipmap,  // cuMipmappedArrayCreate
    graph,   // an allocation node of a graph
    module,  // a global variable
    count_
};

const char* name_of(Path path) {
    constexpr const char* kNames[] = {"cuMemAlloc", "cuMemAllocPitch",   "cuMemAllocAsync", "a pool",  "cuMemCreate",
                                      "an array",   "a mipmapped array", "a graph",         "a global"};
    return kNames[static_cast<size_t>(path)];
}

struct Block {
    Path path = Path::plain;
    CUdeviceptr address = 0;
    size_t bytes = 0;
    CUarray array = nullptr;
    CUmipmappedArray mipmap = nullptr;
    CUgraph graph = nullptr;
    CUgraphExec executable = nullptr;
    CUmodule module = nullptr;
};

CUmemLocation location_of(const Device& device) {
    CUmemLocation location{};
    location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    location.id = device.device();
    return location;
}

size_t free_bytes() {
    size_t free = 0, total = 0;
    DRIVER_OK(cuMemGetInfo(&free, &total));
    return free;
}

class Memory {
  public:
    explicit Memory(const Device& device) : device_(device) {
        CUmemPoolProps properties{};
        properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = location_of(device);
        DRIVER_OK(cuMemPoolCreate(&pool_, &properties));
        DRIVER_OK(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    }
    ~Memory() {
        DRIVER_OK(cuStreamDestroy(stream_));
        DRIVER_OK(cuMemPoolDestroy(pool_));
    }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    // CUDA_ERROR_OUT_OF_MEMORY, or success and a block of at least that size.
    CUresult allocate(Path path, size_t bytes, Block& block) {
        block = Block{path, 0, bytes};
        switch (path) {
            case Path::plain: return cuMemAlloc(&block.address, bytes);
            case Path::pitch: return allocate_pitch(block);
            case Path::stream: return cuMemAllocAsync(&block.address, bytes, stream_);
            case Path::pool: return cuMemAllocFromPoolAsync(&block.address, bytes, pool_, stream_);
            case Path::mapped: return allocate_mapped(block);
            case Path::array: return allocate_array(block);
            case Path::mipmap: return allocate_mipmap(block);
            case Path::graph: return allocate_graph(block);
            default: return allocate_module(block);
        }
    }
    void free(const Block& block) {
        switch (block.path) {
            case Path::plain:
            case Path::pitch: DRIVER_OK(cuMemFree(block.address)); break;
            case Path::stream:
            case Path::pool: DRIVER_OK(cuMemFreeAsync(block.address, stream_)); break;
            case Path::mapped:
                DRIVER_OK(cuMemUnmap(block.address, block.bytes));
                DRIVER_OK(cuMemAddressFree(block.address, block.bytes));
                break;
            case Path::array: DRIVER_OK(cuArrayDestroy(block.array)); break;
            case Path::mipmap: DRIVER_OK(cuMipmappedArrayDestroy(block.mipmap)); break;
            case Path::graph:
                DRIVER_OK(cuMemFree(block.address));
                DRIVER_OK(cuGraphExecDestroy(block.executable));
                DRIVER_OK(cuGraphDestroy(block.graph));
                break;
            default: DRIVER_OK(cuModuleUnload(block.module)); break;
        }
    }
    // Memory that is free when the work is complete: a pool that has grown for nothing gives that back.
    [[nodiscard]] size_t idle_free_bytes() const {
        DRIVER_OK(cuStreamSynchronize(stream_));
        return free_bytes();
    }
    // Gives back what pools and graphs keep.
    void trim() {
        CUmemoryPool standard = nullptr;
        DRIVER_OK(cuStreamSynchronize(stream_));
        DRIVER_OK(cuDeviceGetDefaultMemPool(&standard, device_.device()));
        DRIVER_OK(cuMemPoolTrimTo(standard, 0));
        DRIVER_OK(cuMemPoolTrimTo(pool_, 0));
        DRIVER_OK(cuDeviceGraphMemTrim(device_.device()));
    }

    // What pools and graphs hold, for a round that fails.
    void report() const {
        CUmemoryPool standard = nullptr;
        DRIVER_OK(cuDeviceGetDefaultMemPool(&standard, device_.device()));
        cuuint64_t own = 0, common = 0, reserved = 0, used = 0;
        DRIVER_OK(cuMemPoolGetAttribute(pool_, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &own));
        DRIVER_OK(cuMemPoolGetAttribute(standard, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &common));
        DRIVER_OK(cuDeviceGetGraphMemAttribute(device_.device(), CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved));
        DRIVER_OK(cuDeviceGetGraphMemAttribute(device_.device(), CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used));
        note("pool %llu, default pool %llu, graphs %llu, %llu of it used", static_cast<unsigned long long>(own),
             static_cast<unsigned long long>(common), static_cast<unsigned long long>(reserved),
             static_cast<unsigned long long>(used));
    }

  private:
    CUresult allocate_pitch(Block& block) {
        constexpr size_t kWidth = 4096;
        size_t pitch = 0;
        return cuMemAllocPitch(&block.address, &pitch, kWidth, std::max<size_t>(block.bytes / kWidth, 1), 4);
    }
    CUresult allocate_mapped(Block& block) {
        block.bytes = (block.bytes + kGranule - 1) / kGranule * kGranule;
        CUmemAllocationProp properties{};
        properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = location_of(device_);
        const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        CUmemGenericAllocationHandle handle = 0;
        const CUresult result = cuMemCreate(&handle, block.bytes, &properties, 0);
        if (result != CUDA_SUCCESS) {
            return result;
        }
        DRIVER_OK(cuMemAddressReserve(&block.address, block.bytes, 0, 0, 0));
        DRIVER_OK(cuMemMap(block.address, block.bytes, 0, handle, 0));
        DRIVER_OK(cuMemRelease(handle));
        DRIVER_OK(cuMemSetAccess(block.address, block.bytes, &access, 1));
        return CUDA_SUCCESS;
    }
    static CUresult allocate_array(Block& block) {
        constexpr size_t kWidth = 8192;  // of floats
        const CUDA_ARRAY_DESCRIPTOR wanted{kWidth, std::max<size_t>(block.bytes / (4 * kWidth), 1), CU_AD_FORMAT_FLOAT,
                                           1};
        return cuArrayCreate(&block.array, &wanted);
    }
    static CUresult allocate_mipmap(Block& block) {
        constexpr size_t kWidth = 8192;
        CUDA_ARRAY3D_DESCRIPTOR wanted{};
        wanted.Width = kWidth;
        wanted.Height = std::max<size_t>(block.bytes / (4 * kWidth), 1);
        wanted.Format = CU_AD_FORMAT_FLOAT;
        wanted.NumChannels = 1;
        return cuMipmappedArrayCreate(&block.mipmap, &wanted, 2);
    }
    CUresult allocate_graph(Block& block) {
        CUDA_MEM_ALLOC_NODE_PARAMS wanted{};
        wanted.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        wanted.poolProps.location = location_of(device_);
        wanted.bytesize = block.bytes;
        CUgraphNode node = nullptr;
        DRIVER_OK(cuGraphCreate(&block.graph, 0));
        DRIVER_OK(cuGraphAddMemAllocNode(&node, block.graph, nullptr, 0, &wanted));
        block.address = wanted.dptr;
        CUresult result = cuGraphInstantiate(&block.executable, block.graph, 0);
        if (result == CUDA_SUCCESS) {
            result = cuGraphLaunch(block.executable, stream_);
            DRIVER_OK(cuStreamSynchronize(stream_));  // the launch itself reports an error
            if (result != CUDA_SUCCESS) {
                DRIVER_OK(cuGraphExecDestroy(block.executable));
            }
        }
        if (result != CUDA_SUCCESS) {
            DRIVER_OK(cuGraphDestroy(block.graph));
        }
        return result;
    }
    static CUresult allocate_module(Block& block) {
        const std::string code = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .align 4 .b8 words[" +
                                 std::to_string(block.bytes) + "];\n";
        return cuModuleLoadData(&block.module, code.c_str());
    }

    const Device& device_;
    CUmemoryPool pool_ = nullptr;
    CUstream stream_ = nullptr;
};

// As check(), but prints only what fails: there are many checks in a round.
__attribute__((format(printf, 2, 3))) void expect(bool held, const char* format, ...) {
    if (held) {
        return;
    }
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    check(false, "%s", text);
}

// What a path may take beyond what was asked for: parts of pools and graphs; whole tiles and pages, and a second level.
size_t most_taken(Path path, size_t bytes) {
    switch (path) {
        case Path::stream:
        case Path::pool:
        case Path::graph: return (bytes + kPart - 1) / kPart * kPart;
        case Path::array: return bytes + 8 * kMiB;
        case Path::mipmap: return bytes * 3 / 2 + 16 * kMiB;
        default: return bytes + kGranule;
    }
}

void try_paths(const Device& device) {
    Memory memory(device);
    const size_t before = free_bytes();
    for (int i = 0; i < static_cast<int>(Path::count_); ++i) {
        const auto path = static_cast<Path>(i);
        Block block;
        DRIVER_OK(memory.allocate(path, 16 * kMiB, block));
        check(free_bytes() <= before, "%s takes memory", name_of(path));
        memory.free(block);
        memory.trim();
    }
    check(free_bytes() + 2 * kPart >= before, "everything is free again");
}

struct Round {
    std::mt19937_64& random;
    Memory& memory;
    size_t quota;
    std::vector<Block> blocks;
    size_t taken = 0, asked = 0;

    size_t below(size_t limit) { return std::uniform_int_distribution<size_t>(0, limit - 1)(random); }

    void count_taken(Path path, size_t bytes, size_t before) {
        size_t after = memory.idle_free_bytes();
        for (int i = 0; i < 100 && after < before && before - after > most_taken(path, bytes); ++i) {
            after = memory.idle_free_bytes();
        }
        expect(after >= before || before - after <= most_taken(path, bytes), "%s of %zu bytes took %zu", name_of(path),
               bytes, before - after);
        taken += before - after;
    }
    // True if it succeeded. If it did not, there was too little memory.
    bool take(Path path, size_t bytes) {
        const size_t before = memory.idle_free_bytes();
        Block block;
        const CUresult result = memory.allocate(path, bytes, block);
        if (result != CUDA_SUCCESS) {
            expect(result == CUDA_ERROR_OUT_OF_MEMORY, "%s: %s", name_of(path), result_name(result).c_str());
            // Blocks of less than 8 MiB share slabs, whose gaps are free.
            expect(most_taken(path, bytes) + 4 * kPart > before, "%s of %zu bytes fails with %zu free", name_of(path),
                   bytes, before);
            count_taken(path, bytes, before);  // a pool may have grown, and keeps a part of that
            return false;
        }
        count_taken(path, bytes, before);
        asked += bytes;
        blocks.push_back(block);
        return true;
    }
    void fill() {
        int failures = 0;
        while (failures < 8) {
            const auto path = static_cast<Path>(below(static_cast<size_t>(Path::count_)));
            const size_t most = below(4) == 0 ? quota / 4 : 24 * kMiB;
            failures += take(path, 1 + below(most)) ? 0 : 1;
        }
        for (size_t bytes = quota / 2; bytes >= kGranule; bytes /= 2) {
            while (take(Path::plain, bytes / kGranule * kGranule)) {
            }
        }
        for (size_t bytes = kMiB; bytes >= 512; bytes /= 2) {
            while (take(Path::plain, bytes)) {
            }
        }
    }
    void empty() {
        std::shuffle(blocks.begin(), blocks.end(), random);
        for (const Block& block : blocks) {
            const size_t before = free_bytes();
            memory.free(block);
            if (getenv("QUOTA_ROUNDS_TRACE") != nullptr) {
                note("%s of %zu freed: %zd", name_of(block.path), block.bytes,
                     static_cast<ssize_t>(free_bytes() - before));
            }
        }
        blocks.clear();
        memory.trim();
    }
};

void use_quota(const Device& device, long long rounds, long long seed) {
    std::mt19937_64 random(static_cast<unsigned long long>(seed));
    Memory memory(device);
    size_t free = 0, total = 0, on_device = 0;
    DRIVER_OK(cuMemGetInfo(&free, &total));
    DRIVER_OK(cuDeviceTotalMem(&on_device, device.device()));
    check(free == total && total == on_device, "a device with a quota: %zu free of %zu, %zu", free, total, on_device);
    size_t allocations = 0;
    for (long long i = 0; i < rounds; ++i) {
        Round round{random, memory, total, {}};
        round.fill();
        const size_t left = free_bytes();
        expect(left < kGranule, "round %lld: %zu of the quota is left", i, left);
        expect(round.taken + left == total, "round %lld: %zu taken and %zu left of %zu", i, round.taken, left, total);
        expect(round.asked <= total, "round %lld: %zu of %zu", i, round.asked, total);
        allocations += round.blocks.size();
        round.empty();
        const size_t back = free_bytes();
        expect(back == total, "round %lld: %zu of %zu are free after all is freed", i, back, total);
        if (failed_checks != 0) {
            memory.report();
            return;
        }
    }
    check(allocations != 0, "the quota to the granule and no more, and an account of zero after");
    note("%lld rounds with %zu allocations in %zu MiB", rounds, allocations, total / kMiB);
}

}  // namespace

int main(int argc, char** argv) {
    Program program("quota_rounds", argc, argv, 600);
    const Device device;
    program.section("paths", [&] { try_paths(device); });
    program.section(
        "quota", [&] { use_quota(device, program.number("rounds", 10), program.number("seed", 1)); }, false);
    return program.finish();
}
