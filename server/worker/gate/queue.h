// The queues of the gate (gate.h), and their entries.
//
// Threads: the dispatcher's alone.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "protocol/calls/rules.h"
#include "protocol/codec/reasons.h"
#include "server/worker/dispatch/command.h"
#include "server/worker/gate/submission.h"

namespace gpupool::worker {

using codec::Reason;

struct Queue;

// Something in a queue.
class Entry {
  public:
    Entry() = default;
    Entry(Entry&&) = default;
    Entry& operator=(Entry&&) = delete;
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;
    virtual ~Entry() = default;

    // Issues the work or its next part. Returns none when all of it was given to the driver, or why it cannot go on
    // yet; then the gate calls this again.
    virtual Reason advance() = 0;
    // It will not be issued: reports `result` instead.
    virtual void abandon(CUresult) {}
    // For logs.
    [[nodiscard]] virtual std::string_view what() const { return "a wait"; }

    calls::Kind kind = calls::Kind::none;  // work and order: the gate gives it a submission
    std::uint32_t cost = 1;                // places that it takes in the driver's queue
    std::size_t bytes = kQueuedCostBytes;  // charged while it is queued
    // Does it wait for earlier entries of the legacy stream, or of blocking streams? A call that only waits for its own
    // stream must not: work behind it would wait for them as well, and may be what they need.
    bool in_order_of_streams = true;
    std::vector<std::uint64_t> after;                 // entries of other queues to be issued first
    std::vector<std::shared_ptr<EventState>> events;  // those that it names: the program may destroy them meanwhile
    std::vector<EventState*> records;                 // those of `events` that it will record
    std::optional<Submission> submission;             // from its first advance() on

    // The entry uses the event, behind the record of it that is queued now.
    void names(std::shared_ptr<EventState> event);
    void records_event(std::shared_ptr<EventState> event);

    // The last reason for which it had to wait.
    [[nodiscard]] Reason waited_for() const { return waited_for_; }

  private:
    friend class Gate;

    std::uint64_t number_ = 0;  // in the order of arrival
    bool after_all_ = false;    // waits for every earlier entry
    bool granted_ = false;      // the gate has given it its submission
    Reason waits_for_ = Reason::order;
    Reason waited_for_ = Reason::none;
    StreamState* stream_ = nullptr;
    Queue* of_stream_ = nullptr;
    Queue* of_graph_ = nullptr;
};

// The entries of a stream or of an executable graph, in the order of arrival. An entry may be in one of each: it is
// issued when it is the first of both.
struct Queue {
    // How many entries throttle the client, and at how many it is released.
    struct Limits {
        std::size_t throttle, release;
    };
    static constexpr Limits kOfStream{1024, 256};
    // On a local GPU a thread that launches an executable so often would block, because the driver's queue is full.
    static constexpr Limits kOfGraph{4096, 1024};

    std::deque<Entry*> entries;
    std::size_t bytes = 0;
    bool throttled = false;
    Limits limits = kOfStream;
    std::uint64_t name = 0;  // of a graph's queue: the client's handle

    [[nodiscard]] bool empty() const { return entries.empty(); }
    [[nodiscard]] Entry& front() const { return *entries.front(); }
};

}  // namespace gpupool::worker
