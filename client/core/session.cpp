#include "client/core/session.h"

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>

#include "client/core/packed_rows.h"
#include "client/error_text.h"
#include "common/log.h"
#include "protocol/calls/internal.h"
#include "protocol/calls/table.h"
#include "protocol/schema/session.capnp.h"
#include "protocol/transport/endpoint.h"
#include "protocol/transport/tcp/connector.h"
#include "protocol/wire/handshake_io.h"

namespace gpupool::client {
namespace {

constexpr std::size_t kMaxWelcomeBytes = 4u << 20;
// How long a server that has let us in may take to start its driver, which can be long on hosts of many GPUs.
constexpr std::chrono::seconds kDriverStart{30};
constexpr std::size_t kMaxOutputBytes = 64u << 20;
constexpr std::size_t kMaxHeldStreams = 64u << 10;

// Variables that change what the driver does; the server's driver is to see the client's.
constexpr const char* kForwardedVariables[] = {"CUDA_VISIBLE_DEVICES",        "CUDA_DEVICE_ORDER",
                                               "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MODULE_LOADING",
                                               "CUDA_FORCE_PTX_JIT",          "CUDA_DISABLE_PTX_JIT"};

std::string process_name() {
    std::ifstream file("/proc/self/comm");
    std::string name;
    std::getline(file, name);
    return name;
}

void fill_hello(schema::Hello::Builder hello, const Config& config,
                const std::vector<std::pair<std::uint64_t, std::uint64_t>>& candidates) {
    hello.setProtocolVersion(schema::PROTOCOL_VERSION);
    hello.setTableFingerprint(calls::table_fingerprint());
    hello.setToken(config.token.c_str());
    auto client = hello.initClient();
    char host[256] = {};
    gethostname(host, sizeof host - 1);
    client.setVersion(GPUPOOL_VERSION);
    client.setHostname(host);
    client.setProcessName(process_name().c_str());
    client.setProcessId(static_cast<std::uint32_t>(getpid()));
    client.setUserName(std::to_string(getuid()).c_str());
    auto session = hello.initPurpose().initSession();
    session.initQuota().setMemoryBytes(config.memory_bytes.value_or(0));
    auto windows = session.initAddressWindows(static_cast<unsigned>(candidates.size()));
    for (unsigned i = 0; i < candidates.size(); ++i) {
        windows[i].setBase(candidates[i].first);
        windows[i].setBytes(candidates[i].second);
    }
    std::vector<std::pair<const char*, const char*>> variables;
    for (const char* name : kForwardedVariables) {
        if (const char* value = std::getenv(name)) {
            variables.emplace_back(name, value);
        }
    }
    auto environment = session.initEnvironment(static_cast<unsigned>(variables.size()));
    for (unsigned i = 0; i < variables.size(); ++i) {
        environment[i].setName(variables[i].first);
        environment[i].setValue(variables[i].second);
    }
}

// The message, readable as long as this lives.
struct Message {
    std::vector<capnp::word> words;
    std::unique_ptr<capnp::FlatArrayMessageReader> reader;

    explicit Message(std::span<const std::byte> payload) : words((payload.size() + 7) / 8) {
        std::memcpy(static_cast<void*>(words.data()), payload.data(), payload.size());
        reader = std::make_unique<capnp::FlatArrayMessageReader>(kj::arrayPtr(words.data(), words.size()));
    }
};

}  // namespace

Result<std::unique_ptr<Session>> Session::open(const Config& config) {
    Result<transport::Endpoint> endpoint = transport::Endpoint::parse(config.server);
    if (!endpoint) {
        return endpoint.error();
    }
    const auto deadline = transport::Clock::now() + config.connect_timeout;
    auto connection = transport::tcp::connect(*endpoint, deadline);
    if (!connection) {
        return connection.error();
    }
    std::unique_ptr<Session> session(new Session);
    session->server_ = config.server;
    const auto candidates = AddressWindow::reserve_candidates();
    (*connection)->set_receive_deadline(deadline);
    if (Status status = session->shake_hands(**connection, config, deadline, candidates); !status) {
        AddressWindow::abandon(candidates);
        return status.error();
    }
    try {
        session->begin(std::move(*connection));
    } catch (const std::exception& exception) {
        // Those of its threads that did begin use it as long as the process lives.
        (void)session.release();
        return Error{ErrorCode::limit_exceeded, std::string("cannot start its threads: ") + exception.what()};
    }
    return session;
}

std::unique_ptr<Session> Session::adopt(std::unique_ptr<transport::Connection> connection, DeviceSnapshot snapshot) {
    std::unique_ptr<Session> session(new Session);
    session->devices = std::move(snapshot);
    session->begin(std::move(connection));
    return session;
}

Status Session::shake_hands(transport::Connection& connection, const Config& config,
                            transport::Clock::time_point deadline,
                            const std::vector<std::pair<std::uint64_t, std::uint64_t>>& candidates) {
    capnp::MallocMessageBuilder hello;
    fill_hello(hello.initRoot<schema::Hello>(), config, candidates);
    const kj::Array<capnp::word> words = capnp::messageToFlatArray(hello);
    GPUPOOL_TRY(wire::write_frame(connection, wire::FrameType::hello,
                                  std::as_bytes(std::span(words.asBytes().begin(), words.asBytes().size()))));
    auto frame = wire::read_answer(connection, kMaxWelcomeBytes, deadline, kDriverStart);
    if (!frame) {
        Error error = frame.error();
        error.message = fmt::format("{} does not answer as a gpupool server does: {}", config.server, error.message);
        return error;
    }
    try {
        const Message message(frame->payload);
        if (frame->type == wire::FrameType::refused) {
            const auto refused = message.reader->getRoot<schema::Refused>();
            return Error{ErrorCode::refused,
                         std::string("the server refused the session: ") + refused.getMessage().cStr()};
        }
        if (frame->type != wire::FrameType::welcome) {
            return Error{ErrorCode::invalid_input, "the server answered with something else than a welcome"};
        }
        const auto welcome = message.reader->getRoot<schema::Welcome>();
        if (welcome.getProtocolVersion() != schema::PROTOCOL_VERSION ||
            welcome.getTableFingerprint() != calls::table_fingerprint()) {
            return Error{ErrorCode::unsupported, fmt::format("the server (gpupool {}) speaks another version than this "
                                                             "client (gpupool {}): install the same on both",
                                                             welcome.getServerVersion().cStr(), GPUPOOL_VERSION)};
        }
        id_ = welcome.getSessionId();
        for (const auto error : welcome.getErrors()) {
            error_text::learn(error.getCode(), error.getName().cStr(), error.getDescription().cStr());
        }
        devices = read_snapshot(welcome);  // may hold codes just learned
        const std::uint64_t base = welcome.getWindow().getBase(), bytes = welcome.getWindow().getBytes();
        if (!AddressWindow::is_offered(candidates, base, bytes)) {
            return Error{ErrorCode::invalid_input, "the server chose a range of addresses that it was not offered"};
        }
        window.keep(candidates, base, bytes);
    } catch (const kj::Exception& exception) {
        return Error{ErrorCode::invalid_input,
                     std::string("the server's welcome cannot be read: ") + exception.getDescription().cStr()};
    }
    return {};
}

void Session::begin(std::unique_ptr<transport::Connection> connection) {
    descriptor_ = connection->native_handle();
    contexts.make_primaries(static_cast<int>(devices.devices.size()));
    channel_ = std::make_unique<wire::Channel>(std::move(connection), *this);
    transfers.start(*channel_);
    channel_->start();
    log::info("session {} on {}, {} device(s), driver {}", id_, server_, devices.devices.size(),
              devices.driver_version);
}

void Session::wait_for_stream(CUstream stream) {
    if (held_count_.load(std::memory_order_relaxed) == 0) {
        return;
    }
    const std::uint64_t key = codec::to_wire(stream);
    std::unique_lock lock(held_mutex_);
    held_changed_.wait(lock, [&] { return lost() || !held_streams_.contains(key); });
}

std::span<std::byte> Session::bulk_destination(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) {
    return transfers.place(transfer, offset, bytes);
}

void Session::on_bulk(std::uint64_t transfer, std::uint64_t, std::size_t bytes) {
    transfers.landed(transfer, bytes);
}

void Session::on_frame(wire::FrameType type, std::unique_ptr<std::byte[]> payload, std::size_t bytes) {
    if (type != wire::FrameType::replies) {
        return;
    }
    std::size_t offset = 0;
    while (bytes - offset >= sizeof(codec::ReplyHeader)) {
        codec::ReplyHeader header;
        std::byte* const at = payload.get() + offset;
        std::memcpy(&header, at, sizeof header);
        if (header.bytes < sizeof header || header.bytes > bytes - offset || header.bytes % codec::kAlignment != 0) {
            // Whoever waits for one of the replies behind it would wait for ever: the connection ends, and with it
            // everybody's waiting.
            lose({ErrorCode::invalid_input, "the server sent a malformed reply"});
            ::shutdown(descriptor_, SHUT_RDWR);
            return;
        }
        const std::span<std::byte> body(at + sizeof header, header.bytes - sizeof header);
        if (header.kind == codec::ReplyKind::notice) {
            take_notice(header, body);
        } else if (ThreadState* thread = thread_by_index(header.thread);
                   thread == nullptr || !thread->reply.deliver(header, body.data(), body.size())) {
            log::warn("a reply to {} that nobody waits for", calls::name_of(header.opcode));
        }
        offset += header.bytes;
    }
}

void Session::take_output(codec::Reader& in, std::FILE* to) {
    const auto bytes = in.value<std::uint64_t>();
    const std::byte* const text = in.take(bytes);
    if (text == nullptr) {
        return;
    }
    const std::lock_guard lock(output_mutex_);
    if (output_bytes_ + bytes > kMaxOutputBytes) {
        log::warn("{} bytes that kernels printed are lost: nobody waits for the GPU", bytes);
        return;
    }
    output_.emplace_back(to, std::string(reinterpret_cast<const char*>(text), bytes));
    output_bytes_ += bytes;
    has_output_.store(true, std::memory_order_release);
}

void Session::print_output() {
    std::vector<std::pair<std::FILE*, std::string>> output;
    {
        const std::lock_guard lock(output_mutex_);
        output.swap(output_);
        output_bytes_ = 0;
        has_output_.store(false, std::memory_order_relaxed);
    }
    for (const auto& [to, text] : output) {
        std::fwrite(text.data(), 1, text.size(), to);
        std::fflush(to);
    }
}

void Session::take_notice(const codec::ReplyHeader& header, std::span<std::byte> body) {
    codec::Reader in(body);
    switch (static_cast<codec::NoticeType>(header.opcode)) {
        case codec::NoticeType::pull: {
            const auto pull = in.value<codec::PullNotice>();
            transfers.pull(pull.transfer, pull.offset, pull.bytes);
            return;
        }
        case codec::NoticeType::host_function: {
            const auto notice = in.value<codec::HostFunctionNotice>();
            host_functions.due(notice.ticket, error_text::from_peer(notice.status));
            return;
        }
        case codec::NoticeType::deferred_error: take_deferred_error(in.value<codec::DeferredErrorNotice>()); return;
        case codec::NoticeType::output: take_output(in, stdout); return;
        case codec::NoticeType::errors: take_output(in, stderr); return;
        case codec::NoticeType::transfer_failed:
            transfers.cancel(in.value<codec::TransferFailedNotice>().transfer);
            return;
        case codec::NoticeType::hold: take_hold(in.value<codec::StreamHoldNotice>()); return;
        case codec::NoticeType::graph_function: take_graph_function(in.value<codec::GraphFunctionNotice>()); return;
        case codec::NoticeType::graph_upload: take_graph_copy(in.value<codec::GraphCopyNotice>(), true); return;
        case codec::NoticeType::graph_download: take_graph_copy(in.value<codec::GraphCopyNotice>(), false); return;
        case codec::NoticeType::host_memory:
            if (!host_mirrors.apply(body)) {
                log::warn("the server sent changes of host memory that the GPU does not have");
            }
            return;
    }
}

void Session::take_deferred_error(const codec::DeferredErrorNotice& notice) {
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

void Session::take_hold(const codec::StreamHoldNotice& notice) {
    {
        const std::lock_guard lock(held_mutex_);
        if (notice.held != 0) {
            if (held_streams_.size() < kMaxHeldStreams) {  // a server can name streams that are none
                held_streams_.insert(notice.stream);
            }
        } else {
            held_streams_.erase(notice.stream);
        }
        held_count_ = held_streams_.size();
    }
    held_changed_.notify_all();
}

void Session::take_graph_function(const codec::GraphFunctionNotice& notice) {
    const std::optional<GraphHosts::Function> known = graph_hosts.function(notice.function);
    if (!known || (notice.ticket & codec::kTransferOfWorker) == 0) {
        log::error("the server asks for a function that no graph of this program has");
        return;
    }
    if (!host_functions.run_when_due(notice.ticket, [known](CUresult) { known->function(known->argument); })) {
        log::error("the server asks for more functions of graphs at once than it may");
    }
}

void Session::take_graph_copy(const codec::GraphCopyNotice& notice, bool upload) {
    const std::optional<GraphHosts::Memory> memory = graph_hosts.memory(notice.memory);
    const GraphHosts::Use use = upload ? GraphHosts::Use::read : GraphHosts::Use::write;
    PackedRows rows;
    if (!memory || memory->use != use || (notice.transfer & codec::kTransferOfWorker) == 0 ||
        !rows.describe(notice, *memory)) {
        log::error("the server asks for memory that no graph of this program has");
        return;
    }
    if (!transfers.takes_named(notice.transfer, rows.bytes())) {
        log::error("the server asks for more memory of graphs at once than it may");
        return;
    }
    if (upload) {
        transfers.send_unasked(notice.transfer, rows.contiguous() ? rows.as_span() : std::span<const std::byte>{},
                               rows.contiguous() ? std::vector<std::byte>{} : rows.packed(), codec::kGraphPieceBytes);
    } else {
        transfers.begin_named_download(notice.transfer, rows.bytes(), rows.contiguous() ? rows.place() : nullptr,
                                       [rows](std::span<const std::byte> data) { rows.scatter(data); });
    }
}

void Session::on_closed(const Error& cause) {
    lose(cause);
}

void Session::lose(const Error& cause) {
    if (!lost_.exchange(true)) {
        // The program only gets an error number: its user should learn what happened.
        std::fprintf(stderr, "gpupool: the session with %s is lost: %s\n", server_.c_str(), cause.message.c_str());
        log::error("the session with {} is lost: {}", server_, cause.message);
    }
    transfers.end();
    host_functions.end();
    lose_all_replies();
    { const std::lock_guard lock(held_mutex_); }
    held_changed_.notify_all();
}

}  // namespace gpupool::client
