#include "server/worker/gate/gate.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/log.h"

namespace gpupool::worker {
namespace {

// Runs a function when the entry may go.
class Run final : public Entry {
  public:
    explicit Run(std::function<void()> run, Action otherwise = {})
        : run_(std::move(run)), otherwise_(std::move(otherwise)) {}
    Reason advance() override {
        run_();
        return Reason::none;
    }
    void abandon(CUresult result) override {
        if (otherwise_) {
            otherwise_(result);
        }
    }

  private:
    std::function<void()> run_;
    Action otherwise_;
};

// Calls `action` once, when the last of several parts has ended, with the first error among them.
struct Group {
    explicit Group(Action a) : action(std::move(a)) {}
    Action action;
    std::size_t left = 1;
    CUresult result = CUDA_SUCCESS;

    void end(CUresult part) {
        keep_first_error(result, part);
        if (--left == 0) {
            action(result);
        }
    }
};

bool gives_work(calls::Kind kind) {
    return kind == calls::Kind::work || kind == calls::Kind::order;
}

}  // namespace

void Entry::names(std::shared_ptr<EventState> event) {
    if (event->queued_record != 0) {
        after.push_back(event->queued_record);
    }
    ++event->queued_uses;
    events.push_back(std::move(event));
}

void Entry::records_event(std::shared_ptr<EventState> event) {
    records.push_back(event.get());
    names(std::move(event));
}

void Submission::end() {
    if (Scheduler* const scheduler = std::exchange(scheduler_, nullptr)) {
        scheduler->issued(*stream_, cost_);
    }
}

void Submission::count() {
    scheduler_->issued(*stream_, cost_);
}

std::uint32_t Submission::end_elsewhere() {
    return std::exchange(scheduler_, nullptr)->issued_elsewhere(*stream_);
}

// ---- streams

std::optional<Submission> Gate::enter(StreamState& stream, calls::Kind kind, std::uint32_t cost) {
    if (admitted_) {
        return std::exchange(admitted_, std::nullopt);
    }
    ++stream.context->submissions;
    if (!stream.queue.empty()) {
        return std::nullopt;
    }
    if (!stream.capturing) {  // else the work only becomes nodes of a graph
        // Queueing a command costs as much as the launch, so poll first: the GPU may have completed work since the
        // last poll.
        if (!scheduler_.make_room(stream, cost) || !in_order(stream, next_number_) ||
            (kind == calls::Kind::work && !host_.lease_open())) {
            return std::nullopt;
        }
    }
    scheduler_.mark_before(stream);
    return Submission(scheduler_, stream, cost);
}

// Has every entry before `number` been issued that precedes work of the stream, though it is in another queue?
bool Gate::in_order(const StreamState& stream, std::uint64_t number) const {
    if (!stream.legacy) {
        const Queue& legacy = stream.context->legacy.queue;
        return !stream.blocking || legacy.empty() || legacy.front().number_ > number;
    }
    return std::none_of(streams_.begin(), streams_.end(), [&](const StreamState* other) {
        return other != &stream && other->context == stream.context && other->blocking &&
               other->queue.front().number_ < number;
    });
}

bool Gate::is_issued(std::vector<std::uint64_t>& entries) const {
    std::erase_if(entries, [this](std::uint64_t number) { return !is_queued(number); });
    return entries.empty();
}

Reason Gate::reason_of(Entry& head) {
    const bool is_first = head.of_graph_ == nullptr || &head.of_graph_->front() == &head;
    if (!is_first || !is_issued(head.after) || (head.after_all_ && entries_.begin()->first != head.number_) ||
        (head.stream_ != nullptr && head.in_order_of_streams && !in_order(*head.stream_, head.number_))) {
        return Reason::order;
    }
    if (host_.driver_closed()) {
        return Reason::driver_closed;
    }
    if (head.stream_ != nullptr && !head.stream_->capturing && !scheduler_.has_room(*head.stream_, head.cost)) {
        scheduler_.mark_for_credit(*head.stream_);
        return Reason::credit;
    }
    return head.kind == calls::Kind::work && !host_.lease_open() ? Reason::lease : Reason::none;
}

void Gate::note(Entry& entry, Reason reason) {
    entry.waits_for_ = reason;
    if (reason != Reason::none && reason != entry.waited_for_) {
        entry.waited_for_ = reason;
        log::debug("{} (entry {}) waits: {}", entry.what(), entry.number_, codec::name_of(reason));
    }
}

Entry& Gate::add(std::unique_ptr<Entry> entry) {
    Entry& added = *entry;
    added.number_ = next_number_++;
    entries_.emplace_hint(entries_.end(), added.number_, std::move(entry));
    note(added, Reason::order);
    for (EventState* const event : added.records) {
        event->queued_record = added.number_;
    }
    return added;
}

// Removes an entry. The actions that follow it are due.
std::unique_ptr<Entry> Gate::take(std::uint64_t number) {
    const auto [first, last] = following_.equal_range(number);
    std::transform(first, last, std::back_inserter(due_), [](const auto& following) { return following.second; });
    following_.erase(first, last);
    return std::move(entries_.extract(number).mapped());
}

void Gate::push(Queue& queue, Entry& entry) {
    queue.entries.push_back(&entry);
    queue.bytes += entry.bytes;
}

void Gate::remove(Queue& queue, const Entry& entry) {
    if (queue.entries.front() == &entry) {
        queue.entries.pop_front();
    } else {
        std::erase(queue.entries, &entry);
    }
    queue.bytes -= entry.bytes;
}

void Gate::join(Queue& graph, Entry& entry) {
    if (graph.empty()) {
        graphs_.push_back(&graph);
    }
    entry.of_graph_ = &graph;
    push(graph, entry);
}

// The entry leaves the queue of its executable, if it is in one.
void Gate::leave_graph(Entry& entry) {
    if (Queue* const graph = entry.of_graph_) {
        remove(*graph, entry);
        if (graph->empty()) {
            std::erase(graphs_, graph);
        }
        release(nullptr, *graph);
    }
}

void Gate::queue(StreamState& stream, std::unique_ptr<Entry> entry, Queue* graph) {
    Entry& added = add(std::move(entry));
    added.stream_ = &stream;
    added.of_stream_ = &stream.queue;
    if (stream.queue.empty()) {
        streams_.push_back(&stream);
    }
    push(stream.queue, added);
    bytes_ += added.bytes;
    if (graph != nullptr) {
        join(*graph, added);
    }
    throttle(&stream, stream.queue);
}

void Gate::queue(Queue& graph, std::unique_ptr<Entry> change) {
    join(graph, add(std::move(change)));
    throttle(nullptr, graph);
}

void Gate::put(StreamState& stream, std::unique_ptr<Entry> entry) {
    std::optional<Submission> submission = enter(stream, entry->kind, entry->cost);
    if (!submission) {
        queue(stream, std::move(entry));
        return;
    }
    entry->submission = std::move(submission);
    const Reason reason = entry->advance();
    if (reason == Reason::none) {
        end(std::move(entry));
        return;
    }
    Entry& queued = *entry;
    queue(stream, std::move(entry));
    note(queued, reason);
}

void Gate::go_on(Submission submission, std::unique_ptr<Entry> entry) {
    StreamState& stream = submission.stream();
    entry->submission = std::move(submission);
    if (issuing_ == nullptr) {
        queue(stream, std::move(entry));
        return;
    }
    Entry& former = *std::exchange(issuing_, nullptr);
    Entry& next = *entry;
    next.number_ = former.number_;
    next.stream_ = former.stream_;
    next.of_stream_ = former.of_stream_;
    next.of_graph_ = former.of_graph_;
    next.events = std::move(former.events);
    next.records = std::move(former.records);
    for (Queue* const queue : {next.of_stream_, next.of_graph_}) {
        if (queue != nullptr) {
            queue->entries.front() = &next;
            queue->bytes += next.bytes - former.bytes;
        }
    }
    bytes_ += next.bytes - former.bytes;
    entries_.at(next.number_).swap(entry);
    replaced_ = std::move(entry);  // whose advance() has yet to return
}

// Issues the first entry of a stream's queue, or a change that is the first of an executable's. True if anything moved.
bool Gate::advance(Entry& head) {
    note(head, reason_of(head));
    if (head.waits_for_ != Reason::none) {
        return false;
    }
    if (StreamState* const stream = head.stream_) {
        ++stream->context->submissions;
        scheduler_.mark_before(*stream);
        if (!head.submission && !std::exchange(head.granted_, true) && gives_work(head.kind)) {
            head.submission = Submission(scheduler_, *stream, head.cost);
        }
    }
    issuing_ = &head;
    const Reason reason = head.advance();
    admitted_.reset();
    if (replaced_ != nullptr) {
        replaced_.reset();
        return true;
    }
    issuing_ = nullptr;
    note(head, reason);
    if (reason != Reason::none) {
        return false;
    }
    issue(head);
    return true;
}

// All of the entry has been given to the driver.
void Gate::issue(Entry& entry) {
    if (StreamState* const stream = entry.stream_) {
        remove(stream->queue, entry);
        bytes_ -= entry.bytes;
        if (stream->queue.empty()) {
            std::erase(streams_, stream);
        }
        release(stream, stream->queue);
    }
    leave_graph(entry);
    end(take(entry.number_));
}

// The entry is not queued any more.
void Gate::end(std::unique_ptr<Entry> entry) {
    for (EventState* const event : entry->records) {
        if (event->queued_record == entry->number_) {
            event->queued_record = 0;
        }
    }
    for (const std::shared_ptr<EventState>& event : entry->events) {
        if (--event->queued_uses == 0 && event->retired) {
            scheduler_.retire(*event);
        }
    }
}

void Gate::forget(StreamState& stream, CUresult result) {
    const std::vector<Entry*> queued(stream.queue.entries.begin(), stream.queue.entries.end());
    std::vector<std::unique_ptr<Entry>> abandoned;
    for (Entry* const entry : queued) {
        leave_graph(*entry);
        abandoned.push_back(take(entry->number_));
    }
    bytes_ -= stream.queue.bytes;
    stream.queue.entries.clear();
    stream.queue.bytes = 0;
    std::erase(streams_, &stream);
    release(&stream, stream.queue);
    release_streams();
    scheduler_.forget(stream, result);
    for (std::unique_ptr<Entry>& entry : abandoned) {
        if (entry->submission) {
            entry->submission->cancel();
        }
        entry->abandon(result);
        end(std::move(entry));
    }
}

void Gate::forget_events(Objects& objects, const ContextState& context) {
    for (const auto& [number, entry] : entries_) {
        for (const std::shared_ptr<EventState>& event : entry->events) {
            if (event->context == &context) {
                event->driver = nullptr;
                event->retired = true;  // end() of the entry retires it
            }
        }
    }
    scheduler_.forget_events(objects, context);
}

void Gate::when_complete(StreamState& stream, Action action) {
    if (scheduler_.is_idle(stream)) {
        stream.touched = false;
        action(CUDA_SUCCESS);
    } else if (stream.queue.empty() && scheduler_.has_room(stream, 1)) {
        scheduler_.when_issued_is_complete(stream, std::move(action));
    } else {
        auto wait = std::make_unique<Run>([this, &stream, action] { scheduler_.mark(stream, action); }, action);
        wait->in_order_of_streams = false;
        queue(stream, std::move(wait));
    }
}

void Gate::when_all_complete(ContextState& context, bool blocking_only, Action action) {
    const auto group = std::make_shared<Group>(std::move(action));
    const auto wait_for = [&](StreamState& stream) {
        if (stream.capturing) {
            if (!stream.completions.empty() && (stream.blocking || !blocking_only)) {
                ++group->left;
                scheduler_.when_complete_before_capture(stream, [group](CUresult result) { group->end(result); });
            }
            return;
        }
        // The legacy stream always counts: if the context may be lost, the driver reports that for its helper stream.
        if (!stream.legacy && ((!stream.touched && stream.queue.empty()) || (blocking_only && !stream.blocking))) {
            return;
        }
        ++group->left;
        when_complete(stream, [group](CUresult result) { group->end(result); });
    };
    context.each_stream(wait_for);
    for (ContextState* const green : context.greens) {  // their work is the primary context's as well
        if (!blocking_only) {
            green->each_stream(wait_for);
        }
    }
    group->end(CUDA_SUCCESS);
}

// ---- the session

bool Gate::passes(Passage passage, std::uint32_t thread) const {
    switch (passage) {
        case Passage::needs_no_driver: return true;
        // A queued command may give the same stream work, or record the event.
        case Passage::gets_in: return arrivals_.empty();
        case Passage::gets_in_first:
            return std::none_of(arrivals_.begin(), arrivals_.end(),
                                [&](const Arrival& other) { return other.thread == thread; });
        case Passage::none: break;
    }
    return false;
}

void Gate::arrive(std::uint32_t thread, std::unique_ptr<Entry> command) {
    Entry& added = add(std::move(command));
    note(added, Reason::driver_closed);
    arrivals_.push_back({thread, &added});
    if (arrivals_.size() >= kMaxArrivals && !std::exchange(arrivals_throttled_, true)) {
        host_.notify_throttled(nullptr, nullptr, true);
    }
}

void Gate::after_all(std::unique_ptr<Entry> entry) {
    Entry& added = add(std::move(entry));
    added.after_all_ = true;
    after_all_.push_back(&added);
}

void Gate::after_all(std::function<void()> action) {
    if (queues_any()) {
        after_all(std::make_unique<Run>(std::move(action)));
    } else {
        action();
    }
}

void Gate::after_record(const std::shared_ptr<EventState>& event, std::function<void()> action) {
    if (event->queued_record == 0) {
        action();
        return;
    }
    auto entry = std::make_unique<Run>(std::move(action));
    entry->names(event);
    following_.emplace(event->queued_record, &add(std::move(entry)));
}

// ---- what may go

bool Gate::run() {
    bool moved = run_actions();
    moved = run_arrivals() || moved;
    // An issued entry may be what others waited for: repeat until nothing moves.
    for (bool again = true; again;) {
        again = run_streams();
        again = run_graphs() || again;
        moved = moved || again;
    }
    if (moved && throttled_streams_ != 0) {
        release_streams();
    }
    return run_waiting() || moved;
}

bool Gate::run_actions() {
    bool moved = false;
    for (; !actions_.empty() && !host_.driver_closed(); moved = true) {
        const std::function<void()> action = std::move(actions_.front());
        actions_.pop_front();
        action();
    }
    return moved;
}

bool Gate::run_arrivals() {
    bool moved = false;
    for (; !arrivals_.empty() && !host_.driver_closed(); moved = true) {
        const std::unique_ptr<Entry> command = take(arrivals_.front().entry->number_);
        arrivals_.pop_front();
        command->advance();
    }
    if (arrivals_.empty() && std::exchange(arrivals_throttled_, false)) {
        host_.notify_throttled(nullptr, nullptr, false);
    }
    return moved;
}

bool Gate::run_streams() {
    bool moved = false;
    for (std::size_t i = 0; i < streams_.size();) {
        StreamState* const stream = streams_[i];
        while (i < streams_.size() && streams_[i] == stream && advance(stream->queue.front())) {
            moved = true;
        }
        i += i < streams_.size() && streams_[i] == stream ? 1 : 0;  // else the next one has taken its place
    }
    return moved;
}

bool Gate::run_graphs() {
    bool moved = false;
    for (std::size_t i = 0; i < graphs_.size();) {
        Queue* const graph = graphs_[i];
        // A launch goes with its stream's queue.
        while (i < graphs_.size() && graphs_[i] == graph && graph->front().stream_ == nullptr &&
               advance(graph->front())) {
            moved = true;
        }
        i += i < graphs_.size() && graphs_[i] == graph ? 1 : 0;
    }
    return moved;
}

bool Gate::run_waiting() {
    bool moved = false;
    const auto run_first = [&](std::deque<Entry*>& entries) {
        while (!entries.empty()) {
            note(*entries.front(), reason_of(*entries.front()));
            if (entries.front()->waits_for_ != Reason::none) {
                return;
            }
            std::unique_ptr<Entry> entry = take(entries.front()->number_);
            entries.pop_front();
            entry->advance();
            end(std::move(entry));
            moved = true;
        }
    };
    run_first(due_);
    run_first(after_all_);  // the others wait for the first
    return moved;
}

std::array<std::size_t, codec::kReasons> Gate::waits() const {
    std::array<std::size_t, codec::kReasons> counts{};
    const auto count = [&](const Entry& entry) { ++counts.at(static_cast<std::size_t>(entry.waits_for_)); };
    for (const StreamState* const stream : streams_) {
        count(stream->queue.front());
    }
    for (const Queue* const graph : graphs_) {
        if (graph->front().stream_ == nullptr) {
            count(graph->front());
        }
    }
    for (const std::deque<Entry*>* const entries : {&due_, &after_all_}) {
        if (!entries->empty()) {
            count(*entries->front());
        }
    }
    counts.at(static_cast<std::size_t>(Reason::order)) += following_.size();
    if (!arrivals_.empty()) {
        ++counts.at(static_cast<std::size_t>(Reason::driver_closed));
    }
    return counts;
}

// ---- throttling the client

// What one stream may hold now, in bytes.
std::size_t Gate::stream_limit_bytes() const {
    return (kBudgetBytes - std::min(kBudgetBytes, bytes_)) / kLimitDivisor;
}

void Gate::throttle(const StreamState* stream, Queue& queue) {
    if (!queue.throttled &&
        (queue.entries.size() >= queue.limits.throttle || (stream != nullptr && queue.bytes > stream_limit_bytes()))) {
        queue.throttled = true;
        throttled_streams_ += stream != nullptr ? 1 : 0;
        host_.notify_throttled(stream, &queue, true);
    }
}

void Gate::release(const StreamState* stream, Queue& queue) {
    if (queue.throttled && queue.entries.size() <= queue.limits.release &&
        (stream == nullptr || queue.empty() || queue.bytes <= stream_limit_bytes() / kReleaseDivisor)) {
        queue.throttled = false;
        throttled_streams_ -= stream != nullptr ? 1 : 0;
        host_.notify_throttled(stream, &queue, false);
    }
}

// The limit of a stream grows as others hold less.
void Gate::release_streams() {
    for (std::size_t i = 0; throttled_streams_ != 0 && i < streams_.size(); ++i) {
        release(streams_[i], streams_[i]->queue);
    }
}

}  // namespace gpupool::worker
