// The gate: decides when the session's work may be given to the driver, so that no driver call blocks and the order of
// the program is kept.
//
// Work that may go gets a Submission. Everything else becomes an entry of a queue. There are three kinds of queue:
//
//   of a stream       work, and what must happen in the stream's order
//   of an executable  launches of the graph and changes of it, in order; a launch is in its stream's queue as well
//   of the session    commands that arrived while the driver is closed, and actions that wait for earlier entries.
//                     Actions of when_open() wait for the driver alone
//
// An entry that is the first of all its queues goes when no reason is left for it to wait. The gate computes the
// reasons anew whenever it examines the entry (run()), so no wake-up can be lost:
//
//   order          the entries in Entry::after; for the legacy stream, earlier entries of the context's blocking
//                  streams, and for these the earlier ones of the legacy stream
//   credit         the stream has too much outstanding in the driver (scheduler.h)
//   driver closed  another call may hold the driver's locks (waiting_calls.h)
//   lease          another session may use the GPU now. Only work waits for it
//   data, driver call, bandwidth   the entry itself says so: its data or a helper's call is not complete, or the
//                  session has used up its bandwidth of copies (host_traffic.h)
//
// Numbers of entries grow in the order of arrival. An entry that goes on after others arrived keeps its number.
//
// When a stream has many entries, the client is throttled for it; likewise for an executable and for the session.
//
// Ownership: the gate owns all entries. Queues belong to streams and executables, which outlive their entries.
// Threads: the dispatcher's alone.
// Errors: none; the entries deal with the results of driver calls.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "server/worker/gate/queue.h"
#include "server/worker/gate/submission.h"
#include "server/worker/scheduling/scheduler.h"
#include "server/worker/session/objects.h"

namespace gpupool::worker {

// May a command be served although the driver is closed? See the rules of the same names (protocol/calls/rules.h).
enum class Passage : std::uint8_t { none, gets_in, gets_in_first, needs_no_driver };

class Gate {
  public:
    // The entries of all streams together are charged no more than the budget, plus one entry each, plus those that
    // were on their way when the client was throttled. Those of executables and of the session have limits of their
    // own. A stream may hold 1/kLimitDivisor of the rest of the budget, so the limit of each stream falls as the
    // streams together hold more. A stream below its limit is not throttled, so that the client can send the work that
    // other streams wait for.
    static constexpr std::size_t kBudgetBytes = 384u << 20;
    static constexpr std::size_t kLimitDivisor = 8;
    static constexpr std::size_t kReleaseDivisor = 2;  // the client is released at half of the limit
    static constexpr std::size_t kMaxArrivals = 1024;  // then the session is throttled

    // What the gate asks of its worker.
    struct Host {
        // The client must stop (true) or may resume sending work for: a stream, an executable (both null: the session).
        std::function<void(const StreamState*, const Queue*, bool)> notify_throttled;
        std::function<bool()> driver_closed = [] { return false; };
        std::function<bool()> lease_open = [] { return true; };
    };

    Gate(Scheduler& scheduler, Host host) : scheduler_(scheduler), host_(std::move(host)) {}

    // ---- streams

    // The right to give `stream` work that takes `cost` places. Empty if the work must wait: queue() it then.
    std::optional<Submission> enter(StreamState& stream, calls::Kind kind, std::uint32_t cost = 1);
    // The right to order all streams of a context behind an event, or an event behind them. Nothing may be queued.
    static Submission of_context(ContextState& context) { return Submission(context.legacy); }
    // Puts the entry into the queue of `stream`, and of `graph` if that is not null.
    void queue(StreamState& stream, std::unique_ptr<Entry> entry, Queue* graph = nullptr);
    // Issues as much of the entry as may go now, and queues the rest.
    void put(StreamState& stream, std::unique_ptr<Entry> entry);
    // The work that has `submission` takes several driver calls: `entry` makes the rest of them, in the place of the
    // entry that is being issued.
    void go_on(Submission submission, std::unique_ptr<Entry> entry);
    // For commands that leave a queue: the submission of the entry that is being issued, for the next enter().
    void admit(std::optional<Submission> submission) { admitted_ = std::move(submission); }
    // Runs `action` once everything that the stream was given so far is complete.
    void when_complete(StreamState& stream, Action action);
    // The same for all streams of a context, or for its legacy and blocking streams. `action` gets the first error.
    void when_complete(ContextState& context, Action action) { when_all_complete(context, false, std::move(action)); }
    void when_blocking_complete(ContextState& context, Action action) {
        when_all_complete(context, true, std::move(action));
    }
    // The stream ends: its entries are abandoned, and actions that wait for its work run, with `result`.
    void forget(StreamState& stream, CUresult result);
    // The context has ended, and its events with it.
    void forget_events(Objects& objects, const ContextState& context);

    // ---- executable graphs

    // Puts a change into the queue.
    void queue(Queue& graph, std::unique_ptr<Entry> change);

    // ---- the session

    // May commands be served now?
    [[nodiscard]] bool open() const { return arrivals_.empty() && !host_.driver_closed(); }
    // May this one be served even if the gate is not open?
    [[nodiscard]] bool passes(Passage passage, std::uint32_t thread) const;
    // Queues a command that may not be served now.
    void arrive(std::uint32_t thread, std::unique_ptr<Entry> command);
    // Issues the entry when every earlier entry has been issued or abandoned, and the driver is open.
    void after_all(std::unique_ptr<Entry> entry);
    // Runs `action` then; at once if nothing is queued.
    void after_all(std::function<void()> action);
    // Runs `action` when the event's present record has been issued or abandoned.
    void after_record(const std::shared_ptr<EventState>& event, std::function<void()> action);
    // Runs `action` soon, when the driver is open.
    void when_open(std::function<void()> action) { actions_.push_back(std::move(action)); }

    // Issues what may go; true if anything moved.
    bool run();
    // Only the actions of when_open(), while a command is being served.
    bool run_actions();

    // Is anything queued?
    [[nodiscard]] bool queues_any() const { return !entries_.empty(); }
    [[nodiscard]] bool has_actions() const { return !actions_.empty(); }
    // The number of the last entry: grows with each.
    [[nodiscard]] std::uint64_t last_number() const { return next_number_ - 1; }
    // How many first entries of queues wait for each reason, as run() found them last.
    [[nodiscard]] std::array<std::size_t, codec::kReasons> waits() const;

  private:
    struct Arrival {
        std::uint32_t thread;
        Entry* entry;
    };

    [[nodiscard]] bool in_order(const StreamState& stream, std::uint64_t number) const;
    Reason reason_of(Entry& head);
    [[nodiscard]] bool is_queued(std::uint64_t number) const { return entries_.contains(number); }
    bool is_issued(std::vector<std::uint64_t>& entries) const;
    static void note(Entry& entry, Reason reason);
    Entry& add(std::unique_ptr<Entry> entry);
    std::unique_ptr<Entry> take(std::uint64_t number);
    void push(Queue& queue, Entry& entry);
    void remove(Queue& queue, const Entry& entry);
    void join(Queue& graph, Entry& entry);
    void leave_graph(Entry& entry);
    bool advance(Entry& head);
    void issue(Entry& entry);
    void end(std::unique_ptr<Entry> entry);
    bool run_streams();
    bool run_graphs();
    bool run_arrivals();
    bool run_waiting();
    void when_all_complete(ContextState& context, bool blocking_only, Action action);
    [[nodiscard]] std::size_t stream_limit_bytes() const;
    void throttle(const StreamState* stream, Queue& queue);
    void release(const StreamState* stream, Queue& queue);
    void release_streams();

    Scheduler& scheduler_;
    const Host host_;
    std::uint64_t next_number_ = 1;
    std::map<std::uint64_t, std::unique_ptr<Entry>> entries_;  // all of them, by number
    std::vector<StreamState*> streams_;                        // those with entries
    std::vector<Queue*> graphs_;                               // of executables with entries
    std::deque<Arrival> arrivals_;
    std::deque<Entry*> after_all_;  // entries that wait for every earlier one
    // Entries that wait for the one of that number; a client may have any number of them.
    std::multimap<std::uint64_t, Entry*> following_;
    std::deque<Entry*> due_;  // those that waited for an entry that is gone
    std::deque<std::function<void()>> actions_;
    Entry* issuing_ = nullptr;         // the entry whose advance() runs
    std::unique_ptr<Entry> replaced_;  // it, once go_on() has put another into its place
    std::optional<Submission> admitted_;
    std::size_t bytes_ = 0;  // of all entries of streams
    std::size_t throttled_streams_ = 0;
    bool arrivals_throttled_ = false;
};

}  // namespace gpupool::worker
