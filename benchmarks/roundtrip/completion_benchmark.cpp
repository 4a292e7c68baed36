// The ways to detect that a kernel is complete, among which the worker chooses, because it must not block. On a local
// GPU these are the driver's own costs.
#include <benchmark/benchmark.h>

#include <atomic>

#include "benchmarks/roundtrip/driver.h"

namespace gpupool::benchmarks {
namespace {

void until_ready(CUresult (*query)(const Driver&), const Driver& d) {
    CUresult result = query(d);
    while (result == CUDA_ERROR_NOT_READY) {
        result = query(d);
    }
    ok(result, "a query");
}

CUresult query_event(const Driver& d) {
    return d.cuEventQuery(d.event);
}
CUresult query_stream(const Driver& d) {
    return d.cuStreamQuery(d.stream);
}

// `notice` returns when the kernel launched before it is complete.
template <class Notice>
void completion(benchmark::State& state, Notice notice) {
    const Driver& d = driver();
    for (auto _ : state) {
        ok(launch(d), "cuLaunchKernel");
        notice(d);
    }
}

void record(const Driver& d) {
    ok(d.cuEventRecord(d.event, d.stream), "cuEventRecord");
}

void completion_by_stream_synchronize(benchmark::State& state) {
    completion(state, [](const Driver& d) { ok(d.cuStreamSynchronize(d.stream), "cuStreamSynchronize"); });
}

void completion_by_event_synchronize(benchmark::State& state) {
    completion(state, [](const Driver& d) {
        record(d);
        ok(d.cuEventSynchronize(d.event), "cuEventSynchronize");
    });
}

void completion_by_event_query(benchmark::State& state) {
    completion(state, [](const Driver& d) {
        record(d);
        until_ready(query_event, d);
    });
}

// A call that synchronizes writes out what kernels print.
void completion_by_event_query_and_synchronize(benchmark::State& state) {
    completion(state, [](const Driver& d) {
        record(d);
        until_ready(query_event, d);
        ok(d.cuEventSynchronize(d.event), "cuEventSynchronize");
    });
}

void completion_by_stream_query(benchmark::State& state) {
    completion(state, [](const Driver& d) { until_ready(query_stream, d); });
}

// The GPU writes a word that the processor polls.
void completion_by_written_value(benchmark::State& state) {
    void* memory = nullptr;
    ok(driver().cuMemAllocHost_v2(&memory, sizeof(unsigned)), "cuMemAllocHost");
    const std::atomic_ref<unsigned> word(*static_cast<unsigned*>(memory));
    word.store(0);
    completion(state, [&, count = 0u](const Driver& d) mutable {
        ok(d.cuStreamWriteValue32_v2(d.stream, reinterpret_cast<CUdeviceptr>(memory), ++count, 0),
           "cuStreamWriteValue32");
        while (word.load(std::memory_order_acquire) != count) {
        }
    });
    ok(driver().cuStreamSynchronize(driver().stream), "cuStreamSynchronize");
    ok(driver().cuMemFreeHost(memory), "cuMemFreeHost");
}

BENCHMARK(completion_by_stream_synchronize)->UseRealTime();
BENCHMARK(completion_by_event_synchronize)->UseRealTime();
BENCHMARK(completion_by_event_query)->UseRealTime();
BENCHMARK(completion_by_event_query_and_synchronize)->UseRealTime();
BENCHMARK(completion_by_stream_query)->UseRealTime();
BENCHMARK(completion_by_written_value)->UseRealTime();

}  // namespace
}  // namespace gpupool::benchmarks
