// The client's side of a session: sends the command stream, receives replies and notices, and keeps the state that lets
// most calls do without a round trip.
//
// Ownership: made by the first call that needs it and never destroyed, because the application's threads may use it
// while the process exits.
// Threads: any.
// Errors: once the session is lost, every call returns `kSessionLost`.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/config.h"
#include "client/core/dispatch/host_functions.h"
#include "client/core/dispatch/thread.h"
#include "client/core/graphs/graph_hosts.h"
#include "client/core/graphs/graph_memories.h"
#include "client/core/graphs/graphs.h"
#include "client/core/graphs/node_storages.h"
#include "client/core/graphs/user_objects.h"
#include "client/core/memory/address_window.h"
#include "client/core/memory/device_heap.h"
#include "client/core/memory/host_mirrors.h"
#include "client/core/memory/memory_map.h"
#include "client/core/memory/stream_pool.h"
#include "client/core/scheduling/captures.h"
#include "client/core/scheduling/events.h"
#include "client/core/scheduling/stream_watches.h"
#include "client/core/scheduling/streams.h"
#include "client/core/scheduling/throttled_streams.h"
#include "client/core/session/contexts.h"
#include "client/core/session/devices.h"
#include "client/core/session/handshake.h"
#include "client/core/tracing/trace.h"
#include "client/core/transfers/lane_opener.h"
#include "client/core/transfers/transfers.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "protocol/codec/cursor.h"
#include "protocol/codec/handles.h"
#include "protocol/wire/channel.h"
#include "protocol/wire/lanes.h"

namespace gpupool::client {

// Every call returns this error after the session is lost.
inline constexpr CUresult kSessionLost = CUDA_ERROR_DEVICE_UNAVAILABLE;

class Session final : public wire::Receiver, public wire::LaneReceiver {
  public:
    // Connects, performs the handshake and reads the device snapshot. Waits for a free place if the configuration says
    // so. The message of a failure is for the user. `reached`: a connection was made.
    static Result<std::unique_ptr<Session>> open(const Config& config, bool& reached,
                                                 TimeSource& clock = TimeSource::system());
    // Starts a session on a connection whose handshake is done. `candidates`: the address ranges that were offered, of
    // which only the welcome's window stays reserved.
    static Result<std::unique_ptr<Session>> start(std::unique_ptr<transport::Connection> connection,
                                                  const Config& config, Welcome welcome,
                                                  const AddressRanges& candidates,
                                                  TimeSource& clock = TimeSource::system());
    ~Session() override = default;

    // ---- state; each class documents its own rules
    codec::Agreement agreement = codec::Agreement::full();  // the calls and notices that both ends know
    DeviceSnapshot devices;
    Contexts contexts;
    Streams streams;
    AddressWindow window;
    MemoryMap memory;
    Transfers transfers;
    HostFunctions host_functions;
    HostMirrors host_mirrors;
    Captures captures;
    ThrottledStreams throttled_streams;
    StreamWatches stream_watches;
    Events events;
    Graphs graphs;
    NodeStorages node_storages;
    GraphHosts graph_hosts;
    GraphMemories graph_memories;
    UserObjects user_objects;
    std::vector<std::unique_ptr<DeviceHeap>> heaps;  // by device; made after the receiving thread has started
    std::atomic<bool> heaps_are_made{false};
    std::vector<std::unique_ptr<StreamPool>> pools;  // the devices' default pools
    bool synchronous = false;                        // GPUPOOL_SYNC, CUDA_LAUNCH_BLOCKING

    std::uint64_t mint(codec::HandleKind kind) {
        return codec::make_handle(kind, next_serial_.fetch_add(1, std::memory_order_relaxed));
    }

    // ---- the command stream

    enum class Gives { nothing, work };

    // Appends a command in the session's order. `body` writes `body_bytes` bytes. `gives`: does the command give a
    // stream work?
    template <class Write>
    CUresult send(std::uint16_t opcode, Gives gives, bool reply_wanted, std::size_t body_bytes, Write&& body) {
        if (body_bytes > codec::kMaxRecordBytes) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        ThreadState& thread = this_thread();
        codec::CommandHeader header{};
        header.bytes = static_cast<std::uint32_t>(sizeof header + body_bytes);
        header.opcode = opcode;
        header.flags = static_cast<std::uint16_t>((reply_wanted ? codec::kReplyWanted : 0) |
                                                  (thread.per_thread_default ? codec::kPerThreadDefaultStream : 0));
        header.thread = thread.index;
        header.context = thread.current() == nullptr ? 0 : codec::to_wire(thread.current()->handle);
        const std::uint64_t begin_ns = trace::moment_ns();
        const Status sent = channel_->append(
            wire::FrameType::commands, header.bytes,
            [&](std::byte* place) {
                header.number = ++commands_;  // under the channel's lock, so numbers follow the order on the wire
                last_command_.store(header.number, std::memory_order_relaxed);
                if (gives == Gives::work) {
                    last_work_.store(header.number, std::memory_order_relaxed);
                }
                codec::Writer out(place);
                out.value(header);
                body(out);
            },
            reply_wanted ? wire::Urgency::now : wire::Urgency::soon);
        if (!sent) {
            broken_.store(true, std::memory_order_relaxed);  // later calls fail as well
            return kSessionLost;
        }
        if (begin_ns != 0) [[unlikely]] {
            trace::note_command(header.number, begin_ns);
        }
        thread.last_command = header.number;
        return CUDA_SUCCESS;
    }

    // The number of the last command. Covers everything that the calling thread knows to have been sent.
    [[nodiscard]] std::uint64_t commands_sent() const { return last_command_.load(std::memory_order_relaxed); }
    // The number of replies and notices received. Each is counted before it takes effect.
    [[nodiscard]] std::uint64_t records_received() const { return records_received_.load(std::memory_order_acquire); }
    // Will the worker soon process what is sent now? True if it has answered one of the last few commands.
    [[nodiscard]] bool worker_is_near() const {
        constexpr std::uint64_t kFew = 32;
        return commands_sent() - last_answered_.load(std::memory_order_relaxed) <= kFew;
    }

    // All work before this thread's last command is complete, in that context or stream.
    void note_complete(ContextState& context);
    void note_complete(const StreamKey& stream);
    // Is all work of the context known to be complete?
    [[nodiscard]] bool all_complete(const ContextState& context) const {
        return last_work_.load(std::memory_order_relaxed) <= context.complete_until.load(std::memory_order_relaxed);
    }

    // Has no command been sent since the context was last waited for? Then there is nothing to wait for, and no
    // unreported error.
    [[nodiscard]] bool nothing_since_wait(const ContextState& context) const {
        return commands_sent() <= context.complete_until.load(std::memory_order_relaxed);
    }

    // Reports the traffic to `observer`, which must live as long as the session.
    void observe(wire::TrafficObserver* observer) {
        channel_->observe(observer);
        if (lanes_ != nullptr) {
            lanes_->observe(observer);
        }
    }

    // Notes in `memory` what graphs have allocated or freed.
    void apply(const GraphMemories::Changes& changes);

    // Waits while the worker accepts no more work for a stream (as the calling thread means it).
    void wait_for_stream(CUstream stream) {
        if (throttled_streams.any()) [[unlikely]] {
            const trace::Wait waiting;
            throttled_streams.wait(stream_key(stream));
        }
    }

    // Waits while the worker accepts no more changes of an executable graph, because launches of it are held.
    void wait_for_changes_of(CUgraphExec executable) {
        if (throttled_streams.any()) [[unlikely]] {
            const trace::Wait waiting;
            throttled_streams.wait(ThrottledStreams::changes_of(codec::to_wire(executable)));
        }
    }

    // Waits while the worker queues all commands because the driver is closed. Do not hold a lock of the client: the
    // thread that ends this state may need it.
    void wait_while_set_aside() {
        if (throttled_streams.all()) [[unlikely]] {
            const trace::Wait waiting;
            throttled_streams.wait_for_all();
        }
    }

    // Writes what kernels printed to the application's stdout and stderr, on the thread that waited, as the driver
    // does. The receiving thread must not do it: those streams may be locked or full.
    void print_new_output() {
        if (has_output_.load(std::memory_order_acquire)) {
            print_output();
        }
    }

    // The server violated the protocol: ends the session, and wakes all waiting threads, because what they wait for may
    // never arrive. Any thread.
    void violation(const char* what);

    [[nodiscard]] bool lost() const {
        return lost_.load(std::memory_order_relaxed) || broken_.load(std::memory_order_relaxed);
    }
    // For passing descriptors; data goes through the channel.
    transport::Connection& connection() { return *connection_; }
    // Waits until the connection has accepted everything that was sent.
    void flush() { (void)channel_->flush(); }
    // Call before waiting for a reply: the thread polls, and receives itself if no other thread does.
    void poll_for(ReplySlot& reply) {
        wire::Channel::PollingReceiver receiver(*channel_);
        reply.poll([&] { receiver.poll(); });
    }
    // For a forked child: the connections are the parent's.
    void close_descriptors() noexcept;
    [[nodiscard]] const std::string& id() const { return id_; }
    [[nodiscard]] const std::string& server() const { return server_; }
    [[nodiscard]] const std::string& server_version() const { return server_version_; }

  private:
    explicit Session(TimeSource& clock) : transfers(clock), host_mirrors(clock) {}
    // `full`: the server has no free place now.
    static Result<std::unique_ptr<Session>> open_once(const Config& config, bool& reached, bool& full,
                                                      TimeSource& clock);
    // The same over one transport. `hung_up`: the server closed the connection without an answer.
    static Result<std::unique_ptr<Session>> open_over(std::unique_ptr<transport::Connection> connection,
                                                      const Config& config, transport::Clock::time_point deadline,
                                                      bool& full, bool& hung_up, TimeSource& clock);
    static Answer shake_hands(transport::Connection& connection, const Config& config,
                              transport::Clock::time_point deadline, const AddressRanges& candidates);
    void prepare_lanes(const Config& config, Welcome& welcome);
    void begin(std::unique_ptr<transport::Connection> connection);

    std::span<std::byte> bulk_destination(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) override;
    void on_bulk(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) override;
    void on_bulk_lost(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) override;
    void on_frame(wire::FrameType type, std::unique_ptr<std::byte[]> payload, std::size_t bytes) override;
    void on_closed(const Error& cause) override;
    void on_append_waits(bool waits) override;
    std::span<std::byte> piece_destination(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) override;
    void on_piece(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) override;
    void on_piece_lost(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) override;
    void on_lanes_ended(const Error& cause) override;
    // Ends all connections. When none writes to the application's memory any more, wakes all waiting threads.
    void lose(const Error& cause);
    // False if the notice is invalid.
    bool take_notice(const codec::ReplyHeader& header, std::span<std::byte> body);
    bool take_output(codec::Reader& in, std::FILE* to);
    bool take_end(codec::Reader& in);
    void print_output();
    void take_deferred_error(const codec::DeferredErrorNotice& notice);
    bool take_pieces_sent(const codec::PiecesSentNotice& notice);
    bool take_throttle(const codec::StreamThrottleNotice& notice);
    bool take_stream_complete(const codec::StreamCompleteNotice& notice);
    std::optional<StreamKey> key_of(std::uint64_t stream, std::uint64_t context, std::uint32_t thread);
    bool take_graph_function(const codec::GraphFunctionNotice& notice);
    bool take_graph_copy(const codec::GraphCopyNotice& notice, bool upload);

    std::unique_ptr<wire::Lanes> lanes_;  // null: the session has no lanes
    std::unique_ptr<LaneOpener> lane_opener_;
    std::unique_ptr<wire::Channel> channel_;
    std::uint64_t commands_ = 0;  // guarded by the channel's lock
    std::atomic<std::uint64_t> last_command_{0};
    std::atomic<std::uint64_t> last_work_{0};  // the latest command that gave a stream work
    std::atomic<std::uint64_t> last_answered_{0};
    std::atomic<std::uint64_t> records_received_{0};  // written by the receiving thread
    std::atomic<std::uint64_t> next_serial_{1};
    std::atomic<bool> lost_{false};
    std::atomic<bool> broken_{false};              // a send has failed; the receiving thread may not have noticed yet
    transport::Connection* connection_ = nullptr;  // owned by the channel, which lives as long
    std::vector<int> descriptors_;
    std::string id_, server_, server_version_, peer_;

    Mutex output_mutex_;
    std::vector<std::pair<std::FILE*, std::string>> output_ GP_GUARDED_BY(output_mutex_);
    std::size_t output_bytes_ GP_GUARDED_BY(output_mutex_) = 0;
    std::atomic<bool> has_output_{false};
};

}  // namespace gpupool::client
