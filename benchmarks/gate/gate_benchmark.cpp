// What the gate costs the dispatcher for each launch: entering it, and the end of the submission. Nothing waits, the
// lease is open, and the driver does nothing.
#include <benchmark/benchmark.h>

#include <memory>
#include <optional>

#include "server/worker/gate/gate.h"

namespace gpupool::benchmarks {
namespace {

driver::Api idle_gpu() {
    driver::Api api;
    api.cuCtxSetCurrent = [](CUcontext) { return CUDA_SUCCESS; };
    api.cuStreamCreate = [](CUstream* stream, unsigned) {
        *stream = reinterpret_cast<CUstream>(0x100);
        return CUDA_SUCCESS;
    };
    api.cuStreamWriteValue32_v2 = [](CUstream, CUdeviceptr address, cuuint32_t value, unsigned) {
        __atomic_store_n(reinterpret_cast<cuuint32_t*>(address), value, __ATOMIC_RELEASE);
        return CUDA_SUCCESS;
    };
    api.cuMemHostRegister_v2 = [](void*, std::size_t, unsigned) { return CUDA_SUCCESS; };
    api.cuMemHostGetDevicePointer_v2 = [](CUdeviceptr* device, void* host, unsigned) {
        *device = reinterpret_cast<CUdeviceptr>(host);
        return CUDA_SUCCESS;
    };
    api.cuCtxGetCurrent = [](CUcontext* context) {
        *context = nullptr;
        return CUDA_SUCCESS;
    };
    return api;
}

struct Session {
    explicit Session(std::size_t streams) {
        context.legacy.legacy = true;
        context.legacy.context = &context;
        for (std::size_t i = 1; i <= streams; ++i) {
            auto stream = std::make_unique<worker::StreamState>();
            stream->client = reinterpret_cast<CUstream>(i << 4);
            stream->driver = reinterpret_cast<CUstream>(i << 8);
            stream->context = &context;
            context.streams[stream->client] = std::move(stream);
        }
    }
    worker::StreamState& stream(std::size_t number) {
        return *context.streams.at(reinterpret_cast<CUstream>(number << 4));
    }

    bool closed = false, lease = true;
    driver::Api api = idle_gpu();
    worker::PinnedMemory words{api, [](const std::function<void()>& run) { run(); }};
    worker::ContextState context;
    worker::Scheduler scheduler{api, words, [this] { return closed; }};
    worker::Gate gate{scheduler,
                      {[](const worker::StreamState*, const worker::Queue*, bool) {}, [this] { return closed; },
                       [this] { return lease; }}};
};

// The dispatcher polls for completions after so many commands.
constexpr std::size_t kPollEvery = 128;

void launches(benchmark::State& state, worker::StreamState& stream, Session& session) {
    std::size_t since_poll = 0;
    for (auto _ : state) {
        std::optional<worker::Submission> submission = session.gate.enter(stream, calls::Kind::work);
        benchmark::DoNotOptimize(submission);
        submission.reset();
        if (++since_poll == kPollEvery) {
            since_poll = 0;
            session.scheduler.poll();
        }
    }
}

void launch(benchmark::State& state) {
    Session session(4);
    launches(state, session.stream(1), session);
}
BENCHMARK(launch);

void launch_in_legacy_stream(benchmark::State& state) {
    Session session(4);
    launches(state, session.context.legacy, session);
}
BENCHMARK(launch_in_legacy_stream);

// Without the gate: accounting and marks alone.
void accounting(benchmark::State& state) {
    Session session(4);
    worker::StreamState& stream = session.stream(1);
    std::size_t since_poll = 0;
    for (auto _ : state) {
        session.scheduler.issued(stream);
        if (++since_poll == kPollEvery) {
            since_poll = 0;
            session.scheduler.poll();
        }
    }
}
BENCHMARK(accounting);

}  // namespace
}  // namespace gpupool::benchmarks
