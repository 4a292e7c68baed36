// The receiving half: the reader's thread, and who looks instead of it.
#include <fmt/format.h>

#include <cstring>
#include <new>

#include "protocol/wire/channel_state.h"
#include "protocol/wire/frame_reader.h"

namespace gpupool::wire {
namespace {

// How long the end waits for the acknowledgement of the peer's goodbye to leave.
constexpr std::chrono::milliseconds kFarewellTimeout{200};
// Frames that who looks takes at once, before it does something with them.
constexpr std::size_t kMaxLookedFor = 8;
constexpr unsigned kLooksForTheRest = 500;  // some tens of microseconds

Stop violation(std::string message) {
    return {{ErrorCode::invalid_input, std::move(message)}, false};
}

Stop damaged(std::uint64_t sequence) {
    return {
        {ErrorCode::invalid_input, fmt::format("frame {} arrived damaged: its payload's CRC does not match", sequence)},
        true};
}

Stop lost(const Error& cause) {
    return {cause, true};
}

// Tells of a frame from its header until its payload was taken.
class Observed {
  public:
    Observed(TrafficObserver* observer, const FrameHeader& header) : observer_(observer), header_(header) {
        if (observer_ != nullptr) begin_ = std::chrono::steady_clock::now();
    }
    ~Observed() {
        if (observer_ == nullptr) return;
        observer_->received(0, header_.type, kHeaderBytes + header_.payload_bytes, begin_,
                            std::chrono::steady_clock::now());
    }
    Observed(const Observed&) = delete;
    Observed& operator=(const Observed&) = delete;

  private:
    TrafficObserver* const observer_;
    const FrameHeader& header_;
    TrafficObserver::Moment begin_{};
};

std::optional<Stop> check_kind(const FrameHeader& header) {
    switch (header.type) {
        case FrameType::ack:
            if (header.sequence == 0 && header.payload_bytes == 0) return std::nullopt;
            return violation("an acknowledgement came with a sequence or a payload");
        case FrameType::hello:
        case FrameType::welcome:
        case FrameType::refused:
            return violation(fmt::format("a handshake frame (type {}) came in a running session",
                                         static_cast<unsigned>(header.type)));
        case FrameType::goodbye:
            if (header.payload_bytes != 0) return violation("a goodbye came with a payload");
            break;
        case FrameType::bulk:
            if (header.payload_bytes <= sizeof(BulkHeader)) return violation("a bulk frame came without data");
            break;
        case FrameType::packed: return violation("a packed frame came over a session's own connection");
        case FrameType::commands:
        case FrameType::replies:
        case FrameType::control: break;
    }
    if (header.sequence == 0) return violation("a session's frame came without a sequence number");
    return std::nullopt;
}

}  // namespace

thread_local const Channel::State* Channel::State::reading_here = nullptr;

void Channel::State::run_reader() {
    UniqueLock lock(mutex);
    reading_here = this;
    for (;;) {
        // A connection that broke before it was read from is taken up all the same, so that each is reported once.
        reader_wake.wait(lock,
                         [&]() GP_REQUIRES(mutex) { return phase == Phase::ended || generation != reader_generation; });
        if (generation == reader_generation) break;
        reader_generation = generation;
        const auto from = connection;
        reading = Reading::reading;
        lock.unlock();
        Stop stop = read_frames(*from);
        lock.lock();
        fail(lock, std::move(stop.cause), stop.resumable);
        reading = Reading::reporting;
        const Error cause = phase == Phase::ended ? *error : *break_cause;
        lock.unlock();
        receiver.on_closed(cause);
        lock.lock();
        reading = Reading::idle;
        progress.notify_all();
    }
}

Stop Channel::State::read_frames(transport::Connection& from) {
    {
        const Lock role(receiving);
        reading_from = &from;
        frames.emplace(from);
        applied = 0;
        found_stop.reset();
    }
    std::optional<Stop> stop;
    while (!stop) stop = read_when_it_comes(from);
    return std::move(*stop);
}

std::optional<Stop> Channel::State::read_when_it_comes(transport::Connection& from) {
    const bool looks = can_poll.load(std::memory_order_relaxed);
    const auto came = looks ? from.wait_arrival() : Status();
    const Lock role(receiving);
    std::optional<Stop> stop = std::move(found_stop);  // which made the wait end
    if (!stop && !came) stop = lost(came.error());
    if (!stop && looks && from.arrived_bytes() == 0) return std::nullopt;  // who looked was quicker
    while (!stop) {
        stop = read_if_memory_allows(*frames);
        if (frames->buffered_bytes() == 0) break;
    }
    if (stop) reading_from = nullptr;
    return stop;
}

// Is the next frame buffered, or what is not has arrived at `beyond`, so that reading it waits for nothing?
bool Channel::State::frame_is_here(const transport::Connection* beyond) const {
    std::array<std::byte, kHeaderBytes> bytes;
    if (!frames->peek(bytes)) return false;
    const auto header = decode(bytes);
    if (!header) return true;
    const std::size_t frame_bytes = kHeaderBytes + header->payload_bytes;
    const std::size_t buffered = frames->buffered_bytes();
    return buffered >= frame_bytes || (beyond != nullptr && buffered + beyond->arrived_bytes() >= frame_bytes);
}

Channel::State::PollResult Channel::State::poll_frames(transport::Connection& from) {
    if (!receiving.try_lock()) return PollResult::busy;
    const Lock role(receiving, std::adopt_lock);
    if (reading_from != &from || found_stop) return PollResult::ended;
    const auto* const before = std::exchange(reading_here, this);
    std::size_t taken = 0;
    for (; !found_stop; ++taken) {
        if (taken != 0 && frames->buffered_bytes() == 0) break;  // to ask for more can cost a system call
        // What is buffered the reader would not see arrive, so all of that is taken.
        const bool more = taken < kMaxLookedFor;
        if (more) frames->gather(kHeaderBytes);
        if (!frame_is_here(more ? &from : nullptr)) break;
        found_stop = read_if_memory_allows(*frames);
    }
    reading_here = before;
    if (found_stop) {  // the reader wakes, and reports it; told here, since the pump may notice the end before
        UniqueLock lock(mutex);
        fail(lock, found_stop->cause, found_stop->resumable);
    }
    return taken != 0                      ? PollResult::received
           : frames->buffered_bytes() == 0 ? PollResult::nothing
                                           : PollResult::incomplete;
}

Channel::PollingReceiver::PollingReceiver(Channel& channel) : channel_(channel) {
    State& state = *channel.state_;
    {
        const Lock lock(state.mutex);
        connection_ = state.connection;
    }
    connection_->begin_polling();
}

void Channel::PollingReceiver::end() {
    if (const auto looked_at = std::exchange(connection_, nullptr)) looked_at->end_polling();
}

void Channel::PollingReceiver::poll() {
    State& state = *channel_.state_;
    if (!connection_ || !state.can_poll.load(std::memory_order_relaxed)) return;
    if (!connection_->may_have_data()) return;
    switch (state.poll_frames(*connection_)) {
        case State::PollResult::received: incomplete_ = 0; break;
        case State::PollResult::nothing:
        case State::PollResult::busy: break;
        // The rest is a moment away, or does not fit: the reader, which can wait, takes it then.
        case State::PollResult::incomplete:
            if (++incomplete_ >= kLooksForTheRest) end();
            break;
        case State::PollResult::ended: end(); break;
    }
}

// Without memory for what came the session ends, and not the program, in a thread that is none of its own.
std::optional<Stop> Channel::State::read_if_memory_allows(FrameReader& reader) {
    try {
        return read_one(reader);
    } catch (const std::bad_alloc&) {
        return Stop{{ErrorCode::system, "out of memory"}, false};
    }
}

std::optional<Stop> Channel::State::read_one(FrameReader& reader) {
    std::array<std::byte, kHeaderBytes> bytes;
    if (auto status = reader.read(bytes); !status) return lost(status.error());
    const auto header = decode(bytes);
    if (!header) return Stop{header.error(), header.error().code == ErrorCode::invalid_input};
    if (auto stop = check_kind(*header)) return stop;
    const Observed observed(observer.load(std::memory_order_acquire), *header);
    frames_received.fetch_add(1, std::memory_order_relaxed);
    bytes_received.fetch_add(kHeaderBytes + header->payload_bytes, std::memory_order_relaxed);
    if (header->acknowledged > applied) {
        applied = header->acknowledged;
        if (auto stop = apply_acknowledged(applied)) return stop;
    }
    if (header->type == FrameType::ack) return std::nullopt;

    const std::uint64_t last = received;  // only who reads writes it
    if (header->sequence <= last) {       // sent again after a break, but it had arrived
        if (auto status = reader.skip(header->payload_bytes); !status) return lost(status.error());
        return std::nullopt;
    }
    if (header->sequence != last + 1) {
        return violation(fmt::format("frame {} came after frame {}: frames are missing", header->sequence, last));
    }
    switch (header->type) {
        case FrameType::bulk: return take_bulk(reader, *header);
        case FrameType::goodbye: return take_goodbye(*header);
        default: return take_frame(reader, *header);
    }
}

std::optional<Stop> Channel::State::take_bulk(FrameReader& reader, const FrameHeader& header) {
    std::array<std::byte, sizeof(BulkHeader)> prefix;
    if (auto status = reader.read(prefix); !status) return lost(status.error());
    if (payload_crc(header.type, prefix) != header.payload_crc) return damaged(header.sequence);
    BulkHeader bulk;
    std::memcpy(&bulk, prefix.data(), sizeof(bulk));
    const std::size_t bytes = header.payload_bytes - sizeof(bulk);
    const auto destination = receiver.bulk_destination(bulk.transfer, bulk.offset, bytes);
    if (destination.size() < bytes) {
        return violation(fmt::format("bulk data that nobody announced: transfer {}, offset {}, {} bytes", bulk.transfer,
                                     bulk.offset, bytes));
    }
    const auto data = destination.first(bytes);
    if (auto status = reader.read(data); !status) {
        receiver.on_bulk_lost(bulk.transfer, bulk.offset, bytes);
        return lost(status.error());
    }
    // A sender that would have to send it again may be waiting to use that memory, so the acknowledgement leaves as
    // soon as the burst is over.
    mark_received(header, limits.resume && reader.buffered_bytes() < kHeaderBytes);
    receiver.on_bulk(bulk.transfer, bulk.offset, bytes);
    return std::nullopt;
}

std::optional<Stop> Channel::State::take_frame(FrameReader& reader, const FrameHeader& header) {
    auto payload = std::make_unique_for_overwrite<std::byte[]>(header.payload_bytes);
    const std::span<std::byte> bytes(payload.get(), header.payload_bytes);
    if (auto status = reader.read(bytes); !status) return lost(status.error());
    if (payload_crc(header.type, bytes) != header.payload_crc) return damaged(header.sequence);
    mark_received(header, false);
    receiver.on_frame(header.type, std::move(payload), bytes.size());
    return std::nullopt;
}

// Waits, for once, for the sending side: after this nothing more is read that it could hold up.
Stop Channel::State::take_goodbye(const FrameHeader& header) {
    mark_received(header, true);
    UniqueLock lock(mutex);
    peer_goodbye = true;
    progress.wait_for(lock, kFarewellTimeout, [&]() GP_REQUIRES(mutex) {
        return phase != Phase::open || acknowledged_to_peer >= header.sequence;
    });
    return {{ErrorCode::closed, "the other side ended the session"}, false};
}

std::optional<Stop> Channel::State::apply_acknowledged(std::uint64_t sequence) {
    Graveyard graveyard;
    UniqueLock lock(mutex);
    const auto attempted = outbox.attempted();
    if (!outbox.acknowledge(sequence, graveyard)) {
        return violation(fmt::format("frame {} was acknowledged, but only {} were sent", sequence, attempted));
    }
    wake_who_waits(lock, graveyard);
    return std::nullopt;
}

void Channel::State::mark_received(const FrameHeader& header, bool prompt) {
    UniqueLock lock(mutex);
    received = header.sequence;
    received_since_ack_bytes += kHeaderBytes + header.payload_bytes;
    if (prompt || received_since_ack_bytes >= acknowledge_every_bytes) ack_urgent = true;
    if (ack_urgent || doing == Pump::sleeps) unlock_and_rouse(lock);
}

}  // namespace gpupool::wire
