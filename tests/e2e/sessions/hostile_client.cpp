#include "tests/e2e/sessions/hostile_client.h"

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "protocol/calls/table.h"
#include "protocol/schema/session.capnp.h"
#include "protocol/transport/endpoint.h"
#include "protocol/transport/tcp/connector.h"

namespace gpupool::test {
namespace {

constexpr std::size_t kFullFrame = 1u << 20;

std::unique_ptr<transport::Connection> connect_by_tcp(const Daemon& daemon) {
    const auto endpoint = transport::Endpoint::parse(daemon.address());
    auto connection = transport::tcp::connect(*endpoint, transport::Clock::now() + std::chrono::seconds(10));
    if (!connection) {
        throw std::runtime_error(connection.error().message);
    }
    return std::move(*connection);
}

capnp::Data::Reader data_of(const std::vector<codec::Known>& list) {
    const auto bytes = codec::known_bytes(list);
    return {reinterpret_cast<const kj::byte*>(bytes.data()), bytes.size()};
}
std::span<const std::byte> bytes_of(capnp::Data::Reader data) {
    return std::as_bytes(std::span(data.begin(), data.size()));
}

}  // namespace

HostileClient::HostileClient(const Daemon& daemon, const std::string& name, const codec::Knowledge& known)
    : HostileClient(daemon, name, connect_by_tcp(daemon), known) {}

HostileClient::HostileClient(const Daemon& daemon, const std::string& name,
                             std::unique_ptr<transport::Connection> connection, const codec::Knowledge& known)
    : connection_(std::move(connection)) {
    static int serial = 0;
    const std::string own_name = fmt::format("{}-{}", name, ++serial);
    greet(own_name, known);
    const bool listed = eventually([&] {
        const auto status = daemon.status();
        if (!status) {
            return false;
        }
        const auto it = std::find_if(status->sessions.begin(), status->sessions.end(),
                                     [&](const auto& session) { return session.process_name == own_name; });
        if (it != status->sessions.end()) {
            session_ = *it;
        }
        return it != status->sessions.end();
    });
    EXPECT_TRUE(listed);
}

HostileClient::~HostileClient() = default;

void HostileClient::greet(const std::string& name, const codec::Knowledge& known) {
    capnp::MallocMessageBuilder message;
    auto hello = message.initRoot<schema::Hello>();
    hello.setProtocolVersion(schema::PROTOCOL_VERSION);
    hello.initClient().setProcessName(name.c_str());
    auto session = hello.initPurpose().initSession();
    session.setCalls(data_of(known.calls));
    session.setNotices(data_of(known.notices));
    auto windows = session.initAddressWindows(1);
    windows[0].setBase(kWindowBase);
    windows[0].setBytes(kWindowBytes);
    const auto words = capnp::messageToFlatArray(message);
    const auto bytes = words.asBytes();
    const auto sent =
        wire::write_frame(*connection_, wire::FrameType::hello, std::as_bytes(std::span(bytes.begin(), bytes.size())));
    const auto welcome = wire::read_answer(*connection_, wire::kMaxPayloadBytes,
                                           transport::Clock::now() + milliseconds(30000), milliseconds(30000));
    if (!sent || !welcome || welcome->type != wire::FrameType::welcome) {
        throw std::runtime_error("no welcome");
    }
    auto copy = kj::heapArray<capnp::word>(welcome->payload.size() / sizeof(capnp::word));
    std::memcpy(copy.begin(), welcome->payload.data(), welcome->payload.size());
    capnp::FlatArrayMessageReader reader(copy);
    const auto given = reader.getRoot<schema::Welcome>();
    session_id_ = given.getSessionId().cStr();
    server_knows_ = *codec::read_knowledge(bytes_of(given.getCalls()), bytes_of(given.getNotices()));
    const auto token = std::as_bytes(std::span(given.getSessionToken().begin(), given.getSessionToken().size()));
    session_token_.assign(token.begin(), token.end());
}

bool HostileClient::send_bytes(std::span<const std::byte> bytes, milliseconds timeout) {
    if (connection_->can_give()) {  // the socket of a shared memory connection carries no data
        const transport::ConstBuffer buffers[] = {bytes};
        connection_->set_send_timeout(timeout);
        return connection_->send(buffers).ok();
    }
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    while (!bytes.empty()) {
        const ssize_t count =
            ::send(connection_->native_handle(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (count > 0) {
            bytes = bytes.subspan(static_cast<std::size_t>(count));
            continue;
        }
        const auto left = std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
        if (errno != EAGAIN || left.count() <= 0) {
            return false;
        }
        pollfd wanted{connection_->native_handle(), POLLOUT, 0};
        ::poll(&wanted, 1, static_cast<int>(left.count()));
    }
    return true;
}

wire::FrameHeader HostileClient::next_header(wire::FrameType type, std::span<const std::byte> payload) {
    wire::FrameHeader header;
    header.payload_bytes = static_cast<std::uint32_t>(payload.size());
    header.sequence = ++sent_;
    header.acknowledged = acknowledging_ ? received_ : 0;
    header.type = type;
    header.payload_crc = wire::payload_crc(type, payload);
    return header;
}

bool HostileClient::send_header(const wire::FrameHeader& header, std::span<const std::byte> payload) {
    std::array<std::byte, wire::kHeaderBytes> bytes;
    wire::encode(header, bytes);
    return send_bytes(bytes) && send_bytes(payload);
}

bool HostileClient::send_frame(wire::FrameType type, std::span<const std::byte> payload, milliseconds timeout) {
    std::vector<std::byte> whole(wire::kHeaderBytes + payload.size());
    wire::encode(next_header(type, payload), std::span(whole).first<wire::kHeaderBytes>());
    std::copy(payload.begin(), payload.end(), whole.begin() + wire::kHeaderBytes);
    return send_bytes(whole, timeout);
}

bool HostileClient::send_bulk(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) {
    std::vector<std::byte> payload(sizeof(wire::BulkHeader) + bytes, std::byte{0x5a});
    const wire::BulkHeader header{transfer, offset};
    std::memcpy(payload.data(), &header, sizeof header);
    return send_frame(wire::FrameType::bulk, payload);
}

std::uint64_t HostileClient::add_record(std::uint16_t opcode, std::span<const std::byte> body) {
    codec::CommandHeader header{};
    header.bytes = static_cast<std::uint32_t>(sizeof header + body.size());
    header.opcode = opcode;
    header.flags = flags;
    header.number = next_number.value_or(++commands_);
    next_number.reset();
    header.context = context;
    header.thread = thread;
    const auto* at = reinterpret_cast<const std::byte*>(&header);
    pending_.insert(pending_.end(), at, at + sizeof header);
    pending_.insert(pending_.end(), body.begin(), body.end());
    if (pending_.size() >= kFullFrame) {
        flush();
    }
    return header.number;
}

bool HostileClient::flush(milliseconds timeout) {
    if (pending_.empty()) {
        return !over_;
    }
    const std::vector<std::byte> payload = std::move(pending_);
    pending_.clear();
    const bool sent = !over_ && send_frame(wire::FrameType::commands, payload, timeout);
    over_ = over_ || !sent;
    return sent;
}

std::optional<Answer> HostileClient::answer_to(std::uint64_t number, milliseconds timeout) {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    while (!answers_.contains(number)) {
        const auto left = std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
        if (left.count() <= 0 || !read_frame(left)) {
            return std::nullopt;
        }
    }
    auto node = answers_.extract(number);
    return std::move(node.mapped());
}

std::optional<int> HostileClient::result_of(std::uint64_t number, milliseconds timeout) {
    const auto answer = answer_to(number, timeout);
    return answer ? std::optional(answer->header.result) : std::nullopt;
}

bool HostileClient::alive() {
    std::size_t free_bytes = 0, total_bytes = 0;
    const auto kept = flags;
    flags = codec::kReplyWanted;
    const auto result = call<calls::cuMemGetInfo_v2>(&free_bytes, &total_bytes);
    flags = kept;
    return result.has_value();
}

CUcontext HostileClient::make_context() {
    auto handle = mint<CUcontext>();
    EXPECT_EQ(call<calls::cuDevicePrimaryCtxRetain>(&handle, 0), CUDA_SUCCESS);
    context = codec::to_wire(handle);
    return handle;
}

CUcontext HostileClient::make_another_context() {
    auto handle = mint<CUcontext>();
    const auto made =
        call<calls::gpContextCreate>(&handle, 0u, 0, static_cast<const CUexecAffinityParam*>(nullptr), 0u);
    return made == CUDA_SUCCESS ? handle : nullptr;
}

CUstream HostileClient::make_stream() {
    auto handle = mint<CUstream>();
    EXPECT_EQ(call<calls::cuStreamCreate>(&handle, static_cast<unsigned>(CU_STREAM_NON_BLOCKING)), CUDA_SUCCESS);
    return handle;
}

CUevent HostileClient::make_event() {
    auto handle = mint<CUevent>();
    EXPECT_EQ(call<calls::cuEventCreate>(&handle, 0u), CUDA_SUCCESS);
    return handle;
}

CUdeviceptr HostileClient::make_slab(std::uint64_t bytes) {
    const std::uint64_t address = next_address_;
    next_address_ += bytes;
    EXPECT_EQ(call<calls::gpSlabCreate>(0, address, bytes), CUDA_SUCCESS);
    return address;
}

bool HostileClient::read_frame(milliseconds timeout) {
    if (over_) {
        return false;
    }
    connection_->set_receive_deadline(transport::Clock::now() + timeout);
    std::array<std::byte, wire::kHeaderBytes> bytes;
    // A timeout inside a frame would lose the position in the stream. Frames arrive whole, so a timeout between two is
    // safe.
    auto received = transport::receive_exactly(*connection_, bytes);
    if (!received) {
        over_ = over_ || received.error().code != ErrorCode::timed_out;
        return false;
    }
    const auto header = wire::decode(bytes);
    if (!header) {
        throw std::runtime_error(header.error().message);
    }
    std::vector<std::byte> payload(header->payload_bytes);
    connection_->set_receive_deadline(transport::Clock::now() + std::chrono::seconds(20));
    if (!payload.empty() && !transport::receive_exactly(*connection_, payload)) {
        over_ = true;
        return false;
    }
    if (header->type != wire::FrameType::ack) {
        received_ = header->sequence;
    }
    if (header->type == wire::FrameType::replies) {
        take_replies(payload);
    } else if (header->type == wire::FrameType::bulk) {
        bulk_bytes_ += payload.size() - sizeof(wire::BulkHeader);
    }
    return true;
}

void HostileClient::take_replies(std::span<const std::byte> payload) {
    for (std::size_t offset = 0; offset + sizeof(codec::ReplyHeader) <= payload.size();) {
        Answer answer;
        std::memcpy(&answer.header, payload.data() + offset, sizeof answer.header);
        const auto body = payload.subspan(offset + sizeof answer.header, answer.header.bytes - sizeof answer.header);
        answer.body.assign(body.begin(), body.end());
        offset += answer.header.bytes;
        const auto as = [&]<class Notice>(Notice notice) {
            std::memcpy(&notice, answer.body.data(), sizeof notice);
            return notice;
        };
        if (answer.header.kind == codec::ReplyKind::notice) {
            ++notices_[answer.header.opcode];
        }
        if (answer.header.kind == codec::ReplyKind::result) {
            answers_[answer.header.number] = std::move(answer);
        } else if (answer.header.opcode == static_cast<std::uint16_t>(codec::NoticeType::pull)) {
            pulls_.push_back(as(codec::PullNotice{}));
        } else if (answer.header.opcode == static_cast<std::uint16_t>(codec::NoticeType::ahead_taken)) {
            ahead_taken_.push_back(as(codec::AheadTakenNotice{}).transfer);
        } else if (answer.header.opcode == static_cast<std::uint16_t>(codec::NoticeType::slab_prepared)) {
            prepared_.push_back(as(codec::SlabPreparedNotice{}));
        } else if (answer.header.opcode == static_cast<std::uint16_t>(codec::NoticeType::deferred_error)) {
            deferred_errors_.push_back(as(codec::DeferredErrorNotice{}));
        } else if (answer.header.opcode == static_cast<std::uint16_t>(codec::NoticeType::event_complete)) {
            ended_events_.push_back(as(codec::EventCompleteNotice{}));
        } else if (answer.header.opcode == static_cast<std::uint16_t>(codec::NoticeType::stream_complete)) {
            ended_streams_.push_back(as(codec::StreamCompleteNotice{}));
        }
    }
}

bool HostileClient::ended(milliseconds timeout) {
    read_for(timeout);
    return over_;
}

void HostileClient::read_for(milliseconds timeout) {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    while (!over_ && std::chrono::steady_clock::now() < deadline) {
        read_frame(std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now()));
    }
}

bool HostileClient::wait_for_pull(std::uint64_t transfer, codec::PullNotice& pull) {
    const auto deadline = std::chrono::steady_clock::now() + milliseconds(20000);
    while (true) {
        const auto it = std::find_if(pulls_.begin(), pulls_.end(),
                                     [&](const codec::PullNotice& notice) { return notice.transfer == transfer; });
        if (it != pulls_.end()) {
            pull = *it;
            pulls_.erase(it);
            return true;
        }
        const auto left = std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
        if (left.count() <= 0 || !read_frame(left)) {
            return false;
        }
    }
}

std::uint64_t HostileClient::worker_resident_bytes() const {
    std::ifstream file(fmt::format("/proc/{}/statm", session_.worker_process_id));
    std::uint64_t size_pages = 0, resident_pages = 0;
    file >> size_pages >> resident_pages;
    return resident_pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

std::uint64_t HostileClient::stable_resident_bytes() const {
    std::uint64_t bytes = worker_resident_bytes();
    EXPECT_TRUE(eventually([&] {
        const auto before = bytes;
        std::this_thread::sleep_for(milliseconds(200));  // two samples: the kernel reports no event when memory grows
        bytes = worker_resident_bytes();
        return bytes < before + (2u << 20);
    })) << "the worker's memory grows without end";
    return bytes;
}

bool HostileClient::worker_waits() const {
    const auto worker = static_cast<pid_t>(session_.worker_process_id);
    return eventually([&] {
        std::vector<pid_t> receiving = threads_named("gpupool-read", worker);
        const auto lanes = threads_named("gpupool-receive", worker);
        receiving.insert(receiving.end(), lanes.begin(), lanes.end());
        return !receiving.empty() && are_blocked(worker, receiving, milliseconds(20));
    });
}

void HostileClient::leave() {
    connection_.reset();
    over_ = true;
}

}  // namespace gpupool::test
