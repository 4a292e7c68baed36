// What calls cost their caller, through whatever driver the process finds: answered in the client, sent and not waited
// for, and with a round trip. The raw transports' ping-pong beside them (raw_benchmark.cpp) is the limit.
#include <benchmark/benchmark.h>

#include <vector>

#include "benchmarks/roundtrip/driver.h"

namespace gpupool::benchmarks {
namespace {

const Driver& driver() {
    static const Driver instance = open_driver();
    return instance;
}

// So that deferred work is timed as it is handed over and never as it waits for room.
constexpr int kInFlight = 256;

template <class Work>
void deferred(benchmark::State& state, Work work) {
    const Driver& d = driver();
    int in_flight = 0;
    for (auto _ : state) {
        ok(work(d), "a deferred call");
        if (++in_flight == kInFlight) {
            state.PauseTiming();
            ok(d.cuStreamSynchronize(d.stream), "cuStreamSynchronize");
            in_flight = 0;
            state.ResumeTiming();
        }
    }
    ok(d.cuStreamSynchronize(d.stream), "cuStreamSynchronize");
}

CUresult launch(const Driver& d) {
    CUdeviceptr argument = d.memory;
    void* arguments[] = {&argument};
    return d.cuLaunchKernel(d.nothing, 1, 1, 1, 32, 1, 1, 0, d.stream, arguments, nullptr);
}

void call_local(benchmark::State& state) {
    const Driver& d = driver();
    CUcontext context = nullptr;
    for (auto _ : state) {
        ok(d.cuCtxGetCurrent(&context), "cuCtxGetCurrent");
    }
}

void call_round_trip(benchmark::State& state) {
    const Driver& d = driver();
    std::size_t value = 0;
    for (auto _ : state) {
        ok(d.cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE), "cuCtxGetLimit");
    }
}

void launch_deferred(benchmark::State& state) {
    deferred(state, launch);
}

void event_record_deferred(benchmark::State& state) {
    deferred(state, [](const Driver& d) { return d.cuEventRecord(d.event, d.stream); });
}

void launch_and_synchronize(benchmark::State& state) {
    const Driver& d = driver();
    for (auto _ : state) {
        ok(launch(d), "cuLaunchKernel");
        ok(d.cuStreamSynchronize(d.stream), "cuStreamSynchronize");
    }
}

void copy_to_device(benchmark::State& state) {
    const Driver& d = driver();
    const std::vector<char> data(static_cast<std::size_t>(state.range(0)));
    for (auto _ : state) {
        ok(d.cuMemcpyHtoD_v2(d.memory, data.data(), data.size()), "cuMemcpyHtoD");
    }
    state.SetBytesProcessed(state.iterations() * state.range(0));
}

void copy_to_host(benchmark::State& state) {
    const Driver& d = driver();
    std::vector<char> data(static_cast<std::size_t>(state.range(0)));
    for (auto _ : state) {
        ok(d.cuMemcpyDtoH_v2(data.data(), d.memory, data.size()), "cuMemcpyDtoH");
    }
    state.SetBytesProcessed(state.iterations() * state.range(0));
}

BENCHMARK(call_local)->UseRealTime();
BENCHMARK(call_round_trip)->UseRealTime();
BENCHMARK(launch_deferred)->UseRealTime();
BENCHMARK(event_record_deferred)->UseRealTime();
BENCHMARK(launch_and_synchronize)->UseRealTime();
BENCHMARK(copy_to_device)->Arg(4)->Arg(64 << 10)->Arg(16 << 20)->UseRealTime();
BENCHMARK(copy_to_host)->Arg(4)->Arg(64 << 10)->Arg(16 << 20)->UseRealTime();

}  // namespace
}  // namespace gpupool::benchmarks

BENCHMARK_MAIN();
