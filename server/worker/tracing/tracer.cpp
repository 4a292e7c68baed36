#include "server/worker/tracing/tracer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "protocol/codec/handles.h"

namespace gpupool::worker {
namespace {

constexpr std::size_t kSendAt = 512;  // records
constexpr std::uint64_t kSendAfterNs = 20'000'000, kReadEveryNs = 200'000;
constexpr std::uint64_t kAnchorForNs = 1'000'000'000;
constexpr std::uint64_t kRetryAnchorNs = 10'000'000;
// How long the dispatcher polls for an anchor's event to complete, which takes some microseconds on a GPU. The first
// anchor gets longer, because without it GPU work cannot be related to anything.
constexpr std::uint64_t kPollForAnchorNs = 100'000, kPollForFirstNs = 20'000'000;
// The required precision of an anchor's time.
constexpr std::uint64_t kGoodAnchorNs = 20'000;
constexpr int kAnchorTries = 3;

// Excludes the tracer's own driver calls from the command's driver time.
class Untimed {
  public:
    Untimed() : before_(std::exchange(driver::taken_ns, nullptr)) {}
    ~Untimed() { driver::taken_ns = before_; }
    Untimed(const Untimed&) = delete;
    Untimed& operator=(const Untimed&) = delete;

  private:
    std::uint64_t* const before_;
};

// True if any stream captures: work for the legacy stream would then end the capture.
bool any_capturing(ContextState& context) {
    bool any = false;
    context.each_stream([&](const StreamState& stream) { any = any || stream.capturing; });
    return any;
}

std::uint32_t narrow_ns(std::uint64_t ns) {
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(ns, ~std::uint32_t{0}));
}

std::uint64_t ns_of(const TimeSource& clock) {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(clock.now().time_since_epoch()).count());
}

}  // namespace

std::uint64_t Tracer::now_ns() const {
    return ns_of(clock_);
}

void Tracer::start() {
    on_ = true;
    allowed_ns_ = now_ns();
}

bool Tracer::may_record(std::uint64_t& dropped) {
    const std::uint64_t now = now_ns();
    allowance_ = std::min(kBurst, allowance_ + static_cast<double>(now - allowed_ns_) * 1e-9 * kRecordsPerSecond);
    allowed_ns_ = now;
    if (allowance_ < 1) {
        ++dropped;
        return false;
    }
    allowance_ -= 1;
    return true;
}

void Tracer::add(const codec::TraceRecord& record) {
    if (records_.empty()) {
        first_ns_ = now_ns();
    }
    records_.push_back(record);
    if (records_.size() >= kSendAt) {
        send();
    }
}

void Tracer::send() {
    std::size_t from = 0;
    do {
        const std::size_t count = std::min(records_.size() - from, codec::kMaxTraceRecords);
        std::vector<std::byte> notice(sizeof dropped_ + count * sizeof(codec::TraceRecord));
        std::memcpy(notice.data(), &dropped_, sizeof dropped_);
        if (count != 0) {
            std::memcpy(notice.data() + sizeof dropped_, records_.data() + from, count * sizeof(codec::TraceRecord));
        }
        send_(codec::NoticeType::trace_records, notice.data(), notice.size());
        from += count;
    } while (from < records_.size());
    records_.clear();
}

bool Tracer::poll() {
    const std::uint64_t now = now_ns();
    bool moved = false;
    if (pending_ != 0 && (now - read_ns_ >= kReadEveryNs || flush_done_ != nullptr)) {
        read_ns_ = now;
        const Untimed untimed;
        for (auto& [state, context] : contexts_) {
            for (auto& [stream_state, stream] : context.streams) {
                if (!context.failed && !stream.spans.empty()) {
                    enter_(state);
                    moved = read(context, stream) || moved;
                }
            }
        }
    }
    if (flush_done_ != nullptr && (pending_ == 0 || now >= flush_until_ns_)) {
        send();
        const std::function<void()> done = std::exchange(flush_done_, nullptr);
        done();
        return true;
    }
    if (!records_.empty() && now - first_ns_ >= kSendAfterNs) {
        send();
        return true;
    }
    return moved;
}

void Tracer::flush(std::function<void()> done) {
    if (!on_ || flush_done_ != nullptr) {
        done();
        return;
    }
    flush_done_ = std::move(done);
    flush_until_ns_ = now_ns() + static_cast<std::uint64_t>(std::chrono::nanoseconds(kFlushTimeout).count());
}

// ---- commands and helpers

void Tracer::Issue::begin(Tracer& tracer, const codec::CommandHeader& header, codec::Reason waited_for) {
    if (tracer.current_ != nullptr) {
        return;
    }
    tracer_ = &tracer;
    record_.kind = codec::TraceKind::command;
    record_.number = header.number;
    record_.opcode = header.opcode;
    const unsigned reason = static_cast<unsigned>(waited_for) << codec::kTraceReasonShift;
    record_.flags =
        static_cast<std::uint8_t>((waited_for != codec::Reason::none ? codec::kTraceWasQueued : 0) | reason |
                                  ((header.flags & codec::kReplyWanted) != 0 ? codec::kTraceAnswered : 0));
    tracer.current_ = &record_;
    driver::taken_ns = &driver_ns_;
    record_.begin_ns = tracer.now_ns();
}

void Tracer::Issue::end() {
    record_.end_ns = tracer_->now_ns();
    driver::taken_ns = nullptr;
    tracer_->current_ = nullptr;
    record_.driver_ns = narrow_ns(driver_ns_);
    if (tracer_->may_record(tracer_->dropped_.dropped_commands)) {
        tracer_->add(record_);
    }
}

void Tracer::wrap(Job& work, Job& done) {
    const auto record = std::make_shared<codec::TraceRecord>();
    if (current_ != nullptr) {
        *record = *current_;
    }
    record->kind = codec::TraceKind::helper;
    work = [&clock = clock_, record, work = std::move(work)] {
        std::uint64_t driver_ns = 0;
        driver::taken_ns = &driver_ns;
        record->begin_ns = ns_of(clock);
        work();
        record->end_ns = ns_of(clock);
        driver::taken_ns = nullptr;
        record->driver_ns = narrow_ns(driver_ns);
        record->track = static_cast<std::uint32_t>(::gettid());
    };
    done = [this, record, done = std::move(done)] {
        if (may_record(dropped_.dropped_commands)) {
            add(*record);
        }
        done();
    };
}

// ---- the GPU

void Tracer::Work::begin(Tracer& tracer, const StreamState& stream, codec::TraceKind kind, std::uint64_t bytes) {
    const Untimed untimed;
    if (stream.capturing || (stream.legacy && any_capturing(*stream.context))) {
        return;
    }
    OfContext* const context = tracer.context_of(stream);
    if (context == nullptr || tracer.pending_ >= kMaxPending) {
        ++tracer.dropped_.dropped_gpu_work;
        return;
    }
    if (!tracer.may_record(tracer.dropped_.dropped_gpu_work)) {
        return;
    }
    start_ = tracer.take_event(*context);
    if (start_ == nullptr) {
        return;
    }
    if (driver::call(driver::OwnWork(), tracer.api_.cuEventRecord, start_, stream.driver) != CUDA_SUCCESS) {
        context->spare.push_back(start_);  // for example another stream's capture forbids it
        ++tracer.dropped_.dropped_gpu_work;
        return;
    }
    tracer_ = &tracer;
    stream_ = &stream;
    anchor_ = context->anchor;
    ++anchor_->users;
    record_.kind = kind;
    record_.bytes = bytes;
    if (tracer.current_ != nullptr) {
        record_.number = tracer.current_->number;
        record_.opcode = tracer.current_->opcode;
    }
}

void Tracer::Work::finish() {
    const Untimed untimed;
    OfContext& context = tracer_->contexts_[stream_->context];
    const CUevent end = context.failed ? nullptr : tracer_->take_event(context);
    if (end == nullptr ||
        driver::call(driver::OwnWork(), tracer_->api_.cuEventRecord, end, stream_->driver) != CUDA_SUCCESS) {
        if (end != nullptr) {
            context.spare.push_back(end);
        }
        ++tracer_->dropped_.dropped_gpu_work;
        return;  // the destructor releases the start event
    }
    OfStream& stream = context.streams[stream_];
    record_.track = tracer_->track_of(stream, *stream_);
    stream.spans.push_back({start_, end, std::move(anchor_), record_});
    ++tracer_->pending_;
    tracer_ = nullptr;
}

void Tracer::Work::cancel() {
    OfContext& context = tracer_->contexts_[stream_->context];
    context.spare.push_back(start_);
    tracer_->release(context, anchor_);
}

// Null if GPU work cannot be timed, for now or at all.
Tracer::OfContext* Tracer::context_of(const StreamState& stream) {
    OfContext& context = contexts_[stream.context];
    if (context.failed) {
        return nullptr;
    }
    if (context.anchor == nullptr || now_ns() - context.anchored_ns >= kAnchorForNs) {
        if (!renew_anchor(context) && context.anchor == nullptr) {
            return nullptr;
        }
    }
    return &context;
}

bool Tracer::renew_anchor(OfContext& context) {
    const bool first = context.anchor == nullptr;
    if (first && context.anchored_ns != 0 && now_ns() - context.anchored_ns < kRetryAnchorNs) {
        return false;
    }
    context.anchored_ns = now_ns();
    if (context.stream == nullptr && driver::call(api_.cuStreamCreate, &context.stream,
                                                  static_cast<unsigned>(CU_STREAM_NON_BLOCKING)) != CUDA_SUCCESS) {
        fail(context);
        return false;
    }
    const CUevent event = take_event(context);
    if (event == nullptr) {
        return false;
    }
    const std::uint64_t timeout = first ? kPollForFirstNs : kPollForAnchorNs;
    for (int attempt = 1; attempt <= kAnchorTries; ++attempt) {
        const std::uint64_t start = now_ns();
        CUresult result = driver::call(driver::OwnWork(), api_.cuEventRecord, event, context.stream);
        // The event completes between the last query that finds it incomplete and the first that finds it complete.
        std::uint64_t before = start, after = start;
        while (result == CUDA_SUCCESS) {
            const std::uint64_t asked_at = now_ns();
            result = driver::call(api_.cuEventQuery, event);
            after = now_ns();
            if (result != CUDA_ERROR_NOT_READY || after - start >= timeout) {
                break;
            }
            before = asked_at;
            result = CUDA_SUCCESS;
            std::this_thread::yield();  // the software GPU may need this processor
        }
        if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY) {
            fail(context);
            return false;
        }
        const bool last = attempt == kAnchorTries;
        if (result == CUDA_SUCCESS && (after - before <= kGoodAnchorNs || (last && first))) {
            if (!first && context.anchor->users == 0) {
                context.spare.push_back(context.anchor->event);
            }
            context.anchor = std::make_shared<Anchor>();
            context.anchor->event = event;
            context.anchor->at_ns = static_cast<double>(before) + static_cast<double>(after - before) / 2;
            return true;
        }
    }
    context.spare.push_back(event);
    return false;
}

CUevent Tracer::take_event(OfContext& context) {
    if (!context.spare.empty()) {
        const CUevent event = context.spare.back();
        context.spare.pop_back();
        return event;
    }
    CUevent event = nullptr;
    if (driver::call(api_.cuEventCreate, &event, static_cast<unsigned>(CU_EVENT_DEFAULT)) != CUDA_SUCCESS) {
        fail(context);
        return nullptr;
    }
    return event;
}

std::optional<std::uint64_t> Tracer::moment(const Span& span, CUevent event) const {
    float since_ms = 0;
    if (driver::call(api_.cuEventElapsedTime, &since_ms, span.anchor->event, event) != CUDA_SUCCESS) {
        return std::nullopt;
    }
    return static_cast<std::uint64_t>(std::max(0.0, span.anchor->at_ns + static_cast<double>(since_ms) * 1e6));
}

bool Tracer::read(OfContext& context, OfStream& stream) {
    bool moved = false;
    while (!stream.spans.empty()) {
        Span& head = stream.spans.front();
        const CUresult result = driver::call(api_.cuEventQuery, head.end);
        if (result == CUDA_ERROR_NOT_READY) {
            break;
        }
        const auto begin = result == CUDA_SUCCESS ? moment(head, head.start) : std::nullopt;
        const auto end = begin ? moment(head, head.end) : std::nullopt;
        if (!end) {
            fail(context);
            return true;
        }
        // Work in a stream begins after the work before it, even if two anchors disagree.
        codec::TraceRecord& record = head.record;
        record.begin_ns = std::max(*begin, stream.last_end_ns);
        record.end_ns = std::max(*end, record.begin_ns);
        stream.last_end_ns = record.end_ns;
        add(record);
        release(context, head);
        stream.spans.pop_front();
        moved = true;
    }
    return moved;
}

void Tracer::release(OfContext& context, Span& span) {
    context.spare.push_back(span.start);
    context.spare.push_back(span.end);
    release(context, span.anchor);
    --pending_;
}

void Tracer::release(OfContext& context, const std::shared_ptr<Anchor>& anchor) {
    if (--anchor->users == 0 && anchor != context.anchor) {
        context.spare.push_back(anchor->event);
    }
}

// The context died: its events are useless.
void Tracer::fail(OfContext& context) {
    context.failed = true;
    for (auto& [state, stream] : context.streams) {
        pending_ -= stream.spans.size();
        dropped_.dropped_gpu_work += stream.spans.size();
        stream.spans.clear();
    }
}

void Tracer::forget(const StreamState& stream) {
    const auto context = contexts_.find(stream.context);
    if (context == contexts_.end()) {
        return;
    }
    const auto known = context->second.streams.find(&stream);
    if (known == context->second.streams.end()) {
        return;
    }
    enter_(stream.context);
    if (!context->second.failed) {
        read(context->second, known->second);
    }
    for (Span& span : known->second.spans) {
        release(context->second, span);
        ++dropped_.dropped_gpu_work;
    }
    context->second.streams.erase(known);
}

void Tracer::forget(const ContextState& context) {
    const auto known = contexts_.find(&context);
    if (known == contexts_.end()) {
        return;
    }
    if (!known->second.failed) {
        enter_(&context);
        for (auto& [state, stream] : known->second.streams) {
            read(known->second, stream);
        }
    }
    fail(known->second);
    contexts_.erase(known);
}

// ---- names

std::uint32_t Tracer::send_name(std::string_view text, bool is_track) {
    if (names_ >= codec::kMaxTraceNames) {
        return 0;
    }
    text = text.substr(0, codec::kMaxTraceNameBytes);
    const codec::TraceName header{++names_, is_track ? 1u : 0u, text.size()};
    std::string notice(reinterpret_cast<const char*>(&header), sizeof header);
    notice += text;
    send_(codec::NoticeType::trace_name, notice.data(), notice.size());
    return names_;
}

std::uint32_t Tracer::track_of(OfStream& stream, const StreamState& state) {
    if (stream.track == 0) {
        const std::string name = state.legacy ? "legacy stream"
                                 : state.client == CU_STREAM_PER_THREAD
                                     ? "a thread's default stream"
                                     : fmt::format("stream {:#x}", codec::to_wire(state.client));
        stream.track = send_name(fmt::format("{}, device {}", name, state.context->device), true);
    }
    return stream.track;
}

std::uint32_t Tracer::kernel_name(CUfunction client, CUfunction function) {
    const Untimed untimed;
    const auto known = kernels_.find(client);
    if (known != kernels_.end()) {
        return known->second;
    }
    const char* name = nullptr;
    const bool is_kernel = codec::kind_of(codec::to_wire(client)) == codec::HandleKind::kernel;
    const CUresult result =
        is_kernel ? driver::call(api_.cuKernelGetName, &name, codec::from_wire<CUkernel>(codec::to_wire(function)))
                  : driver::call(api_.cuFuncGetName, &name, function);
    const std::uint32_t id = result == CUDA_SUCCESS && name != nullptr ? send_name(name, false) : 0;
    if (kernels_.size() < codec::kMaxTraceNames) {
        kernels_.emplace(client, id);
    }
    return id;
}

}  // namespace gpupool::worker
