// Copies large enough for lanes.
//
//   lanes ROUNDS        four threads copy in both directions at once, each in its own stream, and check all bytes of a
//                       copy as soon as its completion is reported. Prints "transfers N"; a wrong byte ends it with
//                       status 4
//   lanes_stream        once its lanes are open, copies in both directions without end; prints "waiting" when data
//                       flows, and "error CODE" and "at MILLISECONDS" when a copy fails
//   lanes_raced         copies from and to memory, pinned and pageable, that another thread writes to without end;
//                       prints "transfers N" when its later copies are right
//   lanes_zeros ROUNDS  copies 64 MiB of zeros to the device and back this often; prints "wrong N", the number of bytes
//                       that are not zero
//   lanes_wait          copies, prints "ready", and copies again when its stdin has ended

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

#include "tests/e2e/sessions/driver.h"
#include "tests/support/waiting.h"

namespace gpupool::session_program {
namespace {

constexpr std::size_t kMiB = 1u << 20;
// Sizes around the limits at which copies are sent in another way, and one of many pieces.
constexpr std::size_t kSizes[] = {65'537, 128 * 1024 - 8, 128 * 1024, kMiB - 1, kMiB, kMiB + 100'000, 9 * kMiB + 24};
constexpr std::size_t kLargest = 9 * kMiB + 24;

std::atomic<int> transfers{0};

std::uint64_t word_at(std::size_t index, std::uint64_t seed) {
    return (index + 1) * 0x9e3779b97f4a7c15u ^ seed;
}

void fill(unsigned char* memory, std::size_t bytes, std::uint64_t seed) {
    for (std::size_t offset = 0; offset < bytes; offset += 8) {
        const std::uint64_t word = word_at(offset / 8, seed);
        std::memcpy(memory + offset, &word, std::min<std::size_t>(8, bytes - offset));
    }
}

void check(const unsigned char* memory, std::size_t bytes, std::uint64_t seed, const char* how) {
    for (std::size_t offset = 0; offset < bytes; offset += 8) {
        const std::uint64_t word = word_at(offset / 8, seed);
        if (std::memcmp(memory + offset, &word, std::min<std::size_t>(8, bytes - offset)) != 0) {
            say(std::string("wrong:") + how, static_cast<long long>(offset));
            std::_Exit(4);
        }
    }
}

// All ways in which a program can learn that its stream's work is complete.
void wait_for(CUstream stream, CUevent event, int how) {
    CUresult result = CUDA_ERROR_NOT_READY;
    switch (how) {
        case 0: must(driver.cuStreamSynchronize(stream), "cuStreamSynchronize"); return;
        case 1: must(driver.cuEventSynchronize(event), "cuEventSynchronize"); return;
        case 2:
            while (result == CUDA_ERROR_NOT_READY) {
                result = driver.cuStreamQuery(stream);
            }
            must(result, "cuStreamQuery");
            return;
        case 3:
            while (result == CUDA_ERROR_NOT_READY) {
                result = driver.cuEventQuery(event);
            }
            must(result, "cuEventQuery");
            return;
        default: must(driver.cuCtxSynchronize(), "cuCtxSynchronize"); return;
    }
}
constexpr int kWays = 5;
constexpr const char* kWayNames[] = {"cuStreamSynchronize", "cuEventSynchronize", "cuStreamQuery", "cuEventQuery",
                                     "cuCtxSynchronize"};

void copy_both_ways(CUcontext context, int thread, int rounds) {
    use(context);
    CUstream stream = nullptr;
    CUevent event = nullptr;
    CUdeviceptr memory = 0;
    void* pinned = nullptr;
    must(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    must(driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    must(driver.cuMemAlloc(&memory, kLargest), "cuMemAlloc");
    must(driver.cuMemHostAlloc(&pinned, 2 * kLargest, 0), "cuMemHostAlloc");
    auto* const out = static_cast<unsigned char*>(pinned);
    auto* const back = out + kLargest;
    std::vector<unsigned char> pageable(kLargest);
    for (int round = 0; round < rounds; ++round) {
        for (const std::size_t bytes : kSizes) {
            const std::uint64_t seed = static_cast<std::uint64_t>(round * 100 + thread) * 0x100000001b3u + bytes;
            const int way = (transfers + thread) % kWays;
            fill(out, bytes, seed);
            std::memset(back, 0xee, bytes);
            must(driver.cuMemcpyHtoDAsync(memory, out, bytes, stream), "cuMemcpyHtoDAsync");
            must(driver.cuMemcpyDtoHAsync(back, memory, bytes, stream), "cuMemcpyDtoHAsync");
            must(driver.cuEventRecord(event, stream), "cuEventRecord");
            wait_for(stream, event, way);
            check(back, bytes, seed, kWayNames[way]);
            std::memset(pageable.data(), 0xee, bytes);
            must(driver.cuMemcpyDtoHAsync(pageable.data(), memory, bytes, stream), "cuMemcpyDtoHAsync");
            check(pageable.data(), bytes, seed, "pageable");
            fill(pageable.data(), bytes, ~seed);
            must(driver.cuMemcpyHtoDAsync(memory, pageable.data(), bytes, stream), "cuMemcpyHtoDAsync");
            fill(pageable.data(), bytes, 0);  // no longer used by the copy
            // Downloaded data is uploaded again before it has arrived.
            std::memset(back, 0xee, bytes);
            must(driver.cuMemcpyDtoHAsync(back, memory, bytes, stream), "cuMemcpyDtoHAsync");
            must(driver.cuMemcpyHtoDAsync(memory, back, bytes, stream), "cuMemcpyHtoDAsync");
            must(driver.cuMemcpyDtoHAsync(out, memory, bytes, stream), "cuMemcpyDtoHAsync");
            must(driver.cuEventRecord(event, stream), "cuEventRecord");
            wait_for(stream, event, (way + 2) % kWays);
            check(back, bytes, ~seed, "back");
            check(out, bytes, ~seed, "again");
            // Data of the later of two copies into the same memory remains, however the lanes carry them.
            must(driver.cuMemcpyDtoHAsync(back, memory, bytes, stream), "cuMemcpyDtoHAsync");
            must(driver.cuMemsetD8Async(memory, 0, bytes, stream), "cuMemsetD8Async");
            must(driver.cuMemcpyDtoHAsync(back + 1, memory + 1, bytes - 1, stream), "cuMemcpyDtoHAsync");
            must(driver.cuEventRecord(event, stream), "cuEventRecord");
            wait_for(stream, event, (way + 3) % kWays);
            must(back[0] == (word_at(0, ~seed) & 0xff) &&
                         std::all_of(back + 1, back + bytes, [](auto c) { return c == 0; })
                     ? CUDA_SUCCESS
                     : CUDA_ERROR_INVALID_VALUE,
                 "overwritten");
            ++transfers;
        }
    }
    must(driver.cuMemFreeHost(pinned), "cuMemFreeHost");
    must(driver.cuMemFree(memory), "cuMemFree");
    must(driver.cuEventDestroy(event), "cuEventDestroy");
    must(driver.cuStreamDestroy(stream), "cuStreamDestroy");
}

int run_copies(int rounds) {
    const CUcontext context = begin();
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
        threads.emplace_back([=] { copy_both_ways(context, thread, rounds); });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    say("transfers", transfers);
    return 0;
}

CUresult copy_until_error(CUcontext context, bool up, std::atomic<int>& copies) {
    use(context);
    constexpr std::size_t kBytes = 32 * kMiB;
    CUstream stream = nullptr;
    CUdeviceptr memory = 0;
    must(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    must(driver.cuMemAlloc(&memory, kBytes), "cuMemAlloc");
    std::vector<char> host(kBytes);
    CUresult result = CUDA_SUCCESS;
    while (result == CUDA_SUCCESS) {
        result = up ? driver.cuMemcpyHtoDAsync(memory, host.data(), kBytes, stream)
                    : driver.cuMemcpyDtoHAsync(host.data(), memory, kBytes, stream);
        if (++copies == 8) {
            say("waiting");
        }
    }
    return result;
}

// Until the client's log, which goes to stderr, says that all lanes are open.
void wait_for_lanes() {
    const bool open = test::eventually([] {
        std::stringstream log;
        log << std::ifstream("/proc/self/fd/2").rdbuf();
        return log.str().find("lanes (connections for bulk data) are open") != std::string::npos;
    });
    must(open ? CUDA_SUCCESS : CUDA_ERROR_TIMEOUT, "lanes");
}

int run_stream() {
    const CUcontext context = begin();
    {
        CUdeviceptr memory = 0;
        const std::vector<char> host(kMiB);
        must(driver.cuMemAlloc(&memory, host.size()), "cuMemAlloc");
        must(driver.cuMemcpyHtoD(memory, host.data(), host.size()), "cuMemcpyHtoD");
        wait_for_lanes();
    }
    static std::atomic<int> copies{0};
    std::thread down([=] { copy_until_error(context, false, copies); });
    const CUresult result = copy_until_error(context, true, copies);
    const auto at = now_ms();
    down.join();  // it must get the error as well
    say("error", result);
    say("at", at);
    return 0;
}

// On a local GPU, a program that writes to memory while it is copied gets mixed bytes, and no error.
int run_raced() {
    const CUcontext context = begin();
    constexpr std::size_t kBytes = 16 * kMiB;
    CUdeviceptr device = 0;
    void* pinned = nullptr;
    must(driver.cuMemAlloc(&device, kBytes), "cuMemAlloc");
    must(driver.cuMemHostAlloc(&pinned, kBytes, 0), "cuMemHostAlloc");
    std::vector<unsigned char> pageable(kBytes);
    std::atomic<bool> over{false};
    std::thread writer([&] {
        for (std::size_t i = 0; !over.load(std::memory_order_relaxed); ++i) {
            for (unsigned char* memory : {static_cast<unsigned char*>(pinned), pageable.data()}) {
                std::atomic_ref(memory[i * 4099 % kBytes]).fetch_add(1, std::memory_order_relaxed);
            }
        }
    });
    for (int round = 0; round < 4; ++round) {
        for (void* memory : {pinned, static_cast<void*>(pageable.data())}) {
            must(driver.cuMemcpyHtoDAsync(device, memory, kBytes, nullptr), "cuMemcpyHtoDAsync");
            must(driver.cuStreamSynchronize(nullptr), "cuStreamSynchronize");
            must(driver.cuMemcpyDtoHAsync(memory, device, kBytes, nullptr), "cuMemcpyDtoHAsync");
            must(driver.cuStreamSynchronize(nullptr), "cuStreamSynchronize");
        }
    }
    over = true;
    writer.join();
    copy_both_ways(context, 0, 1);
    say("transfers", transfers);
    return 0;
}

// Data that compresses to almost nothing where compression is on.
int run_zeros(int rounds) {
    begin();
    constexpr std::size_t kBytes = 64 * kMiB;
    CUdeviceptr device = 0;
    std::vector<unsigned char> host(kBytes);
    must(driver.cuMemAlloc(&device, kBytes), "cuMemAlloc");
    must(driver.cuMemcpyHtoD(device, host.data(), kMiB), "cuMemcpyHtoD");  // opens the lanes
    wait_for_lanes();
    for (int round = 0; round < rounds; ++round) {
        must(driver.cuMemcpyHtoD(device, host.data(), kBytes), "cuMemcpyHtoD");
        must(driver.cuMemcpyDtoH(host.data(), device, kBytes), "cuMemcpyDtoH");
    }
    std::memset(host.data(), 1, kBytes);
    must(driver.cuMemcpyDtoH(host.data(), device, kBytes), "cuMemcpyDtoH");
    say("wrong", std::ranges::count_if(host, [](unsigned char byte) { return byte != 0; }));
    return 0;
}

int run_wait() {
    const CUcontext context = begin();
    CUdeviceptr memory = 0;
    must(driver.cuMemAlloc(&memory, kMiB), "cuMemAlloc");
    say("ready");
    char byte = 0;
    while (::read(0, &byte, 1) > 0) {
    }
    for (int i = 0; i < 4; ++i) {
        copy_both_ways(context, i, 1);
    }
    say("transfers", transfers);
    return 0;
}

}  // namespace

int run_lanes(const std::string& mode, int rounds) {
    if (mode == "lanes") {
        return run_copies(rounds);
    }
    if (mode == "lanes_stream") {
        return run_stream();
    }
    if (mode == "lanes_raced") {
        return run_raced();
    }
    if (mode == "lanes_zeros") {
        return run_zeros(rounds);
    }
    return mode == "lanes_wait" ? run_wait() : -1;
}

}  // namespace gpupool::session_program
