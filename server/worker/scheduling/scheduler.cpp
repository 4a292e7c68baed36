#include "server/worker/scheduling/scheduler.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace gpupool::worker {

Scheduler::Scheduler(const driver::Api& api, PinnedMemory& word_memory, std::function<bool()> driver_closed,
                     std::function<void()> drain_issuers, TimeSource& clock)
    : api_(api),
      word_memory_(word_memory),
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

bool Scheduler::has_room(const StreamState& stream, std::uint32_t cost) const {
    if (cost > 1) {
        const std::size_t taken = stream.outstanding + stream.completions.size();
        return taken == 0 || taken + cost <= kGraphCredit;
    }
    return stream.outstanding < credit_ &&
           stream.completions.size() < (kernels_print_ ? kMaxMarksWithEvents : kMaxMarks);
}

bool Scheduler::make_room(StreamState& stream, std::uint32_t cost) {
    if (has_room(stream, cost)) {
        return true;
    }
    poll_stream(stream, true);
    return has_room(stream, cost);
}

void Scheduler::mark_for_credit(StreamState& stream) {
    if (stream.completions.empty() && stream.unmarked != 0) {
        mark(stream, {});
    }
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

void Scheduler::retire(EventState& event) {
    event.retired = true;
    if (event.queued_uses != 0) {
        return;
    }
    if (event.waiters == 0 && event.driver != nullptr) {
        unused_.push_back(event.driver);
    }
    detach(event);
}

void Scheduler::forget_events(Objects& objects, const ContextState& context) {
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
    if (stream.context != nullptr) {
        take_unmarked(stream);
    }
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
}

}  // namespace gpupool::worker
