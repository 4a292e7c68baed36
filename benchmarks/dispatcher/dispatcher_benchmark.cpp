// What the dispatcher itself costs a command: launches that arrive in frames and go to a driver that does nothing.
#include <benchmark/benchmark.h>

#include <atomic>
#include <thread>
#include <vector>

#include "protocol/codec/command.h"
#include "protocol/transport/inproc/connection.h"
#include "server/worker/worker.h"

namespace gpupool::benchmarks {
namespace {

using worker::Worker;

constexpr std::size_t kFrames = 64, kLaunchesInFrame = 256, kArgumentBytes = 64;
constexpr std::size_t kLaunches = kFrames * kLaunchesInFrame;

std::atomic<std::size_t> launched{0};
// How often an event is asked for in vain, so that the stream's credit runs out and launches are held.
unsigned asked_in_vain = 0;
unsigned asked = 0;

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
        launched.fetch_add(1, std::memory_order_relaxed);
        return CUDA_SUCCESS;
    };
    return library;
}

// A session with one context, one function and `streams` streams.
struct Session {
    static constexpr std::uint64_t kContext = 0x101;

    explicit Session(std::size_t streams)
        : library(null_driver()), function(handle<CUfunction>(1)), worker(library, 1, {}) {
        auto context = std::make_unique<worker::ContextState>();
        context->client = codec::from_wire<CUcontext>(kContext);
        context->driver = reinterpret_cast<CUcontext>(0x300);
        context->legacy.context = context.get();
        context->legacy.legacy = true;
        for (std::size_t i = 0; i < streams; ++i) {
            const auto client = handle<CUstream>(10 + i);
            auto stream = std::make_unique<worker::StreamState>();
            stream->client = client;
            stream->context = context.get();
            context->streams[client] = std::move(stream);
            names.push_back(client);
        }
        worker.objects.contexts[context->client] = std::move(context);
        worker.handles.bind(function, reinterpret_cast<CUfunction>(0x400));
        auto [ours, theirs] = transport::inproc::make_pair();
        peer = std::move(ours);
        thread = std::thread([this, connection = std::move(theirs)]() mutable { worker.run(std::move(connection)); });
    }
    ~Session() {
        worker.stop("the benchmark is over");
        thread.join();
    }

    template <class Handle>
    static Handle handle(std::uint64_t serial) {
        return codec::from_wire<Handle>(codec::make_handle(codec::handle_kind_of<Handle>, serial));
    }

    void push_frame() {
        std::vector<unsigned char> arguments(kArgumentBytes);
        LaunchShape launch{function, 1, 1, 1, 32, 1, 1, 0, 0, 0};
        const LaunchShape* shape = &launch;
        const CUlaunchAttribute* attributes = nullptr;
        unsigned attribute_count = 0;
        const unsigned char* data = arguments.data();
        std::size_t argument_bytes = arguments.size();
        CUstream stream = nullptr;
        const void* const given[] = {&shape, &attributes, &attribute_count, &data, &argument_bytes, &stream, nullptr};
        const std::size_t body_bytes = codec::command_bytes<calls::gpLaunch>(given);
        const std::size_t bytes = sizeof(codec::CommandHeader) + body_bytes;
        auto frame = std::make_unique<std::byte[]>(bytes * kLaunchesInFrame);
        for (std::size_t i = 0; i < kLaunchesInFrame; ++i) {
            stream = names[i % names.size()];
            codec::CommandHeader header{};
            header.bytes = static_cast<std::uint32_t>(bytes);
            header.opcode = calls::gpLaunch::kOpcode;
            header.number = ++number;
            header.context = kContext;
            codec::Writer out(frame.get() + i * bytes);
            out.value(header);
            codec::write_command<calls::gpLaunch>(out, given);
        }
        static_cast<wire::Receiver&>(worker).on_frame(wire::FrameType::commands, std::move(frame),
                                                      bytes * kLaunchesInFrame);
    }

    driver::Library library;
    CUfunction function;
    std::vector<CUstream> names;
    std::uint64_t number = 0;
    std::unique_ptr<transport::Connection> peer;
    Worker worker;
    std::thread thread;
};

void run(benchmark::State& state, std::size_t streams, unsigned in_vain) {
    asked_in_vain = in_vain;
    Session session(streams);
    for (auto _ : state) {
        launched = 0;
        for (std::size_t i = 0; i < kFrames; ++i) {
            session.push_frame();
        }
        while (launched.load(std::memory_order_relaxed) < kLaunches) {
            std::this_thread::yield();
        }
    }
    state.counters["per_launch"] = benchmark::Counter(static_cast<double>(state.iterations() * kLaunches),
                                                      benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void dispatch_launches(benchmark::State& state) {
    run(state, static_cast<std::size_t>(state.range(0)), 0);
}
void dispatch_held_launches(benchmark::State& state) {
    run(state, static_cast<std::size_t>(state.range(0)), 7);
}

BENCHMARK(dispatch_launches)->Arg(1)->Arg(4)->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(dispatch_held_launches)->Arg(1)->Arg(4)->UseRealTime()->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace gpupool::benchmarks
