// Every one- and two-dimensional copy and memset, with its result checked: synchronous, asynchronous, per-thread
// stream, sizes of zero, odd addresses, arrays, and copies that depend on each other through host memory. Setting:
// bytes.
#include "tests/gpu/copies.h"

#include <algorithm>
#include <cstdint>

#include "tests/gpu/driver.h"

using namespace gpupool::programs;

namespace {

std::vector<uint8_t> pattern(size_t bytes, unsigned seed) {
    std::vector<uint8_t> data(bytes);
    for (size_t i = 0; i < bytes; i++) {
        data[i] = static_cast<uint8_t>(i * 37 + (i >> 8) * 11 + seed);
    }
    return data;
}

struct DeviceBlock {
    explicit DeviceBlock(size_t bytes) { DRIVER_OK(cuMemAlloc(&address, bytes)); }
    ~DeviceBlock() { cuMemFree(address); }
    DeviceBlock(const DeviceBlock&) = delete;
    DeviceBlock& operator=(const DeviceBlock&) = delete;
    CUdeviceptr address = 0;
};

CUdeviceptr as_device(const void* host) {
    return reinterpret_cast<CUdeviceptr>(host);
}

// Copies to `a`, on to `b`, and back to the host; one kind of copy for each step.
template <class In, class Across, class Out>
void round_trip(const char* what, size_t bytes, unsigned seed, In in, Across across, Out out) {
    const DeviceBlock a(bytes), b(bytes);
    const std::vector<uint8_t> source = pattern(bytes, seed);
    std::vector<uint8_t> back(bytes);
    DRIVER_OK(cuMemsetD8(b.address, 0, bytes));
    DRIVER_OK(cuCtxSynchronize());  // a memset does not wait, and `in` may use a non-blocking stream
    DRIVER_OK(in(a.address, source.data(), bytes));
    DRIVER_OK(across(b.address, a.address, bytes));
    DRIVER_OK(out(back.data(), b.address, bytes));
    DRIVER_OK(cuCtxSynchronize());
    check(back == source, "%s: %zu bytes", what, bytes);
}

void one_dimension(const Device& device, size_t bytes) {
    CUstream stream = nullptr;
    DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    const CUcontext context = device.context();
    round_trip("synchronous", bytes, 1, cuMemcpyHtoD, cuMemcpyDtoD, cuMemcpyDtoH);
    round_trip(
        "asynchronous", bytes, 2,
        [&](CUdeviceptr to, const void* from, size_t size) { return cuMemcpyHtoDAsync(to, from, size, stream); },
        [&](CUdeviceptr to, CUdeviceptr from, size_t size) { return cuMemcpyDtoDAsync(to, from, size, stream); },
        [&](void* to, CUdeviceptr from, size_t size) { return cuMemcpyDtoHAsync(to, from, size, stream); });
    round_trip(
        "unified", bytes, 3,
        [](CUdeviceptr to, const void* from, size_t size) { return cuMemcpy(to, as_device(from), size); },
        [](CUdeviceptr to, CUdeviceptr from, size_t size) { return cuMemcpy(to, from, size); },
        [](void* to, CUdeviceptr from, size_t size) { return cuMemcpy(as_device(to), from, size); });
    round_trip(
        "unified asynchronous", bytes, 4,
        [&](CUdeviceptr to, const void* from, size_t size) { return cuMemcpyAsync(to, as_device(from), size, stream); },
        [&](CUdeviceptr to, CUdeviceptr from, size_t size) { return cuMemcpyAsync(to, from, size, stream); },
        [&](void* to, CUdeviceptr from, size_t size) { return cuMemcpyAsync(as_device(to), from, size, stream); });
    round_trip(
        "peer, same context", bytes, 5, cuMemcpyHtoD,
        [&](CUdeviceptr to, CUdeviceptr from, size_t size) { return cuMemcpyPeer(to, context, from, context, size); },
        cuMemcpyDtoH);
    round_trip(
        "peer asynchronous", bytes, 6,
        [&](CUdeviceptr to, const void* from, size_t size) { return cuMemcpyHtoDAsync(to, from, size, stream); },
        [&](CUdeviceptr to, CUdeviceptr from, size_t size) {
            return cuMemcpyPeerAsync(to, context, from, context, size, stream);
        },
        [&](void* to, CUdeviceptr from, size_t size) { return cuMemcpyDtoHAsync(to, from, size, stream); });
    DRIVER_OK(cuStreamDestroy(stream));
}

void per_thread(size_t bytes) {
    const auto in = per_thread_form<decltype(&cuMemcpyHtoD)>("cuMemcpyHtoD");
    const auto across = per_thread_form<decltype(&cuMemcpyDtoDAsync)>("cuMemcpyDtoDAsync");
    const auto out = per_thread_form<decltype(&cuMemcpyDtoHAsync)>("cuMemcpyDtoHAsync");
    round_trip(
        "per-thread forms", bytes, 7, in,
        [&](CUdeviceptr to, CUdeviceptr from, size_t size) { return across(to, from, size, nullptr); },
        [&](void* to, CUdeviceptr from, size_t size) { return out(to, from, size, nullptr); });
    round_trip(
        "on CU_STREAM_PER_THREAD", bytes, 8,
        [](CUdeviceptr to, const void* from, size_t size) {
            return cuMemcpyHtoDAsync(to, from, size, CU_STREAM_PER_THREAD);
        },
        [](CUdeviceptr to, CUdeviceptr from, size_t size) {
            return cuMemcpyDtoDAsync(to, from, size, CU_STREAM_PER_THREAD);
        },
        [](void* to, CUdeviceptr from, size_t size) {
            return cuMemcpyDtoHAsync(to, from, size, CU_STREAM_PER_THREAD);
        });
}

void zero_sizes() {
    const DeviceBlock block(64);
    char host[64] = {};
    check_result(cuMemcpyHtoD(block.address, host, 0), CUDA_SUCCESS, "a copy of nothing in");
    check_result(cuMemcpyDtoH(host, block.address, 0), CUDA_SUCCESS, "a copy of nothing out");
    check_result(cuMemcpyDtoD(block.address, block.address + 8, 0), CUDA_SUCCESS, "a copy of nothing across");
    check_result(cuMemcpyHtoDAsync(block.address, host, 0, nullptr), CUDA_SUCCESS, "an asynchronous one");
    check_result(cuMemsetD8(block.address, 1, 0), CUDA_SUCCESS, "a memset of nothing");
    check_result(cuMemsetD32Async(block.address, 1, 0, nullptr), CUDA_SUCCESS, "an asynchronous memset of nothing");
}

void odd_places() {
    constexpr size_t kRoom = 10'000;
    const DeviceBlock block(kRoom);
    const std::vector<uint8_t> source = pattern(kRoom, 9);
    std::vector<uint8_t> expected(kRoom, 0xcc), back(kRoom);
    DRIVER_OK(cuMemsetD8(block.address, 0xcc, kRoom));
    const size_t places[][3] = {{1, 3, 1}, {17, 5, 31}, {4093, 7, 1025}, {8191, 2, 1809}};  // to, from, bytes
    for (const auto& [to, from, bytes] : places) {
        DRIVER_OK(cuMemcpyHtoD(block.address + to, source.data() + from, bytes));
        std::copy_n(source.begin() + from, bytes, expected.begin() + to);
    }
    DRIVER_OK(cuMemcpyDtoH(back.data() + 1, block.address + 1, kRoom - 1));
    back[0] = 0xcc;
    check(back == expected, "odd addresses and sizes");
    DRIVER_OK(cuMemcpyDtoD(block.address + 5001, block.address + 4093, 907));
    std::copy_n(expected.begin() + 4093, 907, expected.begin() + 5001);
    DRIVER_OK(cuMemcpyDtoH(back.data(), block.address, kRoom));
    check(back == expected, "odd addresses within one allocation");
}

// Many sizes around the limits where drivers change their method.
void sizes() {
    constexpr size_t kMost = (1 << 20) + 9;
    const DeviceBlock block(kMost);
    CUstream stream = nullptr;
    DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    int wrong = 0, tried = 0;
    for (size_t base = 1; base <= kMost; base *= 4) {
        for (const size_t bytes : {base - 1, base, base + 1, base + 8}) {
            const std::vector<uint8_t> source = pattern(bytes, static_cast<unsigned>(bytes));
            std::vector<uint8_t> back(bytes);
            DRIVER_OK(cuMemcpyHtoDAsync(block.address, source.data(), bytes, stream));
            DRIVER_OK(cuMemcpyDtoHAsync(back.data(), block.address, bytes, stream));
            DRIVER_OK(cuStreamSynchronize(stream));
            wrong += back != source;
            tried += 1;
        }
    }
    check(wrong == 0, "%d sizes up to 1 MiB: %d wrong", tried, wrong);
    DRIVER_OK(cuStreamDestroy(stream));
}

// Copies that depend on each other through host memory.
void hazards(size_t bytes) {
    CUstream stream = nullptr;
    DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    const DeviceBlock a(bytes), b(bytes);
    uint8_t* pinned = nullptr;
    DRIVER_OK(cuMemAllocHost(reinterpret_cast<void**>(&pinned), bytes));
    const std::vector<uint8_t> source = pattern(bytes, 10), second = pattern(bytes, 11);
    std::vector<uint8_t> back(bytes);
    int wrong = 0;
    for (int round = 0; round < 10; round++) {
        memset(pinned, 0, bytes);
        DRIVER_OK(cuMemcpyHtoD(a.address, round % 2 == 0 ? source.data() : second.data(), bytes));
        DRIVER_OK(cuMemsetD8(b.address, 0, bytes));
        DRIVER_OK(cuCtxSynchronize());
        DRIVER_OK(cuMemcpyDtoHAsync(pinned, a.address, bytes, stream));
        DRIVER_OK(cuMemcpyHtoDAsync(b.address, pinned, bytes, stream));
        DRIVER_OK(cuMemcpyDtoHAsync(back.data(), b.address, bytes, stream));
        DRIVER_OK(cuStreamSynchronize(stream));
        wrong += back != (round % 2 == 0 ? source : second);
    }
    check(wrong == 0, "out to pinned memory and in again, not synchronized: %d of 10 wrong", wrong);

    memcpy(pinned, source.data(), bytes);
    DRIVER_OK(cuMemcpyHtoDAsync(a.address, pinned, bytes, stream));
    DRIVER_OK(cuMemcpyDtoHAsync(pinned, a.address, bytes, stream));
    DRIVER_OK(cuStreamSynchronize(stream));
    check(memcmp(pinned, source.data(), bytes) == 0, "in from pinned memory and out into it");

    // A pageable source may be changed as soon as the call returns.
    std::vector<uint8_t> changing = source;
    DRIVER_OK(cuMemcpyHtoDAsync(a.address, changing.data(), bytes, stream));
    std::fill(changing.begin(), changing.end(), 0);
    DRIVER_OK(cuMemcpyDtoHAsync(back.data(), a.address, bytes, stream));
    DRIVER_OK(cuStreamSynchronize(stream));
    check(back == source, "a pageable source changed after the call");
    DRIVER_OK(cuMemFreeHost(pinned));
    DRIVER_OK(cuStreamDestroy(stream));
}

template <class Value, class Set>
void one_memset(const char* what, Value value, size_t count, Set set) {
    const DeviceBlock block((count + 2) * sizeof(Value));
    std::vector<Value> back(count + 2);
    DRIVER_OK(cuMemsetD8(block.address, 0, (count + 2) * sizeof(Value)));
    DRIVER_OK(cuCtxSynchronize());
    DRIVER_OK(set(block.address + sizeof(Value), value, count));
    DRIVER_OK(cuCtxSynchronize());
    DRIVER_OK(cuMemcpyDtoH(back.data(), block.address, back.size() * sizeof(Value)));
    std::vector<Value> expected(count + 2, value);
    expected.front() = expected.back() = 0;
    check(back == expected, "%s", what);
}

void memsets() {
    CUstream stream = nullptr;
    DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    one_memset<uint8_t>("memset of bytes", 0xa1, 1001, cuMemsetD8);
    one_memset<uint16_t>("memset of 16-bit words", 0xb1b2, 1001, cuMemsetD16);
    one_memset<uint32_t>("memset of 32-bit words", 0xc1c2c3c4, 1001, cuMemsetD32);
    one_memset<uint8_t>("asynchronous memset of bytes", 0xa1, 1001,
                        [&](CUdeviceptr to, uint8_t value, size_t n) { return cuMemsetD8Async(to, value, n, stream); });
    one_memset<uint16_t>(
        "asynchronous memset of 16-bit words", 0xb1b2, 1001,
        [&](CUdeviceptr to, uint16_t value, size_t n) { return cuMemsetD16Async(to, value, n, stream); });
    one_memset<uint32_t>(
        "asynchronous memset of 32-bit words", 0xc1c2c3c4, 1001,
        [&](CUdeviceptr to, uint32_t value, size_t n) { return cuMemsetD32Async(to, value, n, stream); });
    DRIVER_OK(cuStreamDestroy(stream));
}

// A synchronous copy from pinned memory is complete when it returns, also for a stream that does not wait for it.
void complete_on_return() {
    constexpr size_t kMost = 300'000;
    const DeviceBlock block(kMost);
    CUstream stream = nullptr;
    unsigned char *from = nullptr, *back = nullptr;
    DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DRIVER_OK(cuMemAllocHost(reinterpret_cast<void**>(&from), kMost));
    DRIVER_OK(cuMemAllocHost(reinterpret_cast<void**>(&back), kMost));
    for (const size_t bytes : {size_t{256}, size_t{60'000}, kMost}) {
        int stale = 0;
        for (int round = 1; round <= 100; round++) {
            memset(from, round, bytes);
            DRIVER_OK(cuMemcpyHtoD(block.address, from, bytes));
            DRIVER_OK(cuMemcpyDtoHAsync(back, block.address, bytes, stream));
            DRIVER_OK(cuStreamSynchronize(stream));
            stale += memcmp(from, back, bytes) != 0;
        }
        check(stale == 0, "%zu bytes, read by another stream at once: %d of 100 times stale", bytes, stale);
    }
    DRIVER_OK(cuMemFreeHost(from));
    DRIVER_OK(cuMemFreeHost(back));
    DRIVER_OK(cuStreamDestroy(stream));
}

}  // namespace

int main(int argc, char** argv) {
    Program program("copies", argc, argv);
    const Device device;
    const auto bytes = static_cast<size_t>(program.number("bytes", 200'003));
    program.section("one_dimension", [&] { one_dimension(device, bytes); });
    program.section("per_thread", [&] { per_thread(bytes); });
    program.section("zero_sizes", zero_sizes);
    program.section("odd_places", odd_places);
    program.section("sizes", sizes);
    program.section("hazards", [&] { hazards(bytes); });
    program.section("complete_on_return", complete_on_return);
    program.section("sources_in_order", copy_in_order);
    program.section("rows_behind_their_caller", rows_behind_their_caller);
    program.section("memsets", memsets);
    program.section("two_dimensions", copy_two_dimensions);
    program.section("two_dimensional_memsets", memset_two_dimensions);
    program.section("arrays", copy_arrays);
    return program.finish();
}
