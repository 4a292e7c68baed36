// Decides when a command may go to the driver, so that no driver call blocks because a stream is full or its data has
// not arrived.
//
// Every stream has credit: at most kCredit operations outstanding in the driver, which itself blocks at about a
// thousand. A stream without credit, or whose first operation waits for data, holds the commands that follow. So does
// what depends on it: a stream that waits for an event whose record is held, the legacy stream behind any blocking
// stream, any blocking stream behind the legacy stream. All other streams go on.
//
// Completions are found with marks: behind a stream's work the GPU writes a number to a word of pinned memory. Polling
// the word costs nothing; a query of a complete event costs 1.3 us (docs/driver-facts.md). A context that died writes
// no more words, so the scheduler now and then queries the driver for a stream as well. No mark enters a capturing
// stream. Marks of the legacy stream are written by a blocking helper stream: a mark in the legacy stream itself would
// stall later work of the other blocking streams.
//
// The driver writes out what kernels printed only when something is synchronized. If kernels may print, the scheduler
// records an event before each mark and synchronizes it when the mark is reached; it is complete by then. Marks that no
// call of the program waits for (Effect::ours, those of issuers) need no event.
//
// Ownership: a held operation belongs to its stream.
// Threads: the dispatcher's alone.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "common/clock.h"
#include "server/driver/api.h"
#include "server/worker/dispatch/command.h"
#include "server/worker/session/objects.h"

namespace gpupool::worker {

// Something that a stream holds.
class Operation {
  public:
    virtual ~Operation() = default;
    // Called when the operation is ready; true when all of it has been given to the driver. Otherwise it is called
    // again, for example after data landed or staging memory became free.
    virtual bool advance() = 0;
    // The stream ended first: reports `result` instead.
    virtual void abandon(CUresult) {}

    std::uint64_t id = 0;
    std::uint32_t cost = 1;                           // places that it takes in the driver's queue
    std::size_t bytes = kHeldCostBytes;               // charged while it is held
    std::vector<std::uint64_t> after;                 // operations of other streams to be issued first
    std::vector<std::shared_ptr<EventState>> events;  // those that it names: the program may destroy them meanwhile
    std::vector<EventState*> records;                 // those of `events` that it will record
    std::vector<std::function<void()>> then;          // run when it was issued or abandoned

    void names(std::shared_ptr<EventState> event) {
        ++event->held_uses;
        events.push_back(std::move(event));
    }
    void records_event(std::shared_ptr<EventState> event) {
        records.push_back(event.get());
        names(std::move(event));
    }
};

class Scheduler {
  public:
    static constexpr std::uint32_t kCredit = 512;
    static constexpr std::uint32_t kMarkEvery = 64;
    // Marks take places in the driver's queue as well. With the credit and the pieces of one copy they stay below what
    // the driver takes without blocking (worker.cpp asserts it).
    static constexpr std::size_t kMaxMarks = 256;
    static constexpr std::size_t kMaxMarksWithEvents = 96;
    // A launched graph takes a place for each of its nodes (measured). A graph of more nodes than this is issued only
    // to a stream with nothing outstanding.
    static constexpr std::size_t kGraphCredit = 960;
    // Writing a word behind a graph costs the GPU 1.4 us in which the next graph could begin; an event costs nothing
    // (measured). So the scheduler records events behind small graphs, and queries them only when the stream lacks
    // credit.
    static constexpr std::uint32_t kMarkGraphsEvery = kGraphCredit / 2;
    static constexpr std::size_t kThrottleAt = 1024;  // held operations of one stream
    static constexpr std::size_t kReleaseAt = 256;
    // The same in bytes (Operation::bytes). A stream may hold 1/kLimitDivisor of what is left of the
    // session's budget, so the limit of each stream falls as the streams together hold more. All together hold no more
    // than the budget, plus one operation each, plus what was under way when the client was throttled. A stream that
    // holds less than its limit is not throttled by it, so that the client can send the work that other streams wait
    // for.
    static constexpr std::size_t kHeldBudgetBytes = 384u << 20;
    static constexpr std::size_t kLimitDivisor = 8;    // the per-stream limit is an eighth of the budget that is left
    static constexpr std::size_t kReleaseDivisor = 2;  // the client is released at half of the limit

    // `notify_throttled` notifies the client to stop (true) or resume (false) sending work for a stream. While
    // `driver_closed` returns true nothing is issued. `drain_issuers` returns when the issuers have issued the
    // launches that they were handed. `word_memory` outlives the scheduler.
    Scheduler(
        const driver::Api& api, PinnedMemory& word_memory,
        std::function<void(const StreamState&, bool)> notify_throttled,
        std::function<bool()> driver_closed = [] { return false; }, std::function<void()> drain_issuers = [] {},
        TimeSource& clock = TimeSource::system());

    // Makes `context` current for the driver calls that follow on this thread.
    CUresult enter(const ContextState* context);

    // May work for `stream` go to the driver now? Call this before issuing work that was not held.
    bool may_issue(StreamState& stream, std::uint32_t cost = 1);

    // Has `stream`, whose operation is being issued, room for more of it?
    [[nodiscard]] bool has_room(const StreamState& stream) const { return !full(stream, 1); }

    // Accounts for work that was given to the driver for `stream`, and makes a mark when one is due.
    void issued(StreamState& stream, std::uint32_t cost = 1);

    // Appends to what `stream` holds.
    void hold(StreamState& stream, std::unique_ptr<Operation> operation);

    // As issued(), for work that another thread gives to the driver. Returns the number that this thread must then
    // write to the stream's word, or 0 if no mark is due. The thread must have done so before the next poll().
    std::uint32_t issued_elsewhere(StreamState& stream);
    // May another thread issue for the stream? Not if its first mark is due, which the dispatcher makes.
    [[nodiscard]] static bool may_issue_elsewhere(const StreamState& stream) {
        return stream.marks.word != nullptr || stream.unmarked + 1 < kMarkEvery;
    }

    // Runs `action` once everything that `stream` was given so far is complete.
    void when_complete(StreamState& stream, Action action);
    // The same for a stream that captures and so cannot be marked. Beginning the capture made a mark behind earlier
    // work.
    void when_complete_before_capture(StreamState& stream, Action action);
    // The same for all streams of a context, or for its legacy and blocking streams. `action` gets the first error.
    void when_complete(ContextState& context, Action action) { when_all_complete(context, false, std::move(action)); }
    void when_blocking_complete(ContextState& context, Action action) {
        when_all_complete(context, true, std::move(action));
    }
    // Is the context idle? Queries the driver for each stream that has had work.
    bool is_idle(ContextState& context);
    // As cuStreamQuery, held work included. Only if may_be_queried(): a query of a capturing stream, or of the legacy
    // stream while a blocking stream captures, would end the capture.
    CUresult query(const StreamState& stream);
    [[nodiscard]] static bool may_be_queried(const StreamState& stream);
    // Runs `action` when the event's present record is complete.
    void when_recorded(EventState& event, Action action, Effect effect = Effect::answers);
    // Runs `action` when every operation that is held now has been issued or abandoned.
    void when_issued(std::function<void()> action);
    // Runs `action` when that operation has been issued or abandoned.
    void when_issued(std::uint64_t operation, std::function<void()> action);

    // Marks `stream` behind what was issued to it; `action` runs when the GPU has reached the mark. If the stream
    // cannot be marked, `action` runs at once with the error, which is returned as well.
    //
    // Completions are found by polling one stream after the other, so a stream may be seen complete before another
    // whose work it waited for. An action therefore runs only after all data that precedes it was sent and the client
    // was notified of all events that precede it.
    CUresult mark(StreamState& stream, Action action, std::uint32_t credit = 0, Effect effect = Effect::answers);
    // The same without a new mark if nothing was issued to `stream` since its last one.
    void at_mark(StreamState& stream, Action action);

    // Call when kernels may print from now on.
    void expect_output() { kernels_print_ = true; }
    [[nodiscard]] bool kernels_print() const { return kernels_print_; }

    // Sends the data and event notifications that precede what is known to be complete. Must be called before the
    // client learns of a completion other than by an action, such as by the result of a query.
    void flush_completions() {
        for (int pass = 0; pass < kMaxPasses && (data_outstanding_ != 0 || notifications_outstanding_ != 0); ++pass) {
            poll(PollDepth::thorough);
        }
    }

    // Issues held operations that have become ready; true if anything moved.
    bool run_held();
    // Polls for completions; true if any was found. Events that no call waits for, of which there may be many, are
    // queried at intervals only: shorter ones when the dispatcher is idle, and always when `depth` is thorough.
    enum class PollDepth { brief, idle, thorough };
    bool poll(PollDepth depth = PollDepth::brief);
    [[nodiscard]] bool waiting() const { return !busy_.empty() || !event_waits_.empty() || !found_.empty(); }
    // Does an action or held work wait for the GPU? Outstanding work whose completion only returns credit does not
    // count.
    [[nodiscard]] bool awaited() const;

    // Is anything held, or an action of when_issued() yet to run?
    [[nodiscard]] bool holds_any() const { return !open_.empty() || !after_issue_.empty(); }
    // How many operations have been held so far.
    [[nodiscard]] std::uint64_t holds() const { return next_id_ - 1; }
    // Lowers the credit below kCredit, for operations that take several places each in the driver's queue.
    void limit_credit(std::uint32_t credit) { credit_ = credit; }

    // No new command will name this event. The driver's event is destroyed once no waiter and no held operation uses
    // it.
    void retire(EventState& event);
    // The context has ended, and its events with it: drops their states.
    void forget_events(Objects& objects, const ContextState& context);

    // Abandons everything that `stream` holds or waits for: actions run with `result`.
    void forget(StreamState& stream, CUresult result);

  private:
    // An action that waits for an event of the program, which poll_events() queries.
    struct EventWait {
        EventState* state;  // null once the program destroyed it
        CUevent event;
        Action action;
        Effect effect;
    };
    // A completion whose action has yet to run.
    struct Found {
        const StreamState* stream;  // null for an event
        Action action;
        Effect effect;
        CUresult result;
        std::optional<std::uint64_t>
            due;  // the pass of run_found() by which everything that precedes it has been found
    };
    static constexpr int kMaxPasses = 3;
    static constexpr std::chrono::microseconds kPollEventsEvery{20}, kEachEventWhenIdle{3};
    static constexpr std::chrono::microseconds kAskEvery{100};
    static constexpr unsigned kPollsPerClockRead = 16;
    static constexpr std::size_t kBetweenWords = 64;  // bytes: a cache line each, which only the GPU writes
    struct AfterIssue {
        std::uint64_t up_to;
        std::function<void()> action;
    };

    // scheduler.cpp: what may be issued, what is held
    [[nodiscard]] bool full(const StreamState& stream, std::uint32_t cost) const;
    bool ready(const StreamState& stream, std::uint32_t cost) const;
    bool advance_head(StreamState& stream);
    void end(Operation& operation);
    bool run_after_issue();
    void detach(EventState& event);
    [[nodiscard]] std::size_t stream_limit_bytes() const;
    void set_throttled(StreamState& stream, bool throttled);
    void release_client(StreamState& stream);
    void release_clients();
    void list(StreamState& stream);

    // scheduler_completion.cpp: marks and completions
    void when_all_complete(ContextState& context, bool blocking_only, Action action);
    bool is_idle(StreamState& stream);
    void mark_before(StreamState& legacy);
    void add_unmarked(StreamState& stream, std::uint32_t cost);
    std::uint32_t take_unmarked(StreamState& stream);
    std::uint32_t take_all_but_last(StreamState& stream);
    std::uint32_t take_marked(StreamState& stream, bool with_event);
    CUresult give_word(StreamState& stream);
    CUresult new_event(ContextState& context, CUevent& event);
    CUresult record_event(ContextState& context, CUstream target, CUevent& event);
    CUresult prepare_mark(StreamState& stream, CUstream& target);
    static void fail_mark(StreamState& stream, std::uint32_t credit, CUresult result);
    void record_credit(StreamState& stream);
    void complete_first(StreamState& stream, CUresult result);
    bool reached(const StreamState& stream, const Completion& completion, bool lacks_credit);
    bool poll_stream(StreamState& stream, bool lacks_credit);
    CUresult ask(StreamState& stream);
    bool ask_in_order();
    bool poll_events();
    void note_found(const StreamState* stream, Action action, Effect effect, CUresult result);
    bool run_found();
    [[nodiscard]] std::uint64_t passes_before(Effect effect) const;

    const driver::Api& api_;
    PinnedMemory& word_memory_;
    std::function<void(const StreamState&, bool)> notify_throttled_;
    const std::function<bool()> driver_closed_;
    const std::function<void()> drain_issuers_;
    TimeSource& clock_;
    const ContextState* current_ = nullptr;
    bool entered_ = false;
    std::uint32_t credit_ = kCredit;
    std::uint64_t next_id_ = 1;
    std::map<std::uint64_t, Operation*> open_;  // held operations
    std::size_t held_bytes_ = 0;                // what they cost
    std::size_t throttled_streams_ = 0;         // streams for which the client is throttled
    std::vector<StreamState*> busy_;            // those with something held or to be polled
    std::vector<EventWait> event_waits_;
    std::vector<CUevent> unused_;  // to be destroyed when the driver is not closed
    std::vector<Found> found_;
    std::uint64_t passes_ = 0;                   // of run_found()
    std::size_t data_outstanding_ = 0;           // completions that send data
    std::size_t notifications_outstanding_ = 0;  // notifications of events, found or not
    std::size_t events_awaited_ = 0;             // entries of event_waits_ that a call waits for
    TimeSource::TimePoint events_polled_{}, asked_{};
    std::size_t next_asked_ = 0;
    unsigned polls_ = 0;
    bool kernels_print_ = false;
    std::deque<AfterIssue> after_issue_;
};

}  // namespace gpupool::worker
