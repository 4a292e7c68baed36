// One session: a client's command stream on one side, the driver on the other.
//
// The dispatcher thread (run()) takes commands in the session's order and issues them. It owns everything here unless
// marked otherwise. It makes no driver call that may wait for something which only the dispatcher can bring about
// (DriverDoor::closed()). The threads of the channel and of the lanes only receive and send.
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
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/session_counters.h"
#include "protocol/codec/agreement.h"
#include "protocol/wire/channel.h"
#include "protocol/wire/lanes.h"
#include "server/driver/library.h"
#include "server/supervision/session_limits.h"
#include "server/worker/dispatch/answers.h"
#include "server/worker/dispatch/command.h"
#include "server/worker/dispatch/helpers.h"
#include "server/worker/dispatch/inbox.h"
#include "server/worker/dispatch/views.h"
#include "server/worker/gate/gate.h"
#include "server/worker/graphs/graph_book.h"
#include "server/worker/graphs/graph_steps.h"
#include "server/worker/images/images.h"
#include "server/worker/images/linker.h"
#include "server/worker/memory/device_memory.h"
#include "server/worker/memory/host_mirrors.h"
#include "server/worker/memory/pinned_memory.h"
#include "server/worker/scheduling/driver_door.h"
#include "server/worker/scheduling/function_changes.h"
#include "server/worker/scheduling/issuers.h"
#include "server/worker/scheduling/scheduler.h"
#include "server/worker/scheduling/stream_watches.h"
#include "server/worker/scheduling/waiting_calls.h"
#include "server/worker/session/device_resources.h"
#include "server/worker/session/handle_table.h"
#include "server/worker/session/objects.h"
#include "server/worker/session/output.h"
#include "server/worker/session/prepared_context.h"
#include "server/worker/session/session_end.h"
#include "server/worker/tracing/tracer.h"
#include "server/worker/transfers/host_traffic.h"
#include "server/worker/transfers/incoming.h"
#include "server/worker/transfers/staging.h"

namespace gpupool::worker {

class Worker final : public wire::Receiver, public wire::LaneReceiver, private CommandServer {
  public:
    struct Options {
        codec::Agreement agreement = codec::Agreement::full();  // with the client, on calls and notices
        std::uint64_t memory_quota_bytes = 0;                   // of each device, if there is no account
        std::unique_ptr<MemoryAccount> account;  // of device memory; null: the session has one of its own
        Window window;                           // already reserved with the driver
        std::size_t max_lanes = 0;
        wire::CompressionMode compression = wire::CompressionMode::when_it_pays;  // of data sent over lanes
        std::uint64_t shared_memory_bytes = 0;  // pinned memory that the client may share
        std::size_t issuers = 0;                // threads that issue launches beside the dispatcher, see issuers.h
        std::function<void(std::vector<std::uint64_t>)> memory_changed;
        std::shared_ptr<SessionCounters> counters = std::make_shared<SessionCounters>();
        supervision::SessionLimits limits;
        // Called when other queued work waits than before, or for other reasons; Gate::waits().
        std::function<void(const std::array<std::size_t, codec::kReasons>&)> waits_changed;
        // Called by any thread when the session is over: the process has to end, even if something still runs.
        std::function<void()> ending;
        DeviceOutput* output = nullptr;        // what kernels print; both outlive the worker
        DeviceOutput* errors = nullptr;        // what the driver says on standard error
        CUcontext prepared_context = nullptr;  // see prepared_context.h; null: none
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
    void stop(const std::string& why) { end_.stop(why); }
    // Adds a connection that carries bulk data only, also before run(). Called by one thread at a time. A connection
    // that cannot be added is closed; the session goes on without it.
    void add_lane(std::size_t index, std::unique_ptr<transport::Connection> connection);
    // Runs `job` on the dispatcher's thread. Any thread.
    void post(std::function<void()> job) { inbox_.post(std::move(job)); }
    // Before run(), or on the dispatcher's thread.
    void set_limits(const supervision::SessionLimits& limits);
    const SessionView& session() { return views_.session(); }

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

    void dispatch(Command& command) override;
    void catch_up() override;

    [[nodiscard]] Views::All all_views();
    void loop();
    bool take_frames(const std::vector<std::shared_ptr<Frame>>& frames);
    bool take_frame(const std::shared_ptr<Frame>& frame);
    void pause(std::optional<TimeSource::TimePoint>& idle_since);
    void poll_for_frames();
    void note_poll(TimeSource::TimePoint now);
    void run_elsewhere(std::function<void()> call);
    bool run_gate();
    void report_waits();
    void notify_throttled(const StreamState* stream, const Queue* queue, bool throttled);
    // A launch that an issuer made has failed.
    void note_failed(const Issuers::Failure& failure);

    Options options_;
    std::atomic<std::size_t> queued_bytes_{0};     // of frames and queued commands in memory
    transport::Connection* connection_ = nullptr;  // owned by the channel, which never attaches another

    // The parts of the session, in the order in which they need each other. Handlers see them through views_.
    const driver::Api& api_;
    TimeSource& clock_;
    SessionEnd end_;
    ContextOwners context_owners_;  // before the memory that asks it
    PinnedMemory pinned_;           // for graphs; declared before everything that may hold blocks of it
    PinnedMemory word_memory_;      // words that streams write or wait for: marks, host functions
    DeviceMemory memory_;           // before the gate: queued entries have some of it charged
    Objects objects_;
    HandleTable handles_;
    DeviceResources device_resources_;
    Scheduler scheduler_;
    HostMirrors host_mirrors_;
    Answers answers_;
    FunctionChanges function_changes_;
    StreamWatches stream_watches_;
    Issuers issuers_;
    Inbox inbox_;
    Tracer tracer_;
    Helpers helpers_;
    WaitingCalls waiting_calls_;
    PreparedContext prepared_context_;
    Staging staging_;
    Incoming incoming_;
    HostTraffic traffic_;
    Images images_;
    HostFunctions host_functions_;
    GraphBook graphs_;
    GraphSteps graph_steps_;
    Linker linker_;
    DriverDoor door_;
    Gate gate_;  // behind everything that its entries use
    Views views_;

    TimeSource::TimePoint prepared_context_until_{};
    std::uint64_t commands_ = 0;
    std::size_t since_poll_ = 0;                        // commands since the last poll, across frames
    std::array<std::size_t, codec::kReasons> waits_{};  // as reported
    TimeSource::TimePoint waits_reported_{};
    std::optional<wire::Channel::PollingReceiver> receiver_;  // held while the idle dispatcher receives
    std::optional<TimeSource::TimePoint> polled_at_;          // set if its last pause was a poll
    // Declared last: their threads use all of the above until they have ended.
    std::unique_ptr<wire::Channel> channel_;
    wire::Lanes lanes_;
};

}  // namespace gpupool::worker
