// One session: a client's command stream on one side, the driver on the other.
//
// The dispatcher thread (run()) takes commands in the session's order and issues them. It owns everything here unless
// marked otherwise. It makes no driver call that may wait for something which only the dispatcher can bring about
// (driver_closed()). The threads of the channel and of the lanes only receive and send.
//
// Ownership: the worker owns the channel and all of the session's objects. Nothing is torn down in order: the session
//   ends with its process, and the driver releases what the process held.
// Errors: run() returns why the session ended.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/mutex.h"
#include "protocol/codec/agreement.h"
#include "protocol/wire/channel.h"
#include "protocol/wire/lanes.h"
#include "server/driver/library.h"
#include "server/worker/dispatch/command.h"
#include "server/worker/dispatch/helpers.h"
#include "server/worker/dispatch/inbox.h"
#include "server/worker/gate/gate.h"
#include "server/worker/graphs/graph_book.h"
#include "server/worker/graphs/graph_steps.h"
#include "server/worker/images/images.h"
#include "server/worker/images/link_state.h"
#include "server/worker/memory/device_memory.h"
#include "server/worker/memory/host_mirrors.h"
#include "server/worker/memory/pinned_memory.h"
#include "server/worker/scheduling/function_changes.h"
#include "server/worker/scheduling/issuers.h"
#include "server/worker/scheduling/scheduler.h"
#include "server/worker/scheduling/stream_watches.h"
#include "server/worker/scheduling/waiting_calls.h"
#include "server/worker/session/device_resources.h"
#include "server/worker/session/handle_table.h"
#include "server/worker/session/objects.h"
#include "server/worker/session/output.h"
#include "server/worker/tracing/tracer.h"
#include "server/worker/transfers/incoming.h"
#include "server/worker/transfers/staging.h"

namespace gpupool::worker {

class Worker final : public wire::Receiver, public wire::LaneReceiver {
  public:
    // The device whose primary context may exist before the session begins (prepared.h).
    static constexpr CUdevice kPreparedDevice = 0;

    struct Options {
        codec::Agreement agreement = codec::Agreement::full();  // with the client, on calls and notices
        std::uint64_t memory_quota_bytes = 0;                   // of each device, if there is no account
        std::unique_ptr<MemoryAccount> account;           // of device memory; null: the session has one of its own
        std::uint64_t window_base = 0, window_bytes = 0;  // already reserved with the driver
        std::size_t max_lanes = 0;
        wire::CompressionMode compression = wire::CompressionMode::when_it_pays;  // of data sent over lanes
        std::uint64_t shared_memory_bytes = 0;  // pinned memory that the client may share
        std::size_t issuers = 0;                // threads that issue launches beside the dispatcher, see issuers.h
        std::function<void(std::vector<std::uint64_t>)> memory_changed;
        // Called when other queued work waits than before, or for other reasons; Gate::waits().
        std::function<void(const std::array<std::size_t, codec::kReasons>&)> waits_changed;
        // Called by any thread when the session is over: the process has to end, even if something still runs.
        std::function<void()> ending;
        DeviceOutput* output = nullptr;        // what kernels print; both outlive the worker
        DeviceOutput* errors = nullptr;        // what the driver says on standard error
        CUcontext prepared_context = nullptr;  // kPreparedDevice's primary context, retained once; null: none
        // When it is released if the session makes no context.
        std::chrono::milliseconds prepared_context_timeout{10000};
        ImageStore* image_store = nullptr;  // images of earlier sessions; null: none. Outlives the worker
        TimeSource* clock = &TimeSource::system();
    };

    Worker(const driver::Library& library, int device_count, Options options);
    ~Worker() override;

    // Serves the session until it ends; returns the cause (`closed` if the client said goodbye).
    Error run(std::unique_ptr<transport::Connection> connection);
    // Ends the session from any thread.
    void stop(const std::string& why);
    // Adds a connection that carries bulk data only, also before run(). Called by one thread at a time. A connection
    // that cannot be added is closed; the session goes on without it.
    void add_lane(std::size_t index, std::unique_ptr<transport::Connection> connection);

    // ---- for the handlers; on the dispatcher's thread only

    // Bytes of frames and queued commands in memory; any thread.
    std::atomic<std::size_t> queued_bytes{0};

    const driver::Api& api;
    TimeSource& clock;
    ContextOwners context_owners;  // before the memory that asks it
    PinnedMemory pinned;           // for graphs; declared before everything that may hold blocks of it
    PinnedMemory word_memory;      // words that streams write or wait for: marks, host functions
    DeviceMemory memory;           // before the gate: queued entries have some of it charged
    Objects objects;
    HandleTable handles;
    DeviceResources device_resources;
    Scheduler scheduler;
    FunctionChanges function_changes;
    StreamWatches stream_watches{*this};
    Issuers issuers;
    Inbox inbox;
    Tracer tracer;
    Helpers helpers;
    WaitingCalls waiting_calls{helpers};
    Staging staging;
    Incoming incoming;
    Images images;
    HostMirrors host_mirrors;
    std::unordered_map<std::uint64_t, HostFunctionWord>
        host_functions;  // words that streams wait for, by the client's ticket
    GraphBook graphs;
    GraphSteps graph_steps{*this};
    std::size_t captures = 0;  // stream captures that have begun and not ended
    std::unordered_map<CUlinkState, std::shared_ptr<LinkState>> link_states;  // by client handle
    Gate gate;                                                                // behind everything that its entries use

    ContextState* context_of(const Command& command) {
        return objects.context(codec::from_wire<CUcontext>(command.header.context));
    }
    // Returns the stream that `handle` means for this command (NULL and 2 are default streams). Returns null and sets
    // `result` if there is none or it takes no more work.
    StreamState* stream_of(Command& command, CUstream handle, CUresult& result);

    // Answers a command without outputs: replies if the command wants a reply, else latches an error. `synchronizes`:
    // the call reports latched errors, and output of kernels goes before the reply.
    void answer(const Command& command, CUresult result, bool synchronizes = false);
    // The same with `body_bytes` of outputs, which `write` writes.
    void answer(const Command& command, CUresult result, bool synchronizes, std::size_t body_bytes,
                const std::function<void(std::byte*)>& write);

    template <HasMembers Notice>
    void notify(codec::NoticeType type, const Notice& notice) {
        notify_bytes(type, &notice, sizeof notice);
    }

    wire::Channel& channel() { return *channel_; }
    // Sends data of a transfer that the client began, over a lane or the session's own connection. The data must stay
    // in place until `done` is called, which any thread may do.
    void send_bulk(std::uint64_t transfer, std::uint64_t offset, std::span<const std::byte> data,
                   std::function<void()> done);
    // For the descriptors that arrive with it; its bytes are read by the channel.
    transport::Connection& connection() { return *connection_; }
    // Must be called before the client is notified of a completion or of an error: sends what the GPU wrote to mapped
    // host memory and what kernels printed until then.
    void send_what_precedes(CUresult result);
    void send_host_changes();
    void memory_changed();
    // Brackets the destruction of the object `client` on a helper. begin_destroy() returns false if a helper destroys
    // it already. end_destroy() reports the outcome.
    bool begin_destroy(std::uint64_t client);
    void end_destroy(std::uint64_t client, bool ended);
    [[nodiscard]] int device_count() const { return static_cast<int>(memory.account.device_count()); }
    [[nodiscard]] bool in_window(std::uint64_t address, std::uint64_t bytes) const;

    // Hands over the prepared primary context with its one reference; null if there is none for the device, or none any
    // more.
    CUcontext take_prepared_context(CUdevice device) {
        return device == kPreparedDevice ? std::exchange(options_.prepared_context, nullptr) : nullptr;
    }
    // Releases the prepared context, which takes device memory, and then calls `then`; false if there is none.
    bool give_back_prepared_context(std::function<void()> then);

    // The client broke the protocol or exceeded a limit: logs that and ends the session.
    void refuse(const std::string& why);
    void violation(const Command& command, const std::string& what);

    // Serves a command, for the first time or when it leaves a queue: decodes it, and issues or queues it.
    void dispatch(Command& command);

    // May the GPU be waiting for something that only the dispatcher can bring about?
    [[nodiscard]] bool gpu_may_wait_for_us() const {
        return !host_functions.empty() || graph_steps.running() || !host_mirrors.empty();
    }
    // Must the dispatcher make no driver call now? See waiting_calls.h.
    [[nodiscard]] bool driver_closed() const {
        return waiting_calls.any() && (gpu_may_wait_for_us() || waiting_calls.any_alone());
    }
    // Lets the driver notice that the work of idle contexts is complete: the worker finds that out without it, but
    // pools give back what was freed only when the driver knows. False if a context is not idle.
    bool notice_idle_contexts();
    // Between commands of one batch: polls for completions and runs the actions that waited for the driver to open.
    void catch_up();

    // Have many commands arrived that are yet to be issued?
    [[nodiscard]] bool more_to_come() const { return bytes_to_come_ >= kMuchToComeBytes; }
    // Returns when all launches that were handed to issuers have been issued; answers those that failed.
    void drain_issuers();

  private:
    std::span<std::byte> bulk_destination(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) override;
    void on_bulk(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) override;
    void on_frame(wire::FrameType type, std::unique_ptr<std::byte[]> payload, std::size_t bytes) override;
    void on_closed(const Error& cause) override;
    void on_append_waits(bool waits) override;
    std::span<std::byte> piece_destination(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) override;
    void on_piece(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) override;
    void on_piece_lost(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) override;
    void on_lanes_ended(const Error& cause) override;

    [[nodiscard]] CUmemoryPool driver_pool(std::uint64_t client) const;  // null if it names no pool
    // Sends the number of the last piece sent over lanes. Must precede anything that the client must not act on until
    // that data has landed.
    void announce_pieces();

    void loop();
    bool take_frames(const std::vector<std::shared_ptr<Frame>>& frames);
    bool take_frame(const std::shared_ptr<Frame>& frame);
    void pause(std::optional<TimeSource::TimePoint>& idle_since);
    void poll_for_frames();
    void note_poll(TimeSource::TimePoint now);
    StreamState* find_stream(const Command& command, CUstream handle, CUresult& result);
    void run_elsewhere(std::function<void()> call);
    bool run_gate();
    void report_waits();
    void notify_throttled(const StreamState* stream, const Queue* queue, bool throttled);
    void latch(const Command& command, CUresult result);
    CUresult take_latched(const Command& command);
    // The context whose work the command concerns: that of its stream, or the one that it waits for, or that of the
    // sending thread.
    ContextState* concerned_context(const Command& command);
    void send_host_change(std::span<const std::byte> record);
    void send_output(DeviceOutput* output, codec::NoticeType type, bool thorough);
    void notify_text(codec::NoticeType type, std::string_view text);
    void notify_bytes(codec::NoticeType type, const void* notice, std::size_t bytes);

    Options options_;
    TimeSource::TimePoint prepared_context_until_{};
    std::uint64_t commands_ = 0;
    std::size_t since_poll_ = 0;                           // commands since the last poll, across frames
    static constexpr std::size_t kMuchToComeBytes = 4096;  // about twenty launches
    std::size_t bytes_to_come_ = 0;                        // of the taken frames, not dispatched yet
    std::array<std::size_t, codec::kReasons> waits_{};     // as reported
    TimeSource::TimePoint waits_reported_{};
    std::uint64_t announced_pieces_ = 0;
    Mutex end_mutex_;
    std::optional<Error> end_ GP_GUARDED_BY(end_mutex_);
    std::unordered_set<std::uint64_t> handles_ending_;  // objects that helpers destroy now, by client handle
    std::atomic<bool> ending_{false};
    transport::Connection* connection_ = nullptr;             // owned by the channel, which never attaches another
    std::optional<wire::Channel::PollingReceiver> receiver_;  // held while the idle dispatcher receives
    std::optional<TimeSource::TimePoint> polled_at_;          // set if its last pause was a poll
    // Declared last: their threads use all of the above until they have ended.
    std::unique_ptr<wire::Channel> channel_;
    wire::Lanes lanes_;
};

}  // namespace gpupool::worker
