#include "client/core/session/session.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string_view>
#include <type_traits>

#include "client/core/transfers/packed_rows.h"
#include "client/error_text.h"
#include "common/log.h"
#include "common/printable.h"
#include "protocol/calls/call.h"
#include "protocol/calls/internal.h"
#include "protocol/calls/table.h"
#include "protocol/transport/open.h"
#include "protocol/wire/handshake_io.h"

namespace gpupool::client {
namespace {

// When the worker's throttle notice arrives, this many commands may already be on their way. The worker queues them
// too, which takes 2 KiB of its memory for a copy of 60 bytes. With a round trip of 10 ms this limit still allows six
// million calls per second.
wire::Limits channel_limits() {
    wire::Limits limits;
    limits.retained_records = 64u << 10;
    return limits;
}

// How long the server may take to start its driver after it has accepted the session. This can be long on hosts with
// many GPUs.
constexpr std::chrono::seconds kDriverStart{30};
constexpr std::size_t kMaxOutputBytes = 64u << 20;

// The pause between two attempts to connect to a full server doubles from the first value to the second.
constexpr std::chrono::milliseconds kFirstPause{200}, kLongestPause{2000};

// How much longer than the session may wait in the server's queue the server may take to say that the time is over.
constexpr std::chrono::seconds kQueueSlack{10};

// To the log, and to standard error if the user wants to read it.
void say(const Config& config, const std::string& text) {
    log::info("{}", text);
    if (config.verbose) {
        std::fprintf(stderr, "gpupool: %s\n", text.c_str());
    }
}

}  // namespace

Result<std::unique_ptr<Session>> Session::open(const Config& config, bool& reached, TimeSource& clock) {
    const auto give_up = clock.now() + config.wait_when_full;
    for (auto pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
        bool full = false;
        Config attempt = config;
        attempt.wait_when_full = std::max(std::chrono::milliseconds(0),
                                          std::chrono::duration_cast<std::chrono::milliseconds>(give_up - clock.now()));
        auto session = open_once(attempt, reached, full, clock);
        if (session || !full) {
            return session;
        }
        if (clock.now() + pause > give_up) {
            Error error = session.error();
            error.message += config.wait_when_full.count() == 0
                                 ? " (set GPUPOOL_WAIT_WHEN_FULL=10m to wait up to ten minutes for a place)"
                                 : " (GPUPOOL_WAIT_WHEN_FULL has passed)";
            return error;
        }
        clock.sleep_for(pause);
    }
}

Result<std::unique_ptr<Session>> Session::open_once(const Config& config, bool& reached, bool& full,
                                                    TimeSource& clock) {
    reached = false;
    Result<transport::Endpoint> endpoint = transport::Endpoint::parse(config.server);
    if (!endpoint) {
        return endpoint.error();
    }
    const auto deadline = transport::Clock::now() + config.connect_timeout;
    auto connection = transport::connect(*endpoint, config.transport, deadline);
    if (!connection) {
        return connection.error();
    }
    reached = true;
    const bool by_itself = config.transport == transport::Choice::automatic && !endpoint->is_path();
    bool hung_up = false;
    auto session = open_over(std::move(*connection), config, deadline, full, hung_up, clock);
    if (session || !hung_up || !by_itself) {
        return session;
    }
    // A server that cannot use this client's shared memory (another version, no descriptors left) gives the reason over
    // TCP. Then lanes must not try shared memory either.
    Config over_tcp = config;
    over_tcp.transport = transport::Choice::tcp;
    connection = transport::connect(*endpoint, over_tcp.transport, deadline);
    if (!connection) {
        return connection.error();
    }
    return open_over(std::move(*connection), over_tcp, deadline, full, hung_up, clock);
}

Result<std::unique_ptr<Session>> Session::open_over(std::unique_ptr<transport::Connection> connection,
                                                    const Config& config, transport::Clock::time_point deadline,
                                                    bool& full, bool& hung_up, TimeSource& clock) {
    const auto candidates = AddressWindow::reserve_candidates();
    connection->set_receive_deadline(deadline);
    Answer answer = shake_hands(*connection, config, deadline, candidates);
    full = answer.full;
    if (!answer.welcome) {
        hung_up = answer.welcome.error().code == ErrorCode::closed;
        AddressWindow::abandon(candidates);
        return answer.welcome.error();
    }
    return start(std::move(connection), config, std::move(*answer.welcome), candidates, clock);
}

Result<std::unique_ptr<Session>> Session::start(std::unique_ptr<transport::Connection> connection, const Config& config,
                                                Welcome welcome, const AddressRanges& candidates, TimeSource& clock) {
    std::unique_ptr<Session> session(new Session(clock));
    session->server_ = config.server;
    session->id_ = welcome.session_id;
    session->server_version_ = std::move(welcome.server_version);
    session->agreement = std::move(welcome.agreement);
    session->prepare_lanes(config, welcome);
    session->devices = std::move(welcome.devices);
    session->window.keep(candidates, welcome.window_base, welcome.window_bytes);
    try {
        session->begin(std::move(connection));
    } catch (const std::exception& exception) {
        // Threads that did start use the session as long as the process lives.
        (void)session.release();
        return Error{ErrorCode::limit_exceeded, std::string("cannot start its threads: ") + exception.what()};
    }
    return session;
}

Answer Session::shake_hands(transport::Connection& connection, const Config& config,
                            transport::Clock::time_point deadline, const AddressRanges& candidates) {
    const Status sent = send_hello(connection, config, candidates);
    // Even if sending failed: a server that refuses may have closed already, and its refusal is still there to read.
    auto frame = wire::read_answer(connection, kMaxWelcomeBytes, deadline, kDriverStart);
    const auto end_of_queue = transport::Clock::now() + config.wait_when_full + kQueueSlack;
    while (frame && frame->type == wire::FrameType::control && config.wait_when_full.count() > 0) {
        const auto waiting = messages::read_waiting(frame->payload);
        if (!waiting) {
            return {false, waiting.error()};
        }
        say(config, fmt::format("{} has no room: position {} of {} in its queue ({})", config.server, waiting->position,
                                waiting->length, waiting->why));
        frame = wire::read_answer(connection, kMaxWelcomeBytes, end_of_queue, kDriverStart);
    }
    if (!frame) {
        Error error = sent ? frame.error() : sent.error();
        error.message = fmt::format("{} does not answer like a gpupool server: {}", config.server, error.message);
        return {false, error};
    }
    Answer answer = read_answer(*frame, candidates);
    if (answer.welcome && answer.welcome->grant) {
        say(config, fmt::format("session {} on {}: {}", printable(answer.welcome->session_id), config.server,
                                messages::describe(*answer.welcome->grant)));
    }
    return answer;
}

// The setting `lanes` = 1 means that the session has only its own connection. A larger number is that of further
// connections (lanes), which then carry all large transfers.
void Session::prepare_lanes(const Config& config, Welcome& welcome) {
    const std::size_t count = config.lanes > 1 ? std::min(config.lanes, welcome.max_lanes) : 0;
    if (count == 0) {
        return;
    }
    wire::Lanes::Limits limits;
    limits.lanes = count;
    limits.compression = config.compression;
    lanes_ = std::make_unique<wire::Lanes>(*this, limits);
    LaneTicket ticket{welcome.session_id, std::move(welcome.session_token)};
    lane_opener_ = std::make_unique<LaneOpener>(config, std::move(ticket), count, *lanes_);
}

void Session::close_descriptors() noexcept {
    for (const int descriptor : descriptors_) {
        ::close(descriptor);
    }
    if (lane_opener_) {
        lane_opener_->close_descriptors();
    }
}

void Session::begin(std::unique_ptr<transport::Connection> connection) {
    connection_ = connection.get();
    descriptors_ = connection_->descriptors();
    peer_ = connection->peer();
    contexts.make_primaries(static_cast<int>(devices.devices.size()));
    channel_ = std::make_unique<wire::Channel>(std::move(connection), *this, channel_limits());
    transfers.start(*channel_, lanes_.get(), [this](std::size_t bytes) {
        if (lane_opener_) {
            lane_opener_->want(bytes);
        }
    });
    channel_->start();
    log::info("session {} on {} ({}), {} device(s), driver {}", id_, server_, peer_, devices.devices.size(),
              devices.driver_version);
}

void Session::note_complete(ContextState& context) {
    const std::uint64_t command = this_thread().last_command;
    std::uint64_t known = context.complete_until.load(std::memory_order_relaxed);
    while (known < command && !context.complete_until.compare_exchange_weak(known, command)) {
    }
    if (StreamPool& pool = *pools[static_cast<std::size_t>(context.device)]; pool.any_freed()) {
        pool.complete(context, command);
    }
}

void Session::note_complete(const StreamKey& stream) {
    for (const std::unique_ptr<StreamPool>& pool : pools) {
        if (pool->any_freed()) {
            pool->complete(stream, this_thread().last_command);
        }
    }
}

std::span<std::byte> Session::bulk_destination(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) {
    return transfers.place(transfer, offset, bytes);
}

void Session::on_bulk(std::uint64_t transfer, std::uint64_t, std::size_t bytes) {
    transfers.landed(transfer, bytes);
}

void Session::on_bulk_lost(std::uint64_t, std::uint64_t, std::size_t) {
    transfers.lost();
}

void Session::on_frame(wire::FrameType type, std::unique_ptr<std::byte[]> payload, std::size_t bytes) {
    if (lost()) {
        return;
    }
    if (type != wire::FrameType::replies) {
        violation("a frame of an unexpected type");
        return;
    }
    std::size_t offset = 0;
    while (offset < bytes) {
        codec::ReplyHeader header;
        std::byte* const at = payload.get() + offset;
        if (bytes - offset < sizeof header) {
            violation("an incomplete reply");
            return;
        }
        std::memcpy(&header, at, sizeof header);
        if (header.bytes < sizeof header || header.bytes > bytes - offset || header.bytes % codec::kAlignment != 0) {
            violation("a malformed reply");
            return;
        }
        const std::span<std::byte> body(at + sizeof header, header.bytes - sizeof header);
        records_received_.store(records_received_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
        if (header.kind == codec::ReplyKind::notice) {
            if (!take_notice(header, body)) {
                violation("an invalid notice");
                return;
            }
        } else if (ThreadState* thread = thread_by_index(header.thread);
                   header.kind != codec::ReplyKind::result || thread == nullptr ||
                   !thread->reply.deliver(header, body.data(), body.size())) {
            violation("an unexpected reply");
            return;
        } else {
            last_answered_.store(header.number, std::memory_order_relaxed);
        }
        offset += header.bytes;
    }
}

void Session::violation(const char* what) {
    lose({ErrorCode::invalid_input, fmt::format("the server sent {}", what)});
}

namespace {

// Reads 8 bytes of length, then the text. None if the body is too short.
std::optional<std::string_view> read_text(codec::Reader& in) {
    const auto bytes = in.value<std::uint64_t>();
    const std::byte* const text = in.take(bytes);
    if (text == nullptr) {
        return std::nullopt;
    }
    return std::string_view(reinterpret_cast<const char*>(text), bytes);
}

}  // namespace

bool Session::take_output(codec::Reader& in, std::FILE* to) {
    const auto text = read_text(in);
    if (!text) {
        return false;
    }
    const std::size_t bytes = text->size();
    const Lock lock(output_mutex_);
    if (output_bytes_ + bytes > kMaxOutputBytes) {
        log::warn("{} bytes of kernel output are dropped: the program does not synchronize", bytes);
        return true;
    }
    output_.emplace_back(to, *text);
    output_bytes_ += bytes;
    has_output_.store(true, std::memory_order_release);
    return true;
}

bool Session::take_end(codec::Reader& in) {
    constexpr std::size_t kMaxBytes = 500;
    const auto text = read_text(in);
    if (!text) {
        return false;
    }
    lose({ErrorCode::closed, "the server ended it: " + printable(*text, kMaxBytes)});
    return true;
}

void Session::print_output() {
    std::vector<std::pair<std::FILE*, std::string>> output;
    {
        const Lock lock(output_mutex_);
        output.swap(output_);
        output_bytes_ = 0;
        has_output_.store(false, std::memory_order_relaxed);
    }
    for (const auto& [to, text] : output) {
        std::fwrite(text.data(), 1, text.size(), to);
        std::fflush(to);
    }
}

namespace {

template <class Take, HasMembers Notice>
bool take_body(codec::Reader& in, const Take& take, bool (Take::*)(const Notice&) const) {
    const auto notice = in.value<Notice>();
    return in.ok() && take(notice);
}

// Reads the notice type that `take` expects and calls it. False also if the body is too short.
template <class Take>
bool take_body(codec::Reader& in, const Take& take) {
    return take_body(in, take, &Take::operator());
}

}  // namespace

bool Session::take_notice(const codec::ReplyHeader& header, std::span<std::byte> body) {
    codec::Reader in(body);
    using Type = codec::NoticeType;
    switch (static_cast<Type>(header.opcode)) {
        case Type::pull:
            return take_body(in, [&](const codec::PullNotice& pull) {
                return transfers.pull(pull.transfer, pull.offset, pull.bytes);
            });
        case Type::host_function:
            return take_body(in, [&](const codec::HostFunctionNotice& due) {
                return host_functions.due(due.ticket, error_text::from_peer(due.status));
            });
        case Type::deferred_error:
            return take_body(in, [&](const codec::DeferredErrorNotice& error) {
                take_deferred_error(error);
                return true;
            });
        case Type::output: return take_output(in, stdout);
        case Type::errors: return take_output(in, stderr);
        case Type::ended: return take_end(in);
        case Type::transfer_failed:
            return take_body(
                in, [&](const codec::TransferFailedNotice& failed) { return transfers.cancel(failed.transfer); });
        case Type::ahead_taken:
            return take_body(
                in, [&](const codec::AheadTakenNotice& taken) { return transfers.ahead_taken(taken.transfer); });
        case Type::slab_prepared:
            return take_body(in, [&](const codec::SlabPreparedNotice& slab) {
                return heaps_are_made.load(std::memory_order_acquire) &&
                       std::any_of(heaps.begin(), heaps.end(), [&](const auto& heap) {
                           return heap->prepared(slab.address, error_text::from_peer(slab.result));
                       });
            });
        case Type::throttle:
            return take_body(in, [&](const codec::StreamThrottleNotice& notice) { return take_throttle(notice); });
        case Type::graph_function:
            return take_body(in, [&](const codec::GraphFunctionNotice& call) { return take_graph_function(call); });
        case Type::graph_upload:
            return take_body(in, [&](const codec::GraphCopyNotice& copy) { return take_graph_copy(copy, true); });
        case Type::graph_download:
            return take_body(in, [&](const codec::GraphCopyNotice& copy) { return take_graph_copy(copy, false); });
        case Type::event_complete:
            return take_body(in, [&](const codec::EventCompleteNotice& ended) {
                events.note_complete(codec::from_wire<CUevent>(ended.event), ended.record,
                                     error_text::from_peer(ended.result));
                return true;
            });
        case Type::stream_complete:
            return take_body(in,
                             [&](const codec::StreamCompleteNotice& stream) { return take_stream_complete(stream); });
        case Type::trace_records: return trace::take_records(body);
        case Type::trace_name: return trace::take_name(body);
        case Type::pieces_sent:
            return take_body(in, [&](const codec::PiecesSentNotice& sent) { return take_pieces_sent(sent); });
        case Type::host_memory:
            if (!host_mirrors.apply(body)) {  // possible if the memory was just unregistered
                log::warn("the server sent changes of host memory that the GPU does not have");
            }
            return true;
    }
    return false;
}

void Session::apply(const GraphMemories::Changes& changes) {
    for (const GraphMemories::Change& change : changes) {
        memory.set_idle(change.address, !change.allocated);
    }
}

void Session::take_deferred_error(const codec::DeferredErrorNotice& notice) {
    if (notice.opcode == calls::cuGraphLaunch::kOpcode) {
        apply(graph_memories.failed(notice.number));
    }
    const CUresult result = error_text::from_peer(notice.result);
    const char* name = error_text::name(result);
    log::error("{} (command {} of the session) failed on the server: {}; the next call that waits for it reports it",
               calls::name_of(notice.opcode), notice.number, name == nullptr ? "unknown error" : name);
    if (is_sticky(result)) {
        if (ContextState* context = contexts.find(codec::from_wire<CUcontext>(notice.context))) {
            context->lost = result;
        }
    }
}

// The records that follow in the session's order announce data, some of which may still be on its way over the lanes.
bool Session::take_pieces_sent(const codec::PiecesSentNotice& notice) {
    if (lanes_ == nullptr) {
        return false;
    }
    if (!lanes_->wait_landed(notice.number)) {
        lose(lanes_->error().error());  // before any thread acts on the records that follow
        return false;
    }
    return true;
}

bool Session::take_throttle(const codec::StreamThrottleNotice& notice) {
    if (notice.stream == 0 && notice.context == 0) {
        throttled_streams.set_all(notice.throttled != 0);
        return true;
    }
    if (notice.stream == codec::kThrottledGraphChanges) {
        return throttled_streams.set(ThrottledStreams::changes_of(notice.context), notice.throttled != 0);
    }
    const std::optional<StreamKey> stream = key_of(notice.stream, notice.context, notice.thread);
    return stream && throttled_streams.set(*stream, notice.throttled != 0);
}

bool Session::take_stream_complete(const codec::StreamCompleteNotice& notice) {
    const std::optional<StreamKey> stream = key_of(notice.stream, notice.context, notice.thread);
    if (stream) {
        stream_watches.note_complete(*stream, notice.command, error_text::from_peer(notice.result) == CUDA_SUCCESS);
    }
    return stream.has_value();
}

// None: a default stream of an unknown context.
std::optional<StreamKey> Session::key_of(std::uint64_t stream, std::uint64_t context, std::uint32_t thread) {
    std::uint64_t context_id = 0;
    if (is_default_stream(stream)) {
        const ContextState* const known = contexts.find(codec::from_wire<CUcontext>(context));
        if (known == nullptr || stream == 0) {
            return std::nullopt;
        }
        context_id = known->id;
    }
    return stream_key(stream, context_id, thread);
}

bool Session::take_graph_function(const codec::GraphFunctionNotice& notice) {
    const std::optional<GraphHosts::Function> known =
        notice.function == 0 ? GraphHosts::Function{[](void*) {}, nullptr} : graph_hosts.function(notice.function);
    if (!known || (notice.ticket & codec::kTransferOfWorker) == 0) {
        log::error("the server requests a host function that no graph of this program has");
        return false;
    }
    if (!host_functions.run_when_due(notice.ticket, [known](CUresult) { known->function(known->argument); })) {
        log::error("the server requests too many host functions of graphs at once");
        return false;
    }
    return true;
}

bool Session::take_graph_copy(const codec::GraphCopyNotice& notice, bool upload) {
    const std::optional<GraphHosts::Memory> memory = graph_hosts.memory(notice.memory);
    const GraphHosts::Use use = upload ? GraphHosts::Use::read : GraphHosts::Use::write;
    PackedRows rows;
    if (!memory || memory->use != use || (notice.transfer & codec::kTransferOfWorker) == 0 ||
        !rows.describe(notice, *memory)) {
        log::error("the server requests memory that no graph of this program uses");
        return false;
    }
    if (!transfers.takes_named(notice.transfer, rows.bytes())) {
        log::error("the server requests too much memory of graphs at once");
        return false;
    }
    if (upload) {
        transfers.send_unasked(notice.transfer, rows.contiguous() ? rows.as_span() : std::span<const std::byte>{},
                               rows.contiguous() ? std::vector<std::byte>{} : rows.packed(), codec::kGraphPieceBytes);
    } else {
        transfers.begin_named_download(
            notice.transfer, rows.bytes(), rows.contiguous() ? rows.place() : nullptr,
            [rows](std::uint64_t offset, std::span<const std::byte> packed) { rows.scatter(offset, packed); });
    }
    return true;
}

// Called by the thread that waits.
void Session::on_append_waits(bool waits) {
    thread_local std::optional<trace::Wait> waiting;
    if (waits) {
        waiting.emplace();
    } else {
        waiting.reset();
    }
}

void Session::on_closed(const Error& cause) {
    lose(cause.code != ErrorCode::closed
             ? cause
             : Error{cause.code, fmt::format("{} without a reason; the server's log may have one (session {})",
                                             cause.message, id_)});
}

std::span<std::byte> Session::piece_destination(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) {
    return transfers.begin_part(transfer, offset, bytes);
}

void Session::on_piece(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) {
    transfers.end_part(transfer, offset, bytes, true);
}

void Session::on_piece_lost(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) {
    transfers.end_part(transfer, offset, bytes, false);
}

void Session::on_lanes_ended(const Error& cause) {
    lose(cause);
}

void Session::lose(const Error& cause) {
    if (!lost_.exchange(true)) {
        // The program only gets an error code; this message says to its user what happened.
        std::fprintf(stderr, "gpupool: the session with %s is lost: %s\n", server_.c_str(), cause.message.c_str());
        log::error("the session with {} is lost: {}", server_, cause.message);
    }
    if (lanes_) {
        lanes_->end(cause);
    }
    connection_->shutdown();  // no thread reads into the program's memory any more
    transfers.end();
    host_functions.end();
    lose_all_replies();
    throttled_streams.end();
}

}  // namespace gpupool::client
