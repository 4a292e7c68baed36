// One session: a client's command stream on one side, the driver on the other.
//
// The dispatcher thread (`run()`) takes commands in the session's order and issues them; it owns everything here but
// what is marked otherwise, and makes no driver call that may wait for what only the dispatcher can bring about
// (driver_closed()). The threads of the channel and of the lanes only receive and send.
//
// Ownership: the worker owns the channel and all of the session's objects. Nothing is taken down in order: the session
//   ends with its process, and the driver releases what the process held.
// Errors: `run()` returns why the session ended.
#pragma once

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

#include "common/mutex.h"
#include "protocol/wire/channel.h"
#include "protocol/wire/lanes.h"
#include "server/driver/library.h"
#include "server/worker/dispatch/command.h"
#include "server/worker/dispatch/helpers.h"
#include "server/worker/dispatch/inbox.h"
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
#include "server/worker/scheduling/set_aside.h"
#include "server/worker/scheduling/stream_watches.h"
#include "server/worker/scheduling/waiting_calls.h"
#include "server/worker/session/handle_table.h"
#include "server/worker/session/objects.h"
#include "server/worker/session/output.h"
#include "server/worker/tracing/tracer.h"
#include "server/worker/transfers/incoming.h"
#include "server/worker/transfers/staging.h"

namespace gpupool::worker {

class Worker final : public wire::Receiver, public wire::LaneReceiver {
  public:
    // Whose primary context may be there before the session begins.
    static constexpr CUdevice kPreparedDevice = 0;

    struct Options {
        std::uint64_t memory_quota_bytes = 0;
        std::uint64_t window_base = 0, window_bytes = 0;  // reserved with the driver already
        std::size_t max_lanes = 0;
        wire::CompressionMode compression = wire::CompressionMode::when_it_pays;  // of what is sent over lanes
        std::uint64_t shared_memory_bytes = 0;  // pinned memory that the client may share
        std::size_t issuers = 0;                // threads that issue launches besides the dispatcher, issuers.h
        std::function<void(std::vector<std::uint64_t>)> memory_changed;
        std::function<void()> ending;    // the session is over: the process has to end, whatever still runs; any thread
        DeviceOutput* output = nullptr;  // what kernels print; both outlive the worker
        DeviceOutput* errors = nullptr;  // what the driver says on standard error
        CUcontext prepared_context = nullptr;  // kPreparedDevice's primary one, retained once; null: none
        std::chrono::milliseconds prepared_context_timeout{10000};  // of a session that makes no context
        ImageStore* image_store = nullptr;  // of earlier sessions; null: none. It outlives the worker
    };

    Worker(const driver::Library& library, int device_count, Options options);
    ~Worker() override;

    // Serves the session until it ends; returns the cause (`closed` for a goodbye).
    Error run(std::unique_ptr<transport::Connection> connection);
    // Ends the session from any thread.
    void stop(const std::string& why);
    // One more connection, for bulk data alone. One thread at a time, from the constructor on. One that cannot be had
    // is dropped and does the session no harm.
    void add_lane(std::size_t index, std::unique_ptr<transport::Connection> connection);

    // ---- for the handlers; the dispatcher's thread only

    // Of frames and held commands that are in memory; any thread.
    std::atomic<std::size_t> held_bytes{0};

    const driver::Api& api;
    PinnedMemory pinned;       // of graphs; before all that may hold some of it
    PinnedMemory word_memory;  // of what streams write to and wait for: their marks, host functions
    DeviceMemory memory;       // held operations have some of it charged
    Objects objects;
    HandleTable handles;
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
        host_functions;  // that streams wait for, by the client's ticket
    GraphBook graphs;
    GraphSteps graph_steps{*this};
    std::size_t captures = 0;                                                 // that have begun and not ended
    std::unordered_map<CUlinkState, std::shared_ptr<LinkState>> link_states;  // by client handle

    ContextState* context_of(const Command& command) {
        return objects.context(codec::from_wire<CUcontext>(command.header.context));
    }
    // The stream that `handle` means for this command (NULL and 2 are the context's or the thread's own); null with
    // `result` set when there is none.
    StreamState* stream_of(Command& command, CUstream handle, CUresult& result);

    // A handler's answer without outputs. Reports or latches, as the command wants it.
    void answer(const Command& command, CUresult result, bool synchronizes = false);
    // The same with `body_bytes` of outputs, written by `write`.
    void answer(const Command& command, CUresult result, bool synchronizes, std::size_t body_bytes,
                const std::function<void(std::byte*)>& write);

    template <class Notice>
    void notify(codec::NoticeType type, const Notice& notice) {
        notify_bytes(type, &notice, sizeof notice);
    }

    wire::Channel& channel() { return *channel_; }
    // Data of a transfer that the client began, over whatever suits it. It stays where it is until `done` was called,
    // which may be by any thread.
    void send_bulk(std::uint64_t transfer, std::uint64_t offset, std::span<const std::byte> data,
                   std::function<void()> done);
    // For the descriptors that came with it; its bytes are the channel's.
    transport::Connection& connection() { return *connection_; }
    // Before the client is told that something is complete, or of its error: what the GPU wrote to mapped host memory
    // and what kernels printed by then.
    void send_what_precedes(CUresult result);
    void send_host_changes();
    void memory_changed();
    // A helper is to end what the client calls so; false: one does so already. Then it has ended, or not.
    bool begin_to_end(std::uint64_t client);
    void end(std::uint64_t client, bool ended);
    [[nodiscard]] int device_count() const { return static_cast<int>(memory.account.used_bytes.size()); }
    [[nodiscard]] bool in_window(std::uint64_t address, std::uint64_t bytes) const;

    // The primary context that was made before the session began, with the reference to it; null where there is none
    // for the device, or no more.
    CUcontext take_prepared_context(CUdevice device) {
        return device == kPreparedDevice ? std::exchange(options_.prepared_context, nullptr) : nullptr;
    }
    // Because nobody waits for it any more, and it takes device memory. Calls `then` when it is gone; false where there
    // is none.
    bool give_back_prepared_context(std::function<void()> then);

    // The client broke the protocol, or a limit: logs that and ends the session.
    void refuse(const std::string& why);
    void violation(const Command& command, const std::string& what);

    // A command (again): decodes, checks its turn, issues.
    void dispatch(Command& command);
    // What is left to do for a command whose turn has come, if that was not all; it takes the command's place.
    std::unique_ptr<Operation> take_rest() { return std::move(rest_); }
    void set_rest(std::unique_ptr<Operation> rest) { rest_ = std::move(rest); }

    // May the GPU have to wait for what only the dispatcher can bring about?
    [[nodiscard]] bool gpu_may_wait_for_us() const {
        return !host_functions.empty() || graph_steps.running() || !host_mirrors.empty();
    }
    // Must the driver not be entered now? See waiting_calls.h.
    [[nodiscard]] bool driver_closed() const {
        return waiting_calls.any() && (gpu_may_wait_for_us() || waiting_calls.any_alone());
    }
    // Runs `action` soon, when the driver may be entered.
    void in_driver(std::function<void()> action) { set_aside_.add_action(std::move(action)); }
    // Between commands of one batch: looks for what is complete, and does what was to be done then.
    void catch_up();

    // Are there many commands that can be issued right away?
    [[nodiscard]] bool more_to_come() const { return bytes_to_come_ >= kMuchToComeBytes; }
    // Returns when all launches that were handed out have been issued; their failures are answered.
    void settle_launches();

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

    [[nodiscard]] CUmemoryPool driver_pool(std::uint64_t client) const;  // null where it names none
    // Before anything that the client must not act on until the data sent so far has landed.
    void announce_pieces();

    void loop();
    bool take_frames(const std::vector<std::shared_ptr<Frame>>& frames);
    bool take_frame(const std::shared_ptr<Frame>& frame);
    void pause(std::optional<std::chrono::steady_clock::time_point>& idle_since);
    void poll_for_frames();
    void note_poll(std::chrono::steady_clock::time_point now);
    StreamState* find_stream(const Command& command, CUstream handle, CUresult& result);
    void run_elsewhere(std::function<void()> call);
    void latch(const Command& command, CUresult result);
    CUresult take_latched(const Command& command);
    // The context whose work the command is about: its stream's, or that it waits for, or that it was sent in.
    ContextState* concerned_context(const Command& command);
    void send_host_change(std::span<const std::byte> record);
    void send_output(DeviceOutput* output, codec::NoticeType type, bool thorough);
    void notify_text(codec::NoticeType type, std::string_view text);
    void notify_bytes(codec::NoticeType type, const void* notice, std::size_t bytes);

    Options options_;
    std::chrono::steady_clock::time_point prepared_context_until_{};
    std::uint64_t commands_ = 0;
    std::size_t since_poll_ = 0;                           // commands, of however many frames
    static constexpr std::size_t kMuchToComeBytes = 4096;  // some twenty launches
    std::size_t bytes_to_come_ = 0;                        // of the frames that were taken
    std::unique_ptr<Operation> rest_;                      // see take_rest()
    SetAside set_aside_{[this](bool held) {
        notify(codec::NoticeType::hold, codec::StreamHoldNotice{0, 0, 0, held ? 1u : 0u});  // of every stream
    }};
    std::uint64_t announced_pieces_ = 0;
    Mutex end_mutex_;
    std::optional<Error> end_ GP_GUARDED_BY(end_mutex_);
    std::unordered_set<std::uint64_t> handles_ending_;  // that helpers destroy, by client handle
    std::atomic<bool> ending_{false};
    transport::Connection* connection_ = nullptr;                     // the channel's, which never attaches another
    std::optional<wire::Channel::PollingReceiver> receiver_;          // the idle dispatcher's
    std::optional<std::chrono::steady_clock::time_point> polled_at_;  // where its last pause was a look
    // The last: their threads use all of the above until they are gone.
    std::unique_ptr<wire::Channel> channel_;
    wire::Lanes lanes_;
};

}  // namespace gpupool::worker
