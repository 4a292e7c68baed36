// How the scheduler finds completions and in which order it reports them: marks, the program's events,
// Scheduler::found_.
#include <algorithm>
#include <iterator>
#include <utility>

#include "server/worker/scheduling/scheduler.h"

namespace gpupool::worker {
void Scheduler::mark_before(StreamState& legacy) {
    if (!legacy.legacy || legacy.capturing || legacy.context->unmarked_blocking == 0) {
        return;
    }
    drain_issuers_();  // the marks must follow the launches that issuers make
    legacy.context->each_stream([&](StreamState& other) {
        if (!other.legacy && other.blocking && !other.capturing && other.unmarked != 0) {
            mark(other, {});
        }
    });
}

void Scheduler::add_unmarked(StreamState& stream, std::uint32_t cost) {
    stream.context->unmarked_blocking += stream.unmarked == 0 && stream.blocking && !stream.legacy ? 1 : 0;
    stream.unmarked += cost;
}

std::uint32_t Scheduler::take_unmarked(StreamState& stream) {
    stream.context->unmarked_blocking -= stream.unmarked != 0 && stream.blocking && !stream.legacy ? 1 : 0;
    return std::exchange(stream.unmarked, 0);
}

// Leaves one operation unmarked, so that a later wait for the stream finds that it has to make a mark.
std::uint32_t Scheduler::take_all_but_last(StreamState& stream) {
    const std::uint32_t unmarked = take_unmarked(stream);
    add_unmarked(stream, 1);
    return unmarked - 1;
}

// How many operations a mark stands for. If kernels may print, one without an event leaves the last to a mark with an
// event, for calls that wait for the stream.
std::uint32_t Scheduler::take_marked(StreamState& stream, bool with_event) {
    const bool is_waited_for = with_event || !kernels_print_;
    return is_waited_for || stream.unmarked == 0 ? take_unmarked(stream) : take_all_but_last(stream);
}

CUresult Scheduler::new_event(ContextState& context, CUevent& event) {
    if (!context.spare_events.empty()) {
        event = context.spare_events.back();
        context.spare_events.pop_back();
        return CUDA_SUCCESS;
    }
    return driver::call(api_.cuEventCreate, &event, static_cast<unsigned>(CU_EVENT_DISABLE_TIMING));
}

CUresult Scheduler::record_event(ContextState& context, CUstream target, CUevent& event) {
    if (const CUresult result = new_event(context, event); result != CUDA_SUCCESS) {
        return result;
    }
    const CUresult result = driver::call(driver::OwnWork(), api_.cuEventRecord, event, target);
    if (result != CUDA_SUCCESS) {
        context.spare_events.push_back(std::exchange(event, nullptr));
    }
    return result;
}

// The stream's context must be current.
CUresult Scheduler::give_word(StreamState& stream) {
    ContextState& context = *stream.context;
    if (context.spare_marks.empty()) {
        const CUresult result =
            context.add_words(api_, word_memory_, kBetweenWords, [&](std::uint32_t* word, CUdeviceptr device_word) {
                context.spare_marks.push_back({word, device_word, 0});
            });
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    stream.marks = context.spare_marks.back();
    context.spare_marks.pop_back();
    return CUDA_SUCCESS;
}

// Makes the stream's context current; `target` is the stream that the mark goes to.
CUresult Scheduler::prepare_mark(StreamState& stream, Effect effect, CUstream& target) {
    ContextState& context = *stream.context;
    CUresult result = enter(&context);
    if (result == CUDA_SUCCESS && stream.legacy && context.helper == nullptr) {
        result = driver::call(api_.cuStreamCreate, &context.helper, static_cast<unsigned>(CU_STREAM_DEFAULT));
    }
    if (result == CUDA_SUCCESS && stream.marks.word == nullptr) {
        result = give_word(stream);
    }
    target = stream.legacy && effect != Effect::sends_data ? context.helper : stream.driver;
    return result;
}

void Scheduler::fail_mark(StreamState& stream, std::uint32_t credit, CUresult result) {
    stream.outstanding -= std::min(stream.outstanding, credit);
    stream.context->lost = result;
}

CUresult Scheduler::mark(StreamState& stream, Action action, std::uint32_t credit, Effect effect) {
    if (stream.capturing) {
        if (action) {
            action(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (stream.gone) {  // its work was complete before it was destroyed
        if (action) {
            action(CUDA_SUCCESS);
        }
        return CUDA_SUCCESS;
    }
    ContextState& context = *stream.context;
    const bool with_event = kernels_print_ && effect != Effect::ours;
    credit += take_marked(stream, with_event);
    CUstream target = nullptr;
    CUresult result = prepare_mark(stream, effect, target);
    CUevent event = nullptr;
    if (result == CUDA_SUCCESS && with_event) {
        result = record_event(context, target, event);
    }
    const std::uint32_t number = stream.marks.last + 1;
    if (result == CUDA_SUCCESS) {
        result = MarkWord::write(api_, target, stream.marks.device_word, number);
    }
    if (result != CUDA_SUCCESS) {
        if (event != nullptr) {
            context.spare_events.push_back(event);
        }
        fail_mark(stream, credit, result);
        if (action) {
            action(result);
        }
        return result;
    }
    stream.marks.last = number;
    stream.marks.made_at = context.submissions;
    data_outstanding_ += effect == Effect::sends_data ? 1 : 0;
    stream.completions.push_back({number, event, std::move(action), effect, credit});
    list(stream);
    return CUDA_SUCCESS;
}

// Records an event in place of a mark, if nothing but the stream's credit depends on it.
void Scheduler::record_credit(StreamState& stream) {
    const std::uint32_t credit = take_all_but_last(stream);
    CUstream target = nullptr;
    CUevent event = nullptr;
    CUresult result = prepare_mark(stream, Effect::ours, target);
    if (result == CUDA_SUCCESS) {
        result = record_event(*stream.context, target, event);
    }
    if (result != CUDA_SUCCESS) {
        fail_mark(stream, credit, result);
        return;
    }
    stream.completions.push_back({stream.marks.last + 1, event, {}, Effect::ours, credit, true});
    list(stream);
}

void Scheduler::at_mark(StreamState& stream, Action action) {
    if (!stream.legacy && stream.completions.empty() && stream.unmarked == 0 && stream.context->lost == CUDA_SUCCESS) {
        note_found(&stream, std::move(action), Effect::answers, CUDA_SUCCESS);  // runs behind what precedes it
        return;
    }
    if (stream.completions.empty() || stream.unmarked != 0) {
        mark(stream, std::move(action));
    } else {
        stream.completions.push_back({stream.marks.last, nullptr, std::move(action), Effect::answers, 0});
    }
}

std::uint32_t Scheduler::issued_elsewhere(StreamState& stream) {
    stream.touched = true;
    ++stream.context->submissions;
    ++stream.outstanding;
    add_unmarked(stream, 1);
    if (stream.unmarked < kMarkEvery) {
        return 0;
    }
    const std::uint32_t number = ++stream.marks.last;
    stream.completions.push_back({number, nullptr, {}, Effect::answers, take_marked(stream, false)});
    list(stream);
    return number;
}

// The oldest mark was reached, or never will be.
void Scheduler::complete_first(StreamState& stream, CUresult result) {
    Completion& first = stream.completions.front();
    stream.outstanding -= std::min(stream.outstanding, first.credit);
    if (first.event != nullptr) {
        if (kernels_print_) {
            // The event is complete, so this does not block. It makes the driver write out what kernels printed.
            driver::call(api_.cuEventSynchronize, first.event);
        }
        stream.context->spare_events.push_back(first.event);
    }
    Action action = std::move(first.action);
    const Effect effect = first.effect;
    stream.completions.pop_front();
    if (effect == Effect::sends_data) {
        --data_outstanding_;
        action(result);
    } else if (action) {
        note_found(&stream, std::move(action), effect, result);
    }
}

// No mark of a context that died is ever reached: ask() finds that.
bool Scheduler::reached(const StreamState& stream, const Completion& completion, bool lacks_credit) {
    return stream.marks.reached(completion.mark) ||
           (completion.by_event && lacks_credit && driver::call(api_.cuEventQuery, completion.event) == CUDA_SUCCESS);
}

bool Scheduler::poll_stream(StreamState& stream, bool lacks_credit) {
    bool moved = false;
    while (!stream.completions.empty() && reached(stream, stream.completions.front(), lacks_credit)) {
        enter(stream.context);
        complete_first(stream, CUDA_SUCCESS);
        moved = true;
    }
    return moved;
}

// Queries the driver for `stream`: a context that died writes no more words.
CUresult Scheduler::ask(StreamState& stream) {
    // A capturing stream must not be queried. Any other stream of the context shows whether the context died.
    const bool of_context = stream.capturing;
    const CUstream target = of_context || stream.legacy ? stream.context->helper : stream.driver;
    if (stream.completions.empty() || stream.gone ||
        (of_context && (stream.context->lost == CUDA_SUCCESS || target == nullptr))) {
        return CUDA_ERROR_NOT_READY;
    }
    enter(stream.context);
    const CUresult result = driver::call(api_.cuStreamQuery, target);
    if (result == CUDA_ERROR_NOT_READY || (of_context && result == CUDA_SUCCESS)) {
        return CUDA_ERROR_NOT_READY;
    }
    if (result != CUDA_SUCCESS) {
        driver::call(api_.cuStreamSynchronize, target);  // returns at once, with the driver's error
        stream.context->lost = result;
    }
    // An idle helper stream says nothing of marks in the legacy stream itself.
    const auto is_known = [&](const Completion& completion) {
        return result != CUDA_SUCCESS || !stream.legacy || completion.effect != Effect::sends_data;
    };
    bool moved = false;
    for (std::size_t left = stream.completions.size(); left != 0 && is_known(stream.completions.front()); --left) {
        complete_first(stream, result);
        moved = true;
    }
    return moved ? result : CUDA_ERROR_NOT_READY;
}

// Queries one stream each time, and all streams of a context that turns out to have died.
bool Scheduler::ask_in_order() {
    if (++polls_ % kPollsPerClockRead != 0) {
        return false;
    }
    const auto now = clock_.now();
    if (busy_.empty() || now - asked_ < kAskEvery) {
        return false;
    }
    asked_ = now;
    StreamState& stream = *busy_[next_asked_++ % busy_.size()];
    const CUresult result = ask(stream);
    for (std::size_t i = 0; result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY && i < busy_.size(); ++i) {
        if (busy_[i]->context == stream.context) {
            ask(*busy_[i]);
        }
    }
    return result != CUDA_ERROR_NOT_READY;
}

bool Scheduler::poll_events() {
    bool moved = false;
    for (std::size_t i = 0; i < event_waits_.size();) {
        const CUresult result = driver::call(api_.cuEventQuery, event_waits_[i].event);
        if (result == CUDA_ERROR_NOT_READY) {
            ++i;
            continue;
        }
        EventWait done = std::move(event_waits_[i]);
        event_waits_.erase(event_waits_.begin() + static_cast<std::ptrdiff_t>(i));
        if (done.state != nullptr) {
            --done.state->waiters;
        } else {
            const bool still_wanted = std::any_of(event_waits_.begin(), event_waits_.end(),
                                                  [&](const EventWait& other) { return other.event == done.event; });
            if (!still_wanted) {
                unused_.push_back(done.event);
            }
        }
        moved = true;
        events_awaited_ -= done.effect == Effect::answers ? 1 : 0;
        note_found(nullptr, std::move(done.action), done.effect, result);
    }
    return moved;
}

void Scheduler::note_found(const StreamState* stream, Action action, Effect effect, CUresult result) {
    found_.push_back({stream, std::move(action), effect, result, {}});
}

// How many passes of run_found() must run before this effect, so that the effects of all earlier work run first. That
// work is complete on the GPU as well, so the next pass finds its data, and the pass after it finds notifications of
// events, which follow the data before them.
std::uint64_t Scheduler::passes_before(Effect effect) const {
    if (effect == Effect::answers && notifications_outstanding_ != 0) {
        return 2;
    }
    return data_outstanding_ != 0 ? 1 : 0;
}

bool Scheduler::run_found() {
    if (found_.size() == 1 && data_outstanding_ == 0 && notifications_outstanding_ == 0) {
        const Found found = std::move(found_.front());
        found_.clear();
        found.action(found.result);
        return true;
    }
    ++passes_;
    for (Found& found : found_) {
        found.due = found.due.value_or(passes_ + passes_before(found.effect));
    }
    const auto rest = std::stable_partition(found_.begin(), found_.end(),
                                            [this](const Found& found) { return *found.due <= passes_; });
    std::vector<Found> due(std::make_move_iterator(found_.begin()), std::make_move_iterator(rest));
    found_.erase(found_.begin(), rest);
    std::stable_partition(due.begin(), due.end(),
                          [](const Found& found) { return found.effect == Effect::notifies_of_event; });
    for (const Found& found : due) {
        notifications_outstanding_ -= found.effect == Effect::notifies_of_event ? 1 : 0;
        found.action(found.result);
    }
    return !due.empty();
}

bool Scheduler::poll(PollDepth depth) {
    bool moved = !found_.empty();
    moved = ask_in_order() || moved;
    for (std::size_t i = 0; i < busy_.size();) {
        StreamState& stream = *busy_[i];
        moved = poll_stream(stream, !stream.queue.empty()) || moved;
        if (stream.completions.empty()) {
            stream.listed = false;
            const auto place = std::find(busy_.begin(), busy_.end(), &stream);
            if (place != busy_.end()) {
                busy_.erase(place);
            }
        } else {
            ++i;
        }
    }
    // A reply must not precede notifications of events that were complete by then, so events are queried if one is
    // found.
    if (!event_waits_.empty()) {
        const auto now = clock_.now();
        const std::chrono::microseconds all_when_idle = kEachEventWhenIdle * event_waits_.size();
        const auto every = depth == PollDepth::idle ? std::min(kPollEventsEvery, all_when_idle) : kPollEventsEvery;
        if (depth == PollDepth::thorough || events_awaited_ != 0 || !found_.empty() || now - events_polled_ >= every) {
            events_polled_ = now;
            moved = poll_events() || moved;
        }
    }
    while (!unused_.empty() && !driver_closed_()) {
        driver::call(api_.cuEventDestroy_v2, unused_.back());
        unused_.pop_back();
    }
    return (!found_.empty() && run_found()) || moved;
}

bool Scheduler::awaited() const {
    return !found_.empty() || !event_waits_.empty() ||
           std::any_of(busy_.begin(), busy_.end(), [](const StreamState* stream) {
               return std::any_of(stream->completions.begin(), stream->completions.end(),
                                  [](const Completion& completion) { return bool{completion.action}; });
           });
}

bool Scheduler::is_idle(StreamState& stream) {
    poll_stream(stream, false);
    return stream.queue.empty() && stream.completions.empty() && stream.unmarked == 0 &&
           stream.context->lost == CUDA_SUCCESS && data_outstanding_ == 0 && notifications_outstanding_ == 0;
}

bool Scheduler::is_idle(ContextState& context) {
    bool idle = true;
    context.each_stream([&](const StreamState& stream) { idle = idle && stream.queue.empty() && !stream.capturing; });
    context.each_stream(
        [&](StreamState& stream) { idle = idle && (!stream.touched || query(stream) == CUDA_SUCCESS); });
    return idle;
}

namespace {

// The legacy stream is busy while a blocking stream is (measured): a condition of any blocking stream holds for it.
template <class Is>
bool any_of(const StreamState& stream, Is&& is) {
    return stream.legacy ? stream.context->any_blocking(is) : is(stream);
}

}  // namespace

bool Scheduler::may_be_queried(const StreamState& stream) {
    return !any_of(stream, [](const StreamState& each) { return each.capturing; });
}

CUresult Scheduler::query(const StreamState& stream) {
    if (any_of(stream, [](const StreamState& each) { return !each.queue.empty(); })) {
        return CUDA_ERROR_NOT_READY;
    }
    const CUresult result = enter(stream.context);
    return result != CUDA_SUCCESS ? result : driver::call(api_.cuStreamQuery, stream.driver);
}

void Scheduler::when_issued_is_complete(StreamState& stream, Action action) {
    // The last mark suffices if nothing was issued since: to the stream, or, for the legacy stream, to any stream of
    // the context, because the legacy stream also waits for the others.
    if (stream.marks.made_at == stream.context->submissions || (!stream.legacy && stream.unmarked == 0)) {
        at_mark(stream, std::move(action));
    } else {
        mark(stream, std::move(action));
    }
}

void Scheduler::when_complete_before_capture(StreamState& stream, Action action) {
    if (stream.completions.empty()) {
        note_found(&stream, std::move(action), Effect::answers, CUDA_SUCCESS);
    } else {
        stream.completions.push_back({stream.marks.last, nullptr, std::move(action), Effect::answers, 0});
    }
}

void Scheduler::when_recorded(EventState& event, Action action, Effect effect) {
    notifications_outstanding_ += effect == Effect::notifies_of_event ? 1 : 0;
    if (event.driver == nullptr) {  // its context has ended
        note_found(nullptr, std::move(action), effect, CUDA_ERROR_CONTEXT_IS_DESTROYED);
        return;
    }
    ++event.waiters;
    events_awaited_ += effect == Effect::answers ? 1 : 0;
    event_waits_.push_back({&event, event.driver, std::move(action), effect});
}

bool Scheduler::notice_idle(const Objects& objects) {
    bool all = !driver_closed_();
    for (const auto& [client, context] : objects.contexts) {
        if (!all || context->ending || !is_idle(*context)) {
            all = false;
        } else if (enter(context.get()) == CUDA_SUCCESS) {
            driver::call(api_.cuCtxSynchronize);  // does not wait
        }
    }
    return all;
}

}  // namespace gpupool::worker
