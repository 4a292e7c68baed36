// The dispatcher's own time per command: launches arrive in frames and go to a driver that does nothing, or takes as
// long as a real one.
#include <benchmark/benchmark.h>

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "common/spin.h"
#include "tests/unit/worker/scheduling/launching_session.h"

namespace gpupool::benchmarks {
namespace {

constexpr std::size_t kFrames = 64, kLaunchesInFrame = 256, kArgumentBytes = 64;
constexpr std::size_t kLaunches = kFrames * kLaunchesInFrame;

std::atomic<std::size_t> launched{0};
std::chrono::nanoseconds launch_time{0};

// A GPU that completes all issued work only every kEvery, so that streams run out of credit and launches are held.
class LaggingGpu {
  public:
    LaggingGpu() { lagging = this; }
    ~LaggingGpu() {
        stopping_ = true;
        thread_.join();
        lagging = nullptr;
    }
    LaggingGpu(const LaggingGpu&) = delete;
    LaggingGpu& operator=(const LaggingGpu&) = delete;

    static bool take(CUdeviceptr address, cuuint32_t value) {
        if (lagging == nullptr) {
            return false;
        }
        const std::lock_guard lock(lagging->mutex_);
        lagging->marks_[address] = value;
        return true;
    }

  private:
    static constexpr std::chrono::microseconds kEvery{200};  // about a thousand launches, twice a stream's credit

    void run() {
        while (!stopping_) {
            std::this_thread::sleep_for(kEvery);
            const std::lock_guard lock(mutex_);
            for (const auto& [address, value] : marks_) {
                __atomic_store_n(reinterpret_cast<cuuint32_t*>(address), value, __ATOMIC_RELEASE);
            }
            marks_.clear();
        }
    }

    static inline LaggingGpu* lagging = nullptr;
    std::mutex mutex_;
    std::map<CUdeviceptr, cuuint32_t> marks_;  // guarded by the mutex
    std::atomic<bool> stopping_{false};
    std::thread thread_{[this] { run(); }};
};

driver::Library null_driver() {
    driver::Library library;
    driver::Api& api = library.api;
    test::add_idle_gpu(api);
    api.cuStreamQuery = [](CUstream) { return CUDA_ERROR_NOT_READY; };
    api.cuStreamWriteValue32_v2 = [](CUstream, CUdeviceptr address, cuuint32_t value, unsigned) {
        if (!LaggingGpu::take(address, value)) {
            __atomic_store_n(reinterpret_cast<cuuint32_t*>(address), value, __ATOMIC_RELEASE);
        }
        return CUDA_SUCCESS;
    };
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
    state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(kLaunches));
}

void dispatch_launches(benchmark::State& state) {
    launch_time = {};
    run(state, 0);
}
void dispatch_held_launches(benchmark::State& state) {
    const LaggingGpu gpu;
    launch_time = {};
    run(state, 0);
}
// The driver takes 2 us per launch; the second argument is the number of issuers besides the dispatcher.
void dispatch_to_slow_driver(benchmark::State& state) {
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
