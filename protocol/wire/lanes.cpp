#include "protocol/wire/lanes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <new>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "common/compression.h"
#include "common/counting_condition.h"
#include "common/mutex.h"
#include "common/quiet_thread.h"
#include "protocol/wire/frame.h"
#include "protocol/wire/landed.h"
#include "protocol/wire/piece_packer.h"

namespace gpupool::wire {
namespace {

using transport::Connection;
// A frame's header, and the header at the beginning of its payload.
using Head = std::array<std::byte, kHeaderBytes + sizeof(PackedHeader)>;

struct Piece {
    std::uint64_t number = 0;
    BulkHeader bulk;
    std::span<const std::byte> data;
    std::function<void()> done;
};

constexpr std::size_t prefix_bytes(FrameType type) {
    return type == FrameType::packed ? sizeof(PackedHeader) : sizeof(BulkHeader);
}

// Writes the headers before the piece's data, or before `packed` unless that is empty.
std::span<const std::byte> write_head(const Piece& piece, std::span<const std::byte> packed, Head& head) {
    FrameHeader header;
    header.type = packed.empty() ? FrameType::bulk : FrameType::packed;
    const PackedHeader whole{piece.bulk, piece.data.size()};
    const auto prefix = std::span(head).subspan(kHeaderBytes, prefix_bytes(header.type));
    std::memcpy(prefix.data(), &whole, prefix.size());
    header.payload_bytes =
        static_cast<std::uint32_t>(prefix.size() + (packed.empty() ? piece.data.size() : packed.size()));
    header.sequence = piece.number;
    header.payload_crc = payload_crc(header.type, prefix);
    encode(header, std::span(head).first<kHeaderBytes>());
    return std::span(head).first(kHeaderBytes + prefix.size());
}

Error lane_violation(std::string message) {
    return {ErrorCode::invalid_input, std::move(message)};
}

Result<FrameHeader> read_header(std::span<const std::byte, kHeaderBytes> bytes) {
    auto header = decode(bytes);
    if (!header) {
        return header.error();
    }
    const bool is_piece = header->type == FrameType::bulk || header->type == FrameType::packed;
    if (!is_piece || header->acknowledged != 0) {
        return lane_violation(fmt::format(
            "received a frame of type {} on a lane (a connection for bulk data), which carries only bulk data",
            static_cast<unsigned>(header->type)));
    }
    if (header->payload_bytes <= prefix_bytes(header->type) ||
        header->payload_bytes > prefix_bytes(header->type) + Lanes::kMaxPieceBytes) {
        return lane_violation(fmt::format("received a piece's frame of {} bytes", header->payload_bytes));
    }
    return *header;
}

// The buffers of a lane's receiver for packed pieces.
struct Unpacking {
    Decompressor decompressor;
    std::vector<std::byte> packed, data;

    // Decompresses `packed` to `bytes`. Not directly into the destination: the decompressor reads its earlier output
    // again, and the application might overwrite that there.
    bool unpack(std::size_t bytes) {
        data.resize(bytes);
        return decompressor.decompress(packed, data);
    }
};

}  // namespace

// `mutex` guards every member that is neither const nor atomic; it is not held across a call of a connection, of the
// receiver or of a `done`. A lane's connection exists as long as this State.
struct Lanes::State {
    struct Lane {
        std::size_t index = 0;
        std::unique_ptr<Connection> connection;
        std::thread sender, receiver;
    };

    State(LaneReceiver& to, const Limits& given)
        : receiver(to),
          most_lanes(std::min(given.lanes, kMaxLanes)),
          most_queued_bytes(given.queued_bytes),
          compression(given.compression) {}

    void run_sender(Lane& lane);
    void run_receiver(Lane& lane);
    Status receive_piece(const Lane& lane, Unpacking& unpacking);
    Status receive_data(Connection& from, const FrameHeader& header, const PackedHeader& piece, Unpacking& unpacking);
    Status note_landed(std::uint64_t number);
    [[nodiscard]] Status admits(std::size_t index) const GP_REQUIRES(mutex);
    bool finish(Error cause);
    void fail(const Lane& lane, const Error& cause);

    LaneReceiver& receiver;
    const std::size_t most_lanes;
    const std::size_t most_queued_bytes;
    const CompressionMode compression;
    std::atomic<TrafficObserver*> observer{nullptr};

    mutable Mutex mutex;
    std::vector<std::unique_ptr<Lane>> lanes GP_GUARDED_BY(mutex);
    std::optional<Error> error GP_GUARDED_BY(mutex);  // set: the lanes have ended
    std::deque<Piece> queue GP_GUARDED_BY(mutex);
    std::size_t queued_bytes GP_GUARDED_BY(mutex) = 0;  // including those being sent
    Landed landed GP_GUARDED_BY(mutex);
    Condition work;             // a piece was queued
    CountingCondition room;     // queued_bytes shrank
    CountingCondition arrived;  // landed grew
    std::atomic<std::size_t> count{0};
    std::atomic<std::uint64_t> last_number{0};  // written with the mutex held
};

Status Lanes::State::admits(std::size_t index) const {
    if (error) {
        return *error;
    }
    if (index >= most_lanes) {
        return Error{ErrorCode::limit_exceeded, fmt::format("lane {} exceeds the limit of {}", index, most_lanes)};
    }
    if (std::any_of(lanes.begin(), lanes.end(), [&](const auto& lane) { return lane->index == index; })) {
        return Error{ErrorCode::invalid_input, fmt::format("lane {} exists already", index)};
    }
    return {};
}

// False if the lanes had ended before.
bool Lanes::State::finish(Error cause) {
    std::deque<Piece> unsent;
    {
        const Lock lock(mutex);
        if (error) {
            return false;
        }
        error = std::move(cause);
        count.store(0, std::memory_order_relaxed);
        unsent.swap(queue);
        for (const auto& lane : lanes) {
            lane->connection->shutdown();
        }
        work.notify_all();
        room.notify_all();
        arrived.notify_all();
    }
    for (const Piece& piece : unsent) {
        piece.done();
    }
    return true;
}

void Lanes::State::fail(const Lane& lane, const Error& cause) {
    const Error whole = cause.within(fmt::format("lane {} (a connection for bulk data)", lane.index));
    if (finish(whole)) {
        receiver.on_lanes_ended(whole);
    }
}

void Lanes::State::run_sender(Lane& lane) {
    PiecePacker packer(*lane.connection, compression);
    UniqueLock lock(mutex);
    for (;;) {
        work.wait(lock, [&]() GP_REQUIRES(mutex) { return error || !queue.empty(); });
        if (error) {
            return;
        }
        const Piece piece = std::move(queue.front());
        queue.pop_front();
        lock.unlock();
        const auto packed = packer.pack(piece.bulk.transfer, piece.data);
        Head memory;
        const auto head = write_head(piece, packed, memory);
        const transport::ConstBuffer buffers[] = {head, packed.empty() ? piece.data : packed};
        const std::size_t bytes = buffers[0].size() + buffers[1].size();
        TrafficObserver* const watched = observer.load(std::memory_order_acquire);
        const auto begin = watched == nullptr ? TrafficObserver::Moment() : std::chrono::steady_clock::now();
        const Status sent = lane.connection->send(buffers);
        packer.sent(bytes);
        if (watched != nullptr && sent) {
            watched->sent(lane.index + 1, 1, bytes, begin, std::chrono::steady_clock::now());
        }
        piece.done();
        if (!sent) {
            fail(lane, sent.error());
            return;
        }
        lock.lock();
        queued_bytes -= piece.data.size();
        if (room.has_waiters()) {
            lock.unlock();
            room.notify_all();
            lock.lock();
        }
    }
}

void Lanes::State::run_receiver(Lane& lane) {
    Unpacking unpacking;
    Status status;
    try {
        while (status) {
            status = receive_piece(lane, unpacking);
        }
    } catch (const std::bad_alloc&) {
        status = Error{ErrorCode::limit_exceeded, "out of memory for compressed data"};
    }
    fail(lane, status.error());
}

Status Lanes::State::receive_piece(const Lane& lane, Unpacking& unpacking) {
    Connection& from = *lane.connection;
    Head head;
    GPUPOOL_TRY(transport::receive_exactly(from, std::span(head).first<kHeaderBytes>()));
    const auto header = read_header(std::span(head).first<kHeaderBytes>());
    if (!header) {
        return header.error();
    }
    TrafficObserver* const watched = observer.load(std::memory_order_acquire);
    const auto begin = watched == nullptr ? TrafficObserver::Moment() : std::chrono::steady_clock::now();
    const auto prefix = std::span(head).subspan(kHeaderBytes, prefix_bytes(header->type));
    GPUPOOL_TRY(transport::receive_exactly(from, prefix));
    if (payload_crc(header->type, prefix) != header->payload_crc) {
        return lane_violation("a piece's header arrived damaged: its CRC does not match");
    }
    PackedHeader piece{{}, header->payload_bytes - sizeof(BulkHeader)};
    std::memcpy(&piece, prefix.data(), prefix.size());
    GPUPOOL_TRY(receive_data(from, *header, piece, unpacking));
    if (watched != nullptr) {
        watched->received(lane.index + 1, FrameType::bulk, kHeaderBytes + header->payload_bytes, begin,
                          std::chrono::steady_clock::now());
    }
    receiver.on_piece(piece.bulk.transfer, piece.bulk.offset, piece.bytes);
    return note_landed(header->sequence);
}

// Receives the data: directly into its destination, or, if packed, into a buffer first.
Status Lanes::State::receive_data(Connection& from, const FrameHeader& header, const PackedHeader& piece,
                                  Unpacking& unpacking) {
    const auto& [bulk, bytes] = piece;
    const bool packed = header.type == FrameType::packed;
    if (packed) {
        if (bytes == 0 || bytes > kMaxPieceBytes) {
            return lane_violation(fmt::format("received a packed piece of {} bytes", bytes));
        }
        unpacking.packed.resize(header.payload_bytes - sizeof(PackedHeader));
        GPUPOOL_TRY(transport::receive_exactly(from, unpacking.packed));
        if (!unpacking.unpack(bytes)) {
            return lane_violation(
                fmt::format("a packed piece does not decompress to the {} bytes that its header states", bytes));
        }
    }
    const auto place = receiver.piece_destination(bulk.transfer, bulk.offset, bytes);
    if (place.size() < bytes) {
        return lane_violation(fmt::format("unexpected piece of data: transfer {}, offset {}, {} bytes", bulk.transfer,
                                          bulk.offset, bytes));
    }
    Status read;
    if (!packed) {
        read = transport::receive_exactly(from, place.first(bytes));
    } else {
        std::memcpy(place.data(), unpacking.data.data(), bytes);
    }
    if (!read) {
        receiver.on_piece_lost(bulk.transfer, bulk.offset, bytes);
    }
    return read;
}

Status Lanes::State::note_landed(std::uint64_t number) {
    bool awaited = false;
    {
        const Lock lock(mutex);
        if (!landed.add(number)) {
            return lane_violation(fmt::format("received piece {} twice, or far out of order", number));
        }
        awaited = arrived.has_waiters();
    }
    if (awaited) {
        arrived.notify_all();
    }
    return {};
}

Lanes::Lanes(LaneReceiver& receiver, const Limits& limits) : state_(std::make_unique<State>(receiver, limits)) {}

Lanes::~Lanes() {
    close();
}

Status Lanes::admits(std::size_t index) const {
    const Lock lock(state_->mutex);
    return state_->admits(index);
}

Status Lanes::add(std::size_t index, std::unique_ptr<Connection> connection) {
    State& state = *state_;
    const Lock lock(state.mutex);
    GPUPOOL_TRY(state.admits(index));
    auto lane = std::make_unique<State::Lane>();
    lane->index = index;
    lane->connection = std::move(connection);
    State::Lane& added = *state.lanes.emplace_back(std::move(lane));
    try {
        added.receiver = quiet_thread("gpupool-receive", [&state, &added] { state.run_receiver(added); });
    } catch (const std::system_error& cause) {
        state.lanes.pop_back();
        return Error{ErrorCode::limit_exceeded, fmt::format("cannot start a thread for a lane: {}", cause.what())};
    }
    try {
        added.sender = quiet_thread("gpupool-send", [&state, &added] { state.run_sender(added); });
        state.count.fetch_add(1, std::memory_order_relaxed);
    } catch (const std::system_error&) {
        // The lane then only receives. The other side may be sending on it already, so it must not be closed.
    }
    return {};
}

void Lanes::observe(TrafficObserver* observer) noexcept {
    state_->observer.store(observer, std::memory_order_release);
}

std::size_t Lanes::count() const noexcept {
    return state_->count.load(std::memory_order_relaxed);
}

Status Lanes::send(std::uint64_t transfer, std::uint64_t offset, std::span<const std::byte> data,
                   std::function<void()> done) {
    State& state = *state_;
    UniqueLock lock(state.mutex);
    const std::size_t most = std::max(state.most_queued_bytes, data.size());
    state.room.wait(lock,
                    [&]() GP_REQUIRES(state.mutex) { return state.error || state.queued_bytes <= most - data.size(); });
    if (state.error) {
        const Error cause = *state.error;
        lock.unlock();
        done();
        return cause;
    }
    state.queued_bytes += data.size();
    const std::uint64_t number = state.last_number.load(std::memory_order_relaxed) + 1;
    state.last_number.store(number, std::memory_order_relaxed);
    state.queue.push_back({number, {transfer, offset}, data, std::move(done)});
    lock.unlock();
    state.work.notify_one();
    return {};
}

std::uint64_t Lanes::sent_up_to() const noexcept {
    return state_->last_number.load(std::memory_order_relaxed);
}

bool Lanes::wait_landed(std::uint64_t number) {
    State& state = *state_;
    UniqueLock lock(state.mutex);
    state.arrived.wait(lock, [&]() GP_REQUIRES(state.mutex) { return state.error || state.landed.up_to() >= number; });
    return state.landed.up_to() >= number;
}

void Lanes::end(const Error& cause) {
    (void)state_->finish(cause);
}

// Does not take the mutex, which a lane's thread may have to take before it ends: no lane is added any more, and none
// is removed before this object is destroyed.
void Lanes::close() GP_NO_THREAD_SAFETY_ANALYSIS {
    end({ErrorCode::closed, "the lanes were closed"});
    for (const auto& lane : state_->lanes) {
        if (lane->sender.joinable()) {
            lane->sender.join();
        }
        if (lane->receiver.joinable()) {
            lane->receiver.join();
        }
    }
}

Status Lanes::error() const {
    const Lock lock(state_->mutex);
    if (state_->error) {
        return *state_->error;
    }
    return {};
}

}  // namespace gpupool::wire
