// Modes that make calls which need not wait:
//
//   polls      asks for a stream and an event that are held up, a thousand times each, and then until they are done
//   deferred   launches, sets memory, records and waits for an event, and says "allocations NUMBER", or
//              "uncounted"

#include "tests/e2e/sessions/driver.h"
#include "tests/support/allocations.h"

namespace gpupool::session_program {
namespace {

constexpr int kQuestions = 1000, kCalls = 10'000;

int run_polls() {
    begin();
    CUstream stream = nullptr;
    CUevent event = nullptr;
    must(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    must(driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    block_until_release(stream);
    must(driver.cuEventRecord(event, stream), "cuEventRecord");
    for (int i = 0; i < kQuestions; ++i) {
        if (driver.cuStreamQuery(stream) != CUDA_ERROR_NOT_READY ||
            driver.cuEventQuery(event) != CUDA_ERROR_NOT_READY) {
            say("ready too soon");
            return 4;
        }
    }
    release();
    while (driver.cuStreamQuery(stream) == CUDA_ERROR_NOT_READY) {
    }
    must(driver.cuStreamQuery(stream), "cuStreamQuery");
    while (driver.cuEventQuery(event) == CUDA_ERROR_NOT_READY) {
    }
    must(driver.cuEventQuery(event), "cuEventQuery");
    must(driver.cuStreamDestroy(stream), "cuStreamDestroy");
    return driver.cuStreamQuery(stream) == CUDA_ERROR_INVALID_HANDLE ? 0 : 5;
}

int run_deferred() {
    begin();
    const CUfunction function = kernel("add_value");
    CUstream stream = nullptr;
    CUevent event = nullptr;
    CUdeviceptr data = 0;
    must(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    must(driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    must(driver.cuMemAlloc(&data, 256), "cuMemAlloc");
    const auto calls = [&](int count) {
        for (int i = 0; i < count; ++i) {
            add(function, data, 1, 1, stream);
            must(driver.cuMemsetD32Async(data + 128, 0, 1, stream), "cuMemsetD32Async");
            must(driver.cuEventRecord(event, stream), "cuEventRecord");
            must(driver.cuStreamWaitEvent(stream, event, 0), "cuStreamWaitEvent");
        }
    };
    calls(100);
    must(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
    const bool counts = test::count_allocations();
    const std::uint64_t before = test::allocations_of_thread;
    calls(kCalls / 4);
    say(counts ? "allocations" : "uncounted", static_cast<long long>(test::allocations_of_thread - before));
    must(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
    return 0;
}

}  // namespace

int run_calls(const std::string& mode) {
    return mode == "polls" ? run_polls() : mode == "deferred" ? run_deferred() : -1;
}

}  // namespace gpupool::session_program
