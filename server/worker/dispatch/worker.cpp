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
constexpr std::size_t kLeastSentByItselfBytes = 32u << 10;
constexpr std::size_t kFewCommandsBytes = 1u << 10;
constexpr unsigned kMaxBatchesAhead = 8;  // taken before the dispatcher waits for busy issuers
// Limit on frames and queued commands. An honest client stays far below it: it sends the scheduler's budget, and the
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
    : api(library.api),
      clock(*options.clock),
      pinned(
          library.api, [this](std::function<void()> free) { run_elsewhere(std::move(free)); }, &context_owners),
      word_memory(
          library.api, [this](std::function<void()> free) { run_elsewhere(std::move(free)); }, &context_owners),
      memory(options.account
                 ? std::move(options.account)
                 : std::make_unique<MemoryAccount>(static_cast<std::size_t>(device_count), options.memory_quota_bytes)),
      scheduler(
          library.api, word_memory, [this] { return driver_closed(); }, [this] { drain_issuers(); }, clock),
      issuers(library.api, std::min(options.issuers, Issuers::kMaxThreads)),
      inbox(clock),
      tracer(
          library.api, [this](const ContextState* context) { scheduler.enter(context); },
          [this](codec::NoticeType type, const void* notice, std::size_t bytes) { notify_bytes(type, notice, bytes); },
          clock),
      helpers(inbox, &tracer),
      staging(
          library.api, {std::begin(kStagingSizes), std::end(kStagingSizes)}, [this] { inbox.wake(); }, &context_owners),
      incoming(clock),
      host_mirrors(clock),
      gate(scheduler, {[this](const StreamState* stream, const Queue* queue, bool throttled) {
                           notify_throttled(stream, queue, throttled);
                       },
                       [this] { return driver_closed() || ending_; }}),
      options_(std::move(options)),
      lanes_(*this, lane_limits(options_)) {
    images.set_store(options_.image_store);
    memory.pools.set_notice([this] { return notice_idle_contexts(); });
    if (library.kind == driver::Kind::nvidia) {
        memory.code.set_runtime(CodeMemory::kOfNvidia);
    }
    host_mirrors.limit_shared(options_.shared_memory_bytes);
}

Worker::~Worker() {
    lanes_.close();
    issuers.stop();
    pinned.stop();
    word_memory.stop();
    helpers.stop();
}

Error Worker::run(std::unique_ptr<transport::Connection> connection) {
    connection_ = connection.get();
    channel_ = std::make_unique<wire::Channel>(std::move(connection), *this, channel_limits());
    channel_->start();
    loop();
    receiver_.reset();
    Error cause{ErrorCode::closed, "the session ended"};
    {
        const Lock lock(end_mutex_);
        cause = end_.value_or(cause);
    }
    // Tells a client that is still connected the reason. The process ends in any case, see Options::ending.
    notify_text(codec::NoticeType::ended, cause.message);
    (void)channel_->flush();
    return cause;
}

// Called by any thread, as blocks of pinned memory are freed by any thread.
void Worker::run_elsewhere(std::function<void()> call) {
    inbox.post([this, call = std::move(call)] { waiting_calls.run(call, [] {}); });
}

void Worker::stop(const std::string& why) {
    {
        const Lock lock(end_mutex_);
        if (!end_) {
            end_ = Error{ErrorCode::closed, why};
        }
    }
    if (!ending_.exchange(true) && options_.ending) {
        options_.ending();
    }
    inbox.close();
}

// Logs the client's fault at once: the process may end before a client on a slow network has closed its connection.
void Worker::refuse(const std::string& why) {
    if (!ending_) {
        log::warn("the session is ended: {}", why);
    }
    stop(why);
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
    inbox.serve_here();
    prepared_context_until_ = clock.now() + options_.prepared_context_timeout;
    Inbox::Batch batch;
    while (!ending_) {
        if (options_.prepared_context != nullptr && objects.contexts_in_making == 0 &&
            clock.now() >= prepared_context_until_) [[unlikely]] {
            give_back_prepared_context([] {});
        }
        batch = inbox.take(std::move(batch));
        bool moved = !batch.empty();
        if (takes_long(batch)) {
            receiver_.reset();
        }
        if (!batch.jobs.empty()) {
            drain_issuers();
        }
        for (const std::function<void()>& job : batch.jobs) {
            job();
        }
        moved = run_gate() || moved;
        if (!take_frames(batch.frames)) {
            return;
        }
        batch.clear();
        if (issuers.busy() && inbox.has_news() && ++batches_ahead < kMaxBatchesAhead) {
            continue;
        }
        batches_ahead = 0;
        drain_issuers();
        moved = run_gate() || moved;
        if (scheduler.poll(moved ? Scheduler::PollDepth::brief : Scheduler::PollDepth::idle)) {
            channel_->try_flush();  // a thread of the client may wait for it
            moved = true;
        }
        moved = stream_watches.poll() || moved;
        moved = graph_steps.poll() || moved;
        if (!host_mirrors.empty()) {
            receiver_.reset();  // comparing them takes long
            polled_at_.reset();
        }
        // Completions that precede what the GPU wrote to host memory are sent before it.
        moved = host_mirrors.poll([this] { scheduler.flush_completions(); },
                                  [this](auto record) { send_host_change(record); }) ||
                moved;
        if (tracer.on() && !driver_closed()) [[unlikely]] {
            moved = tracer.poll() || moved;
        }
        if (moved) {
            channel_->try_flush();
            idle_since.reset();
            if (polled_at_) {
                note_poll(clock.now());
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
    if (!scheduler.waiting() && !gate.queues_any() && stream_watches.empty()) {
        const bool only_frames = host_mirrors.empty() && !tracer.waiting();
        if (only_frames && inbox.poll([this] { poll_for_frames(); })) {
            return;
        }
        receiver_.reset();
        if (only_frames && options_.prepared_context == nullptr) {
            inbox.wait();
        } else if (only_frames) {
            const auto left = prepared_context_until_ - clock.now();
            inbox.wait(std::max(std::chrono::ceil<std::chrono::microseconds>(left), kLongPause));
        } else {
            inbox.wait(kLongPause);  // a kernel may write to mirrored memory for a program that polls it
        }
        return;
    }
    const auto now = clock.now();
    const auto idle_for = now - idle_since.value_or(now);
    idle_since = idle_since.value_or(now);
    note_poll(now);
    if (spinning_pays() && !contention().lasts(now) &&
        (idle_for < kSpinForFrames ||
         (idle_for < kSpinForAwaited && (scheduler.awaited() || gate.queues_any() || !stream_watches.empty())))) {
        polled_at_ = now;
        poll_for_frames();
        spin_pause();
    } else {
        receiver_.reset();
        inbox.wait(idle_for < kShortPausesFor ? kShortPause : kLongPause);
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
    bytes_to_come_ = 0;
    for (const auto& frame : frames) {
        bytes_to_come_ += frame->bytes;
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
        if (frame->bytes - offset >= sizeof command.header) {
            std::memcpy(&command.header, at, sizeof command.header);
        }
        const std::size_t bytes = command.header.bytes;
        if (bytes < sizeof command.header || bytes % codec::kAlignment != 0 || bytes > frame->bytes - offset) {
            refuse("the client sent a malformed command record");
            return false;
        }
        if (command.header.number != ++commands_) {
            refuse("the client's commands are out of order");
            return false;
        }
        command.body = {at + sizeof command.header, bytes - sizeof command.header};
        command.frame = frame;
        bytes_to_come_ -= bytes;
        prefetch_command(at + bytes);
        if (gate.open() || gate.passes(passage_of(command.header.opcode), command.header.thread)) [[likely]] {
            dispatch(command);
        } else {
            gate.arrive(command.header.thread,
                        std::make_unique<QueuedCommand>(*this, command, calls::Kind::none, false));
        }
        if (ending_) {
            return false;
        }
        offset += bytes;
        if (++since_poll_ >= (issuers.busy() ? kPollIssuersEvery : kPollEvery)) {
            since_poll_ = 0;
            drain_issuers();
            run_gate();
            scheduler.poll();
            channel_->try_flush();
        }
    }
    return true;
}

void Worker::dispatch(Command& command) {
    const Serve serve = serve_function(command.header.opcode);
    if (serve == nullptr || !options_.agreement.has(command.header.opcode)) {
        if (serve == nullptr) {
            log::warn("the client asked for opcode {}, which this server does not know", command.header.opcode);
        } else {
            log::warn("the client asked for {}, which client and server have not agreed on",
                      calls::name_of(command.header.opcode));
        }
        answer(command, CUDA_ERROR_NOT_SUPPORTED);
        return;
    }
    if (command.header.opcode != calls::gpLaunch::kOpcode) {
        drain_issuers();
    }
    Tracer::Issue issue(tracer, command.header, command.waited_for);
    const std::uint64_t last = gate.last_number();
    serve(*this, command);
    if (gate.last_number() != last) {
        issue.queued();
    }
}

void Worker::catch_up() {
    drain_issuers();
    scheduler.poll(Scheduler::PollDepth::thorough);
    gate.run_actions();
}

bool Worker::notice_idle_contexts() {
    bool all = !driver_closed();
    for (const auto& [client, context] : objects.contexts) {
        if (!all || context->ending || !scheduler.is_idle(*context)) {
            all = false;
        } else if (scheduler.enter(context.get()) == CUDA_SUCCESS) {
            driver::call(api.cuCtxSynchronize);  // does not wait
        }
    }
    return all;
}

void Worker::drain_issuers() {
    if (!issuers.busy()) {
        return;
    }
    for (const Issuers::Failure& failure : issuers.drain()) {
        handles.forget_use(failure.launch.shape.function);
        note_failure(api, failure.launch, failure.result);
        answer(failure.command, failure.result);
    }
}

namespace {

// Commands that arrived before the context's end was requested are still issued; new ones are refused, because nothing
// would ever issue them.
bool takes_work(const ContextState& context, const Command& command, CUresult& result) {
    if (!context.ending || command.ready) [[likely]] {
        return true;
    }
    result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return false;
}

}  // namespace

StreamState* Worker::stream_of(Command& command, CUstream handle, CUresult& result) {
    StreamState* const stream = find_stream(command, handle, result);
    if (stream != nullptr) {
        command.stream = stream->name();
    }
    return stream;
}

StreamState* Worker::find_stream(const Command& command, CUstream handle, CUresult& result) {
    handle = command.meant(handle);
    ContextState* context = context_of(command);
    if (handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD) {
        StreamState* stream = nullptr;
        if (context != nullptr) {
            const auto it = context->streams.find(handle);
            stream = it == context->streams.end() ? nullptr : it->second.get();
        }
        stream = stream != nullptr ? stream : objects.stream(handle);
        // Commands that arrived before the stream was destroyed are still issued.
        if (stream == nullptr || (stream->ending && !command.ready)) {
            result = CUDA_ERROR_INVALID_HANDLE;
            return nullptr;
        }
        return takes_work(*stream->context, command, result) ? stream : nullptr;
    }
    if (context == nullptr) {
        result = CUDA_ERROR_INVALID_CONTEXT;
        return nullptr;
    }
    if (!takes_work(*context, command, result)) {
        return nullptr;
    }
    if (handle == CU_STREAM_LEGACY) {
        return &context->legacy;
    }
    if (context->green != nullptr) {  // it has no such streams
        result = CUDA_ERROR_INVALID_HANDLE;
        return nullptr;
    }
    const auto own = context->per_thread.find(command.header.thread);
    if (own == context->per_thread.end()) {
        if (!objects.stream_fits()) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
            return nullptr;
        }
        auto stream = std::make_unique<StreamState>();
        stream->client = CU_STREAM_PER_THREAD;
        stream->thread = command.header.thread;
        stream->context = context;
        result = scheduler.enter(context);
        if (result == CUDA_SUCCESS) {
            result = driver::call(api.cuStreamCreate, &stream->driver, static_cast<unsigned>(CU_STREAM_DEFAULT));
        }
        if (result != CUDA_SUCCESS) {
            return nullptr;
        }
        return (context->per_thread[command.header.thread] = std::move(stream)).get();
    }
    return own->second.get();
}

void Worker::violation(const Command& command, const std::string& what) {
    refuse(std::string("the client sent a bad command (") + std::string(calls::name_of(command.header.opcode)) +
           "): " + what);
}

bool Worker::run_gate() {
    if (!gate.queues_any() && !gate.has_actions()) [[likely]] {
        return false;
    }
    drain_issuers();  // their launches come before everything that the gate issues
    return gate.run();
}

// Tells the daemon why work waits: at intervals, and at once when none waits any more.
void Worker::report_waits() {
    constexpr std::array<std::size_t, codec::kReasons> kNone{};
    if (!options_.waits_changed || (waits_ == kNone && !gate.queues_any())) [[likely]] {
        return;
    }
    const auto now = clock.now();
    if (gate.queues_any() && now - waits_reported_ < kReportWaitsEvery) {
        return;
    }
    waits_reported_ = now;
    waits_ = gate.waits();
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
    notify(codec::NoticeType::throttle, notice);
}

void Worker::memory_changed() {
    if (options_.memory_changed) {
        options_.memory_changed(memory.account.used());
    }
}

bool Worker::give_back_prepared_context(std::function<void()> then) {
    if (take_prepared_context(kPreparedDevice) == nullptr) {
        return false;
    }
    waiting_calls.run([this] { driver::call(api.cuDevicePrimaryCtxRelease_v2, kPreparedDevice); }, std::move(then));
    return true;
}

CUmemoryPool Worker::driver_pool(std::uint64_t client) const {
    return codec::kind_of(client) == codec::HandleKind::memory_pool
               ? codec::from_wire<CUmemoryPool>(handles.find(codec::from_wire<CUmemoryPool>(client)).driver)
               : nullptr;
}

bool Worker::begin_destroy(std::uint64_t client) {
    if (!handles_ending_.insert(client).second) {
        return false;
    }
    memory.pools.begin_destroy(driver_pool(client));
    return true;
}

void Worker::end_destroy(std::uint64_t client, bool ended) {
    handles_ending_.erase(client);
    memory.pools.end_destroy(driver_pool(client), ended);
    if (!ended) {
        return;
    }
    handles.unbind(client);
    if (memory.forget_array(client) || memory.code.forget(client)) {
        memory_changed();
    }
}

bool Worker::in_window(std::uint64_t address, std::uint64_t bytes) const {
    return address >= options_.window_base && bytes <= options_.window_bytes &&
           address - options_.window_base <= options_.window_bytes - bytes;
}

std::span<std::byte> Worker::bulk_destination(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) {
    return incoming.place(transfer, offset, bytes);
}

void Worker::on_bulk(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) {
    incoming.landed(transfer, offset, bytes);
    inbox.wake();
}

void Worker::on_frame(wire::FrameType type, std::unique_ptr<std::byte[]> payload, std::size_t bytes) {
    if (type != wire::FrameType::commands) {
        return;  // control frames from a client carry nothing for the worker
    }
    auto frame = std::make_shared<Frame>();
    frame->data = std::move(payload);
    frame->bytes = bytes;
    frame->charge(&queued_bytes, bytes);
    if (queued_bytes.load(std::memory_order_relaxed) > kMaxQueuedBytes) {
        refuse("the client has sent more work than a session may queue: " + std::to_string(kMaxQueuedBytes >> 20) +
               " MiB");
        return;
    }
    inbox.push(std::move(frame));
}

void Worker::on_closed(const Error& cause) {
    stop(cause.message);
}

void Worker::on_append_waits(bool waits) {
    inbox.let_through(waits);
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

void Worker::send_bulk(std::uint64_t transfer, std::uint64_t offset, std::span<const std::byte> data,
                       std::function<void()> done) {
    // A small amount of data is sent together with the reply that follows it.
    const auto urgency = data.size() < kLeastSentByItselfBytes ? wire::Urgency::later : wire::Urgency::soon;
    const bool in_order = (transfer & codec::kTransferInOrder) != 0;
    if (in_order) {
        announce_pieces();
    }
    const Status sent = !in_order && lanes_.take(data.size())
                            ? lanes_.send(transfer, offset, data, std::move(done))
                            : channel_->append_bulk(transfer, offset, data, std::move(done), urgency);
    if (!sent) {
        stop(sent.error().message);
    }
}

std::span<std::byte> Worker::piece_destination(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) {
    return incoming.claim(transfer, offset, bytes);
}

void Worker::on_piece(std::uint64_t transfer, std::uint64_t offset, std::size_t) {
    incoming.landed_whole(transfer, offset);
    inbox.wake();
}

void Worker::on_piece_lost(std::uint64_t, std::uint64_t, std::size_t) {}  // nothing to undo: the session ends

void Worker::on_lanes_ended(const Error& cause) {
    stop(cause.message);
}

}  // namespace gpupool::worker
