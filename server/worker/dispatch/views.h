// The parts of a session that its handlers use. A handler takes the smallest view that has what it needs; handlers.h
// says which.
//
// Ownership: a view refers to parts of the Worker, which outlive it.
// Threads: the dispatcher's alone.
#pragma once

#include <cstdint>
#include <tuple>

#include "server/driver/api.h"
#include "server/worker/dispatch/answers.h"
#include "server/worker/gate/gate.h"
#include "server/worker/memory/device_memory.h"
#include "server/worker/scheduling/scheduler.h"
#include "server/worker/scheduling/waiting_calls.h"
#include "server/worker/session/handle_table.h"
#include "server/worker/session/objects.h"
#include "server/worker/tracing/tracer.h"

namespace gpupool::transport {
class Connection;
}

namespace gpupool::worker {

class ContextOwners;
class DeviceResources;
class DriverDoor;
class FunctionChanges;
class GraphSteps;
class Helpers;
class HostMirrors;
class HostTraffic;
class Images;
class Inbox;
class Incoming;
class Issuers;
class Linker;
class PinnedMemory;
class PreparedContext;
class Staging;
class StreamWatches;
struct GraphBook;

// Serves commands again that a handler has postponed.
class CommandServer {
  public:
    virtual ~CommandServer() = default;
    // Serves a command, for the first time or when it leaves a queue: decodes it, and issues or queues it.
    virtual void dispatch(Command& command) = 0;
    // Between commands of one batch: polls for completions and runs the actions that waited for the driver to open.
    virtual void catch_up() = 0;
};

struct SessionView {
    const driver::Api& api;
    Objects& objects;
    HandleTable& handles;
    DeviceMemory& memory;
    Scheduler& scheduler;
    Gate& gate;
    Answers& answers;
    WaitingCalls& waiting_calls;
    Tracer& tracer;
    CommandServer& commands;

    [[nodiscard]] ContextState* context_of(const Command& command) const {
        return objects.context(codec::from_wire<CUcontext>(command.header.context));
    }
    // Returns the stream that `handle` means for this command (NULL and 2 are default streams). Returns null and sets
    // `result` if there is none or it takes no more work.
    StreamState* stream_of(Command& command, CUstream handle, CUresult& result) const;
    // Brackets the destruction of the object `client` on a helper. begin_destroy() returns false if a helper destroys
    // it already. end_destroy() reports the outcome.
    [[nodiscard]] bool begin_destroy(std::uint64_t client) const;
    void end_destroy(std::uint64_t client, bool ended) const;

  private:
    StreamState* find_stream(const Command& command, CUstream handle, CUresult& result) const;
    StreamState* default_stream_of_thread(const Command& command, ContextState& context, CUresult& result) const;
};

struct CodeView : SessionView {
    Images& images;
    Helpers& helpers;
    FunctionChanges& function_changes;
    Linker& linker;
};

struct ContextView : SessionView {
    PreparedContext& prepared_context;
    Helpers& helpers;
    Inbox& inbox;
    Issuers& issuers;
    Staging& staging;
    HostMirrors& host_mirrors;
    HostFunctions& host_functions;
    PinnedMemory& pinned;
    PinnedMemory& word_memory;
};

struct GreenContextView : ContextView {
    DeviceResources& device_resources;
    ContextOwners& context_owners;
};

struct CopyView : SessionView {
    Staging& staging;
    Incoming& incoming;
    HostTraffic& traffic;
    const HostMirrors& host_mirrors;
};

struct GraphView : SessionView {
    GraphBook& graphs;
    const DriverDoor& door;
};

struct GraphExecView : GraphView {
    GraphSteps& graph_steps;
    PinnedMemory& pinned;
    HostFunctions& host_functions;
};

struct HostFunctionView : SessionView {
    HostFunctions& host_functions;
    PinnedMemory& word_memory;
    GraphSteps& graph_steps;
};

struct HostMemoryView : SessionView {
    HostMirrors& host_mirrors;
    Helpers& helpers;
    transport::Connection* const& connection;  // for the descriptors that arrive with it
};

struct LaunchView : SessionView {
    Issuers& issuers;
    const Inbox& inbox;
    const DriverDoor& door;
};

struct MemoryView : SessionView {
    const DriverDoor& door;
};

struct StreamView : SessionView {
    StreamWatches& watches;
    TimeSource& clock;
};

// All views of a session. Converts to the one that a handler takes.
class Views {
  public:
    using All = std::tuple<SessionView, CodeView, ContextView, GreenContextView, CopyView, GraphView, GraphExecView,
                           HostFunctionView, HostMemoryView, LaunchView, MemoryView, StreamView>;

    explicit Views(const All& all) : all_(all) {}
    // NOLINTNEXTLINE(google-explicit-constructor): the conversion is what it is for
    template <class View>
    operator View&() {
        return std::get<View>(all_);
    }
    SessionView& session() { return std::get<SessionView>(all_); }

  private:
    All all_;
};

}  // namespace gpupool::worker
