// The caller's cost of calls through any driver: answered locally, deferred, and with a round trip. The transports' own
// ping-pong (raw_benchmark.cpp) is the lower limit.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "benchmarks/roundtrip/driver.h"

namespace gpupool::benchmarks {
namespace {

// Few enough that deferred work never waits for room, so only the hand-over is timed.
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

void call_local(benchmark::State& state) {
    const Driver& d = driver();
    CUcontext context = nullptr;
    for (auto _ : state) {
        ok(d.cuCtxGetCurrent(&context), "cuCtxGetCurrent");
    }
}

void call_round_trip(benchmark::State& state) {
    const Driver& d = driver();
    std::size_t free = 0, total = 0;
    for (auto _ : state) {
        ok(d.cuMemGetInfo_v2(&free, &total), "cuMemGetInfo");
    }
}

void launch_deferred(benchmark::State& state) {
    deferred(state, launch);
}

void event_record_deferred(benchmark::State& state) {
    deferred(state, [](const Driver& d) { return d.cuEventRecord(d.event, d.stream); });
}

// For an event that the program has queried before, as a polling program does.
void event_record_polled(benchmark::State& state) {
    const Driver& d = driver();
    for (int i = 0; i < 4; ++i) {
        ok(d.cuEventRecord(d.event, d.stream), "cuEventRecord");
        CUresult result = CUDA_ERROR_NOT_READY;
        while ((result = d.cuEventQuery(d.event)) == CUDA_ERROR_NOT_READY) {
        }
        ok(result, "cuEventQuery");
    }
    event_record_deferred(state);
}

void launch_and_synchronize(benchmark::State& state) {
    const Driver& d = driver();
    for (auto _ : state) {
        ok(launch(d), "cuLaunchKernel");
        ok(d.cuStreamSynchronize(d.stream), "cuStreamSynchronize");
    }
}

// When all threads are asleep at its start.
void launch_and_synchronize_after_pause(benchmark::State& state) {
    const Driver& d = driver();
    for (auto _ : state) {
        state.PauseTiming();
        std::this_thread::sleep_for(std::chrono::milliseconds(state.range(0)));
        state.ResumeTiming();
        ok(launch(d), "cuLaunchKernel");
        ok(d.cuStreamSynchronize(d.stream), "cuStreamSynchronize");
    }
}

void synchronize_idle(benchmark::State& state) {
    const Driver& d = driver();
    for (auto _ : state) {
        ok(d.cuStreamSynchronize(d.stream), "cuStreamSynchronize");
    }
}

// For a context with streams that were used once.
void synchronize_idle_context(benchmark::State& state) {
    const Driver& d = driver();
    std::vector<CUstream> streams(static_cast<std::size_t>(state.range(0)));
    Driver one = d;
    for (CUstream& stream : streams) {
        ok(d.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        one.stream = stream;
        ok(launch(one), "cuLaunchKernel");
    }
    for (auto _ : state) {
        ok(d.cuCtxSynchronize(), "cuCtxSynchronize");
    }
    for (CUstream stream : streams) {
        ok(d.cuStreamDestroy_v2(stream), "cuStreamDestroy");
    }
}

// Launches from a caller that never pauses; the server's driver sets the limit.
template <CUresult launch_one(const Driver&)>
void launches(benchmark::State& state) {
    constexpr int kLaunches = 20'000;
    const Driver& d = driver();
    for (auto _ : state) {
        for (int i = 0; i < kLaunches; ++i) {
            ok(launch_one(d), "cuLaunchKernel");
        }
        ok(d.cuStreamSynchronize(d.stream), "cuStreamSynchronize");
    }
    state.SetItemsProcessed(state.iterations() * kLaunches);
}
void launch_sustained(benchmark::State& state) {
    launches<launch>(state);
}
void launch_sustained_packed(benchmark::State& state) {
    launches<launch_packed>(state);
}

// How fast the GPU alone executes queued launches, which is the limit of launch_sustained.
void launches_on_gpu(benchmark::State& state) {
    const auto launches = static_cast<int>(state.range(0));
    const Driver& d = driver();
    CUstream gate = nullptr;
    ok(d.cuStreamCreate(&gate, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    const CUdeviceptr word = d.memory;
    unsigned round = 0;
    ok(d.cuStreamWriteValue32_v2(gate, word, round, 0), "cuStreamWriteValue32");
    for (auto _ : state) {
        ok(d.cuStreamSynchronize(gate), "cuStreamSynchronize");
        ok(d.cuStreamWaitValue32_v2(d.stream, word, ++round, CU_STREAM_WAIT_VALUE_EQ), "cuStreamWaitValue32");
        for (int i = 0; i < launches; ++i) {
            ok(launch(d), "cuLaunchKernel");
        }
        // After this round trip all launches have been issued, except those that issuers still make.
        std::size_t free = 0, total = 0;
        ok(d.cuMemGetInfo_v2(&free, &total), "cuMemGetInfo");
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        const auto begin = std::chrono::steady_clock::now();
        ok(d.cuStreamWriteValue32_v2(gate, word, round, 0), "cuStreamWriteValue32");
        ok(d.cuStreamSynchronize(d.stream), "cuStreamSynchronize");
        state.SetIterationTime(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    state.SetItemsProcessed(state.iterations() * launches);
    ok(d.cuStreamDestroy_v2(gate), "cuStreamDestroy");
}

// Runs `work` in several threads, each with its own stream, `times` each.
template <class Work>
void by_threads(benchmark::State& state, int times, Work work) {
    const Driver& d = driver();
    const auto threads = static_cast<std::size_t>(state.range(0));
    CUcontext context = nullptr;
    ok(d.cuCtxGetCurrent(&context), "cuCtxGetCurrent");
    std::vector<Driver> own(threads, d);
    for (Driver& each : own) {
        ok(d.cuStreamCreate(&each.stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    }
    for (auto _ : state) {
        std::vector<std::thread> running;
        for (const Driver& each : own) {
            running.emplace_back([&each, context, times, work] {
                ok(each.cuCtxSetCurrent(context), "cuCtxSetCurrent");
                for (int i = 0; i < times; ++i) {
                    work(each);
                }
                ok(each.cuStreamSynchronize(each.stream), "cuStreamSynchronize");
            });
        }
        for (std::thread& thread : running) {
            thread.join();
        }
    }
    state.SetItemsProcessed(state.iterations() * times * state.range(0));
    for (const Driver& each : own) {
        ok(d.cuStreamDestroy_v2(each.stream), "cuStreamDestroy");
    }
}

void launch_sustained_threads(benchmark::State& state) {
    by_threads(state, 10'000, [](const Driver& d) { ok(launch(d), "cuLaunchKernel"); });
}

void launch_and_synchronize_threads(benchmark::State& state) {
    by_threads(state, 1'000, [](const Driver& d) {
        ok(launch(d), "cuLaunchKernel");
        ok(d.cuStreamSynchronize(d.stream), "cuStreamSynchronize");
    });
}

void event_query(benchmark::State& state) {
    const Driver& d = driver();
    ok(d.cuEventRecord(d.event, d.stream), "cuEventRecord");
    ok(d.cuEventSynchronize(d.event), "cuEventSynchronize");
    for (auto _ : state) {
        ok(d.cuEventQuery(d.event), "cuEventQuery");
    }
}

// For an event whose record is not reached: the stream waits for a word.
void event_query_pending(benchmark::State& state) {
    const Driver& d = driver();
    CUstream gate = nullptr;
    ok(d.cuStreamCreate(&gate, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    ok(d.cuStreamWriteValue32_v2(gate, d.memory, 0, 0), "cuStreamWriteValue32");
    ok(d.cuStreamSynchronize(gate), "cuStreamSynchronize");
    ok(d.cuStreamWaitValue32_v2(d.stream, d.memory, 1, CU_STREAM_WAIT_VALUE_EQ), "cuStreamWaitValue32");
    ok(d.cuEventRecord(d.event, d.stream), "cuEventRecord");
    bool came = false;
    for (auto _ : state) {
        came = d.cuEventQuery(d.event) != CUDA_ERROR_NOT_READY || came;
    }
    if (came) {
        state.SkipWithError("the event is complete although its stream waits");
    }
    ok(d.cuStreamWriteValue32_v2(gate, d.memory, 1, 0), "cuStreamWriteValue32");
    ok(d.cuStreamSynchronize(d.stream), "cuStreamSynchronize");
    ok(d.cuStreamDestroy_v2(gate), "cuStreamDestroy");
}

void allocate_and_free(benchmark::State& state) {
    const Driver& d = driver();
    CUdeviceptr block = 0;
    for (auto _ : state) {
        ok(d.cuMemAlloc_v2(&block, static_cast<std::size_t>(state.range(0))), "cuMemAlloc");
        ok(d.cuMemFree_v2(block), "cuMemFree");
    }
}

void allocate_and_free_in_stream(benchmark::State& state) {
    deferred(state, [&](const Driver& d) {
        CUdeviceptr block = 0;
        ok(d.cuMemAllocAsync(&block, static_cast<std::size_t>(state.range(0)), d.stream), "cuMemAllocAsync");
        return d.cuMemFreeAsync(block, d.stream);
    });
}

// A captured chain of kernels, ready to be launched.
class Graph {
  public:
    Graph(const Driver& d, std::int64_t kernels) : driver_(d) {
        ok(d.cuStreamBeginCapture_v2(d.stream, CU_STREAM_CAPTURE_MODE_RELAXED), "cuStreamBeginCapture");
        for (std::int64_t i = 0; i < kernels; ++i) {
            ok(gpupool::benchmarks::launch(d), "cuLaunchKernel");
        }
        ok(d.cuStreamEndCapture(d.stream, &graph_), "cuStreamEndCapture");
        ok(d.cuGraphInstantiateWithFlags(&executable_, graph_, 0), "cuGraphInstantiate");
    }
    ~Graph() {
        driver_.cuGraphExecDestroy(executable_);
        driver_.cuGraphDestroy(graph_);
    }
    Graph(const Graph&) = delete;
    Graph& operator=(const Graph&) = delete;
    void launch() const { ok(driver_.cuGraphLaunch(executable_, driver_.stream), "cuGraphLaunch"); }

  private:
    const Driver& driver_;
    CUgraph graph_ = nullptr;
    CUgraphExec executable_ = nullptr;
};

// Replays from a caller that never pauses.
void graph_replay(benchmark::State& state) {
    constexpr int kReplays = 100;
    const Driver& d = driver();
    const Graph graph(d, state.range(0));
    for (auto _ : state) {
        for (int i = 0; i < kReplays; ++i) {
            graph.launch();
        }
        ok(d.cuStreamSynchronize(d.stream), "cuStreamSynchronize");
    }
    state.SetItemsProcessed(state.iterations() * kReplays);
}

void graph_launch_and_synchronize(benchmark::State& state) {
    const Driver& d = driver();
    const Graph graph(d, state.range(0));
    for (auto _ : state) {
        graph.launch();
        ok(d.cuStreamSynchronize(d.stream), "cuStreamSynchronize");
    }
}

// The copied data: not compressible, unless compression is measured.
constexpr std::uint64_t kAllBits = ~std::uint64_t{0};
constexpr std::uint64_t kHalfOfTheBits = 0x0f0f0f0f0f0f0f0f;

void fill(void* data, std::size_t bytes, std::uint64_t random_bits = kAllBits) {
    std::mt19937_64 random(1);
    for (std::size_t done = 0; done < bytes; done += sizeof random_bits) {
        const std::uint64_t word = random() & random_bits;
        std::memcpy(static_cast<std::byte*>(data) + done, &word, std::min(sizeof word, bytes - done));
    }
}

std::vector<char> filled(std::size_t bytes, std::uint64_t random_bits = kAllBits) {
    std::vector<char> data(bytes);
    fill(data.data(), bytes, random_bits);
    return data;
}

void upload(benchmark::State& state, const std::vector<char>& data) {
    const Driver& d = driver();
    for (auto _ : state) {
        ok(d.cuMemcpyHtoD_v2(d.memory, data.data(), data.size()), "cuMemcpyHtoD");
    }
    state.SetBytesProcessed(state.iterations() * state.range(0));
}

void download(benchmark::State& state, std::vector<char> data) {
    const Driver& d = driver();
    ok(d.cuMemcpyHtoD_v2(d.memory, data.data(), data.size()), "cuMemcpyHtoD");
    for (auto _ : state) {
        ok(d.cuMemcpyDtoH_v2(data.data(), d.memory, data.size()), "cuMemcpyDtoH");
    }
    state.SetBytesProcessed(state.iterations() * state.range(0));
}

void copy_to_device(benchmark::State& state) {
    upload(state, filled(static_cast<std::size_t>(state.range(0))));
}

void copy_to_host(benchmark::State& state) {
    download(state, filled(static_cast<std::size_t>(state.range(0))));
}

// On a slow line these may be faster.
void copy_compressible_to_device(benchmark::State& state) {
    upload(state, filled(static_cast<std::size_t>(state.range(0)), kHalfOfTheBits));
}

void copy_compressible_to_host(benchmark::State& state) {
    download(state, filled(static_cast<std::size_t>(state.range(0)), kHalfOfTheBits));
}

// Pinned memory, written once before, since the first access to a page takes extra time.
class Pinned {
  public:
    Pinned(const Driver& d, std::size_t bytes) : driver_(d) {
        ok(d.cuMemAllocHost_v2(&data_, bytes), "cuMemAllocHost");
        fill(data_, bytes);
    }
    ~Pinned() { driver_.cuMemFreeHost(data_); }
    Pinned(const Pinned&) = delete;
    Pinned& operator=(const Pinned&) = delete;
    void* data() const { return data_; }

  private:
    const Driver& driver_;
    void* data_ = nullptr;
};

void copy_to_device_from(benchmark::State& state, const void* data) {
    const Driver& d = driver();
    const auto bytes = static_cast<std::size_t>(state.range(0));
    for (auto _ : state) {
        ok(d.cuMemcpyHtoDAsync_v2(d.memory, data, bytes, d.stream), "cuMemcpyHtoDAsync");
        ok(d.cuStreamSynchronize(d.stream), "cuStreamSynchronize");
    }
    state.SetBytesProcessed(state.iterations() * state.range(0));
}

void copy_from_device_to(benchmark::State& state, void* data) {
    const Driver& d = driver();
    const auto bytes = static_cast<std::size_t>(state.range(0));
    ok(d.cuMemcpyHtoD_v2(d.memory, data, bytes), "cuMemcpyHtoD");
    for (auto _ : state) {
        ok(d.cuMemcpyDtoHAsync_v2(data, d.memory, bytes, d.stream), "cuMemcpyDtoHAsync");
        ok(d.cuStreamSynchronize(d.stream), "cuStreamSynchronize");
    }
    state.SetBytesProcessed(state.iterations() * state.range(0));
}

void copy_pinned_to_device(benchmark::State& state) {
    const Pinned data(driver(), static_cast<std::size_t>(state.range(0)));
    copy_to_device_from(state, data.data());
}

void copy_to_pinned(benchmark::State& state) {
    const Pinned data(driver(), static_cast<std::size_t>(state.range(0)));
    copy_from_device_to(state, data.data());
}

// The program's own pages, registered.
class Registered {
  public:
    Registered(const Driver& d, std::size_t bytes) : driver_(d), data_(std::aligned_alloc(kPageBytes, bytes)) {
        fill(data_, bytes);
        ok(d.cuMemHostRegister_v2(data_, bytes, 0), "cuMemHostRegister");
    }
    ~Registered() {
        ok(driver_.cuMemHostUnregister(data_), "cuMemHostUnregister");
        std::free(data_);
    }
    Registered(const Registered&) = delete;
    Registered& operator=(const Registered&) = delete;
    [[nodiscard]] void* data() const { return data_; }

  private:
    static constexpr std::size_t kPageBytes = 4096;
    const Driver& driver_;
    void* data_;
};

void copy_registered_to_device(benchmark::State& state) {
    const Registered data(driver(), static_cast<std::size_t>(state.range(0)));
    copy_to_device_from(state, data.data());
}

void copy_to_registered(benchmark::State& state) {
    const Registered data(driver(), static_cast<std::size_t>(state.range(0)));
    copy_from_device_to(state, data.data());
}

BENCHMARK(call_local)->UseRealTime();
BENCHMARK(call_round_trip)->UseRealTime();
BENCHMARK(launch_deferred)->UseRealTime();
BENCHMARK(launch_sustained)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(launch_sustained_packed)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(launches_on_gpu)->Arg(400)->UseManualTime();
BENCHMARK(launch_sustained_threads)->Arg(4)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(launch_and_synchronize)->UseRealTime();
BENCHMARK(launch_and_synchronize_threads)->Arg(4)->UseRealTime();
BENCHMARK(launch_and_synchronize_after_pause)->Arg(1)->Iterations(300)->UseRealTime();
BENCHMARK(synchronize_idle)->UseRealTime();
BENCHMARK(synchronize_idle_context)->Arg(256)->UseRealTime();
BENCHMARK(allocate_and_free)->Arg(1 << 20)->UseRealTime();
BENCHMARK(allocate_and_free_in_stream)->Arg(1 << 20)->UseRealTime();
BENCHMARK(event_record_deferred)->UseRealTime();
BENCHMARK(event_record_polled)->UseRealTime();
BENCHMARK(event_query)->UseRealTime();
BENCHMARK(event_query_pending)->UseRealTime();
BENCHMARK(copy_pinned_to_device)->Arg(4)->Arg(64 << 10)->Arg(256 << 20)->UseRealTime();
BENCHMARK(copy_to_pinned)->Arg(4)->Arg(64 << 10)->Arg(256 << 20)->UseRealTime();
BENCHMARK(copy_registered_to_device)->Arg(256 << 20)->UseRealTime();
BENCHMARK(copy_to_registered)->Arg(256 << 20)->UseRealTime();
BENCHMARK(copy_to_device)->Arg(4)->Arg(64 << 10)->Arg(256 << 20)->UseRealTime();
BENCHMARK(copy_to_host)->Arg(4)->Arg(64 << 10)->Arg(256 << 20)->UseRealTime();
BENCHMARK(copy_compressible_to_device)->Arg(256 << 20)->UseRealTime();
BENCHMARK(copy_compressible_to_host)->Arg(256 << 20)->UseRealTime();
BENCHMARK(graph_replay)->Arg(50)->UseRealTime();
BENCHMARK(graph_launch_and_synchronize)->Arg(50)->UseRealTime();

}  // namespace
}  // namespace gpupool::benchmarks

BENCHMARK_MAIN();
