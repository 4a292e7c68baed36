// Modes about memory: the charges to a quota, and how frees and failing copies affect other threads.
//
//   quota             under a quota of 64 MiB a device, all of it is available whatever was done before
//   free_behind_wait  stream-ordered frees behind a stream that waits do not block other threads
//   free_in_function  a host function may not free memory, and what it tried to free is still there
//   failing_copies    a copy that fails returns its own error, even while other threads synchronize
//   leave_secret      fills most of the device's memory and ends without freeing it
//   find_secret       finds nothing of it in as much fresh memory of each kind
//   load_when_full    code is loaded into memory that the client keeps and does not use

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/e2e/sessions/driver.h"
#include "tests/support/waiting.h"

namespace gpupool::session_program {
namespace {

constexpr std::size_t kMiB = 1u << 20, kQuota = 64 * kMiB;

// Checks that one allocation of the whole quota succeeds, and one byte more does not.
void expect_all(const char* after) {
    expect(free_bytes() == kQuota, after);
    CUdeviceptr all = 0;
    must(driver.cuMemAlloc(&all, kQuota), after);
    CUdeviceptr more = 0;
    expect(driver.cuMemAlloc(&more, 1) == CUDA_ERROR_OUT_OF_MEMORY, after);
    must(driver.cuMemFree(all), "cuMemFree");
}

void use_small_blocks() {
    std::vector<CUdeviceptr> blocks(100);
    for (CUdeviceptr& block : blocks) {
        must(driver.cuMemAlloc(&block, kMiB / 4), "cuMemAlloc");
    }
    expect(free_bytes() == kQuota - 25 * kMiB, "small blocks");
    for (const CUdeviceptr block : blocks) {
        must(driver.cuMemFree(block), "cuMemFree");
    }
    expect_all("after small blocks");
}

// Fills what the pool keeps of freed memory.
void fill_pool(std::size_t bytes, CUstream stream) {
    CUmemoryPool pool = nullptr;
    std::uint64_t keep_all = ~std::uint64_t{0};
    must(driver.cuDeviceGetDefaultMemPool(&pool, 0), "cuDeviceGetDefaultMemPool");
    must(driver.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep_all), "cuMemPoolSetAttribute");
    CUdeviceptr block = 0;
    must(driver.cuMemAllocAsync(&block, bytes, stream), "cuMemAllocAsync");
    must(driver.cuMemsetD8Async(block, 1, bytes, stream), "cuMemsetD8Async");
    must(driver.cuMemFreeAsync(block, stream), "cuMemFreeAsync");
}

void use_pool(CUstream stream) {
    fill_pool(48 * kMiB, stream);
    CUdeviceptr plain = 0;
    must(driver.cuMemAlloc(&plain, 48 * kMiB), "cuMemAlloc of what the pool keeps");
    must(driver.cuMemFree(plain), "cuMemFree");
    expect_all("after the pool");
}

CUmemoryPool make_pool() {
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemoryPool pool = nullptr;
    must(driver.cuMemPoolCreate(&pool, &properties), "cuMemPoolCreate");
    std::uint64_t keep_all = ~std::uint64_t{0};
    must(driver.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep_all), "cuMemPoolSetAttribute");
    return pool;
}

// A pool of the program keeps freed memory until it is trimmed, and that counts.
void use_own_pool(CUstream stream) {
    const CUmemoryPool pool = make_pool();
    CUdeviceptr block = 0, plain = 0;
    for (int i = 0; i < 2; ++i) {  // the second round reuses the memory that the pool kept
        must(driver.cuMemAllocFromPoolAsync(&block, kQuota / 2, pool, stream), "cuMemAllocFromPoolAsync");
        must(driver.cuMemFreeAsync(block, stream), "cuMemFreeAsync");
        must(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
    }
    expect(free_bytes() == kQuota / 2, "kept by a pool");
    expect(driver.cuMemAlloc(&plain, kQuota / 2 + 1) == CUDA_ERROR_OUT_OF_MEMORY, "memory that a pool keeps");
    expect(driver.cuMemAllocFromPoolAsync(&block, kQuota + 1, pool, stream) == CUDA_ERROR_OUT_OF_MEMORY, "beyond");
    must(driver.cuMemPoolTrimTo(pool, 0), "cuMemPoolTrimTo");
    expect_all("after a pool was trimmed");
    must(driver.cuMemAllocFromPoolAsync(&block, kQuota / 4, pool, stream), "cuMemAllocFromPoolAsync");
    must(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
    must(driver.cuMemPoolDestroy(pool), "cuMemPoolDestroy");
    expect(free_bytes() == kQuota - kQuota / 4, "of a pool that was destroyed");
    must(driver.cuMemFreeAsync(block, stream), "cuMemFreeAsync");
    must(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
    expect_all("after a pool was destroyed");
}

// A pool allocates more from the device than was asked for and keeps it, so the small remainder of a quota must not be
// given out repeatedly.
void use_many_pools(CUstream stream) {
    constexpr std::size_t kLeft = 512, kSmallestArray = 512;
    const CUmemoryPool first = make_pool();
    CUdeviceptr most = 0, block = 0;
    must(driver.cuMemAllocFromPoolAsync(&most, kQuota - kLeft - kSmallestArray, first, stream),
         "cuMemAllocFromPoolAsync");
    const CUDA_ARRAY_DESCRIPTOR wanted{1, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1};
    CUarray array = nullptr;
    must(driver.cuArrayCreate(&array, &wanted), "cuArrayCreate");
    std::vector<CUmemoryPool> pools;
    std::uint64_t queued_bytes = 0;
    for (int i = 0; i < 50; ++i) {
        const CUmemoryPool pool = pools.emplace_back(make_pool());
        if (driver.cuMemAllocFromPoolAsync(&block, 1, pool, stream) == CUDA_SUCCESS) {
            must(driver.cuMemFreeAsync(block, stream), "cuMemFreeAsync");
        }
        must(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
        std::uint64_t bytes = 0;
        must(driver.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes), "cuMemPoolGetAttribute");
        queued_bytes += bytes;
    }
    // One pool may exceed the quota by its rounding, and none after it.
    expect(queued_bytes <= 2 * kLeft, "many pools");
    block = 1;
    must(driver.cuMemAllocFromPoolAsync(&block, 0, first, stream), "nothing of a pool");
    expect(block == 0, "nothing of a pool");
    for (const CUmemoryPool pool : pools) {
        must(driver.cuMemPoolDestroy(pool), "cuMemPoolDestroy");
    }
    must(driver.cuArrayDestroy(array), "cuArrayDestroy");
    must(driver.cuMemFreeAsync(most, stream), "cuMemFreeAsync");
    must(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
    must(driver.cuMemPoolDestroy(first), "cuMemPoolDestroy");
    expect_all("after many pools");
}

// Memory freed in a stream that has not reached the free yet is not available to another stream, so a pool would grow
// with each of these.
void use_pool_of_waiting_streams() {
    constexpr std::size_t kBlock = 48 * kMiB;
    const CUmemoryPool pool = make_pool();
    CUstream streams[5] = {};
    std::uint64_t queued_bytes = 0;
    for (std::size_t i = 0; i < std::size(streams); ++i) {
        must(driver.cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        CUdeviceptr block = 0;
        const CUresult result = driver.cuMemAllocFromPoolAsync(&block, kBlock, pool, streams[i]);
        expect(result == (i == 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY), "a pool of waiting streams");
        if (i == 0) {
            block_until_release(streams[i]);
            must(driver.cuMemFreeAsync(block, streams[i]), "cuMemFreeAsync");
        }
    }
    must(driver.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &queued_bytes),
         "cuMemPoolGetAttribute");
    expect(queued_bytes <= 2 * kBlock, "what such a pool holds");
    release();
    must(driver.cuCtxSynchronize(), "cuCtxSynchronize");
    must(driver.cuMemPoolDestroy(pool), "cuMemPoolDestroy");
    expect_all("after a pool of waiting streams");
}

// Creates memory, maps it, and releases the handle, as usual. Mapped memory still counts.
void use_mappings() {
    constexpr std::size_t kPart = 16 * kMiB, kParts = kQuota / kPart;
    CUdeviceptr place = 0;
    must(driver.cuMemAddressReserve(&place, 2 * kQuota, 0, 0, 0), "cuMemAddressReserve");
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle = 0;
    for (std::size_t part = 0; part < kParts; ++part) {
        must(driver.cuMemCreate(&handle, kPart, &properties, 0), "cuMemCreate");
        must(driver.cuMemMap(place + part * kPart, kPart, 0, handle, 0), "cuMemMap");
        must(driver.cuMemRelease(handle), "cuMemRelease");
        must(driver.cuMemSetAccess(place + part * kPart, kPart, &access, 1), "cuMemSetAccess");
        must(driver.cuMemsetD8Async(place + part * kPart, 1, kPart, nullptr), "cuMemsetD8Async");
    }
    expect(driver.cuMemCreate(&handle, kPart, &properties, 0) == CUDA_ERROR_OUT_OF_MEMORY, "cuMemCreate beyond");
    must(driver.cuCtxSynchronize(), "cuCtxSynchronize");
    // Gets another handle by the address. The memory exists, and counts, as long as the mapping or a handle does.
    must(driver.cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(place)), "cuMemRetainAllocationHandle");
    must(driver.cuMemUnmap(place, kQuota), "cuMemUnmap");
    expect(free_bytes() == kQuota - kPart, "retained");
    must(driver.cuMemRelease(handle), "cuMemRelease");
    expect(driver.cuMemRelease(handle) != CUDA_SUCCESS, "cuMemRelease again");
    expect_all("after mappings");
    CUdeviceptr plain = 0;
    must(driver.cuMemAlloc(&plain, kMiB), "cuMemAlloc");
    expect(driver.cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(plain)) == CUDA_ERROR_INVALID_VALUE,
           "retain of what has no handle");
    must(driver.cuMemFree(plain), "cuMemFree");
}

void use_arrays() {
    const CUDA_ARRAY_DESCRIPTOR wanted{2048, 2048, CU_AD_FORMAT_FLOAT, 1};  // 16 MiB
    std::vector<CUarray> arrays;
    CUarray array = nullptr;
    CUresult result = CUDA_SUCCESS;
    while ((result = driver.cuArrayCreate(&array, &wanted)) == CUDA_SUCCESS) {
        arrays.push_back(array);
    }
    expect(result == CUDA_ERROR_OUT_OF_MEMORY && arrays.size() == 4, "arrays");
    for (const CUarray each : arrays) {
        must(driver.cuArrayDestroy(each), "cuArrayDestroy");
    }
    expect_all("after arrays");
    // An array counts as the tiles that the driver allocates.
    const CUDA_ARRAY3D_DESCRIPTOR deep{1, 1, 16384, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0};
    must(driver.cuArray3DCreate(&array, &deep), "cuArray3DCreate");
    expect(free_bytes() == kQuota - 8 * kMiB, "an array of many slices");
    must(driver.cuArrayDestroy(array), "cuArrayDestroy");
    expect_all("after an array of many slices");
}

// A graph that allocates, and frees where asked to.
struct AllocatingGraph {
    CUgraph graph = nullptr;
    CUgraphExec executable = nullptr;
    CUdeviceptr address = 0;

    AllocatingGraph(std::size_t bytes, bool frees) {
        CUDA_MEM_ALLOC_NODE_PARAMS wanted{};
        wanted.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        wanted.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
        wanted.bytesize = bytes;
        CUgraphNode allocates = nullptr, ends = nullptr;
        must(driver.cuGraphCreate(&graph, 0), "cuGraphCreate");
        must(driver.cuGraphAddMemAllocNode(&allocates, graph, nullptr, 0, &wanted), "cuGraphAddMemAllocNode");
        address = wanted.dptr;
        if (frees) {
            must(driver.cuGraphAddMemFreeNode(&ends, graph, &allocates, 1, address), "cuGraphAddMemFreeNode");
        }
    }
    CUresult instantiate() { return driver.cuGraphInstantiateWithFlags(&executable, graph, 0); }
    CUresult run(CUstream stream) const {
        const CUresult launched = driver.cuGraphLaunch(executable, stream);
        must(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
        return launched;
    }
    void destroy() {
        if (executable != nullptr) {
            must(driver.cuGraphExecDestroy(executable), "cuGraphExecDestroy");
        }
        must(driver.cuGraphDestroy(graph), "cuGraphDestroy");
    }
};

CUgraphExec captured_allocation(std::size_t bytes, CUstream stream) {
    CUgraph graph = nullptr;
    CUgraphExec executable = nullptr;
    CUdeviceptr block = 0;
    must(driver.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), "cuStreamBeginCapture");
    must(driver.cuMemAllocAsync(&block, bytes, stream), "cuMemAllocAsync in a capture");
    must(driver.cuStreamEndCapture(stream, &graph), "cuStreamEndCapture");
    must(driver.cuGraphInstantiateWithFlags(&executable, graph, 0), "cuGraphInstantiateWithFlags");
    must(driver.cuGraphDestroy(graph), "cuGraphDestroy");
    return executable;
}

// The memory that a graph allocates counts from its launch on. The driver keeps it after the graph's free until an
// allocation needs it.
void use_graphs(CUstream stream) {
    CUstream other = nullptr;
    CUdeviceptr block = 0;
    must(driver.cuStreamCreate(&other, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    AllocatingGraph too_large(kQuota + 1, true), holds(kQuota / 2, false), passes(kQuota / 2, true),
        no_room(kQuota, true);
    expect(too_large.instantiate() == CUDA_ERROR_OUT_OF_MEMORY, "a graph larger than the quota");
    must(holds.instantiate(), "cuGraphInstantiateWithFlags");
    must(passes.instantiate(), "cuGraphInstantiateWithFlags");
    must(no_room.instantiate(), "cuGraphInstantiateWithFlags");
    expect_all("before the launch");
    must(holds.run(stream), "a launch");
    expect(free_bytes() == kQuota / 2, "held by a graph");
    expect(driver.cuMemAlloc(&block, kQuota / 2 + 1) == CUDA_ERROR_OUT_OF_MEMORY, "beside what a graph holds");
    expect(no_room.run(stream) == CUDA_ERROR_OUT_OF_MEMORY, "a launch without room");
    for (int i = 0; i < 3; ++i) {
        must(passes.run(i == 1 ? other : stream), "a launch of what has its memory");
    }
    expect(free_bytes() == 0, "kept by a graph");
    must(driver.cuMemAlloc(&block, kQuota / 2), "what an idle graph kept");
    expect(passes.run(stream) == CUDA_ERROR_OUT_OF_MEMORY, "a launch of what had its memory");
    must(driver.cuMemFree(block), "cuMemFree");
    must(passes.run(stream), "a launch with room again");
    must(driver.cuMemFree(holds.address), "cuMemFree of a graph's memory");
    must(no_room.run(other), "a launch with room at last");
    CUgraphExec first = captured_allocation(kQuota / 2, stream), second = captured_allocation(kQuota, stream);
    must(driver.cuGraphLaunch(first, stream), "cuGraphLaunch");
    must(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
    for (int i = 0; i < 2; ++i) {  // the launch that fails allocates nothing
        expect(driver.cuGraphLaunch(second, stream) == CUDA_ERROR_OUT_OF_MEMORY, "a captured allocation without room");
    }
    must(driver.cuGraphExecDestroy(second), "cuGraphExecDestroy");
    must(driver.cuGraphExecDestroy(first), "cuGraphExecDestroy");
    for (AllocatingGraph* graph : {&too_large, &holds, &passes, &no_room}) {
        graph->destroy();
    }
    must(driver.cuStreamDestroy(other), "cuStreamDestroy");
}

int run_quota(CUstream stream) {
    expect_all("at first");
    use_small_blocks();
    use_pool(stream);
    use_own_pool(stream);
    use_many_pools(stream);
    use_pool_of_waiting_streams();
    use_mappings();
    use_arrays();
    use_graphs(stream);
    return 0;
}

int free_behind_wait(CUcontext context, CUstream stream) {
    block_until_release(stream);
    // Gives the stream that waits more than the worker queues for it, and so blocks, possibly in a free.
    std::atomic<bool> enough{false};
    test::ObservedThread freeing([&] {
        use(context);
        while (!enough) {
            CUdeviceptr block = 0;
            must(driver.cuMemAllocAsync(&block, 64 * kMiB, stream), "cuMemAllocAsync");
            must(driver.cuMemsetD8Async(block, 1, 64, stream), "cuMemsetD8Async");
            must(driver.cuMemFreeAsync(block, stream), "cuMemFreeAsync");
        }
    });
    expect(freeing.blocks(std::chrono::milliseconds(200)), "a thread that frees too much");
    CUstream other = nullptr;
    must(driver.cuStreamCreate(&other, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    CUdeviceptr block = 0;
    must(driver.cuMemAllocAsync(&block, kMiB, other), "cuMemAllocAsync on another stream");
    must(driver.cuStreamSynchronize(other), "cuStreamSynchronize of another stream");
    must(driver.cuMemFreeAsync(block, other), "cuMemFreeAsync");
    enough = true;
    release();
    freeing.join();
    must(driver.cuCtxSynchronize(), "cuCtxSynchronize");
    return 0;
}

int free_in_function(CUstream stream) {
    static void* memory = nullptr;
    static CUresult freed = CUDA_SUCCESS, unregistered = CUDA_SUCCESS, allocated = CUDA_SUCCESS;
    static std::vector<char> registered(kMiB);
    must(driver.cuMemHostAlloc(&memory, kMiB, 0), "cuMemHostAlloc");
    must(driver.cuMemHostRegister(registered.data(), registered.size(), 0), "cuMemHostRegister");
    must(driver.cuLaunchHostFunc(
             stream,
             [](void*) {
                 void* more = nullptr;
                 freed = driver.cuMemFreeHost(memory);
                 unregistered = driver.cuMemHostUnregister(registered.data());
                 allocated = driver.cuMemHostAlloc(&more, kMiB, 0);
             },
             nullptr),
         "cuLaunchHostFunc");
    must(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
    expect(freed == CUDA_ERROR_NOT_PERMITTED, "cuMemFreeHost in a host function");
    expect(unregistered == CUDA_ERROR_NOT_PERMITTED, "cuMemHostUnregister in a host function");
    expect(allocated == CUDA_ERROR_NOT_PERMITTED, "cuMemHostAlloc in a host function");
    std::memset(memory, 1, kMiB);
    must(driver.cuMemFreeHost(memory), "cuMemFreeHost");
    must(driver.cuMemHostUnregister(registered.data()), "cuMemHostUnregister");
    return 0;
}

int failing_copies(CUcontext context, CUstream stream) {
    constexpr std::size_t kBytes = 4 * kMiB;
    CUdeviceptr large = 0;
    must(driver.cuMemAlloc(&large, 32 * kMiB), "cuMemAlloc");
    std::atomic<bool> done{false};
    std::thread synchronizing([&] {
        use(context);
        while (!done) {
            (void)driver.cuStreamSynchronize(stream);
        }
    });
    std::vector<char> host(kBytes);
    int silent = 0;
    for (int i = 0; i < 200; ++i) {  // more than there is
        silent += driver.cuMemcpyDtoH(host.data(), large + 30 * kMiB, kBytes) == CUDA_SUCCESS ? 1 : 0;
    }
    done = true;
    synchronizing.join();
    say("silent", silent);
    return silent == 0 ? 0 : 14;
}

int load_when_full(CUstream stream) {
    constexpr std::size_t kLeft = 128 * kMiB, kKept = 64 * kMiB;
    const char* const code =
        ".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .align 4 .b8 words[100663296];\n"
        ".visible .entry nothing() { ret; }\n";  // 96 MiB
    CUdeviceptr most = 0, more = 0;
    must(driver.cuMemAlloc(&most, free_bytes() - kLeft), "cuMemAlloc of most");
    fill_pool(kKept, stream);
    CUmodule module = nullptr;
    must(driver.cuModuleLoadData(&module, code), "cuModuleLoadData");
    CUfunction function = nullptr;
    must(driver.cuModuleGetFunction(&function, module, "nothing"), "cuModuleGetFunction");
    must(driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr), "cuLaunchKernel");
    must(driver.cuCtxSynchronize(), "cuCtxSynchronize");
    expect(driver.cuMemAlloc(&more, kKept) == CUDA_ERROR_OUT_OF_MEMORY, "the module has it");
    return 0;
}

constexpr unsigned char kSecret = 0xa5;
constexpr std::size_t kPiece = 8 * kMiB;

std::size_t most_pieces() {
    return free_bytes() * 3 / 4 / kPiece;
}

int leave_secret(CUstream stream) {
    for (std::size_t left = most_pieces(); left != 0; --left) {
        CUdeviceptr piece = 0;
        must(driver.cuMemAlloc(&piece, kPiece), "cuMemAlloc");
        must(driver.cuMemsetD8Async(piece, kSecret, kPiece, stream), "cuMemsetD8Async");
    }
    must(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
    return 0;
}

void expect_no_secret(CUdeviceptr piece, std::vector<unsigned char>& room) {
    must(driver.cuMemcpyDtoH(room.data(), piece, room.size()), "cuMemcpyDtoH");
    const std::vector<unsigned char> secret(16, kSecret);
    expect(std::search(room.begin(), room.end(), secret.begin(), secret.end()) == room.end(),
           "memory of another session");
}

int find_secret(CUstream stream) {
    std::vector<unsigned char> room(kPiece);
    std::vector<CUdeviceptr> pieces(most_pieces());
    for (CUdeviceptr& piece : pieces) {
        must(driver.cuMemAlloc(&piece, kPiece), "cuMemAlloc");
        expect_no_secret(piece, room);
    }
    for (const CUdeviceptr piece : pieces) {
        must(driver.cuMemFree(piece), "cuMemFree");
    }
    for (std::size_t left = most_pieces() / 2; left != 0; --left) {
        CUdeviceptr piece = 0;
        must(driver.cuMemAllocAsync(&piece, kPiece, stream), "cuMemAllocAsync");
        must(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
        expect_no_secret(piece, room);
    }
    void* pinned = nullptr;
    must(driver.cuMemHostAlloc(&pinned, kPiece, CU_MEMHOSTALLOC_DEVICEMAP), "cuMemHostAlloc");
    const auto* const bytes = static_cast<const unsigned char*>(pinned);
    expect(std::find(bytes, bytes + kPiece, kSecret) == bytes + kPiece, "pinned memory of another session");
    return 0;
}

}  // namespace

int run_memory(const std::string& mode) {
    if (mode != "quota" && mode != "free_behind_wait" && mode != "free_in_function" && mode != "failing_copies" &&
        mode != "load_when_full" && mode != "leave_secret" && mode != "find_secret") {
        return -1;
    }
    const CUcontext context = begin();
    CUstream stream = nullptr;
    must(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    if (mode == "quota") {
        return run_quota(stream);
    }
    if (mode == "leave_secret") {
        return leave_secret(stream);
    }
    if (mode == "find_secret") {
        return find_secret(stream);
    }
    if (mode == "load_when_full") {
        return load_when_full(stream);
    }
    if (mode == "free_behind_wait") {
        return free_behind_wait(context, stream);
    }
    return mode == "free_in_function" ? free_in_function(stream) : failing_copies(context, stream);
}

}  // namespace gpupool::session_program
