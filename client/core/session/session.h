// The client's side of a session: the command stream out, replies and notices back, and all that the client keeps so
// that most calls need neither.
//
// Ownership: made by the first call that needs it and never destroyed: the application's threads may be in it while the
//   process ends. Threads: any. Errors: once lost, every call gives `kSessionLost`.
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
#include "client/core/graphs/graphs.h"
#include "client/core/graphs/node_storages.h"
#include "client/core/memory/address_window.h"
#include "client/core/memory/device_heap.h"
#include "client/core/memory/host_mirrors.h"
#include "client/core/memory/memory_map.h"
#include "client/core/memory/stream_pool.h"
#include "client/core/scheduling/captures.h"
#include "client/core/scheduling/events.h"
#include "client/core/scheduling/held_streams.h"
#include "client/core/scheduling/stream_watches.h"
#include "client/core/scheduling/streams.h"
#include "client/core/session/contexts.h"
#include "client/core/session/devices.h"
#include "client/core/session/handshake.h"
#include "client/core/tracing/trace.h"
#include "client/core/transfers/lane_opener.h"
#include "client/core/transfers/transfers.h"
#include "common/mutex.h"
#include "protocol/codec/cursor.h"
#include "protocol/codec/handles.h"
#include "protocol/wire/channel.h"
#include "protocol/wire/lanes.h"

namespace gpupool::client {

// What an application gets from every call after its server or worker has gone.
inline constexpr CUresult kSessionLost = CUDA_ERROR_DEVICE_UNAVAILABLE;

class Session final : public wire::Receiver, public wire::LaneReceiver {
  public:
    // Connects, shakes hands, takes the snapshot; waits for a place where the configuration says so. The message of a
    // failure is for the user. `reached`: somebody was there to connect to.
    static Result<std::unique_ptr<Session>> open(const Config& config, bool& reached);
    // A session on a connection whose handshake somebody else has made.
    static std::unique_ptr<Session> adopt(std::unique_ptr<transport::Connection> connection, DeviceSnapshot snapshot);
    ~Session() override = default;

    // ---- state, each with rules of its own
    DeviceSnapshot devices;
    Contexts contexts;
    Streams streams;
    AddressWindow window;
    MemoryMap memory;
    Transfers transfers;
    HostFunctions host_functions;
    HostMirrors host_mirrors;
    Captures captures;
    HeldStreams held_streams;
    StreamWatches stream_watches;
    Events events;
    Graphs graphs;
    NodeStorages node_storages;
    GraphHosts graph_hosts;
    std::vector<std::unique_ptr<DeviceHeap>> heaps;  // by device; made while the receiving thread runs already
    std::atomic<bool> heaps_are_made{false};
    std::vector<std::unique_ptr<StreamPool>> pools;  // the devices' default pools
    bool synchronous = false;                        // GPUPOOL_SYNC, CUDA_LAUNCH_BLOCKING

    std::uint64_t mint(codec::HandleKind kind) {
        return codec::make_handle(kind, next_serial_.fetch_add(1, std::memory_order_relaxed));
    }

    // ---- the command stream

    enum class Gives { nothing, work };

    // Appends a command in the session's order. `body` writes its `body_bytes`. `gives`: does it give a stream work?
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
                header.number = ++commands_;  // under the channel's lock: numbers follow the order on the wire
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
            broken_.store(true, std::memory_order_relaxed);  // whatever comes after this call fails as well
            return kSessionLost;
        }
        if (begin_ns != 0) [[unlikely]] {
            trace::note_command(header.number, begin_ns);
        }
        thread.last_command = header.number;
        return CUDA_SUCCESS;
    }

    // Everything that the calling thread knows of was sent by then.
    [[nodiscard]] std::uint64_t commands_sent() const { return last_command_.load(std::memory_order_relaxed); }
    // Replies and notices. Counted before anybody learns of what they say.
    [[nodiscard]] std::uint64_t records_received() const { return records_received_.load(std::memory_order_acquire); }
    // Will the worker soon come to what is sent now? It has answered one of the last few commands.
    [[nodiscard]] bool worker_is_near() const {
        constexpr std::uint64_t kFew = 32;
        return commands_sent() - last_answered_.load(std::memory_order_relaxed) <= kFew;
    }

    // All work that came before this thread's last command is complete, in that context or stream.
    void note_complete(ContextState& context);
    void note_complete(const StreamKey& stream);
    // Is it known that the context has nothing left to do?
    [[nodiscard]] bool all_complete(const ContextState& context) const {
        return last_work_.load(std::memory_order_relaxed) <= context.complete_until.load(std::memory_order_relaxed);
    }

    // Has nobody sent anything since the context was waited for? Then there is nothing to wait for, and nothing that
    // may have failed unnoticed.
    [[nodiscard]] bool nothing_since_wait(const ContextState& context) const {
        return commands_sent() <= context.complete_until.load(std::memory_order_relaxed);
    }

    // What passes on the wire is told to `observer`, which stays.
    void observe(wire::TrafficObserver* observer) {
        channel_->observe(observer);
        if (lanes_ != nullptr) {
            lanes_->observe(observer);
        }
    }

    // Waits while the worker wants no more work for a stream, as the calling thread means it.
    void wait_for_stream(CUstream stream) {
        if (held_streams.any()) [[unlikely]] {
            const trace::Wait waiting;
            held_streams.wait(stream_key(stream));
        }
    }

    // The same for changes of an executable graph, launches of which wait there.
    void wait_for_changes_of(CUgraphExec executable) {
        if (held_streams.any()) [[unlikely]] {
            const trace::Wait waiting;
            held_streams.wait(HeldStreams::changes_of(codec::to_wire(executable)));
        }
    }

    // Waits while it wants no more of anything. Not with a lock of ours held, which those who end it may need.
    void wait_while_set_aside() {
        if (held_streams.all()) [[unlikely]] {
            const trace::Wait waiting;
            held_streams.wait_for_all();
        }
    }

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
    // For the descriptors that it carries; its bytes are the channel's.
    transport::Connection& connection() { return *connection_; }
    // Waits until the connection has taken everything that was sent.
    void flush() { (void)channel_->flush(); }
    // For a reply that is about to be waited for: this thread receives itself where that is possible.
    void poll_for(ReplySlot& reply) {
        wire::Channel::PollingReceiver receiver(*channel_);
        reply.poll([&] { receiver.poll(); });
    }
    // In a forked child: the connections are the parent's.
    void close_descriptors() noexcept;
    [[nodiscard]] const std::string& id() const { return id_; }
    [[nodiscard]] const std::string& server() const { return server_; }

  private:
    Session() = default;
    // `full`: the server has no place now.
    static Result<std::unique_ptr<Session>> open_once(const Config& config, bool& reached, bool& full);
    // The same over one transport. `hung_up`: the server ended the connection without a word.
    static Result<std::unique_ptr<Session>> open_over(std::unique_ptr<transport::Connection> connection,
                                                      const Config& config, transport::Clock::time_point deadline,
                                                      bool& full, bool& hung_up);
    Answer shake_hands(transport::Connection& connection, const Config& config, transport::Clock::time_point deadline,
                       const AddressRanges& candidates);
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
    // Ends all connections. Whoever waits goes on when none of them touches the application's memory any more.
    void lose(const Error& cause);
    // False: no server says that.
    bool take_notice(const codec::ReplyHeader& header, std::span<std::byte> body);
    bool take_output(codec::Reader& in, std::FILE* to);
    bool take_end(codec::Reader& in);
    void print_output();
    void take_deferred_error(const codec::DeferredErrorNotice& notice);
    bool take_pieces_sent(const codec::PiecesSentNotice& notice);
    bool take_hold(const codec::StreamHoldNotice& notice);
    bool take_stream_complete(const codec::StreamCompleteNotice& notice);
    std::optional<StreamKey> key_of(std::uint64_t stream, std::uint64_t context, std::uint32_t thread);
    bool take_graph_function(const codec::GraphFunctionNotice& notice);
    bool take_graph_copy(const codec::GraphCopyNotice& notice, bool upload);

    std::unique_ptr<wire::Lanes> lanes_;  // null: the session has no connection but its own
    std::unique_ptr<LaneOpener> lane_opener_;
    std::unique_ptr<wire::Channel> channel_;
    std::uint64_t commands_ = 0;  // guarded by the channel's order
    std::atomic<std::uint64_t> last_command_{0};
    std::atomic<std::uint64_t> last_work_{0};  // the latest command that gave a stream work
    std::atomic<std::uint64_t> last_answered_{0};
    std::atomic<std::uint64_t> records_received_{0};  // written by whoever receives, one at a time
    std::atomic<std::uint64_t> next_serial_{1};
    std::atomic<bool> lost_{false};
    std::atomic<bool> broken_{false};              // a send has failed; the receiving thread may not have noticed yet
    transport::Connection* connection_ = nullptr;  // the channel's, which lives as long
    std::vector<int> descriptors_;
    std::string id_, server_, peer_;

    Mutex output_mutex_;
    std::vector<std::pair<std::FILE*, std::string>> output_ GP_GUARDED_BY(output_mutex_);
    std::size_t output_bytes_ GP_GUARDED_BY(output_mutex_) = 0;
    std::atomic<bool> has_output_{false};
};

}  // namespace gpupool::client
