// A worker's session with one context, one function and some streams, over a driver that the test plays, and frames of
// commands as a client would send them.
//
// Ownership: owns the worker and the thread of its dispatcher. Threads: one; the worker's threads call the driver.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "protocol/codec/command.h"
#include "server/worker/dispatch/worker.h"
#include "tests/support/transport/inproc/connection.h"

namespace gpupool::test {

// Builds a frame of consecutive commands.
class FrameOfCommands {
  public:
    explicit FrameOfCommands(std::uint64_t context) : context_(context) {}

    template <class Call>
    void add(std::uint64_t number, const void* const* arguments) {
        const std::size_t bytes = sizeof(codec::CommandHeader) + codec::command_bytes<Call>(arguments);
        const std::size_t at = data_.size();
        data_.resize(at + bytes);
        codec::CommandHeader header{};
        header.bytes = static_cast<std::uint32_t>(bytes);
        header.opcode = Call::kOpcode;
        header.number = number;
        header.context = context_;
        codec::Writer out(data_.data() + at);
        out.value(header);
        codec::write_command<Call>(out, arguments);
    }
    [[nodiscard]] const std::vector<std::byte>& data() const { return data_; }

  private:
    std::uint64_t context_;
    std::vector<std::byte> data_;
};

// Adds contexts, and marks that are reached at once.
inline void add_idle_gpu(driver::Api& api) {
    api.cuCtxSetCurrent = [](CUcontext) { return CUDA_SUCCESS; };
    api.cuCtxGetCurrent = [](CUcontext*) { return CUDA_SUCCESS; };
    api.cuStreamCreate = [](CUstream* stream, unsigned) {
        *stream = reinterpret_cast<CUstream>(0x100000);
        return CUDA_SUCCESS;
    };
    api.cuStreamQuery = [](CUstream) { return CUDA_SUCCESS; };
    api.cuMemHostRegister_v2 = [](void*, std::size_t, unsigned) { return CUDA_SUCCESS; };
    api.cuMemHostGetDevicePointer_v2 = [](CUdeviceptr* device, void* host, unsigned) {
        *device = reinterpret_cast<CUdeviceptr>(host);
        return CUDA_SUCCESS;
    };
    api.cuStreamWriteValue32_v2 = [](CUstream, CUdeviceptr address, cuuint32_t value, unsigned) {
        __atomic_store_n(reinterpret_cast<cuuint32_t*>(address), value, __ATOMIC_RELEASE);
        return CUDA_SUCCESS;
    };
}

class LaunchingSession {
  public:
    LaunchingSession(driver::Library driver, std::size_t stream_count, worker::Worker::Options options)
        : library_(std::move(driver)), worker_(library_, 1, std::move(options)) {
        auto made = std::make_unique<worker::ContextState>();
        made->client = codec::from_wire<CUcontext>(kContext);
        made->driver = reinterpret_cast<CUcontext>(0x300);
        made->legacy.context = made.get();
        made->legacy.legacy = true;
        for (std::size_t i = 0; i < stream_count; ++i) {
            const auto client = handle<CUstream>(10 + i);
            auto stream = std::make_unique<worker::StreamState>();
            stream->client = client;
            stream->driver = driver_stream(i);
            stream->context = made.get();
            made->streams[client] = std::move(stream);
            streams_.push_back(client);
        }
        context_ = made.get();
        worker_.session().objects.contexts[made->client] = std::move(made);
        worker_.session().handles.bind(function_, reinterpret_cast<CUfunction>(0x400));
        worker_.session().handles.bind(array_, reinterpret_cast<CUarray>(0x410));
        auto [ours, theirs] = transport::inproc::make_pair();
        peer_ = std::move(ours);
        dispatcher_ =
            std::thread([this, connection = std::move(theirs)]() mutable { worker_.run(std::move(connection)); });
    }
    ~LaunchingSession() { end(); }
    LaunchingSession(const LaunchingSession&) = delete;
    LaunchingSession& operator=(const LaunchingSession&) = delete;

    // Waits for the dispatcher's end; then a test may read its state.
    void end() {
        if (dispatcher_.joinable()) {
            worker_.stop("the session is over");
            dispatcher_.join();
        }
    }
    [[nodiscard]] const worker::ContextState& context() const { return *context_; }

    static CUstream driver_stream(std::size_t index) { return reinterpret_cast<CUstream>((index + 1) << 8); }

    [[nodiscard]] FrameOfCommands frame() const { return FrameOfCommands(kContext); }
    // Adds a launch in the stream of that index, with these bytes as arguments.
    void add_launch(FrameOfCommands& frame, std::size_t stream_index, const void* arguments, std::size_t bytes) {
        const LaunchShape shape{function_, 1, 1, 1, 32, 1, 1, 0, 0, 0};
        const LaunchShape* const given_shape = &shape;
        const CUlaunchAttribute* const attributes = nullptr;
        const unsigned attribute_count = 0;
        const auto* const data = static_cast<const unsigned char*>(arguments);
        const void* const given[] = {
            &given_shape, &attributes, &attribute_count, &data, &bytes, &streams_[stream_index], nullptr};
        frame.add<calls::gpLaunch>(++number_, given);
    }
    void add_memset(FrameOfCommands& frame, std::size_t stream_index) {
        const CUdeviceptr address = 0;
        const unsigned char value = 0;
        const std::size_t bytes = 1;
        const void* const given[] = {&address, &value, &bytes, &streams_[stream_index]};
        frame.add<calls::cuMemsetD8Async>(++number_, given);
    }
    void add_array_destruction(FrameOfCommands& frame) {
        const void* const given[] = {&array_};
        frame.add<calls::cuArrayDestroy>(++number_, given);
    }
    void add_context_creation(FrameOfCommands& frame) {
        const auto context = handle<CUcontext>(2);
        const CUcontext* const created = &context;
        const unsigned flags = 0;
        const CUdevice device = 0;
        const CUexecAffinityParam* const affinities = nullptr;
        const int affinity_count = 0;
        const void* const given[] = {&created, &flags, &device, &affinities, &affinity_count};
        frame.add<calls::gpContextCreate>(++number_, given);
    }
    void send(const FrameOfCommands& frame) {
        auto payload = std::make_unique<std::byte[]>(frame.data().size());
        std::memcpy(payload.get(), frame.data().data(), frame.data().size());
        static_cast<wire::Receiver&>(worker_).on_frame(wire::FrameType::commands, std::move(payload),
                                                       frame.data().size());
    }
    // Puts an entry into the gate's queue of the stream of that index, on the dispatcher's thread.
    void queue(std::size_t stream_index, std::unique_ptr<worker::Entry> entry) {
        const auto given = std::make_shared<std::unique_ptr<worker::Entry>>(std::move(entry));
        worker_.post([this, stream_index, given] {
            worker_.session().gate.queue(*context_->streams.at(streams_[stream_index]), std::move(*given));
        });
    }

  private:
    static constexpr std::uint64_t kContext = 0x101;

    template <class Handle>
    static Handle handle(std::uint64_t serial) {
        return codec::from_wire<Handle>(codec::make_handle(codec::handle_kind_of<Handle>, serial));
    }

    driver::Library library_;
    const CUfunction function_ = handle<CUfunction>(1);
    const CUarray array_ = handle<CUarray>(1);
    worker::Worker worker_;
    worker::ContextState* context_ = nullptr;
    std::vector<CUstream> streams_;
    std::uint64_t number_ = 0;
    std::unique_ptr<transport::Connection> peer_;
    std::thread dispatcher_;
};

}  // namespace gpupool::test
