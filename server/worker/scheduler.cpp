#include "server/worker/scheduler.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace gpupool::worker {
namespace {

// An operation that only waits for its turn.
class Turn final : public Operation {
  public:
    Turn(std::function<void()> run, Action otherwise) : run_(std::move(run)), otherwise_(std::move(otherwise)) {}
    bool advance() override {
        run_();
        return true;
    }
    void abandon(CUresult result) override { otherwise_(result); }

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

}  // namespace

Scheduler::Scheduler(const driver::Api& api, PinnedMemory& word_memory,
                     std::function<void(const StreamState&, bool)> hold, std::function<bool()> stays_out,
                     std::function<void()> settle_launches)
    : api_(api),
      word_memory_(word_memory),
      tell_client_(std::move(hold)),
      stays_out_(std::move(stays_out)),
      settle_launches_(std::move(settle_launches)) {}

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
        return true;  // it only becomes nodes
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
    ++stream.context->turns;
    if (!stream.held.empty()) {
        return false;
    }
    // Before anything is held, which costs as much as the launch: the GPU may have gone on since the last look.
    if (!stream.capturing && full(stream, cost)) {
        poll_stream(stream);
    }
    if (!ready(stream, cost)) {
        return false;
    }
    mark_before(stream);
    return true;
}

// A mark in a blocking stream waits for what the legacy stream was given before it, and who waits for that stream alone
// does not, natively. So the legacy stream is given nothing before blocking streams have marks behind their work.
void Scheduler::mark_before(StreamState& legacy) {
    if (!legacy.legacy || legacy.capturing || legacy.context->unmarked_blocking == 0) {
        return;
    }
    settle_launches_();  // the marks come behind those that other threads issue
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

void Scheduler::list(StreamState& stream) {
    if (!stream.listed) {
        stream.listed = true;
        busy_.push_back(&stream);
    }
}

void Scheduler::issued(StreamState& stream, std::uint32_t cost) {
    stream.touched = true;
    ++stream.context->turns;
    if (stream.capturing) {
        return;
    }
    stream.outstanding += cost;
    add_unmarked(stream, cost);
    if (stream.unmarked >= (cost > 1 ? kMarkGraphsEvery : kMarkEvery)) {
        mark(stream, {});
    }
}

void Scheduler::hold(StreamState& stream, std::unique_ptr<Operation> operation) {
    operation->id = next_id_++;
    open_.emplace(operation->id, operation.get());
    const auto wait_for_tail = [&](const StreamState& other) {
        if (&other != &stream && !other.held.empty()) {
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
    if (!stream.client_held && (stream.held.size() >= kTellClientAt || stream.held_bytes > share_bytes())) {
        tell_client(stream, true);
    }
}

// What one stream may hold now.
std::size_t Scheduler::share_bytes() const {
    return (kHeldBudgetBytes - std::min(kHeldBudgetBytes, held_bytes_)) / kShareOfBudget;
}

void Scheduler::tell_client(StreamState& stream, bool held) {
    stream.client_held = held;
    clients_held_ += held ? 1 : std::size_t{0} - 1;
    tell_client_(stream, held);
}

void Scheduler::release_client(StreamState& stream) {
    if (stream.client_held && stream.held.size() <= kReleaseClientAt &&
        (stream.held.empty() || stream.held_bytes <= share_bytes() / kReleaseShare)) {
        tell_client(stream, false);
    }
}

// Those as well whose share has grown because others hold less.
void Scheduler::release_clients() {
    for (std::size_t i = 0; clients_held_ != 0 && i < busy_.size(); ++i) {
        release_client(*busy_[i]);
    }
}

bool Scheduler::advance_head(StreamState& stream) {
    Operation& head = *stream.held.front();
    if (full(stream, head.cost)) {
        if (stream.completions.empty() && stream.unmarked != 0) {
            mark(stream, {});  // or the places that it waits for would never be known to be free
        }
        return false;
    }
    ++stream.context->turns;
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

// It is held no more.
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
    // An operation that was issued may have been what others waited for: again until nothing moves.
    for (bool again = true; again;) {
        again = false;
        for (std::size_t i = 0; i < busy_.size(); ++i) {
            while (!busy_[i]->held.empty() && !stays_out_() && advance_head(*busy_[i])) {
                again = moved = true;
            }
        }
    }
    if (moved && clients_held_ != 0) {
        release_clients();
    }
    return run_after_issue() || moved;
}

bool Scheduler::run_after_issue() {
    bool moved = false;
    while (!after_issue_.empty() && !stays_out_()) {
        const std::uint64_t up_to = after_issue_.front().up_to;
        if (std::any_of(open_.begin(), open_.end(), [&](const auto& entry) { return entry.first <= up_to; })) {
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
    if (open_.empty() && after_issue_.empty()) {
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
    const CUresult result = driver::call(api_.cuEventRecord, event, target);
    if (result != CUDA_SUCCESS) {
        context.spare_events.push_back(std::exchange(event, nullptr));
    }
    return result;
}

// In the stream's context, which is current.
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

CUresult Scheduler::mark(StreamState& stream, Action action, std::uint32_t credit, Effect effect) {
    if (stream.capturing) {
        if (action) {
            action(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (stream.gone) {  // so all of its work was complete
        if (action) {
            action(CUDA_SUCCESS);
        }
        return CUDA_SUCCESS;
    }
    ContextState& context = *stream.context;
    credit += take_unmarked(stream);
    CUresult result = enter(&context);
    CUstream target = stream.driver;
    if (result == CUDA_SUCCESS && stream.legacy) {
        if (context.helper == nullptr) {
            result = driver::call(api_.cuStreamCreate, &context.helper, static_cast<unsigned>(CU_STREAM_DEFAULT));
        }
        target = context.helper;
    }
    if (result == CUDA_SUCCESS && stream.marks.word == nullptr) {
        result = give_word(stream);
    }
    CUevent event = nullptr;
    if (result == CUDA_SUCCESS && action && kernels_print_ && effect != Effect::ours) {
        result = record_event(context, target, event);
    }
    const std::uint32_t number = stream.marks.last + 1;
    if (result == CUDA_SUCCESS) {
        result = write_mark(api_, target, stream.marks.device_word, number);
    }
    if (result != CUDA_SUCCESS) {
        if (event != nullptr) {
            context.spare_events.push_back(event);
        }
        stream.outstanding -= std::min(stream.outstanding, credit);
        context.lost = result;
        if (action) {
            action(result);
        }
        return result;
    }
    stream.marks.last = number;
    stream.marks.made_at = context.turns;
    data_outstanding_ += effect == Effect::sends_data ? 1 : 0;
    stream.completions.push_back({number, event, std::move(action), effect, credit});
    list(stream);
    return CUDA_SUCCESS;
}

void Scheduler::at_mark(StreamState& stream, Action action) {
    if (!stream.legacy && stream.completions.empty() && stream.unmarked == 0 && !kernels_print_ &&
        stream.context->lost == CUDA_SUCCESS) {
        note_found(&stream, std::move(action), Effect::answers, CUDA_SUCCESS);  // behind all that precedes it
        return;
    }
    if (stream.completions.empty() || stream.unmarked != 0 || kernels_print_) {
        mark(stream, std::move(action));
    } else {
        stream.completions.push_back({stream.marks.last, nullptr, std::move(action), Effect::answers, 0});
    }
}

std::uint32_t Scheduler::issued_elsewhere(StreamState& stream) {
    stream.touched = true;
    ++stream.context->turns;
    ++stream.outstanding;
    add_unmarked(stream, 1);
    if (stream.unmarked < kMarkEvery) {
        return 0;
    }
    const std::uint32_t number = ++stream.marks.last;
    stream.completions.push_back({number, nullptr, {}, Effect::answers, take_unmarked(stream)});
    list(stream);
    return number;
}

// The oldest mark was reached, or never will be.
void Scheduler::complete_first(StreamState& stream, CUresult result) {
    Completion& first = stream.completions.front();
    stream.outstanding -= std::min(stream.outstanding, first.credit);
    if (first.event != nullptr) {
        // It is complete, so this does not wait; it makes the driver write out what kernels printed.
        driver::call(api_.cuEventSynchronize, first.event);
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

bool Scheduler::poll_stream(StreamState& stream) {
    bool moved = false;
    while (!stream.completions.empty() && stream.marks.reached(stream.completions.front().mark)) {
        enter(stream.context);
        complete_first(stream, CUDA_SUCCESS);
        moved = true;
    }
    return moved;
}

// Asks the driver how `stream` is: the word of a context that has died is not written any more.
CUresult Scheduler::ask(StreamState& stream) {
    if (stream.completions.empty() || stream.capturing || stream.gone) {
        return CUDA_ERROR_NOT_READY;
    }
    enter(stream.context);
    const CUstream target = stream.legacy ? stream.context->helper : stream.driver;
    const CUresult result = driver::call(api_.cuStreamQuery, target);
    if (result == CUDA_ERROR_NOT_READY) {
        return result;
    }
    if (result != CUDA_SUCCESS) {
        driver::call(api_.cuStreamSynchronize, target);  // which says at once what the driver knows of it
        stream.context->lost = result;
    }
    for (std::size_t left = stream.completions.size(); left != 0; --left) {
        complete_first(stream, result);
    }
    return result;
}

// A stream each time; all of a context that turns out to have died.
bool Scheduler::ask_in_turn() {
    if (++polls_ % kPollsPerLookAtTheClock != 0) {
        return false;
    }
    const auto now = std::chrono::steady_clock::now();
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

bool Scheduler::poll_loose() {
    bool moved = false;
    for (std::size_t i = 0; i < loose_.size();) {
        const CUresult result = driver::call(api_.cuEventQuery, loose_[i].event);
        if (result == CUDA_ERROR_NOT_READY) {
            ++i;
            continue;
        }
        LooseEvent done = std::move(loose_[i]);
        loose_.erase(loose_.begin() + static_cast<std::ptrdiff_t>(i));
        if (done.state != nullptr) {
            --done.state->waiters;
        } else {
            const bool still_wanted = std::any_of(loose_.begin(), loose_.end(),
                                                  [&](const LooseEvent& other) { return other.event == done.event; });
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
    found_.push_back({stream, std::move(action), effect, result, -1});
}

// What precedes something found complete is complete too, so that the next pass finds it: data first, then, with its
// own data before it, what is told of events.
bool Scheduler::run_found() {
    if (found_.size() == 1 && data_outstanding_ == 0 && tellings_outstanding_ == 0) {
        const Found found = std::move(found_.front());
        found_.clear();
        found.action(found.result);
        return true;
    }
    std::vector<Found> due;
    for (Found& found : found_) {
        if (found.passes_left < 0) {
            found.passes_left = found.effect == Effect::answers && tellings_outstanding_ != 0 ? 2
                                : data_outstanding_ != 0                                      ? 1
                                                                                              : 0;
        } else {
            --found.passes_left;
        }
    }
    const auto rest =
        std::stable_partition(found_.begin(), found_.end(), [](const Found& found) { return found.passes_left == 0; });
    due.assign(std::make_move_iterator(found_.begin()), std::make_move_iterator(rest));
    found_.erase(found_.begin(), rest);
    std::stable_partition(due.begin(), due.end(),
                          [](const Found& found) { return found.effect == Effect::tells_of_event; });
    for (const Found& found : due) {
        tellings_outstanding_ -= found.effect == Effect::tells_of_event ? 1 : 0;
        found.action(found.result);
    }
    return !due.empty();
}

bool Scheduler::poll(Look look) {
    bool moved = !found_.empty();
    moved = ask_in_turn() || moved;
    for (std::size_t i = 0; i < busy_.size();) {
        StreamState& stream = *busy_[i];
        moved = poll_stream(stream) || moved;
        if (stream.held.empty() && stream.completions.empty()) {
            stream.listed = false;
            const auto place = std::find(busy_.begin(), busy_.end(), &stream);
            if (place != busy_.end()) {
                busy_.erase(place);
            }
        } else {
            ++i;
        }
    }
    // An answer that was found must not go before what is told of events that were complete by then.
    if (!loose_.empty()) {
        const auto now = std::chrono::steady_clock::now();
        const std::chrono::microseconds all_when_idle = kEachLooseWhenIdle * loose_.size();
        const auto every = look == Look::idle ? std::min(kLooseEvery, all_when_idle) : kLooseEvery;
        if (look == Look::thorough || events_awaited_ != 0 || !found_.empty() || now - loose_polled_ >= every) {
            loose_polled_ = now;
            moved = poll_loose() || moved;
        }
    }
    while (!unused_.empty() && !stays_out_()) {
        driver::call(api_.cuEventDestroy_v2, unused_.back());
        unused_.pop_back();
    }
    return (!found_.empty() && run_found()) || moved;
}

bool Scheduler::awaited() const {
    return !found_.empty() || !loose_.empty() || std::any_of(busy_.begin(), busy_.end(), [](const StreamState* stream) {
        return !stream->held.empty() ||
               std::any_of(stream->completions.begin(), stream->completions.end(),
                           [](const Completion& completion) { return bool{completion.action}; });
    });
}

// Is all of it known to be complete, and all told that precedes?
bool Scheduler::is_idle(StreamState& stream) {
    poll_stream(stream);
    return stream.held.empty() && stream.completions.empty() && stream.unmarked == 0 &&
           stream.context->lost == CUDA_SUCCESS && data_outstanding_ == 0 && tellings_outstanding_ == 0 &&
           !kernels_print_;
}

bool Scheduler::is_idle(ContextState& context) {
    bool idle = true;
    context.each_stream([&](const StreamState& stream) { idle = idle && stream.held.empty() && !stream.capturing; });
    context.each_stream(
        [&](StreamState& stream) { idle = idle && (!stream.touched || query(stream) == CUDA_SUCCESS); });
    return idle;
}

namespace {

// The legacy stream is not ready while a blocking stream is not (measured), so what is so of one of those is of it.
template <class Is>
bool any_of(const StreamState& stream, Is&& is) {
    return stream.legacy ? stream.context->any_blocking(is) : is(stream);
}

}  // namespace

bool Scheduler::may_be_queried(const StreamState& stream) {
    return !any_of(stream, [](const StreamState& each) { return each.capturing; });
}

CUresult Scheduler::query(const StreamState& stream) {
    if (any_of(stream, [](const StreamState& each) { return !each.held.empty(); })) {
        return CUDA_ERROR_NOT_READY;
    }
    const CUresult result = enter(stream.context);
    return result != CUDA_SUCCESS ? result : driver::call(api_.cuStreamQuery, stream.driver);
}

void Scheduler::when_complete(StreamState& stream, Action action) {
    if (is_idle(stream)) {
        stream.touched = false;
        action(CUDA_SUCCESS);
        return;
    }
    if (stream.held.empty() && !full(stream, 1)) {
        // Not even another stream, which the legacy one would wait for, has been given anything since the last mark?
        if (stream.marks.made_at == stream.context->turns || (!stream.legacy && stream.unmarked == 0)) {
            at_mark(stream, std::move(action));
        } else {
            mark(stream, std::move(action));
        }
        return;
    }
    hold(stream, std::make_unique<Turn>([this, &stream, action] { mark(stream, action); }, action));
}

void Scheduler::when_all_complete(ContextState& context, bool blocking_only, Action action) {
    const auto group = std::make_shared<Group>(std::move(action));
    context.each_stream([&](StreamState& stream) {
        if (stream.capturing) {
            // What it was given before; that ended with a mark.
            if (!stream.completions.empty() && (stream.blocking || !blocking_only)) {
                ++group->left;
                stream.completions.push_back(
                    {stream.marks.last, nullptr, [group](CUresult result) { group->end(result); }, Effect::answers, 0});
            }
            return;
        }
        // The legacy stream always counts: in a context that may be lost its helper is what the driver tells of that.
        if (!stream.legacy && ((!stream.touched && stream.held.empty()) || (blocking_only && !stream.blocking))) {
            return;
        }
        ++group->left;
        when_complete(stream, [group](CUresult result) { group->end(result); });
    });
    group->end(CUDA_SUCCESS);
}

void Scheduler::when_recorded(EventState& event, Action action, Effect effect) {
    ++event.waiters;
    tellings_outstanding_ += effect == Effect::tells_of_event ? 1 : 0;
    events_awaited_ += effect == Effect::answers ? 1 : 0;
    loose_.push_back({&event, event.driver, std::move(action), effect});
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

// Who waits goes on doing so.
void Scheduler::detach(EventState& event) {
    for (LooseEvent& loose : loose_) {
        if (loose.state == &event) {
            loose.state = nullptr;
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
