// What the dispatcher itself costs a command: launches that arrive in frames and go to a driver that does nothing, or
// that takes as long as a real one.
#include <benchmark/benchmark.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "common/spin.h"
#include "tests/unit/worker/launching_session.h"

namespace gpupool::benchmarks {
namespace {

constexpr std::size_t kFrames = 64, kLaunchesInFrame = 256, kArgumentBytes = 64;
constexpr std::size_t kLaunches = kFrames * kLaunchesInFrame;

std::atomic<std::size_t> launched{0};
// How often an event is asked for in vain, so that the stream's credit runs out and launches are held.
unsigned asked_in_vain = 0;
unsigned asked = 0;
std::chrono::nanoseconds launch_time{0};

driver::Library null_driver() {
    driver::Library library;
    driver::Api& api = library.api;
    api.cuCtxSetCurrent = [](CUcontext) { return CUDA_SUCCESS; };
    api.cuStreamCreate = [](CUstream* stream, unsigned) {
        *stream = reinterpret_cast<CUstream>(0x100);
        return CUDA_SUCCESS;
    };
    api.cuEventCreate = [](CUevent* event, unsigned) {
        *event = reinterpret_cast<CUevent>(0x200);
        return CUDA_SUCCESS;
    };
    api.cuEventRecord = [](CUevent, CUstream) { return CUDA_SUCCESS; };
    api.cuEventQuery = [](CUevent) { return asked++ % (asked_in_vain + 1) == 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY; };
    api.cuEventSynchronize = [](CUevent) { return CUDA_SUCCESS; };
    api.cuLaunchKernel = [](CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                            void**, void**) {
        if (launch_time.count() != 0) {
            const auto end = std::chrono::steady_clock::now() + launch_time;
            while (std::chrono::steady_clock::now() < end) {
                spin_pause();
            }
        }
        launched.fetch_add(1, std::memory_order_relaxed);
        return CUDA_SUCCESS;
    };
    return library;
}

void run(benchmark::State& state, std::size_t issuers) {
    const auto streams = static_cast<std::size_t>(state.range(0));
    worker::Worker::Options options;
    options.issuers = issuers;
    test::LaunchingSession session(null_driver(), streams, std::move(options));
    const std::vector<unsigned char> arguments(kArgumentBytes);
    for (auto _ : state) {
        launched = 0;
        for (std::size_t i = 0; i < kFrames; ++i) {
            test::FrameOfCommands frame = session.frame();
            for (std::size_t launch = 0; launch < kLaunchesInFrame; ++launch) {
                session.add_launch(frame, launch % streams, arguments.data(), arguments.size());
            }
            session.send(frame);
        }
        while (launched.load(std::memory_order_relaxed) < kLaunches) {
            std::this_thread::yield();
        }
    }
    state.counters["per_launch"] = benchmark::Counter(static_cast<double>(state.iterations() * kLaunches),
                                                      benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void dispatch_launches(benchmark::State& state) {
    asked_in_vain = 0;
    launch_time = {};
    run(state, 0);
}
void dispatch_held_launches(benchmark::State& state) {
    asked_in_vain = 7;
    launch_time = {};
    run(state, 0);
}
// The driver takes 2 us a launch; the second argument is how many issuers there are besides the dispatcher.
void dispatch_to_slow_driver(benchmark::State& state) {
    asked_in_vain = 0;
    launch_time = std::chrono::microseconds(2);
    run(state, static_cast<std::size_t>(state.range(1)));
}

BENCHMARK(dispatch_launches)->Arg(1)->Arg(4)->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(dispatch_held_launches)->Arg(1)->Arg(4)->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(dispatch_to_slow_driver)
    ->ArgNames({"streams", "issuers"})
    ->Args({1, 0})
    ->Args({4, 0})
    ->Args({4, 1})
    ->Args({4, 3})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace gpupool::benchmarks
