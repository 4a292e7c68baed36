#include "server/worker/dispatch/worker.h"

#include <sys/prctl.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/log.h"
#include "common/spin.h"
#include "protocol/calls/table.h"
#include "protocol/wire/handshake_io.h"
#include "server/worker/dispatch/dispatch_table.h"
#include "server/worker/dispatch/serve.h"

namespace gpupool::worker {
namespace {

// A large chunk is one piece on a lane. kPiecesInFlight (handlers/copy.cpp) says how many one copy has at a time.
constexpr std::size_t kChunkBytes = 1u << 20, kStagingBytes = 96u << 20;
// The small sizes are for data that travels in its command and for the ends of copies, and serve as a reserve.
constexpr StagingSize kStagingSizes[] = {{4u << 10, 1u << 20, 4u << 20, 4u << 20},
                                         {codec::kMaxInlineBytes, 4u << 20, 16u << 20, 16u << 20},
                                         {kChunkBytes, 8u << 20, kStagingBytes, 0}};
constexpr std::size_t kAllStagingBytes = [] {
    std::size_t bytes = 0;
    for (const StagingSize& size : kStagingSizes) {
        bytes += size.max_bytes + size.reserve_bytes;
    }
    return bytes;
}();
static_assert(kChunkBytes <= wire::Lanes::kMaxPieceBytes);
// Even if one stream has all the large chunks, each with a copy and a mark (and an event if kernels print), they and
// the stream's credit and marks (scheduler.h) stay below the 1,020 entries that a driver takes without blocking.
static_assert(Scheduler::kCredit + Scheduler::kMaxMarks + 2 * kStagingBytes / kChunkBytes < 1020);
static_assert(Scheduler::kCredit + 2 * Scheduler::kMaxMarksWithEvents + 3 * kStagingBytes / kChunkBytes < 1020);
constexpr std::size_t kPollEvery = 128;         // commands, so that a long batch does not delay completions
constexpr std::size_t kPollIssuersEvery = 512;  // used while issuers are busy, which a poll must wait for
constexpr std::size_t kFewCommandsBytes = 1u << 10;
constexpr unsigned kMaxBatchesAhead = 8;  // taken before the dispatcher waits for busy issuers
// Limit on frames and queued commands. An honest client stays far below it: it sends the gate's budget, and the
// commands that are on their way when it is throttled. Beyond the limit the worker has to end the session, because the
// data that the queued work waits for would arrive only after more commands.
constexpr std::size_t kMaxQueuedBytes = 768u << 20;
static_assert(Gate::kBudgetBytes + (256u << 20) <= kMaxQueuedBytes);
// How long the dispatcher polls without pauses if something waits for a completion (kSpinForAwaited) or not
// (kSpinForFrames), and how long with short pauses after that. Then the pauses are long.
constexpr std::chrono::microseconds kSpinForAwaited{1000};
constexpr std::chrono::microseconds kSpinForFrames{200};
constexpr std::chrono::milliseconds kShortPausesFor{50};
constexpr std::chrono::microseconds kShortPause{20};
constexpr std::chrono::microseconds kLongPause{500};
constexpr std::chrono::milliseconds kReportWaitsEvery{100};
// The kernel's default of 50 us would make every short pause a long one.
constexpr unsigned long kTimerSlackNs = 1000;

// Another processor wrote the next command: prefetch its cache lines while this command is with the driver. Reading
// beyond the frame's end is harmless, since a prefetch does not fault.
void prefetch_command(const std::byte* command) {
    constexpr std::size_t kLineBytes = 64, kLaunchBytes = 256;
    for (std::size_t line = 0; line < kLaunchBytes; line += kLineBytes) {
        __builtin_prefetch(command + line);
    }
}

wire::Lanes::Limits lane_limits(const Worker::Options& options) {
    wire::Lanes::Limits limits;
    limits.lanes = options.max_lanes;
    limits.compression = options.compression;
    // The queue has room for all of the staging memory, so that a send never blocks the dispatcher. It has room for one
    // chunk more per lane, because a lane counts a chunk as queued until shortly after the chunk is free again.
    limits.queued_bytes = kAllStagingBytes + wire::Lanes::kMaxLanes * kChunkBytes;
    return limits;
}

wire::Limits channel_limits() {
    wire::Limits limits;
    // All of the staging memory can be retained at once without an append having to block.
    limits.retained_bytes = kAllStagingBytes + (8u << 20);
    return limits;
}

}  // namespace

Worker::Worker(const driver::Library& library, int device_count, Options options)
    : options_(std::move(options)),
      api_(library.api),
      clock_(*options_.clock),
      end_([this] {
          if (options_.ending) {
              options_.ending();
          }
          inbox_.close();
      }),
      pinned_(
          api_, [this](std::function<void()> free) { run_elsewhere(std::move(free)); }, &context_owners_),
      word_memory_(
          api_, [this](std::function<void()> free) { run_elsewhere(std::move(free)); }, &context_owners_),
      memory_(options_.account ? std::move(options_.account)
                               : std::make_unique<MemoryAccount>(static_cast<std::size_t>(device_count),
                                                                 options_.memory_quota_bytes),
              options_.window, options_.memory_changed),
      scheduler_(
          api_, word_memory_, [this] { return door_.closed(); }, [this] { issuers_.drain(); }, clock_),
      host_mirrors_(clock_),
      answers_(options_.agreement, {options_.output, options_.errors}, objects_, scheduler_, host_mirrors_, end_),
      stream_watches_(objects_, scheduler_, answers_, clock_),
      issuers_(api_, std::min(options_.issuers, Issuers::kMaxThreads),
               [this](const Issuers::Failure& failure) { note_failed(failure); }),
      inbox_(clock_),
      tracer_(
          api_, [this](const ContextState* context) { scheduler_.enter(context); },
          [this](codec::NoticeType type, const void* notice, std::size_t bytes) {
              answers_.notify_bytes(type, notice, bytes);
          },
          clock_),
      helpers_(inbox_, &tracer_),
      waiting_calls_(helpers_),
      prepared_context_(api_, waiting_calls_, options_.prepared_context),
      staging_(
          api_, {std::begin(kStagingSizes), std::end(kStagingSizes)}, [this] { inbox_.wake(); }, &context_owners_),
      incoming_(clock_),
      traffic_(*options_.counters, clock_),
      graph_steps_(answers_, incoming_, host_mirrors_, traffic_, inbox_),
      linker_(inbox_, tracer_),
      door_(waiting_calls_, host_functions_, graph_steps_, host_mirrors_),
      gate_(scheduler_, {[this](const StreamState* stream, const Queue* queue, bool throttled) {
                             notify_throttled(stream, queue, throttled);
                         },
                         [this] { return door_.closed() || end_.begun(); }}),
      views_(all_views()),
      lanes_(*this, lane_limits(options_)) {
    images_.set_store(options_.image_store);
    memory_.pools.set_notice([this] { return scheduler_.notice_idle(objects_); });
    if (library.kind == driver::Kind::nvidia) {
        memory_.code.set_runtime(CodeMemory::kOfNvidia);
    }
    host_mirrors_.limit_shared(options_.shared_memory_bytes);
    set_limits(options_.limits);
}

void Worker::set_limits(const supervision::SessionLimits& limits) {
    traffic_.limit(limits.copy_bytes_per_second);
    host_mirrors_.limit_pinned(limits.pinned_bytes);
    handles_.limit(limits.handles);
}

Views::All Worker::all_views() {
    const SessionView session{api_,  objects_, handles_,       memory_, scheduler_,
                              gate_, answers_, waiting_calls_, tracer_, *this};
    const ContextView contexts{session,  prepared_context_, helpers_,        inbox_,  issuers_,
                               staging_, host_mirrors_,     host_functions_, pinned_, word_memory_};
    const GraphView graphs{session, graphs_, door_};
    return {session,
            CodeView{session, images_, helpers_, function_changes_, linker_},
            contexts,
            GreenContextView{contexts, device_resources_, context_owners_},
            CopyView{session, staging_, incoming_, traffic_, host_mirrors_},
            graphs,
            GraphExecView{graphs, graph_steps_, pinned_, host_functions_},
            HostFunctionView{session, host_functions_, word_memory_, graph_steps_},
            HostMemoryView{session, host_mirrors_, helpers_, connection_},
            LaunchView{session, issuers_, inbox_, door_},
            MemoryView{session, door_},
            StreamView{session, stream_watches_, clock_}};
}

Worker::~Worker() {
    lanes_.close();
    issuers_.stop();
    pinned_.stop();
    word_memory_.stop();
    helpers_.stop();
    linker_.stop();
}

Error Worker::run(std::unique_ptr<transport::Connection> connection) {
    connection_ = connection.get();
    channel_ = std::make_unique<wire::Channel>(std::move(connection), *this, channel_limits());
    answers_.open(*channel_, lanes_);
    channel_->start();
    loop();
    receiver_.reset();
    Error cause = end_.cause();
    // Tells a client that is still connected the reason. The process ends in any case, see Options::ending.
    answers_.notify_text(codec::NoticeType::ended, cause.message);
    (void)channel_->flush();
    return cause;
}

// Called by any thread, as blocks of pinned memory are freed by any thread.
void Worker::run_elsewhere(std::function<void()> call) {
    inbox_.post([this, call = std::move(call)] { waiting_calls_.run(call, [] {}); });
}

namespace {

// Will the batch take so long that the reader thread should receive meanwhile?
bool takes_long(const Inbox::Batch& batch) {
    std::size_t bytes = 0;
    for (const auto& frame : batch.frames) {
        bytes += frame->bytes;
    }
    return bytes > kFewCommandsBytes || !batch.jobs.empty();
}

}  // namespace

void Worker::loop() {
    ::prctl(PR_SET_TIMERSLACK, kTimerSlackNs);
    std::optional<TimeSource::TimePoint> idle_since;
    unsigned batches_ahead = 0;
    inbox_.serve_here();
    SessionCounters& counters = *options_.counters;
    prepared_context_until_ = clock_.now() + options_.prepared_context_timeout;
    Inbox::Batch batch;
    while (!end_.begun()) {
        if (prepared_context_.any() && objects_.contexts_in_making == 0 && clock_.now() >= prepared_context_until_)
            [[unlikely]] {
            prepared_context_.give_back([] {});
        }
        batch = inbox_.take(std::move(batch));
        bool moved = !batch.empty();
        counters.commands.store(commands_, std::memory_order_relaxed);
        if (takes_long(batch)) {
            receiver_.reset();
        }
        if (!batch.jobs.empty()) {
            issuers_.drain();
        }
        for (const std::function<void()>& job : batch.jobs) {
            job();
        }
        moved = run_gate() || moved;
        if (!take_frames(batch.frames)) {
            return;
        }
        batch.clear();
        if (issuers_.busy() && inbox_.has_news() && ++batches_ahead < kMaxBatchesAhead) {
            continue;
        }
        batches_ahead = 0;
        issuers_.drain();
        moved = run_gate() || moved;
        if (scheduler_.poll(moved ? Scheduler::PollDepth::brief : Scheduler::PollDepth::idle)) {
            channel_->try_flush();  // a thread of the client may wait for it
            moved = true;
        }
        moved = stream_watches_.poll() || moved;
        moved = graph_steps_.poll() || moved;
        if (!host_mirrors_.empty()) {
            receiver_.reset();  // comparing them takes long
            polled_at_.reset();
        }
        // Completions that precede what the GPU wrote to host memory are sent before it.
        moved = host_mirrors_.poll([this] { scheduler_.flush_completions(); },
                                   [this](auto record) { answers_.send_host_change(record); }) ||
                moved;
        if (tracer_.on() && !door_.closed()) [[unlikely]] {
            moved = tracer_.poll() || moved;
        }
        memory_.report();
        moved = answers_.take_notified() || moved;  // an entry may have asked for data and still wait
        if (moved) {
            channel_->try_flush();
            idle_since.reset();
            if (polled_at_) {
                note_poll(clock_.now());
            }
        } else {
            pause(idle_since);
        }
    }
}

// The driver does not notify, so the dispatcher polls while something is outstanding: first without pauses where
// spinning pays, then with short sleeps between polls, then with longer ones. With nothing outstanding it sleeps until
// a frame arrives.
void Worker::pause(std::optional<TimeSource::TimePoint>& idle_since) {
    report_waits();
    const bool working = scheduler_.waiting() || gate_.queues_any() || !stream_watches_.empty();
    options_.counters->working.store(working, std::memory_order_relaxed);
    if (!working) {
        const bool only_frames = host_mirrors_.empty() && !tracer_.waiting();
        if (only_frames && inbox_.poll([this] { poll_for_frames(); })) {
            return;
        }
        receiver_.reset();
        if (only_frames && !prepared_context_.any()) {
            inbox_.wait();
        } else if (only_frames) {
            const auto left = prepared_context_until_ - clock_.now();
            inbox_.wait(std::max(std::chrono::ceil<std::chrono::microseconds>(left), kLongPause));
        } else {
            inbox_.wait(kLongPause);  // a kernel may write to mirrored memory for a program that polls it
        }
        return;
    }
    const auto now = clock_.now();
    const auto idle_for = now - idle_since.value_or(now);
    idle_since = idle_since.value_or(now);
    note_poll(now);
    if (spinning_pays() && !contention().lasts(now) &&
        (idle_for < kSpinForFrames ||
         (idle_for < kSpinForAwaited && (scheduler_.awaited() || gate_.queues_any() || !stream_watches_.empty())))) {
        polled_at_ = now;
        poll_for_frames();
        spin_pause();
    } else {
        receiver_.reset();
        inbox_.wait(idle_for < kShortPausesFor ? kShortPause : kLongPause);
    }
}

// Called when work or the next pause follows a pause in which the dispatcher polled: notes whether the thread was
// suspended in between.
void Worker::note_poll(TimeSource::TimePoint now) {
    if (polled_at_) {
        contention().note_poll(*std::exchange(polled_at_, std::nullopt), now);
    }
}

// The dispatcher itself receives, which saves waking it, or at least the hand-over between two processors.
void Worker::poll_for_frames() {
    if (!receiver_) {
        receiver_.emplace(*channel_);
    }
    receiver_->poll();
}

bool Worker::take_frames(const std::vector<std::shared_ptr<Frame>>& frames) {
    inbox_.bytes_to_come = 0;
    for (const auto& frame : frames) {
        inbox_.bytes_to_come += frame->bytes;
    }
    for (const auto& frame : frames) {
        if (!take_frame(frame)) {
            return false;
        }
    }
    return true;
}

bool Worker::take_frame(const std::shared_ptr<Frame>& frame) {
    std::size_t offset = 0;
    while (offset < frame->bytes) {
        Command command;
        std::byte* const at = frame->data.get() + offset;
        const std::size_t left = frame->bytes - offset;
        if (left >= sizeof command.header) {
            std::memcpy(&command.header, at, sizeof command.header);
        }
        const std::size_t bytes = left >= sizeof command.header ? command.header.bytes : 0;
        if (bytes < sizeof command.header || bytes % codec::kAlignment != 0 || bytes > left) {
            end_.refuse("the client sent a malformed command record");
            return false;
        }
        if (command.header.number != ++commands_) {
            end_.refuse("the client's commands are out of order");
            return false;
        }
        command.body = {at + sizeof command.header, bytes - sizeof command.header};
        command.frame = frame;
        inbox_.bytes_to_come -= bytes;
        prefetch_command(at + bytes);
        if (gate_.open() || gate_.passes(passage_of(command.header.opcode), command.header.thread)) [[likely]] {
            dispatch(command);
        } else {
            gate_.arrive(command.header.thread,
                         std::make_unique<QueuedCommand>(views_.session(), command, calls::Kind::none, false));
        }
        if (end_.begun()) {
            return false;
        }
        offset += bytes;
        if (++since_poll_ >= (issuers_.busy() ? kPollIssuersEvery : kPollEvery)) {
            since_poll_ = 0;
            issuers_.drain();
            run_gate();
            scheduler_.poll();
            channel_->try_flush();
        }
    }
    return true;
}

void Worker::dispatch(Command& command) {
    const Serve serve = serve_function(command.header.opcode);
    if (serve == nullptr || !answers_.agreement().has(command.header.opcode)) {
        if (serve == nullptr) {
            log::warn("the client asked for opcode {}, which this server does not know", command.header.opcode);
        } else {
            log::warn("the client asked for {}, which client and server have not agreed on",
                      calls::name_of(command.header.opcode));
        }
        answers_.give(command, CUDA_ERROR_NOT_SUPPORTED);
        return;
    }
    if (command.header.opcode != calls::gpLaunch::kOpcode) {
        issuers_.drain();
    }
    Tracer::Issue issue(tracer_, command.header, command.waited_for);
    const std::uint64_t last = gate_.last_number();
    serve(views_, command);
    if (gate_.last_number() != last) {
        issue.queued();
    }
}

void Worker::catch_up() {
    issuers_.drain();
    scheduler_.poll(Scheduler::PollDepth::thorough);
    gate_.run_actions();
}

void Worker::note_failed(const Issuers::Failure& failure) {
    handles_.forget_use(failure.launch.shape.function);
    note_failure(api_, failure.launch, failure.result);
    answers_.give(failure.command, failure.result);
}

bool Worker::run_gate() {
    if (!gate_.queues_any() && !gate_.has_actions()) [[likely]] {
        return false;
    }
    issuers_.drain();  // their launches come before everything that the gate issues
    return gate_.run();
}

// Tells the daemon why work waits: at intervals, and at once when none waits any more.
void Worker::report_waits() {
    constexpr std::array<std::size_t, codec::kReasons> kNone{};
    if (!options_.waits_changed || (waits_ == kNone && !gate_.queues_any())) [[likely]] {
        return;
    }
    const auto now = clock_.now();
    if (gate_.queues_any() && now - waits_reported_ < kReportWaitsEvery) {
        return;
    }
    waits_reported_ = now;
    waits_ = gate_.waits();
    options_.waits_changed(waits_);
}

void Worker::notify_throttled(const StreamState* stream, const Queue* queue, bool throttled) {
    codec::StreamThrottleNotice notice{0, 0, 0, throttled ? 1u : 0u};  // all zero: every stream
    if (stream != nullptr) {
        notice.stream = on_wire(stream->name());
        notice.context = codec::to_wire(stream->context->client);
        notice.thread = stream->thread;
    } else if (queue != nullptr) {
        notice.stream = codec::kThrottledGraphChanges;
        notice.context = queue->name;
    }
    answers_.notify(codec::NoticeType::throttle, notice);
}

std::span<std::byte> Worker::bulk_destination(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) {
    return incoming_.place(transfer, offset, bytes);
}

void Worker::on_bulk(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) {
    incoming_.landed(transfer, offset, bytes);
    inbox_.wake();
}

void Worker::on_frame(wire::FrameType type, std::unique_ptr<std::byte[]> payload, std::size_t bytes) {
    if (type != wire::FrameType::commands) {
        return;  // control frames from a client carry nothing for the worker
    }
    auto frame = std::make_shared<Frame>();
    frame->data = std::move(payload);
    frame->bytes = bytes;
    frame->charge(&queued_bytes_, bytes);
    if (queued_bytes_.load(std::memory_order_relaxed) > kMaxQueuedBytes) {
        end_.refuse("the client has sent more work than a session may queue: " + std::to_string(kMaxQueuedBytes >> 20) +
                    " MiB");
        return;
    }
    inbox_.push(std::move(frame));
}

void Worker::on_closed(const Error& cause) {
    end_.stop(cause.message);
}

void Worker::on_append_waits(bool waits) {
    inbox_.let_through(waits);
}

void Worker::add_lane(std::size_t index, std::unique_ptr<transport::Connection> connection) {
    Status added = lanes_.admits(index);
    if (added) {  // the client waits for this frame; 40 bytes fit into an empty send buffer
        added = wire::write_frame(*connection, wire::FrameType::ack, {});
    }
    if (added) {
        added = lanes_.add(index, std::move(connection));
    }
    if (!added) {
        log::warn("lane {} (a connection for bulk data) is refused: {}", index, added.error().message);
        return;
    }
    log::debug("lane {} is open", index);
}

std::span<std::byte> Worker::piece_destination(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) {
    return incoming_.claim(transfer, offset, bytes);
}

void Worker::on_piece(std::uint64_t transfer, std::uint64_t offset, std::size_t) {
    incoming_.landed_whole(transfer, offset);
    inbox_.wake();
}

void Worker::on_piece_lost(std::uint64_t, std::uint64_t, std::size_t) {}  // nothing to undo: the session ends

void Worker::on_lanes_ended(const Error& cause) {
    end_.stop(cause.message);
}

}  // namespace gpupool::worker
