#include "server/worker/scheduling/scheduler.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace gpupool::worker {

Scheduler::Scheduler(const driver::Api& api, PinnedMemory& word_memory,
                     std::function<void(const StreamState&, bool)> notify_throttled,
                     std::function<bool()> driver_closed, std::function<void()> drain_issuers, TimeSource& clock)
    : api_(api),
      word_memory_(word_memory),
      notify_throttled_(std::move(notify_throttled)),
      driver_closed_(std::move(driver_closed)),
      drain_issuers_(std::move(drain_issuers)),
      clock_(clock) {}

CUresult Scheduler::enter(const ContextState* context) {
    if (entered_ && context == current_) {
        return CUDA_SUCCESS;
    }
    const CUresult result = driver::call(api_.cuCtxSetCurrent, context == nullptr ? nullptr : context->driver);
    entered_ = result == CUDA_SUCCESS;
    current_ = context;
    return result;
}

bool Scheduler::full(const StreamState& stream, std::uint32_t cost) const {
    if (cost > 1) {
        const std::size_t taken = stream.outstanding + stream.completions.size();
        return taken != 0 && taken + cost > kGraphCredit;
    }
    return stream.outstanding >= credit_ ||
           stream.completions.size() >= (kernels_print_ ? kMaxMarksWithEvents : kMaxMarks);
}

bool Scheduler::ready(const StreamState& stream, std::uint32_t cost) const {
    if (stream.capturing) {
        return true;  // the work only becomes nodes of a graph
    }
    if (full(stream, cost)) {
        return false;
    }
    if (stream.legacy) {
        return !stream.context->any_blocking(
            [&](const StreamState& other) { return &other != &stream && !other.held.empty(); });
    }
    return !stream.blocking || stream.context->legacy.held.empty();
}

bool Scheduler::may_issue(StreamState& stream, std::uint32_t cost) {
    ++stream.context->submissions;
    if (!stream.held.empty()) {
        return false;
    }
    // Holding a command costs as much as the launch, so poll first: the GPU may have completed work since the last
    // poll.
    if (!stream.capturing && full(stream, cost)) {
        poll_stream(stream, true);
    }
    if (!ready(stream, cost)) {
        return false;
    }
    mark_before(stream);
    return true;
}

void Scheduler::list(StreamState& stream) {
    if (!stream.listed) {
        stream.listed = true;
        busy_.push_back(&stream);
    }
}

void Scheduler::issued(StreamState& stream, std::uint32_t cost) {
    stream.touched = true;
    ++stream.context->submissions;
    if (stream.capturing) {
        return;
    }
    stream.outstanding += cost;
    add_unmarked(stream, cost);
    if (stream.unmarked < (cost > 1 ? kMarkGraphsEvery : kMarkEvery)) {
        return;
    }
    if (cost > 1 && cost < kMarkGraphsEvery) {
        record_credit(stream);
    } else {
        mark(stream, {});  // compared with so large a graph its cost is small
    }
}

void Scheduler::hold(StreamState& stream, std::unique_ptr<Operation> operation) {
    operation->id = next_id_++;
    open_.emplace_hint(open_.end(), operation->id, operation.get());
    // Operations up to `known` need not be waited for: what the stream holds already waits for them.
    const std::uint64_t known = stream.held.empty() ? 0 : stream.held.back()->id;
    const auto wait_for_tail = [&](const StreamState& other) {
        if (&other != &stream && !other.held.empty() && other.held.back()->id > known) {
            operation->after.push_back(other.held.back()->id);
        }
    };
    if (stream.legacy) {
        stream.context->each_stream([&](const StreamState& other) {
            if (other.blocking) {
                wait_for_tail(other);
            }
        });
    } else if (stream.blocking) {
        wait_for_tail(stream.context->legacy);
    }
    for (EventState* const event : operation->records) {
        event->held_record = operation->id;
    }
    stream.held_bytes += operation->bytes;
    held_bytes_ += operation->bytes;
    stream.held.push_back(std::move(operation));
    list(stream);
    if (!stream.throttled && (stream.held.size() >= kThrottleAt || stream.held_bytes > stream_limit_bytes())) {
        set_throttled(stream, true);
    }
}

// What one stream may hold now, in bytes.
std::size_t Scheduler::stream_limit_bytes() const {
    return (kHeldBudgetBytes - std::min(kHeldBudgetBytes, held_bytes_)) / kLimitDivisor;
}

void Scheduler::set_throttled(StreamState& stream, bool throttled) {
    stream.throttled = throttled;
    throttled_streams_ += throttled ? 1 : std::size_t{0} - 1;
    notify_throttled_(stream, throttled);
}

void Scheduler::release_client(StreamState& stream) {
    if (stream.throttled && stream.held.size() <= kReleaseAt &&
        (stream.held.empty() || stream.held_bytes <= stream_limit_bytes() / kReleaseDivisor)) {
        set_throttled(stream, false);
    }
}

// Also releases streams whose limit has grown because others hold less.
void Scheduler::release_clients() {
    for (std::size_t i = 0; throttled_streams_ != 0 && i < busy_.size(); ++i) {
        release_client(*busy_[i]);
    }
}

bool Scheduler::advance_head(StreamState& stream) {
    Operation& head = *stream.held.front();
    if (full(stream, head.cost)) {
        if (stream.completions.empty() && stream.unmarked != 0) {
            mark(stream, {});  // without a mark the scheduler would never learn that the places are free
        }
        return false;
    }
    ++stream.context->submissions;
    std::erase_if(head.after, [&](std::uint64_t id) { return !open_.contains(id); });
    if (!head.after.empty()) {
        return false;
    }
    mark_before(stream);
    if (!head.advance()) {
        return false;
    }
    open_.erase(head.id);
    stream.held_bytes -= head.bytes;
    held_bytes_ -= head.bytes;
    const std::unique_ptr<Operation> issued = std::move(stream.held.front());
    stream.held.pop_front();
    release_client(stream);
    end(*issued);
    return true;
}

// The operation is not held any more.
void Scheduler::end(Operation& operation) {
    for (EventState* const event : operation.records) {
        if (event->held_record == operation.id) {
            event->held_record = 0;
        }
    }
    for (const std::function<void()>& action : operation.then) {
        action();
    }
    for (const std::shared_ptr<EventState>& event : operation.events) {
        if (--event->held_uses == 0 && event->retired) {
            retire(*event);
        }
    }
}

bool Scheduler::run_held() {
    bool moved = false;
    // An issued operation may be what others waited for: repeat until nothing moves.
    for (bool again = true; again;) {
        again = false;
        for (std::size_t i = 0; i < busy_.size(); ++i) {
            while (!busy_[i]->held.empty() && !driver_closed_() && advance_head(*busy_[i])) {
                again = moved = true;
            }
        }
    }
    if (moved && throttled_streams_ != 0) {
        release_clients();
    }
    return run_after_issue() || moved;
}

bool Scheduler::run_after_issue() {
    bool moved = false;
    while (!after_issue_.empty() && !driver_closed_()) {
        if (!open_.empty() && open_.begin()->first <= after_issue_.front().up_to) {
            break;
        }
        const std::function<void()> action = std::move(after_issue_.front().action);
        after_issue_.pop_front();
        action();
        moved = true;
    }
    return moved;
}

void Scheduler::when_issued(std::function<void()> action) {
    if (!holds_any()) {
        action();
        return;
    }
    after_issue_.push_back({next_id_ - 1, std::move(action)});
}

void Scheduler::when_issued(std::uint64_t operation, std::function<void()> action) {
    const auto held = open_.find(operation);
    if (held == open_.end()) {
        action();
    } else {
        held->second->then.push_back(std::move(action));
    }
}

void Scheduler::retire(EventState& event) {
    event.retired = true;
    if (event.held_uses != 0) {
        return;
    }
    if (event.waiters == 0 && event.driver != nullptr) {
        unused_.push_back(event.driver);
    }
    detach(event);
}

void Scheduler::forget_events(Objects& objects, const ContextState& context) {
    for (StreamState* const stream : busy_) {
        for (const auto& operation : stream->held) {
            for (const std::shared_ptr<EventState>& event : operation->events) {
                if (event->context == &context) {
                    event->driver = nullptr;
                    event->retired = true;  // end() of the operation retires it
                }
            }
        }
    }
    std::erase_if(objects.events, [&](const auto& entry) {
        if (entry.second->context == &context) {
            detach(*entry.second);
            return true;
        }
        return false;
    });
}

// Entries of event_waits_ that wait for the event stay, without its state.
void Scheduler::detach(EventState& event) {
    for (EventWait& wait : event_waits_) {
        if (wait.state == &event) {
            wait.state = nullptr;
        }
    }
    event.waiters = 0;
}

void Scheduler::forget(StreamState& stream, CUresult result) {
    for (auto& operation : stream.held) {
        open_.erase(operation->id);
    }
    if (stream.context != nullptr) {
        take_unmarked(stream);
    }
    std::deque<std::unique_ptr<Operation>> held = std::move(stream.held);
    stream.held.clear();
    held_bytes_ -= std::exchange(stream.held_bytes, 0);
    release_client(stream);
    release_clients();
    std::deque<Completion> completions = std::move(stream.completions);
    stream.completions.clear();
    if (stream.listed) {
        stream.listed = false;
        busy_.erase(std::find(busy_.begin(), busy_.end(), &stream));
    }
    if (stream.marks.word != nullptr) {
        stream.context->spare_marks.push_back(std::exchange(stream.marks, {}));
    }
    if (stream.context != nullptr && current_ == stream.context) {
        entered_ = false;
    }
    const auto others_end = std::stable_partition(found_.begin(), found_.end(),
                                                  [&](const Found& found) { return found.stream != &stream; });
    const std::vector<Found> mine(std::make_move_iterator(others_end), std::make_move_iterator(found_.end()));
    found_.erase(others_end, found_.end());
    for (const Found& found : mine) {
        found.action(found.result);
    }
    for (Completion& completion : completions) {
        data_outstanding_ -= completion.effect == Effect::sends_data ? 1 : 0;
        if (completion.action) {
            completion.action(result);
        }
    }
    for (const std::unique_ptr<Operation>& operation : held) {
        operation->abandon(result);
        end(*operation);
    }
}

}  // namespace gpupool::worker
