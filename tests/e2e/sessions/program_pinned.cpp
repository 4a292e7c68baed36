// Pinned memory: copies in both directions, with its address passed to the GPU.

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/e2e/sessions/driver.h"

namespace gpupool::session_program {
namespace {

constexpr unsigned kWords = 1u << 18;
constexpr std::size_t kBytes = kWords * sizeof(unsigned);

bool all(const unsigned* words, unsigned expected) {
    return std::all_of(words, words + kWords, [&](unsigned word) { return word == expected; });
}

}  // namespace

int run_pinned(const std::string& mode) {
    if (mode != "pinned") {
        return -1;
    }
    begin();
    void *in = nullptr, *out = nullptr;
    CUdeviceptr data = 0;
    CUstream stream = nullptr;
    must(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    must(driver.cuMemHostAlloc(&in, kBytes, 0), "cuMemHostAlloc");
    must(driver.cuMemHostAlloc(&out, kBytes, CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc");
    must(driver.cuMemAlloc(&data, kBytes), "cuMemAlloc");
    auto* const from = static_cast<unsigned*>(in);
    auto* const to = static_cast<unsigned*>(out);
    for (unsigned round = 1; round <= 20; ++round) {
        std::fill(from, from + kWords, round);
        must(driver.cuMemcpyHtoDAsync(data, from, kBytes, stream), "cuMemcpyHtoDAsync");
        must(driver.cuMemcpyDtoHAsync(to, data, kBytes, stream), "cuMemcpyDtoHAsync");
        // The copied data is copied on without the program waiting for it.
        must(driver.cuMemcpyHtoDAsync(data, to + 1, sizeof(unsigned), stream), "cuMemcpyHtoDAsync");
        must(driver.cuMemsetD32Async(data, round + 100, 1, stream), "cuMemsetD32Async");
        must(driver.cuMemcpyDtoHAsync(from, data, sizeof(unsigned), stream), "cuMemcpyDtoHAsync");
        must(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
        if (!all(to, round) || from[0] != round + 100) {
            return 20;
        }
        // A synchronous copy has read its source and written its destination when it returns.
        must(driver.cuMemcpyHtoD(data, to, kBytes), "cuMemcpyHtoD");
        std::memset(to, 0, kBytes);
        must(driver.cuMemcpyDtoH(to, data, kBytes), "cuMemcpyDtoH");
        if (!all(to, round)) {
            return 21;
        }
        // Between pinned and pageable memory, and within pinned memory.
        std::vector<unsigned> pageable(kWords, round + 1);
        const auto address = [](const void* at) { return reinterpret_cast<CUdeviceptr>(at); };
        must(driver.cuMemcpy(address(to), address(pageable.data()), kBytes), "cuMemcpy");
        if (!all(to, round + 1)) {
            return 22;
        }
        must(driver.cuMemcpy(address(from), address(to), kBytes), "cuMemcpy");
        std::fill(pageable.begin(), pageable.end(), 0u);
        must(driver.cuMemcpy(address(pageable.data()), address(from), kBytes), "cuMemcpy");
        if (!all(pageable.data(), round + 1)) {
            return 23;
        }
    }
    say("pinned", static_cast<long long>(reinterpret_cast<std::uintptr_t>(in)));
    char byte = 0;
    while (::read(STDIN_FILENO, &byte, 1) > 0) {
    }
    must(driver.cuMemFreeHost(in), "cuMemFreeHost");
    say("freed");
    must(driver.cuMemFreeHost(out), "cuMemFreeHost");
    return 0;
}

}  // namespace gpupool::session_program
