// The receiving half: the reader, and threads that poll instead of it.
#include <fmt/format.h>

#include <cstring>
#include <new>

#include "protocol/wire/channel_state.h"
#include "protocol/wire/frame_reader.h"

namespace gpupool::wire {
namespace {

// How long the end waits until the acknowledgement of the peer's goodbye has been sent.
constexpr std::chrono::milliseconds kFarewellTimeout{200};
// Frames that a polling thread receives at once before it acts on them.
constexpr std::size_t kMaxFramesPerPoll = 8;
constexpr unsigned kMaxIncompletePolls = 500;  // some tens of microseconds

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

// Reports a frame to the observer, from its header until its payload was processed.
class Observed {
  public:
    Observed(TrafficObserver* observer, const FrameHeader& header) : observer_(observer), header_(header) {
        if (observer_ != nullptr) {
            begin_ = std::chrono::steady_clock::now();
        }
    }
    ~Observed() {
        if (observer_ == nullptr) {
            return;
        }
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
            if (header.sequence == 0 && header.payload_bytes == 0) {
                return std::nullopt;
            }
            return violation("received an acknowledgement with a sequence number or a payload");
        case FrameType::hello:
        case FrameType::welcome:
        case FrameType::refused:
            return violation(fmt::format("received a handshake frame (type {}) in a running session",
                                         static_cast<unsigned>(header.type)));
        case FrameType::goodbye:
            if (header.payload_bytes != 0) {
                return violation("received a goodbye with a payload");
            }
            break;
        case FrameType::bulk:
            if (header.payload_bytes <= sizeof(BulkHeader)) {
                return violation("received a bulk frame without data");
            }
            break;
        case FrameType::packed: return violation("received a packed frame over a session's own connection");
        case FrameType::commands:
        case FrameType::replies:
        case FrameType::control: break;
    }
    if (header.sequence == 0) {
        return violation("received a session's frame without a sequence number");
    }
    return std::nullopt;
}

}  // namespace

thread_local const Channel::State* Channel::State::reading_here = nullptr;

void Channel::State::run_reader() {
    UniqueLock lock(mutex);
    reading_here = this;
    for (;;) {
        // A connection that broke before the first read is processed as well, so that every break is reported once.
        reader_wake.wait(lock,
                         [&]() GP_REQUIRES(mutex) { return phase == Phase::ended || generation != reader_generation; });
        if (generation == reader_generation) {
            break;
        }
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
        polled_stop.reset();
    }
    std::optional<Stop> stop;
    while (!stop) {
        stop = read_after_arrival(from);
    }
    return std::move(*stop);
}

std::optional<Stop> Channel::State::read_after_arrival(transport::Connection& from) {
    const bool polls = can_poll.load(std::memory_order_relaxed);
    const auto arrived = polls ? from.wait_arrival() : Status();
    const Lock role(receiving);
    std::optional<Stop> stop = std::move(polled_stop);  // set by a polling thread, it ended the wait
    if (!stop && !arrived) {
        stop = lost(arrived.error());
    }
    if (!stop && polls && from.arrived_bytes() == 0) {
        return std::nullopt;  // a polling thread received it
    }
    while (!stop) {
        stop = read_if_memory_allows(*frames);
        if (frames->buffered_bytes() == 0) {
            break;
        }
    }
    if (stop) {
        reading_from = nullptr;
    }
    return stop;
}

// Whether reading the next frame will not block: it is buffered, or its remainder has arrived at `beyond`.
bool Channel::State::frame_has_arrived(const transport::Connection* beyond) const {
    std::array<std::byte, kHeaderBytes> bytes;
    if (!frames->peek(bytes)) {
        return false;
    }
    const auto header = decode(bytes);
    if (!header) {
        return true;
    }
    const std::size_t frame_bytes = kHeaderBytes + header->payload_bytes;
    const std::size_t buffered = frames->buffered_bytes();
    return buffered >= frame_bytes || (beyond != nullptr && buffered + beyond->arrived_bytes() >= frame_bytes);
}

Channel::State::PollResult Channel::State::poll_frames(transport::Connection& from) {
    if (!receiving.try_lock()) {
        return PollResult::busy;
    }
    const Lock role(receiving, std::adopt_lock);
    if (reading_from != &from || polled_stop) {
        return PollResult::ended;
    }
    const auto* const before = std::exchange(reading_here, this);
    std::size_t taken = 0;
    for (; !polled_stop; ++taken) {
        if (taken != 0 && frames->buffered_bytes() == 0) {
            break;  // asking for more can cost a system call
        }
        // All buffered frames are processed, because the reader would not notice their arrival.
        const bool more = taken < kMaxFramesPerPoll;
        if (more) {
            frames->gather(kHeaderBytes);
        }
        if (!frame_has_arrived(more ? &from : nullptr)) {
            break;
        }
        polled_stop = read_if_memory_allows(*frames);
    }
    reading_here = before;
    if (polled_stop) {  // the reader wakes and reports it; recorded here, because the pump may notice the end earlier
        UniqueLock lock(mutex);
        fail(lock, polled_stop->cause, polled_stop->resumable);
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
    if (const auto polled = std::exchange(connection_, nullptr)) {
        polled->end_polling();
    }
}

void Channel::PollingReceiver::poll() {
    State& state = *channel_.state_;
    if (!connection_ || !state.can_poll.load(std::memory_order_relaxed)) {
        return;
    }
    if (!connection_->may_have_data()) {
        return;
    }
    switch (state.poll_frames(*connection_)) {
        case State::PollResult::received: incomplete_ = 0; break;
        case State::PollResult::nothing:
        case State::PollResult::busy: break;
        // The rest arrives soon, or does not fit: then the reader, which may block, receives it.
        case State::PollResult::incomplete:
            if (++incomplete_ >= kMaxIncompletePolls) {
                end();
            }
            break;
        case State::PollResult::ended: end(); break;
    }
}

// If there is no memory for a frame, the session ends, but not the program, whose thread this may be.
std::optional<Stop> Channel::State::read_if_memory_allows(FrameReader& reader) {
    try {
        return read_one(reader);
    } catch (const std::bad_alloc&) {
        return Stop{{ErrorCode::system, "out of memory"}, false};
    }
}

std::optional<Stop> Channel::State::read_one(FrameReader& reader) {
    std::array<std::byte, kHeaderBytes> bytes;
    if (auto status = reader.read(bytes); !status) {
        return lost(status.error());
    }
    const auto header = decode(bytes);
    if (!header) {
        return Stop{header.error(), header.error().code == ErrorCode::invalid_input};
    }
    if (auto stop = check_kind(*header)) {
        return stop;
    }
    const Observed observed(observer.load(std::memory_order_acquire), *header);
    frames_received.fetch_add(1, std::memory_order_relaxed);
    bytes_received.fetch_add(kHeaderBytes + header->payload_bytes, std::memory_order_relaxed);
    if (header->acknowledged > applied) {
        applied = header->acknowledged;
        if (auto stop = apply_acknowledged(applied)) {
            return stop;
        }
    }
    if (header->type == FrameType::ack) {
        return std::nullopt;
    }

    const std::uint64_t last = received;  // written by the receiving thread only
    if (header->sequence <= last) {       // sent again after a break, although it had arrived
        if (auto status = reader.skip(header->payload_bytes); !status) {
            return lost(status.error());
        }
        return std::nullopt;
    }
    if (header->sequence != last + 1) {
        return violation(fmt::format("received frame {} after frame {}: frames are missing", header->sequence, last));
    }
    switch (header->type) {
        case FrameType::bulk: return take_bulk(reader, *header);
        case FrameType::goodbye: return take_goodbye(*header);
        default: return take_frame(reader, *header);
    }
}

std::optional<Stop> Channel::State::take_bulk(FrameReader& reader, const FrameHeader& header) {
    std::array<std::byte, sizeof(BulkHeader)> prefix;
    if (auto status = reader.read(prefix); !status) {
        return lost(status.error());
    }
    if (payload_crc(header.type, prefix) != header.payload_crc) {
        return damaged(header.sequence);
    }
    BulkHeader bulk;
    std::memcpy(&bulk, prefix.data(), sizeof(bulk));
    const std::size_t bytes = header.payload_bytes - sizeof(bulk);
    const auto destination = receiver.bulk_destination(bulk.transfer, bulk.offset, bytes);
    if (destination.size() < bytes) {
        return violation(
            fmt::format("unexpected bulk data: transfer {}, offset {}, {} bytes", bulk.transfer, bulk.offset, bytes));
    }
    const auto data = destination.first(bytes);
    if (auto status = reader.read(data); !status) {
        receiver.on_bulk_lost(bulk.transfer, bulk.offset, bytes);
        return lost(status.error());
    }
    // With resumption, a sender may wait to reuse its memory until the data is acknowledged. So the acknowledgement is
    // sent as soon as the burst is over.
    mark_received(header, limits.resume && reader.buffered_bytes() < kHeaderBytes);
    receiver.on_bulk(bulk.transfer, bulk.offset, bytes);
    return std::nullopt;
}

std::optional<Stop> Channel::State::take_frame(FrameReader& reader, const FrameHeader& header) {
    auto payload = std::make_unique_for_overwrite<std::byte[]>(header.payload_bytes);
    const std::span<std::byte> bytes(payload.get(), header.payload_bytes);
    if (auto status = reader.read(bytes); !status) {
        return lost(status.error());
    }
    if (payload_crc(header.type, bytes) != header.payload_crc) {
        return damaged(header.sequence);
    }
    mark_received(header, false);
    receiver.on_frame(header.type, std::move(payload), bytes.size());
    return std::nullopt;
}

// Exceptionally waits for the sending side: nothing more is read afterwards, so nothing can be delayed.
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
    ReleasedFrames released;
    UniqueLock lock(mutex);
    const auto attempted = outbox.attempted();
    if (!outbox.acknowledge(sequence, released)) {
        return violation(fmt::format("frame {} was acknowledged, but only {} were sent", sequence, attempted));
    }
    notify_waiters(lock, released);
    return std::nullopt;
}

void Channel::State::mark_received(const FrameHeader& header, bool prompt) {
    UniqueLock lock(mutex);
    received = header.sequence;
    received_since_ack_bytes += kHeaderBytes + header.payload_bytes;
    if (prompt || received_since_ack_bytes >= acknowledge_every_bytes) {
        ack_urgent = true;
    }
    if (ack_urgent || pump_state == PumpState::sleeping) {
        unlock_and_wake_pump(lock);
    }
}

}  // namespace gpupool::wire
