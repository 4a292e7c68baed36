// The sending half: appends, back-pressure and the pump.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "protocol/wire/channel_state.h"

namespace gpupool::wire {
namespace {

// How long an acknowledgement waits for a frame to travel with.
constexpr std::chrono::milliseconds kAckTimeout{2};
// Frames that the peer has not acknowledged, where it has next to nothing to do: those of a few calls.
constexpr std::size_t kMaxOnTheWay = 16;
// The same where callers send by copying: it keeps up, as far as its acknowledgements tell, of which there is one every
// 2 ms. (On few processors nobody sends so; conformance.channel_polling does, with GPUPOOL_SPIN=always.)
constexpr std::size_t kMaxCopiedOnTheWay = 512;
// A frame that may be copied while the lock is held: to give the lock back and take it again costs more.
constexpr std::size_t kCopiedUnderLockBytes = 16u << 10;
// How long the pump lets records gather, and how long where the peer has enough to do with little ones: where the last
// batch was no larger than this.
constexpr std::chrono::microseconds kGatherFor{2};
constexpr std::chrono::microseconds kGatherLongFor{5};
constexpr std::size_t kLittleBatchBytes = 16u << 10;

bool carries_records(FrameType type) {
    return type == FrameType::commands || type == FrameType::replies;
}

// `checked`: what its CRC covers.
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
        if (bulk) add(bulk_headers[i]);
        if (!data.empty()) add(data);
    }
}

void Batch::drop(std::size_t bytes) {
    while (bytes > 0) {
        transport::ConstBuffer& first = buffers.front();
        const std::size_t part = std::min(bytes, first.size());
        first = first.subspan(part);
        bytes -= part;
        if (first.empty()) buffers.erase(buffers.begin());
    }
}

// Waits until `bytes` more may be retained, behind those that already wait.
Status Channel::State::wait_for_room(UniqueLock& lock, std::size_t bytes,
                                     AppendTicket& ticket) GP_NO_THREAD_SAFETY_ANALYSIS {
    const auto over = [&]() GP_NO_THREAD_SAFETY_ANALYSIS { return phase == Phase::ended || closing; };
    const auto fits = [&](std::size_t times) GP_NO_THREAD_SAFETY_ANALYSIS {
        return outbox.fits(bytes, times * limits.retained_bytes, times * limits.retained_records);
    };
    const auto verdict = [&]() GP_NO_THREAD_SAFETY_ANALYSIS -> Status {
        if (phase == Phase::ended) return *error;
        if (closing) return Error{ErrorCode::closed, "the channel was closed"};
        return {};
    };
    if (over()) return verdict();
    if (next_ticket == serving_ticket && fits(1)) return {};
    if (on_reader()) {
        if (fits(2)) return {};
        return Error{ErrorCode::limit_exceeded, "too much unacknowledged data for an answer from a receiving thread"};
    }
    // What makes room is that the peer acknowledges, so all must be on its way.
    const auto position = next_ticket++;
    unlock_and_rouse(lock);
    receiver.on_append_waits(true);
    lock.lock();
    room.wait(lock, [&]() GP_REQUIRES(mutex) { return position == serving_ticket && (over() || fits(1)); });
    lock.unlock();  // nobody takes the room meanwhile: it is this ticket's turn
    receiver.on_append_waits(false);
    lock.lock();
    ++serving_ticket;
    ticket.wake_next = next_ticket != serving_ticket;
    return verdict();
}

Channel::State::AppendTicket::~AppendTicket() {
    if (wake_next) state.room.notify_all();
    if (!give_chunk) return;
    std::shared_ptr<Chunk> chunk;
    try {
        chunk = std::make_shared<Chunk>(state.outbox.chunk_bytes());  // a system call, perhaps
    } catch (const std::bad_alloc&) {
        return;  // who needs it will ask, and can be told
    }
    const Lock lock(state.mutex);
    chunk = state.outbox.give_chunk(std::move(chunk));
}

// What there is to do, without the lock, that the pump finds what was appended: it is woken when it sleeps, told when
// it looks; while it works it finds that by itself.
Channel::State::Rouse Channel::State::rouse() {
    switch (doing) {
        case Pump::looks: doing = Pump::works; return Rouse::tell;
        case Pump::dozes:
        case Pump::sleeps: doing = Pump::wakes; return Rouse::wake;
        case Pump::works:
        case Pump::wakes: break;
    }
    return Rouse::nothing;
}

void Channel::State::deliver(Rouse what) {
    if (what == Rouse::tell) news.store(true, std::memory_order_release);
    if (what == Rouse::wake) pump_wake.notify_one();
}

// The analysis does not follow a lock that a function was given; the declaration says what callers may rely on.
void Channel::State::unlock_and_rouse(UniqueLock& lock) GP_NO_THREAD_SAFETY_ANALYSIS {
    const Rouse due = rouse();
    lock.unlock();
    deliver(due);
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
    // Where somebody sends, that thread looks for more when it is done.
    if (urgency == Urgency::later || urgency == Urgency::ahead_of_bulk || !state.can_send()) return {};
    if (urgency == Urgency::now || state.sends_itself()) {
        state.send_here(lock);
    } else if (!state.copies && (state.pump_sleeps() || state.doing == State::Pump::wakes) && spinning_pays()) {
        // It sleeps only after a while, and waking up takes far longer than sending: nothing waits for that, but where
        // so much is on its way already that it does not matter.
        const State::Rouse due = state.rouse();
        state.send_here(lock);
        state.deliver(due);
    } else {
        state.unlock_and_rouse(lock);
    }
    return {};
}

Status Channel::State::append_own_frame(OutFrame frame, Urgency urgency) {
    AppendTicket ticket{*this};
    UniqueLock lock(mutex);
    GPUPOOL_TRY(wait_for_room(lock, frame.payload_bytes(), ticket));
    outbox.add_frame(std::move(frame));
    if (urgency != Urgency::later) unlock_and_rouse(lock);
    return {};
}

Status Channel::append_frame(FrameType type, std::span<const std::byte> payload) {
    if (!carries_records(type) && type != FrameType::control) {
        return Error{ErrorCode::internal, "only commands, replies and control frames can be appended"};
    }
    if (payload.size() > kMaxPayloadBytes) {
        return Error{ErrorCode::limit_exceeded,
                     fmt::format("a frame of {} bytes is larger than {}", payload.size(), kMaxPayloadBytes)};
    }
    OutFrame frame;
    frame.type = type;
    frame.bytes = payload.size();
    if (!payload.empty()) {
        frame.chunk = std::make_shared<Chunk>(payload.size());
        std::memcpy(frame.chunk->data.get(), payload.data(), payload.size());
        frame.data = frame.chunk->data.get();
    }
    return state_->append_own_frame(std::move(frame));
}

Status Channel::append_bulk(std::uint64_t transfer, std::uint64_t offset, std::span<const std::byte> data,
                            std::function<void()> done, Urgency urgency) {
    // Every frame holds a share, and so does this call: `done` runs once, when the last one has gone, however it went.
    std::shared_ptr<Transfer> shared;
    if (done) shared = std::make_shared<Transfer>(std::move(done));
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

// Is a record that is in no hurry sent by who appends it? Only where the peer keeps up: then the pump would be a way
// round, and otherwise it sends many at a time.
bool Channel::State::sends_itself() const {
    return copies && outbox.retained() <= kMaxCopiedOnTheWay;
}

bool Channel::State::can_send() const {
    return phase == Phase::open && !sending && (outbox.has_unsent() || ack_urgent);
}

// Takes the sending role and collects what has accumulated (at least an acknowledgement). Leaves unlocked.
void Channel::State::begin_batch(UniqueLock& lock) GP_NO_THREAD_SAFETY_ANALYSIS {
    sending = true;
    if (observer.load(std::memory_order_relaxed) != nullptr) batch_begin = std::chrono::steady_clock::now();
    outbox.collect(batch.frames, Batch::kMaxFrames, Batch::kMaxBytes);
    batch_acknowledges = received;
    lock.unlock();
    batch.build(batch_acknowledges);
}

// Of room and progress, and empties the graveyard. Without the lock, which is released where there is anything to do.
void Channel::State::wake_who_waits(UniqueLock& lock, Graveyard& graveyard) {
    if (!room.has_waiters() && !progress.has_waiters() && graveyard.empty()) return;
    const Unlocked unlocked(lock, mutex);
    room.notify_all();
    progress.notify_all();
    graveyard.clear();
}

// Locks again and gives the role back.
void Channel::State::end_batch(UniqueLock& lock, const Status& status) GP_NO_THREAD_SAFETY_ANALYSIS {
    Graveyard graveyard;
    if (TrafficObserver* const watched = observer.load(std::memory_order_acquire);
        watched != nullptr && status && batch_begin != TrafficObserver::Moment()) {
        watched->sent(0, std::max<std::size_t>(batch.frames.size(), 1), batch.total_bytes, batch_begin,
                      std::chrono::steady_clock::now());
    }
    lock.lock();
    sending = batch_left = false;
    outbox.batch_done(status.ok(), !limits.resume, graveyard);
    if (status) {
        ++writes;
        frames_sent += std::max<std::size_t>(batch.frames.size(), 1);
        bytes_sent += batch.total_bytes;
        note_acknowledged(batch_acknowledges);
    } else {
        fail(lock, status.error(), true);
    }
    if (phase == Phase::ended && !sending) outbox.clear(graveyard);
    wake_who_waits(lock, graveyard);
}

void Channel::State::send_batch(UniqueLock& lock) GP_NO_THREAD_SAFETY_ANALYSIS {
    const auto to = connection;
    if (batch_left) {
        lock.unlock();
    } else {
        begin_batch(lock);
    }
    end_batch(lock, to->send(batch.buffers));
}

// The same as send_here() where it is one small frame and no more than a copy, which costs less than to give the lock
// back and take it again. Leaves unlocked; false: nothing was done.
bool Channel::State::copy_here(UniqueLock& lock) GP_NO_THREAD_SAFETY_ANALYSIS {
    const OutFrame* const frame = outbox.only_unsent();
    if (frame == nullptr || frame->bytes > kCopiedUnderLockBytes ||
        observer.load(std::memory_order_relaxed) != nullptr) {
        return false;
    }
    const transport::ConstBuffer data(frame->data, frame->bytes);
    std::array<std::byte, kHeaderBytes> head;
    write_header(*frame, outbox.last_sequence(), received, data, head);
    const transport::ConstBuffer buffers[] = {head, data};
    const auto copied = connection->copy_whole(buffers);
    if (copied == transport::Connection::Copied::nothing) return false;
    outbox.only_unsent_sent();
    ++writes;
    ++frames_sent;
    bytes_sent += head.size() + data.size();
    note_acknowledged(received);
    Graveyard nothing;
    wake_who_waits(lock, nothing);
    if (copied == transport::Connection::Copied::all) {
        lock.unlock();
        return true;
    }
    const auto to = connection;
    lock.unlock();
    to->wake_peer();
    return true;
}

// The peer knows of what was received up to there.
void Channel::State::note_acknowledged(std::uint64_t sequence) {
    acknowledged_to_peer = sequence;
    if (received == sequence) {
        ack_urgent = false;
        received_since_ack_bytes = 0;
    }
}

// By this thread, as far as that goes without waiting. What the connection does not take at once is left to the pump,
// and the sending role with it; what came meanwhile is the pump's as well.
void Channel::State::send_here(UniqueLock& lock) GP_NO_THREAD_SAFETY_ANALYSIS {
    if (copies && copy_here(lock)) return;
    const auto to = connection;
    begin_batch(lock);
    const auto taken = to->send_some(batch.buffers);
    if (taken && *taken < batch.total_bytes) {
        batch.drop(*taken);
        lock.lock();
        if (phase != Phase::ended) {
            batch_left = true;
        } else {  // the pump may have left already
            const Error cause = *error;
            lock.unlock();
            end_batch(lock, cause);
        }
    } else {
        end_batch(lock, taken ? Status() : Status(taken.error()));
    }
    if (batch_left || can_send()) {
        unlock_and_rouse(lock);
    } else {
        lock.unlock();
    }
}

void Channel::nudge() {
    State& state = *state_;
    UniqueLock lock(state.mutex);
    if (state.can_send()) state.send_here(lock);
}

Status Channel::flush() {
    State& state = *state_;
    UniqueLock lock(state.mutex);
    if (state.on_reader()) return Error{ErrorCode::internal, "a Receiver must not wait for its channel to send"};
    const auto all_sent =
        [&outbox = state.outbox, last = state.outbox.last_sequence(), before = state.outbox.gone_before()]()
            GP_NO_THREAD_SAFETY_ANALYSIS { return outbox.sent() >= last + (outbox.gone_before() - before); };
    // Sending from here saves the way through the pump's thread.
    while (state.phase != State::Phase::ended && !all_sent()) {
        if (state.can_send()) {
            state.send_batch(lock);
        } else {
            state.progress.wait(lock, [&]() GP_REQUIRES(state.mutex) {
                return state.phase == State::Phase::ended || all_sent() || state.can_send();
            });
        }
    }
    if (state.phase == State::Phase::ended) return *state.error;
    if (state.can_send()) state.unlock_and_rouse(lock);  // what came while this call was sending
    return {};
}

// Looks for more to send before the pump sleeps. Did anything come, if somebody else may have sent it since?
bool Channel::State::poll_for_work(UniqueLock& lock) {
    doing = Pump::looks;
    bool came = false;
    {
        const Unlocked unlocked(lock, mutex);
        came = pump_spin.until([&] { return news.load(std::memory_order_acquire); });
    }
    doing = Pump::works;
    news.store(false, std::memory_order_relaxed);
    return came;
}

// Where sending costs next to nothing, the pump would send every record by itself, and contend for the lock with the
// thread that appends them. Where it is a system call, much comes meanwhile, but the first record goes alone; and who
// is about to wait for an answer to it would have to wait for that call before its own, instead of sending both in one.
void Channel::State::let_gather(UniqueLock& lock) {
    if (batch_left || stopping) return;
    const bool enough = !sending && outbox.retained() > kMaxOnTheWay && batch.total_bytes <= kLittleBatchBytes;
    const Unlocked unlocked(lock, mutex);
    const auto end = std::chrono::steady_clock::now() + (enough ? kGatherLongFor : kGatherFor);
    while (std::chrono::steady_clock::now() < end) spin_pause();
}

void Channel::State::run_pump() {
    UniqueLock lock(mutex);
    bool lingered = false, polled = false;
    while (!stopping || batch_left) {
        if (batch_left || can_send()) {
            send_batch(lock);
            lingered = polled = false;
            if (copies) let_gather(lock);
            continue;
        }
        if (!polled) {
            polled = !poll_for_work(lock);
            if (!polled && !copies) let_gather(lock);
            continue;
        }
        // After activity the pump sleeps lightly for a moment, which makes it the timer of acknowledgements that find
        // no frame to travel with; in a steady exchange nobody has to wake it for them.
        const bool owes_ack = phase == Phase::open && received > acknowledged_to_peer;
        const bool lightly = phase == Phase::open && (owes_ack || !lingered);
        const auto woken = [&]() GP_REQUIRES(mutex) { return doing == Pump::wakes || stopping; };
        doing = lightly ? Pump::dozes : Pump::sleeps;
        if (!lightly) {
            pump_wake.wait(lock, woken);
            lingered = polled = false;
        } else if (pump_wake.wait_for(lock, kAckTimeout, woken)) {
            polled = false;  // where more follows, nobody has to wake it again
        } else {
            lingered = true;
            if (received > acknowledged_to_peer) ack_urgent = true;
        }
        doing = Pump::works;
    }
}

}  // namespace gpupool::wire
