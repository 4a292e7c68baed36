// The sending half: appends, back-pressure and the pump.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "protocol/wire/channel_state.h"

namespace gpupool::wire {
namespace {

// How long an acknowledgement waits for a frame that can carry it.
constexpr std::chrono::milliseconds kAckTimeout{2};
// With at most this many unacknowledged frames the peer has next to nothing to do: the frames of a few calls.
constexpr std::size_t kMaxUnacknowledged = 16;
// The same if callers send by copying: the peer keeps up, as far as its acknowledgements show, which it sends every 2
// ms. (With few processors no thread sends this way; conformance.channel_polling does, with GPUPOOL_SPIN=always.)
constexpr std::size_t kMaxCopiedUnacknowledged = 512;
// Up to this size a frame is copied while the lock is held: releasing and retaking the lock would cost more.
constexpr std::size_t kCopiedUnderLockBytes = 16u << 10;
// How long the pump waits for more records to gather; the longer time applies if the peer has enough small records to
// process, that is, if the last batch was no larger than this.
constexpr std::chrono::microseconds kGatherTime{2};
constexpr std::chrono::microseconds kLongGatherTime{5};
constexpr std::size_t kSmallBatchBytes = 16u << 10;

bool carries_records(FrameType type) {
    return type == FrameType::commands || type == FrameType::replies;
}

// `checked`: the bytes that the payload's CRC covers.
void write_header(const OutFrame& frame, std::uint64_t sequence, std::uint64_t acknowledged,
                  transport::ConstBuffer checked, std::span<std::byte, kHeaderBytes> out) {
    FrameHeader header;
    header.payload_bytes = static_cast<std::uint32_t>(frame.payload_bytes());
    header.sequence = sequence;
    header.acknowledged = acknowledged;
    header.type = frame.type;
    header.payload_crc = payload_crc(frame.type, checked);
    encode(header, out);
}

}  // namespace

void Batch::build(std::uint64_t acknowledged) {
    buffers.clear();
    total_bytes = 0;
    const auto add = [&](transport::ConstBuffer buffer) {
        buffers.push_back(buffer);
        total_bytes += buffer.size();
    };
    if (frames.empty()) {
        encode(FrameHeader{.acknowledged = acknowledged, .type = FrameType::ack}, headers[0]);
        add(headers[0]);
    }
    for (std::size_t i = 0; i < frames.size(); ++i) {
        const OutFrame& frame = frames[i];
        const transport::ConstBuffer data(frame.data, frame.bytes);
        const bool bulk = frame.type == FrameType::bulk;
        if (bulk) {
            std::memcpy(bulk_headers[i].data(), &frame.bulk, sizeof(frame.bulk));
        }
        write_header(frame, frame.sequence, acknowledged, bulk ? bulk_headers[i] : data, headers[i]);
        add(headers[i]);
        if (bulk) {
            add(bulk_headers[i]);
        }
        if (!data.empty()) {
            add(data);
        }
    }
}

void Batch::drop(std::size_t bytes) {
    while (bytes > 0) {
        transport::ConstBuffer& first = buffers.front();
        const std::size_t part = std::min(bytes, first.size());
        first = first.subspan(part);
        bytes -= part;
        if (first.empty()) {
            buffers.erase(buffers.begin());
        }
    }
}

// Blocks until `bytes` more may be retained; appends are served in the order in which they began to wait.
Status Channel::State::wait_for_room(UniqueLock& lock, std::size_t bytes, AppendTicket& ticket) {
    const auto over = [&]() GP_REQUIRES(mutex) { return phase == Phase::ended || closing; };
    const auto fits = [&](std::size_t times) GP_REQUIRES(mutex) {
        return outbox.fits(bytes, times * limits.retained_bytes, times * limits.retained_records);
    };
    const auto verdict = [&]() GP_REQUIRES(mutex) -> Status {
        if (phase == Phase::ended) {
            return *error;
        }
        if (closing) {
            return Error{ErrorCode::closed, "the channel was closed"};
        }
        return {};
    };
    if (over()) {
        return verdict();
    }
    if (next_ticket == serving_ticket && fits(1)) {
        return {};
    }
    if (on_reader()) {
        if (fits(2)) {
            return {};
        }
        return Error{ErrorCode::limit_exceeded, "too much unacknowledged data for an answer from a receiving thread"};
    }
    // Room becomes free when the peer acknowledges, so everything must have been sent.
    const auto position = next_ticket++;
    unlock_and_wake_pump(lock);
    receiver.on_append_waits(true);
    lock.lock(mutex);
    room.wait(lock, [&]() GP_REQUIRES(mutex) { return position == serving_ticket && (over() || fits(1)); });
    lock.unlock(mutex);  // no other append can take the room: this ticket is being served
    receiver.on_append_waits(false);
    lock.lock(mutex);
    ++serving_ticket;
    ticket.wake_next = next_ticket != serving_ticket;
    return verdict();
}

Channel::State::AppendTicket::~AppendTicket() {
    if (wake_next) {
        state.room.notify_all();
    }
    if (!give_chunk) {
        return;
    }
    std::shared_ptr<Chunk> chunk;
    try {
        chunk = std::make_shared<Chunk>(state.outbox.chunk_bytes());  // may be a system call
    } catch (const std::bad_alloc&) {
        return;  // the append that needs the memory allocates it itself, and can report a failure
    }
    const Lock lock(state.mutex);
    chunk = state.outbox.give_chunk(std::move(chunk));
}

// Returns what must be done, after releasing the lock, to make the pump notice appended frames: notify it if it sleeps,
// set the flag if it polls. While it runs it notices them anyway.
Channel::State::PumpWakeup Channel::State::prepare_wakeup() {
    switch (pump_state) {
        case PumpState::polling: pump_state = PumpState::running; return PumpWakeup::set_flag;
        case PumpState::sleeping_with_timeout:
        case PumpState::sleeping: pump_state = PumpState::waking; return PumpWakeup::notify;
        case PumpState::running:
        case PumpState::waking: break;
    }
    return PumpWakeup::none;
}

void Channel::State::wake_pump(PumpWakeup what) {
    if (what == PumpWakeup::set_flag) {
        work_flag.store(true, std::memory_order_release);
    }
    if (what == PumpWakeup::notify) {
        pump_wake.notify_one();
    }
}

void Channel::State::unlock_and_wake_pump(UniqueLock& lock) {
    const PumpWakeup due = prepare_wakeup();
    lock.unlock(mutex);
    wake_pump(due);
}

Status Channel::append_erased(FrameType type, std::size_t bytes, Urgency urgency, Fill fill, void* context) {
    if (!carries_records(type) || bytes == 0) {
        return Error{ErrorCode::internal, "only commands and replies carry records, and none is empty"};
    }
    const std::size_t padded = (bytes + 7) & ~std::size_t{7};
    if (bytes > kMaxPayloadBytes || padded > kMaxPayloadBytes) {
        return Error{ErrorCode::limit_exceeded,
                     fmt::format("a record of {} bytes is larger than {}", bytes, kMaxPayloadBytes)};
    }
    State& state = *state_;
    State::AppendTicket ticket{state};
    UniqueLock lock(state.mutex);
    GPUPOOL_TRY(state.wait_for_room(lock, padded, ticket));
    std::byte* place = urgency == Urgency::ahead_of_bulk ? state.outbox.add_urgent_record(type, padded)
                                                         : state.outbox.add_record(type, padded);
    std::memset(place + padded - 8, 0, 8);
    fill(context, place);
    ticket.give_chunk = state.outbox.wants_chunk();
    // If another thread is sending, that thread checks for more when it is done.
    if (urgency == Urgency::later || urgency == Urgency::ahead_of_bulk || !state.can_send()) {
        return {};
    }
    if (urgency == Urgency::now || state.sends_itself()) {
        state.send_here(lock);
    } else if (!state.copies && (state.pump_is_asleep() || state.pump_state == State::PumpState::waking) &&
               spinning_pays()) {
        // The pump sleeps only after a while without work, and waking it takes far longer than sending. So this thread
        // sends first and wakes the pump afterwards.
        const State::PumpWakeup due = state.prepare_wakeup();
        state.send_here(lock);
        state.wake_pump(due);
    } else {
        state.unlock_and_wake_pump(lock);
    }
    return {};
}

Status Channel::State::append_own_frame(OutFrame frame, Urgency urgency) {
    AppendTicket ticket{*this};
    UniqueLock lock(mutex);
    GPUPOOL_TRY(wait_for_room(lock, frame.payload_bytes(), ticket));
    outbox.add_frame(std::move(frame));
    if (urgency != Urgency::later) {
        unlock_and_wake_pump(lock);
    }
    return {};
}

Status Channel::append_bulk(std::uint64_t transfer, std::uint64_t offset, std::span<const std::byte> data,
                            std::function<void()> done, Urgency urgency) {
    // Every frame shares ownership, and so does this call: `done` runs once, when the last owner is gone, for whatever
    // reason.
    std::shared_ptr<Transfer> shared;
    if (done) {
        shared = std::make_shared<Transfer>(std::move(done));
    }
    while (!data.empty()) {
        const auto part = data.first(std::min(data.size(), state_->bulk_frame_bytes));
        OutFrame frame;
        frame.type = FrameType::bulk;
        frame.bulk = {transfer, offset};
        frame.bytes = part.size();
        frame.transfer = shared;
        if (shared) {
            frame.data = part.data();
        } else {
            frame.chunk = std::make_shared<Chunk>(part.size());
            std::memcpy(frame.chunk->data.get(), part.data(), part.size());
            frame.data = frame.chunk->data.get();
        }
        GPUPOOL_TRY(state_->append_own_frame(std::move(frame), urgency));
        offset += part.size();
        data = data.subspan(part.size());
    }
    return {};
}

// Whether the appending thread itself sends a record of Urgency::soon. Only if the peer keeps up: then the pump would
// only add a detour; otherwise the pump sends many records at a time.
bool Channel::State::sends_itself() const {
    return copies && outbox.retained() <= kMaxCopiedUnacknowledged;
}

bool Channel::State::can_send() const {
    return phase == Phase::open && !sending && (outbox.has_unsent() || ack_urgent);
}

// Takes the sending role and collects the accumulated frames (or just an acknowledgement). Returns with the lock
// released.
void Channel::State::begin_batch(UniqueLock& lock) {
    sending = true;
    if (observer.load(std::memory_order_relaxed) != nullptr) {
        batch_begin = std::chrono::steady_clock::now();
    }
    outbox.collect(batch.frames, Batch::kMaxFrames, Batch::kMaxBytes);
    batch_acknowledges = received;
    lock.unlock(mutex);
    batch.build(batch_acknowledges);
}

// Notifies the waiters of `room` and `progress`, and destroys the `released` frames. Releases the lock for that, unless
// there is nothing to do.
void Channel::State::notify_waiters(UniqueLock& lock, ReleasedFrames& released) {
    if (!room.has_waiters() && !progress.has_waiters() && released.empty()) {
        return;
    }
    const Unlocked unlocked(lock, mutex);
    room.notify_all();
    progress.notify_all();
    released.clear();
}

// Takes the lock again and gives the sending role back.
void Channel::State::end_batch(UniqueLock& lock, const Status& status) {
    ReleasedFrames released;
    if (TrafficObserver* const watched = observer.load(std::memory_order_acquire);
        watched != nullptr && status && batch_begin != TrafficObserver::Moment()) {
        watched->sent(0, std::max<std::size_t>(batch.frames.size(), 1), batch.total_bytes, batch_begin,
                      std::chrono::steady_clock::now());
    }
    lock.lock(mutex);
    sending = batch_left = false;
    outbox.batch_done(status.ok(), !limits.resume, released);
    if (status) {
        ++writes;
        frames_sent += std::max<std::size_t>(batch.frames.size(), 1);
        bytes_sent += batch.total_bytes;
        note_acknowledged(batch_acknowledges);
    } else {
        fail(lock, status.error(), true);
    }
    if (phase == Phase::ended && !sending) {
        outbox.clear(released);
    }
    notify_waiters(lock, released);
}

void Channel::State::send_batch(UniqueLock& lock) {
    const auto to = connection;
    if (batch_left) {
        lock.unlock(mutex);
    } else {
        begin_batch(lock);
    }
    end_batch(lock, to->send(batch.buffers));
}

// Does the work of send_here() for one small frame on a connection that sends by copying: cheaper than releasing and
// retaking the lock.
transport::Connection::Copied Channel::State::copy_here(UniqueLock& lock) {
    const OutFrame* const frame = outbox.only_unsent();
    if (frame == nullptr || frame->bytes > kCopiedUnderLockBytes ||
        observer.load(std::memory_order_relaxed) != nullptr) {
        return transport::Connection::Copied::nothing;
    }
    const transport::ConstBuffer data(frame->data, frame->bytes);
    std::array<std::byte, kHeaderBytes> head;
    write_header(*frame, outbox.last_sequence(), received, data, head);
    const transport::ConstBuffer buffers[] = {head, data};
    const auto copied = connection->copy_whole(buffers);
    if (copied == transport::Connection::Copied::nothing) {
        return copied;
    }
    outbox.only_unsent_sent();
    ++writes;
    ++frames_sent;
    bytes_sent += head.size() + data.size();
    note_acknowledged(received);
    ReleasedFrames nothing;
    notify_waiters(lock, nothing);
    return copied;
}

// The peer has been sent an acknowledgement of everything up to `sequence`.
void Channel::State::note_acknowledged(std::uint64_t sequence) {
    acknowledged_to_peer = sequence;
    if (received == sequence) {
        ack_urgent = false;
        received_since_ack_bytes = 0;
    }
}

// Sends from this thread, as far as possible without blocking. Leaves to the pump what the connection does not accept
// at once, together with the sending role, and frames appended meanwhile.
void Channel::State::send_here(UniqueLock& lock) {
    const auto copied = copies ? copy_here(lock) : transport::Connection::Copied::nothing;
    if (copied == transport::Connection::Copied::all) {
        lock.unlock(mutex);
        return;
    }
    const auto to = connection;
    if (copied == transport::Connection::Copied::all_and_peer_sleeps) {
        lock.unlock(mutex);
        to->wake_peer();
        return;
    }
    begin_batch(lock);
    const auto taken = to->send_some(batch.buffers);
    if (taken && *taken < batch.total_bytes) {
        batch.drop(*taken);
        lock.lock(mutex);
        if (phase != Phase::ended) {
            batch_left = true;
        } else {  // the pump may have returned already
            const Error cause = *error;
            lock.unlock(mutex);
            end_batch(lock, cause);
        }
    } else {
        end_batch(lock, taken ? Status() : Status(taken.error()));
    }
    if (batch_left || can_send()) {
        unlock_and_wake_pump(lock);
    } else {
        lock.unlock(mutex);
    }
}

void Channel::try_flush() {
    State& state = *state_;
    UniqueLock lock(state.mutex);
    if (state.can_send()) {
        state.send_here(lock);
    }
}

Status Channel::flush() {
    State& state = *state_;
    UniqueLock lock(state.mutex);
    if (state.on_reader()) {
        return Error{ErrorCode::internal, "a Receiver must not wait for its channel to send"};
    }
    const auto all_sent =
        [&state, last = state.outbox.last_sequence(), before = state.outbox.overtakes()]()
            GP_REQUIRES(state.mutex) { return state.outbox.sent() >= last + (state.outbox.overtakes() - before); };
    // Sends from this thread, which avoids the detour through the pump.
    while (state.phase != State::Phase::ended && !all_sent()) {
        if (state.can_send()) {
            state.send_batch(lock);
        } else {
            state.progress.wait(lock, [&]() GP_REQUIRES(state.mutex) {
                return state.phase == State::Phase::ended || all_sent() || state.can_send();
            });
        }
    }
    if (state.phase == State::Phase::ended) {
        return *state.error;
    }
    if (state.can_send()) {
        state.unlock_and_wake_pump(lock);  // appended while this call was sending
    }
    return {};
}

// Polls for more to send before the pump sleeps. True if a frame was appended, even if another thread has sent it
// since.
bool Channel::State::poll_for_work(UniqueLock& lock) {
    pump_state = PumpState::polling;
    bool found = false;
    {
        const Unlocked unlocked(lock, mutex);
        found = pump_spin.until([&] { return work_flag.load(std::memory_order_acquire); });
    }
    pump_state = PumpState::running;
    work_flag.store(false, std::memory_order_relaxed);
    return found;
}

// Waits briefly so that records gather into one batch. If sending costs next to nothing, the pump would otherwise send
// every record separately, and contend for the lock with the thread that appends them. If sending is a system call,
// many records arrive during the call, but the first would be sent alone; and a thread that then waits for a reply
// would have to wait for that call before its own, instead of sending both in one.
void Channel::State::let_records_gather(UniqueLock& lock) {
    if (batch_left || stopping) {
        return;
    }
    const bool enough = !sending && outbox.retained() > kMaxUnacknowledged && batch.total_bytes <= kSmallBatchBytes;
    const Unlocked unlocked(lock, mutex);
    const auto end = std::chrono::steady_clock::now() + (enough ? kLongGatherTime : kGatherTime);
    while (std::chrono::steady_clock::now() < end) {
        spin_pause();
    }
}

void Channel::State::run_pump() {
    UniqueLock lock(mutex);
    bool timed_out = false, polled = false;
    while (!stopping || batch_left) {
        if (batch_left || can_send()) {
            send_batch(lock);
            timed_out = polled = false;
            if (copies) {
                let_records_gather(lock);
            }
            continue;
        }
        if (!polled) {
            polled = !poll_for_work(lock);
            if (!polled && !copies) {
                let_records_gather(lock);
            }
            continue;
        }
        // After activity the pump sleeps for a moment, and then sends an acknowledgement that no frame has carried by
        // then. So in a steady exchange no thread has to wake it for acknowledgements.
        const bool owes_ack = phase == Phase::open && received > acknowledged_to_peer;
        const bool briefly = phase == Phase::open && (owes_ack || !timed_out);
        const auto woken = [&]() GP_REQUIRES(mutex) { return pump_state == PumpState::waking || stopping; };
        pump_state = briefly ? PumpState::sleeping_with_timeout : PumpState::sleeping;
        if (!briefly) {
            pump_wake.wait(lock, woken);
            timed_out = polled = false;
        } else if (pump_wake.wait_for(lock, kAckTimeout, woken)) {
            polled = false;  // if more follows, no thread has to wake the pump again
        } else {
            timed_out = true;
            if (received > acknowledged_to_peer) {
                ack_urgent = true;
            }
        }
        pump_state = PumpState::running;
    }
}

}  // namespace gpupool::wire
