// Device and host memory: many sizes, pointer attributes, virtual memory management, stream-ordered allocation, pinned
// and registered host memory. Setting: blocks.
#include "tests/gpu/memory.h"

#include <algorithm>
#include <cstdint>

#include "tests/gpu/driver.h"
#include "tests/gpu/images.h"

using namespace gpupool::programs;

namespace {

void many_sizes(unsigned count) {
    struct Block {
        CUdeviceptr address;
        size_t bytes;
        uint8_t value;
    };
    std::vector<Block> blocks;
    unsigned state = 1;
    const auto next = [&] { return state = state * 1664525u + 1013904223u, state >> 8; };
    for (unsigned i = 0; i < count; i++) {
        // Sizes from one byte to some MiB, most of them small; some blocks in the middle are freed again.
        const size_t bytes = 1 + next() % (size_t{1} << (4 + next() % 18));
        CUdeviceptr address = 0;
        DRIVER_OK(cuMemAlloc(&address, bytes));
        const auto value = static_cast<uint8_t>(next());
        DRIVER_OK(cuMemsetD8(address, value, bytes));
        blocks.push_back({address, bytes, value});
        if (i % 3 == 2) {
            const size_t victim = next() % blocks.size();
            DRIVER_OK(cuMemFree(blocks[victim].address));
            blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(victim));
        }
    }
    std::sort(blocks.begin(), blocks.end(), [](const Block& a, const Block& b) { return a.address < b.address; });
    int overlapping = 0, unaligned = 0, wrong = 0;
    for (size_t i = 0; i < blocks.size(); i++) {
        overlapping += i + 1 < blocks.size() && blocks[i].address + blocks[i].bytes > blocks[i + 1].address;
        unaligned += blocks[i].address % 256 != 0;
        uint8_t ends[2] = {};
        DRIVER_OK(cuMemcpyDtoH(&ends[0], blocks[i].address, 1));
        DRIVER_OK(cuMemcpyDtoH(&ends[1], blocks[i].address + blocks[i].bytes - 1, 1));
        wrong += ends[0] != blocks[i].value || ends[1] != blocks[i].value;
    }
    check(overlapping == 0, "%zu blocks: %d overlap", blocks.size(), overlapping);
    check(unaligned == 0, "%d of them are not aligned to 256 bytes", unaligned);
    check(wrong == 0, "%d of them lost their contents", wrong);
    for (const Block& block : blocks) {
        DRIVER_OK(cuMemFree(block.address));
    }
}

void information(CUdevice device) {
    size_t device_bytes = 0, total = 0, before = 0, held = 0, after = 0;
    constexpr size_t kBytes = 64 << 20;
    DRIVER_OK(cuDeviceTotalMem(&device_bytes, device));
    DRIVER_OK(cuMemGetInfo(&before, &total));
    note("total memory: %zu MiB of the device, %zu MiB of the context", device_bytes >> 20, total >> 20);
    check(total <= device_bytes + device_bytes / 50 && total >= device_bytes - device_bytes / 50, "which agree");
    check(before > 0 && before <= total, "free memory: %zu of %zu MiB", before >> 20, total >> 20);
    CUdeviceptr address = 0;
    // Other programs on the GPU also change the free memory, but not in every attempt.
    for (int attempt = 0; attempt < 10 && !(held + kBytes <= before && after >= held + kBytes); attempt++) {
        DRIVER_OK(cuMemGetInfo(&before, &total));
        DRIVER_OK(cuMemAlloc(&address, kBytes));
        DRIVER_OK(cuMemGetInfo(&held, &total));
        DRIVER_OK(cuMemFree(address));
        DRIVER_OK(cuMemGetInfo(&after, &total));
    }
    check(held + kBytes <= before, "64 MiB allocated take %zu MiB", (before - held) >> 20);
    check(after >= held + kBytes, "and give %zu MiB back", (after - held) >> 20);
    check(cuMemAlloc(&address, total + (size_t{1} << 30)) == CUDA_ERROR_OUT_OF_MEMORY,
          "more than all is out of memory");
}

void pointers(const Device& device) {
    constexpr size_t kBytes = 100'000;
    CUdeviceptr block = 0, other = 0, base = 0;
    size_t size = 0;
    DRIVER_OK(cuMemAlloc(&block, kBytes));
    DRIVER_OK(cuMemAlloc(&other, kBytes));
    DRIVER_OK(cuMemGetAddressRange(&base, &size, block + 777));
    check(base == block && size >= kBytes, "address range of a pointer inside: %zu bytes", size);

    unsigned type = 0;
    CUcontext context = nullptr;
    int ordinal = -1;
    unsigned managed = ~0u;  // four bytes are written
    unsigned long long id = 0, other_id = 0;
    CUdeviceptr start = 0, device_pointer = 0;
    CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,    CU_POINTER_ATTRIBUTE_CONTEXT,
                                   CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                   CU_POINTER_ATTRIBUTE_BUFFER_ID,      CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                   CU_POINTER_ATTRIBUTE_RANGE_SIZE,     CU_POINTER_ATTRIBUTE_DEVICE_POINTER};
    void* values[] = {&type, &context, &ordinal, &managed, &id, &start, &size, &device_pointer};
    DRIVER_OK(cuPointerGetAttributes(8, names, values, block + 8));
    check(type == CU_MEMORYTYPE_DEVICE, "type of a pointer (%u)", type);
    check(ordinal == device.device(), "its device (%d)", ordinal);
    check(managed == 0, "it is not managed (%#x)", managed);
    check(context == device.context(), "its context");
    check(start == block && size >= kBytes && device_pointer == block + 8, "its range and its device address");
    DRIVER_OK(cuPointerGetAttribute(&other_id, CU_POINTER_ATTRIBUTE_BUFFER_ID, other));
    check(id != other_id, "two buffers have different ids");

    // Querying several attributes of memory that CUDA does not know is no error: the values are zero.
    int on_stack = 0;
    type = 99;
    void* two[] = {&type, &device_pointer};
    CUpointer_attribute two_names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_POINTER};
    check_result(cuPointerGetAttributes(2, two_names, two, reinterpret_cast<CUdeviceptr>(&on_stack)), CUDA_SUCCESS,
                 "attributes of ordinary memory");
    check(type == 0, "its type is unknown");
    DRIVER_OK(cuMemFree(block));
    DRIVER_OK(cuMemFree(other));
}

void pitched() {
    CUdeviceptr block = 0;
    size_t pitch = 0;
    DRIVER_OK(cuMemAllocPitch(&block, &pitch, 1001, 37, 16));
    check(pitch >= 1001 && pitch % 16 == 0 && block % 256 == 0, "a pitch of %zu for rows of 1001 bytes", pitch);
    DRIVER_OK(cuMemsetD2D8(block, pitch, 0x77, 1001, 37));
    uint8_t last = 0;
    DRIVER_OK(cuMemcpyDtoH(&last, block + 36 * pitch + 1000, 1));
    check(last == 0x77, "the last byte of the last row");
    DRIVER_OK(cuMemFree(block));
}

// A free waits for earlier work, so that the memory is not reused while that runs.
void reuse_while_busy(const Module& module) {
    constexpr unsigned kWords = 4096, kLaunches = 400;
    constexpr size_t kBytes = kWords * sizeof(unsigned);
    const CUfunction add = module.function("add_value");
    CUstream stream = nullptr, other_stream = nullptr;
    unsigned* back = nullptr;  // pinned, so that the copy does not wait for the stream
    DRIVER_OK(cuMemHostAlloc(reinterpret_cast<void**>(&back), kBytes, 0));
    DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DRIVER_OK(cuStreamCreate(&other_stream, CU_STREAM_NON_BLOCKING));
    int wrong = 0, reused = 0;
    for (unsigned round = 0; round < 20; round++) {
        CUdeviceptr block = 0, other = 0;
        DRIVER_OK(cuMemAlloc(&block, kBytes));
        DRIVER_OK(cuMemsetD32Async(block, round, kWords, stream));
        for (unsigned i = 0; i < kLaunches; i++) {
            DRIVER_OK(launch(add, kWords / 128, 128, stream, block, kWords, 1u));
        }
        DRIVER_OK(cuMemcpyDtoHAsync(back, block, kBytes, stream));
        DRIVER_OK(cuMemFree(block));
        DRIVER_OK(cuMemAlloc(&other, kBytes));
        DRIVER_OK(cuMemsetD32Async(other, 12345, kWords, other_stream));
        DRIVER_OK(cuStreamSynchronize(other_stream));
        DRIVER_OK(cuStreamSynchronize(stream));
        wrong += !std::all_of(back, back + kWords, [&](unsigned value) { return value == round + kLaunches; });
        reused += other == block;
        DRIVER_OK(cuMemFree(other));
    }
    check(wrong == 0, "20 rounds of allocate, work, free, give to another: %d wrong", wrong);
    note("the memory was given to another at once in %d of 20 rounds", reused);
    DRIVER_OK(cuStreamDestroy(other_stream));
    DRIVER_OK(cuStreamDestroy(stream));
    DRIVER_OK(cuMemFreeHost(back));
}

}  // namespace

int main(int argc, char** argv) {
    Program program("memory", argc, argv);
    const Device device;
    const Module module(kernels_ptx().data);
    program.section("many_sizes", [&] { many_sizes(static_cast<unsigned>(program.number("blocks", 400))); });
    program.section("information", [&] { information(device.device()); });
    program.section("pointers", [&] { pointers(device); });
    program.section("pitched", pitched);
    program.section("reuse_while_busy", [&] { reuse_while_busy(module); });
    program.section("virtual_memory", [&] { virtual_memory(device, module); });
    program.section("exported", [&] { exported_memory(device); });
    program.section("stream_ordered", [&] { stream_ordered(device, module); });
    program.section("pools", [&] { memory_pools(device); });
    program.section("memory_of_the_host", [&] { memory_of_the_host(device); });
    program.section("host_memory", [&] { host_memory(device); });
    program.section("no_bytes", no_bytes);
    program.section("unregistering", unregistering);
    program.section("range_of_a_mapping", range_of_a_mapping);
    program.section("ends", ends);
    return program.finish();
}
