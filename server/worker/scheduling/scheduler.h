// Decides when a command may go to the driver, so that no call blocks because a stream is full or its data is not
// there.
//
// Every stream has credit: at most kCredit operations outstanding in the driver (which itself blocks at about a
// thousand). A stream without credit, or whose head operation waits for data, holds what comes after it, and whatever
// depends on that: work that waits for an event whose record is held, the legacy stream behind any blocking stream, any
// blocking stream behind the legacy stream. Everything else goes on.
//
// Waiting is done with marks: behind a stream's work the GPU writes a number to a word of pinned memory, which costs
// nothing to look at, where asking the driver for an event that is complete costs 1.3 us (measured). A context that
// died writes nothing any more, so now and then the driver is asked for a stream all the same. None of the marks enters
// a capturing stream. For the legacy stream they are written by a blocking helper stream, because a mark in the legacy
// stream itself would stall later work of the other blocking streams.
//
// The driver writes out what kernels printed only when something is synchronized. Where kernels may print, a mark has
// an event before it, which is complete when the mark is, and is synchronized then; but for our own and those of
// issuers, which nobody waits for.
//
// Ownership: held operations belong to their stream. Threads: the dispatcher's alone.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "server/driver/api.h"
#include "server/worker/dispatch/command.h"
#include "server/worker/session/objects.h"

namespace gpupool::worker {

// Something a stream has yet to do.
class Operation {
  public:
    virtual ~Operation() = default;
    // Called when it is the stream's turn; true when everything was given to the driver. Otherwise it is called again
    // when something has happened (data landed, staging became free).
    virtual bool advance() = 0;
    // Its stream has ended instead: whoever waits for it is told so.
    virtual void abandon(CUresult) {}

    std::uint64_t id = 0;
    std::uint32_t cost = 1;                           // places in the driver's queue
    std::size_t bytes = kHeldCostBytes;               // that it costs while it is held
    std::vector<std::uint64_t> after;                 // operations of other streams that must have been issued first
    std::vector<std::shared_ptr<EventState>> events;  // that it names: they may be destroyed before its turn comes
    std::vector<EventState*> records;                 // those of them that it will record
    std::vector<std::function<void()>> then;          // runs when it was issued

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
    // Marks take places in the driver's queue as well: with the credit and the pieces of one copy this stays below what
    // the driver takes without blocking.
    static constexpr std::size_t kMaxMarks = 256;
    static constexpr std::size_t kMaxMarksWithEvents = 96;
    // A launched graph takes a place for each of its nodes (measured): one of many nodes may go alone only.
    static constexpr std::size_t kGraphCredit = 960;
    // A word that is written behind a graph costs the GPU 1.4 us in which the next one could begin, an event nothing
    // (measured). So behind small graphs stand events, and the driver is asked for them where the stream lacks credit.
    static constexpr std::uint32_t kMarkGraphsEvery = kGraphCredit / 2;
    static constexpr std::size_t kTellClientAt = 1024;  // held operations of one stream
    static constexpr std::size_t kReleaseClientAt = 256;
    // The same by what they cost. A stream may hold a share of what is left of the session's budget: a few may hold
    // much, of many each little, all together no more than the budget, an operation of each, and what was on its way
    // when the client was told. A stream that holds less than the share, as one that holds nothing, goes on, so that
    // what the others wait for can be sent.
    static constexpr std::size_t kHeldBudgetBytes = 384u << 20;
    static constexpr std::size_t kShareOfBudget = 8;  // one part in so many
    static constexpr std::size_t kReleaseShare = 2;   // goes on at one part in so many of the share

    // `hold` tells the client to stop (true) or go on (false) sending work for a stream. `driver_closed` says that the
    // driver must not be entered now: nothing is issued then. `settle_launches` returns when what other threads were
    // handed is issued. `word_memory` outlives the scheduler.
    Scheduler(
        const driver::Api& api, PinnedMemory& word_memory, std::function<void(const StreamState&, bool)> hold,
        std::function<bool()> driver_closed = [] { return false; }, std::function<void()> settle_launches = [] {});

    // Makes `context` current for the driver calls that follow on this thread.
    CUresult enter(const ContextState* context);

    // May work for `stream` go to the driver right now? Asked before any does that was not held.
    bool may_issue(StreamState& stream, std::uint32_t cost = 1);

    // Work was given to the driver for `stream`.
    void issued(StreamState& stream, std::uint32_t cost = 1);

    // Appends to what `stream` has yet to do.
    void hold(StreamState& stream, std::unique_ptr<Operation> operation);

    // As issued(), of work that another thread gives to the driver, and where a mark is due that as well: says which
    // number that thread is to write to the stream's word, or 0. It has done so before the next poll().
    std::uint32_t issued_elsewhere(StreamState& stream);
    // Can it be done there? The dispatcher makes a stream's first mark.
    [[nodiscard]] static bool may_issue_elsewhere(const StreamState& stream) {
        return stream.marks.word != nullptr || stream.unmarked + 1 < kMarkEvery;
    }

    // Runs `action` once everything that `stream` was given so far is complete.
    void when_complete(StreamState& stream, Action action);
    // The same of a stream that captures, which cannot be marked: what it was given before ended with a mark.
    void when_complete_before_capture(StreamState& stream, Action action);
    // The same for all streams of a context, or for its legacy and blocking streams. `action` gets the first error.
    void when_complete(ContextState& context, Action action) { when_all_complete(context, false, std::move(action)); }
    void when_blocking_complete(ContextState& context, Action action) {
        when_all_complete(context, true, std::move(action));
    }
    // Has the context nothing left to do? The driver is asked for each stream that has had work.
    bool is_idle(ContextState& context);
    // As cuStreamQuery, of what the stream was given here. Not while it captures, or, of the legacy stream, a blocking
    // one does: to be asked then would end the capture.
    CUresult query(const StreamState& stream);
    [[nodiscard]] static bool may_be_queried(const StreamState& stream);
    // Runs `action` when the event's present record is complete.
    void when_recorded(EventState& event, Action action, Effect effect = Effect::answers);
    // Runs `action` when every operation that is held now has been issued,
    void when_issued(std::function<void()> action);
    // or that one.
    void when_issued(std::uint64_t operation, std::function<void()> action);

    // Marks `stream` behind what was issued to it; `action` runs when the GPU has come there.
    // What is complete is found by looking at stream after stream, so that one may be seen complete before another that
    // it waited for: an action runs when all data that precedes it has been sent and all events that precede it were
    // told. Where the stream cannot be marked, `action` has run with the error, which is returned as well.
    CUresult mark(StreamState& stream, Action action, std::uint32_t credit = 0, Effect effect = Effect::answers);
    // The same where nothing was given to the driver for `stream` since its last mark.
    void at_mark(StreamState& stream, Action action);

    // Kernels may print from now on.
    void expect_output() { kernels_print_ = true; }
    [[nodiscard]] bool kernels_print() const { return kernels_print_; }

    // Before the client learns by other ways than an action that something is complete: the same for all that precedes.
    void settle() {
        for (int pass = 0; pass < kMaxPasses && (data_outstanding_ != 0 || tellings_outstanding_ != 0); ++pass) {
            poll(PollDepth::thorough);
        }
    }

    // Issues what has become possible; true when anything moved.
    bool run_held();
    // Looks at the driver; true when anything completed. Events that nobody waits for, which there may be many of, are
    // looked at now and then only, more often where there is nothing else to do, and all when the look is thorough.
    enum class PollDepth { brief, idle, thorough };
    bool poll(PollDepth depth = PollDepth::brief);
    [[nodiscard]] bool waiting() const { return !busy_.empty() || !loose_.empty() || !found_.empty(); }
    // Is anything outstanding whose end something waits for, and not only the credit of a stream?
    [[nodiscard]] bool awaited() const;

    // Is anything held, or such an action to run?
    [[nodiscard]] bool holds_any() const { return !open_.empty() || !after_issue_.empty(); }
    // How often something was held so far.
    [[nodiscard]] std::uint64_t holds() const { return next_id_ - 1; }
    // Fewer operations than kCredit, where each takes more places in the driver's queue.
    void limit_credit(std::uint32_t credit) { credit_ = credit; }

    // Nothing new will name the event: the driver's goes when nobody waits for it any more and nothing held names it.
    void retire(EventState& event);
    // The driver has those of the context no more.
    void forget_events(Objects& objects, const ContextState& context);

    // Everything of `stream` or `context` is given up: waiting actions run with `result`.
    void forget(StreamState& stream, CUresult result);

  private:
    struct LooseEvent {
        EventState* state;  // null once the application destroyed it
        CUevent event;
        Action action;
        Effect effect;
    };
    // Complete, its action yet to run.
    struct Found {
        const StreamState* stream;  // null for an event's
        Action action;
        Effect effect;
        CUresult result;
        std::optional<std::uint64_t>
            due;  // the pass of run_found() by which everything that precedes it has been found
    };
    static constexpr int kMaxPasses = 3;
    static constexpr std::chrono::microseconds kLooseEvery{20}, kEachLooseWhenIdle{3};
    static constexpr std::chrono::microseconds kAskEvery{100};
    static constexpr unsigned kPollsPerLookAtTheClock = 16;
    static constexpr std::size_t kBetweenWords = 64;  // bytes: a line each, which only the GPU writes
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
    [[nodiscard]] std::size_t share_bytes() const;
    void tell_client(StreamState& stream, bool held);
    void release_client(StreamState& stream);
    void release_clients();
    void list(StreamState& stream);

    // scheduler_completion.cpp: marks, and what is complete
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
    bool poll_loose();
    void note_found(const StreamState* stream, Action action, Effect effect, CUresult result);
    bool run_found();
    [[nodiscard]] std::uint64_t passes_before(Effect effect) const;

    const driver::Api& api_;
    PinnedMemory& word_memory_;
    std::function<void(const StreamState&, bool)> tell_client_;
    const std::function<bool()> driver_closed_;
    const std::function<void()> settle_launches_;
    const ContextState* current_ = nullptr;
    bool entered_ = false;
    std::uint32_t credit_ = kCredit;
    std::uint64_t next_id_ = 1;
    std::map<std::uint64_t, Operation*> open_;  // held operations
    std::size_t held_bytes_ = 0;                // what they cost
    std::size_t clients_held_ = 0;              // streams for which the client was told to stop
    std::vector<StreamState*> busy_;            // with something held or to be polled
    std::vector<LooseEvent> loose_;
    std::vector<CUevent> unused_;  // to be destroyed when the driver may be entered
    std::vector<Found> found_;
    std::uint64_t passes_ = 0;              // of run_found()
    std::size_t data_outstanding_ = 0;      // completions that send data
    std::size_t tellings_outstanding_ = 0;  // of events, found or not
    std::size_t events_awaited_ = 0;        // entries of loose_ that somebody waits for
    std::chrono::steady_clock::time_point loose_polled_{}, asked_{};
    std::size_t next_asked_ = 0;
    unsigned polls_ = 0;
    bool kernels_print_ = false;
    std::deque<AfterIssue> after_issue_;
};

}  // namespace gpupool::worker
