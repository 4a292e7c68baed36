// The work that streams have outstanding in the driver: how much more each may get, and when it is complete.
//
// Every stream has credit: at most kCredit operations outstanding in the driver, which itself blocks at about a
// thousand. The gate (server/worker/gate/gate.h) queues work for a stream without credit.
//
// Completions are found with marks: behind a stream's work the GPU writes a number to a word of pinned memory. Polling
// the word costs nothing; a query of a complete event costs 1.3 us (docs/driver-facts.md). A context that died writes
// no more words, so the scheduler now and then queries the driver for a stream as well. No mark enters a capturing
// stream. Marks of the legacy stream are written by a blocking helper stream: a mark in the legacy stream itself would
// stall later work of the other blocking streams. But nothing waits for the helper stream, so its marks may be late.
// Data must be sent before the answer of any later work, so its marks are in the legacy stream itself, right behind the
// copy, which stalls the other streams anyway.
//
// The driver writes out what kernels printed only when something is synchronized. If kernels may print, the scheduler
// records an event before each mark and synchronizes it when the mark is reached; it is complete by then. Marks that no
// call of the program waits for (Effect::ours, those of issuers) need no event.
//
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
    // While `driver_closed` returns true no event is destroyed. `drain_issuers` returns when the issuers have issued
    // the launches that they were handed. `word_memory` outlives the scheduler.
    Scheduler(
        const driver::Api& api, PinnedMemory& word_memory, std::function<bool()> driver_closed = [] { return false; },
        std::function<void()> drain_issuers = [] {}, TimeSource& clock = TimeSource::system());

    // Makes `context` current for the driver calls that follow on this thread.
    CUresult enter(const ContextState* context);

    // Has `stream` credit for work that takes `cost` places?
    [[nodiscard]] bool has_room(const StreamState& stream, std::uint32_t cost = 1) const;
    // The same, after a poll of the stream: the GPU may have completed work meanwhile.
    bool make_room(StreamState& stream, std::uint32_t cost);
    // The stream waits for credit: makes the mark without which the scheduler would never learn that it has some.
    void mark_for_credit(StreamState& stream);
    // Call before work is issued to the legacy stream. A mark in a blocking stream would also wait for earlier work of
    // the legacy stream; a native waiter would not. So blocking streams get marks behind their work before that.
    void mark_before(StreamState& legacy);

    // Accounts for work that was given to the driver for `stream`, and makes a mark when one is due. Called by
    // Submission.
    void issued(StreamState& stream, std::uint32_t cost = 1);

    // As issued(), for work that another thread gives to the driver. Returns the number that this thread must then
    // write to the stream's word, or 0 if no mark is due. The thread must have done so before the next poll().
    std::uint32_t issued_elsewhere(StreamState& stream);
    // May another thread issue for the stream? Not if its first mark is due, which the dispatcher makes.
    [[nodiscard]] static bool may_issue_elsewhere(const StreamState& stream) {
        return stream.marks.word != nullptr || stream.unmarked + 1 < kMarkEvery;
    }

    // Is all of the stream's work known to be complete, nothing queued, and everything sent that precedes?
    bool is_idle(StreamState& stream);
    // Runs `action` once everything that was issued to `stream` is complete. The stream must have room.
    void when_issued_is_complete(StreamState& stream, Action action);
    // The same for a stream that captures and so cannot be marked. Beginning the capture made a mark behind earlier
    // work.
    void when_complete_before_capture(StreamState& stream, Action action);
    // Is the context idle? Queries the driver for each stream that has had work.
    bool is_idle(ContextState& context);
    // Lets the driver notice that the work of idle contexts is complete: the worker finds that out without it, but
    // pools give back what was freed only when the driver knows. False if a context is not idle.
    bool notice_idle(const Objects& objects);
    // As cuStreamQuery, queued work included. Only if may_be_queried(): a query of a capturing stream, or of the legacy
    // stream while a blocking stream captures, would end the capture.
    CUresult query(const StreamState& stream);
    [[nodiscard]] static bool may_be_queried(const StreamState& stream);
    // Runs `action` when the event's present record is complete.
    void when_recorded(EventState& event, Action action, Effect effect = Effect::answers);
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

    // Polls for completions; true if any was found. Events that no call waits for, of which there may be many, are
    // queried at intervals only: shorter ones when the dispatcher is idle, and always when `depth` is thorough.
    enum class PollDepth { brief, idle, thorough };
    bool poll(PollDepth depth = PollDepth::brief);
    [[nodiscard]] bool waiting() const { return !busy_.empty() || !event_waits_.empty() || !found_.empty(); }
    // Does an action wait for the GPU? Outstanding work whose completion only returns credit does not count.
    [[nodiscard]] bool awaited() const;

    // Lowers the credit below kCredit, for operations that take several places each in the driver's queue.
    void limit_credit(std::uint32_t credit) { credit_ = credit; }

    // No new command will name this event. The driver's event is destroyed once no waiter and no queued entry uses it.
    void retire(EventState& event);
    // The context has ended, and its events with it: drops their states.
    void forget_events(Objects& objects, const ContextState& context);

    // Actions that wait for the stream run with `result`. Called by the gate.
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

    // scheduler.cpp: credit and events
    void detach(EventState& event);
    void list(StreamState& stream);

    // scheduler_completion.cpp: marks and completions
    void add_unmarked(StreamState& stream, std::uint32_t cost);
    std::uint32_t take_unmarked(StreamState& stream);
    std::uint32_t take_all_but_last(StreamState& stream);
    std::uint32_t take_marked(StreamState& stream, bool with_event);
    CUresult give_word(StreamState& stream);
    CUresult new_event(ContextState& context, CUevent& event);
    CUresult record_event(ContextState& context, CUstream target, CUevent& event);
    CUresult prepare_mark(StreamState& stream, Effect effect, CUstream& target);
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
    const std::function<bool()> driver_closed_;
    const std::function<void()> drain_issuers_;
    TimeSource& clock_;
    const ContextState* current_ = nullptr;
    bool entered_ = false;
    std::uint32_t credit_ = kCredit;
    std::vector<StreamState*> busy_;  // those to be polled
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
};

}  // namespace gpupool::worker
