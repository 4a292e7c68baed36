// The ways to notice that a kernel is complete: what the worker, which must not block, has to choose from. Natively
// these are the driver's own costs.
#include <benchmark/benchmark.h>

#include <atomic>

#include "benchmarks/roundtrip/driver.h"

namespace gpupool::benchmarks {
namespace {

void launch(const Driver& d) {
    CUdeviceptr argument = d.memory;
    void* arguments[] = {&argument};
    ok(d.cuLaunchKernel(d.nothing, 1, 1, 1, 32, 1, 1, 0, d.stream, arguments, nullptr), "cuLaunchKernel");
}

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

void completion_by_stream_synchronize(benchmark::State& state) {
    const Driver& d = driver();
    for (auto _ : state) {
        launch(d);
        ok(d.cuStreamSynchronize(d.stream), "cuStreamSynchronize");
    }
}

void completion_by_event_synchronize(benchmark::State& state) {
    const Driver& d = driver();
    for (auto _ : state) {
        launch(d);
        ok(d.cuEventRecord(d.event, d.stream), "cuEventRecord");
        ok(d.cuEventSynchronize(d.event), "cuEventSynchronize");
    }
}

void completion_by_event_query(benchmark::State& state) {
    const Driver& d = driver();
    for (auto _ : state) {
        launch(d);
        ok(d.cuEventRecord(d.event, d.stream), "cuEventRecord");
        until_ready(query_event, d);
    }
}

// What kernels print is written out by a call that synchronizes.
void completion_by_event_query_and_synchronize(benchmark::State& state) {
    const Driver& d = driver();
    for (auto _ : state) {
        launch(d);
        ok(d.cuEventRecord(d.event, d.stream), "cuEventRecord");
        until_ready(query_event, d);
        ok(d.cuEventSynchronize(d.event), "cuEventSynchronize");
    }
}

void completion_by_stream_query(benchmark::State& state) {
    const Driver& d = driver();
    for (auto _ : state) {
        launch(d);
        until_ready(query_stream, d);
    }
}

// The GPU writes a word that the processor looks at.
void completion_by_written_value(benchmark::State& state) {
    const Driver& d = driver();
    void* memory = nullptr;
    ok(d.cuMemAllocHost_v2(&memory, sizeof(unsigned)), "cuMemAllocHost");
    const std::atomic_ref<unsigned> word(*static_cast<unsigned*>(memory));
    word.store(0);
    unsigned count = 0;
    for (auto _ : state) {
        launch(d);
        ok(d.cuStreamWriteValue32_v2(d.stream, reinterpret_cast<CUdeviceptr>(memory), ++count, 0),
           "cuStreamWriteValue32");
        while (word.load(std::memory_order_acquire) != count) {
        }
    }
    ok(d.cuStreamSynchronize(d.stream), "cuStreamSynchronize");
    ok(d.cuMemFreeHost(memory), "cuMemFreeHost");
}

BENCHMARK(completion_by_stream_synchronize)->UseRealTime();
BENCHMARK(completion_by_event_synchronize)->UseRealTime();
BENCHMARK(completion_by_event_query)->UseRealTime();
BENCHMARK(completion_by_event_query_and_synchronize)->UseRealTime();
BENCHMARK(completion_by_stream_query)->UseRealTime();
BENCHMARK(completion_by_written_value)->UseRealTime();

}  // namespace
}  // namespace gpupool::benchmarks
