// The client's side of a session: the command stream out, replies and notices back, and all that the client keeps so
// that most calls need neither.
//
// Ownership: made by the first call that needs it and never destroyed: the application's threads may be in it while the
//   process ends. Threads: any. Errors: once lost, every call gives `kSessionLost`.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "client/config.h"
#include "client/core/address_window.h"
#include "client/core/captures.h"
#include "client/core/contexts.h"
#include "client/core/device_heap.h"
#include "client/core/devices.h"
#include "client/core/events.h"
#include "client/core/graph_hosts.h"
#include "client/core/handshake.h"
#include "client/core/host_functions.h"
#include "client/core/host_mirrors.h"
#include "client/core/memory_map.h"
#include "client/core/thread.h"
#include "client/core/trace.h"
#include "client/core/transfers.h"
#include "protocol/codec/cursor.h"
#include "protocol/codec/handles.h"
#include "protocol/wire/channel.h"

namespace gpupool::client {

// What an application gets from every call after its server or worker has gone.
inline constexpr CUresult kSessionLost = CUDA_ERROR_DEVICE_UNAVAILABLE;

class Session final : public wire::Receiver {
  public:
    // Connects, shakes hands, takes the snapshot; waits for a place where the configuration says so. The message of a
    // failure is for the user.
    static Result<std::unique_ptr<Session>> open(const Config& config);
    // A session on a connection whose handshake somebody else has made.
    static std::unique_ptr<Session> adopt(std::unique_ptr<transport::Connection> connection, DeviceSnapshot snapshot);
    ~Session() override = default;

    // ---- state, each with rules of its own
    DeviceSnapshot devices;
    Contexts contexts;
    AddressWindow window;
    MemoryMap memory;
    Transfers transfers;
    HostFunctions host_functions;
    HostMirrors host_mirrors;
    Captures captures;
    Events events;
    GraphHosts graph_hosts;
    std::vector<std::unique_ptr<DeviceHeap>> heaps;  // by device
    bool synchronous = false;                        // GPUPOOL_SYNC, CUDA_LAUNCH_BLOCKING

    std::uint64_t mint(codec::HandleKind kind) {
        return codec::make_handle(kind, next_serial_.fetch_add(1, std::memory_order_relaxed));
    }

    // ---- the command stream

    // Appends a command in the session's order. `body` writes its `body_bytes`.
    template <class Write>
    CUresult send(std::uint16_t opcode, bool reply_wanted, std::size_t body_bytes, Write&& body) {
        if (body_bytes > codec::kMaxRecordBytes) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        const ThreadState& thread = this_thread();
        codec::CommandHeader header{};
        header.bytes = static_cast<std::uint32_t>(sizeof header + body_bytes);
        header.opcode = opcode;
        header.flags = static_cast<std::uint16_t>((reply_wanted ? codec::kReplyWanted : 0) |
                                                  (thread.per_thread_default ? codec::kPerThreadDefaultStream : 0));
        header.thread = thread.index;
        header.context = thread.current() == nullptr ? 0 : codec::to_wire(thread.current()->handle);
        const std::uint64_t begin_ns = trace::moment_ns();
        const Status sent = channel_->append(wire::FrameType::commands, header.bytes, [&](std::byte* place) {
            header.number = ++commands_;  // under the channel's lock: numbers follow the order on the wire
            codec::Writer out(place);
            out.value(header);
            body(out);
        }, reply_wanted ? wire::Promptness::now : wire::Promptness::soon);
        if (!sent) {
            broken_.store(true, std::memory_order_relaxed);  // whatever comes after this call fails as well
            return kSessionLost;
        }
        if (begin_ns != 0) [[unlikely]] {
            trace::note_command(header.number, begin_ns);
        }
        return CUDA_SUCCESS;
    }

    // What passes on the wire is told to `observer`, which stays.
    void observe(wire::TrafficObserver* observer) { channel_->observe(observer); }

    // Waits while the worker wants no more work for a stream (its credit and its hold queue are used up).
    void wait_for_stream(CUstream stream);

    // Writes what kernels printed to the application's own streams: on the thread that waited for them, as natively.
    // The receiving thread must not, for those streams may be locked or full.
    void print_new_output() {
        if (has_output_.load(std::memory_order_acquire)) {
            print_output();
        }
    }

    // The server broke the protocol: the session ends, and with it everybody's waiting, since what they wait for may be
    // what was broken. Any thread.
    void violation(const char* what);

    [[nodiscard]] bool lost() const {
        return lost_.load(std::memory_order_relaxed) || broken_.load(std::memory_order_relaxed);
    }
    [[nodiscard]] int connection_descriptor() const { return descriptor_; }
    [[nodiscard]] const std::string& id() const { return id_; }
    [[nodiscard]] const std::string& server() const { return server_; }

  private:
    Session() = default;
    // `full`: the server has no place now.
    static Result<std::unique_ptr<Session>> open_once(const Config& config, bool& full);
    Answer shake_hands(transport::Connection& connection, const Config& config, transport::Clock::time_point deadline,
                       const AddressRanges& candidates);
    void begin(std::unique_ptr<transport::Connection> connection);

    std::span<std::byte> bulk_destination(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) override;
    void on_bulk(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) override;
    void on_frame(wire::FrameType type, std::unique_ptr<std::byte[]> payload, std::size_t bytes) override;
    void on_closed(const Error& cause) override;
    void lose(const Error& cause);
    // False: no server says that.
    bool take_notice(const codec::ReplyHeader& header, std::span<std::byte> body);
    bool take_output(codec::Reader& in, std::FILE* to);
    void print_output();
    void take_deferred_error(const codec::DeferredErrorNotice& notice);
    bool take_hold(const codec::StreamHoldNotice& notice);
    bool take_graph_function(const codec::GraphFunctionNotice& notice);
    bool take_graph_copy(const codec::GraphCopyNotice& notice, bool upload);

    std::unique_ptr<wire::Channel> channel_;
    std::uint64_t commands_ = 0;  // guarded by the channel's order
    std::atomic<std::uint64_t> next_serial_{1};
    std::atomic<bool> lost_{false};
    std::atomic<bool> broken_{false};  // a send has failed; the receiving thread may not have noticed yet
    int descriptor_ = -1;
    std::string id_, server_;

    std::mutex output_mutex_;
    std::vector<std::pair<std::FILE*, std::string>> output_;
    std::size_t output_bytes_ = 0;
    std::atomic<bool> has_output_{false};

    std::atomic<std::size_t> held_count_{0};
    std::mutex held_mutex_;
    std::condition_variable held_changed_;
    std::set<std::uint64_t> held_streams_;
};

}  // namespace gpupool::client
