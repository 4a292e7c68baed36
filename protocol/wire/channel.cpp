#include "protocol/wire/channel.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/quiet_thread.h"
#include "protocol/wire/channel_state.h"

namespace gpupool::wire {
namespace {

constexpr std::size_t kMaxBetweenAcksBytes = 1u << 20;
constexpr std::size_t kLeastBulkFrameBytes = 4u << 10;
constexpr std::size_t kMaxBulkFrameBytes = 1u << 20;  // so that other records can be sent in between

Error closed_here() {
    return {ErrorCode::closed, "the channel was closed"};
}

}  // namespace

// The peer's limit is not known but is the same in practice: acknowledging well within it keeps the peer sending.
Channel::State::State(std::unique_ptr<transport::Connection> first, Receiver& to, const Limits& given)
    : receiver(to),
      limits(given),
      acknowledge_every_bytes(std::min(kMaxBetweenAcksBytes, given.retained_bytes / 4)),
      bulk_frame_bytes(std::clamp(given.retained_bytes / 4, kLeastBulkFrameBytes, kMaxBulkFrameBytes)),
      connection(std::move(first)),
      outbox(std::clamp<std::size_t>(given.frame_bytes, 1u << 10, kMaxPayloadBytes)) {
    learn_connection();
}

// Decides which hand-overs between threads are avoided if the process has enough processors: an appending thread sends
// itself if that is only a copy, and a waiting thread receives itself if it can poll.
void Channel::State::learn_connection() {
    copies = connection->sends_by_copying() && spinning_pays();
    can_poll.store(connection->can_poll() && spinning_pays(), std::memory_order_relaxed);
}

void Channel::State::wake_all_threads() {
    wake_pump(prepare_wakeup());  // with the lock held: at the end of a connection this does not matter
    reader_wake.notify_all();
    room.notify_all();
    progress.notify_all();
}

// Breaks or ends the channel and makes both threads leave the connection. Keeps the first cause.
void Channel::State::fail(UniqueLock& lock, Error cause, bool resumable) {
    if (phase == Phase::ended) {
        return;
    }
    if (resumable && limits.resume && !closing && !peer_goodbye) {
        if (phase == Phase::broken) {
            return;
        }
        phase = Phase::broken;
        break_cause = std::move(cause);
    } else {
        phase = Phase::ended;
        error = closing ? closed_here() : std::move(cause);
    }
    ReleasedFrames released;
    if (phase == Phase::ended && !sending) {
        outbox.clear(released);  // else the sending thread does it when its call returns
    }
    const auto broken = connection;
    wake_all_threads();
    const Unlocked unlocked(lock, mutex);
    broken->shutdown();
    released.clear();
}

Channel::Channel(std::unique_ptr<transport::Connection> connection, Receiver& receiver, Limits limits)
    : state_(std::make_unique<State>(std::move(connection), receiver, limits)) {}

Channel::~Channel() {
    close(std::chrono::milliseconds(0));
}

void Channel::start() {
    State& state = *state_;
    const Lock lock(state.mutex);
    if (state.started || state.closing) {
        return;
    }
    state.started = true;
    state.reader = quiet_thread("gpupool-read", [&state] { state.run_reader(); });
    state.pump = quiet_thread("gpupool-pump", [&state] { state.run_pump(); });
}

void Channel::close(std::chrono::milliseconds timeout) {
    State& state = *state_;
    const Lock one_at_a_time(state.closing_call);
    UniqueLock lock(state.mutex);
    const bool first = !state.closing;
    state.closing = true;
    state.room.notify_all();
    if (first && state.phase == State::Phase::open && state.started) {
        OutFrame frame;
        frame.type = FrameType::goodbye;
        const auto goodbye = state.outbox.add_frame(std::move(frame));
        state.wake_pump(state.prepare_wakeup());
        state.progress.wait_for(lock, timeout, [&]() GP_REQUIRES(state.mutex) {
            return state.phase != State::Phase::open || state.outbox.acknowledged() >= goodbye;
        });
    }
    state.fail(lock, closed_here(), false);
    state.stopping = true;
    state.wake_all_threads();
    state.progress.wait(lock, [&]() GP_REQUIRES(state.mutex) { return !state.sending; });
    lock.unlock();
    if (state.pump.joinable()) {
        state.pump.join();
    }
    if (state.reader.joinable()) {
        state.reader.join();
    }
}

Status Channel::attach(std::unique_ptr<transport::Connection> connection, std::uint64_t peer_received) {
    State& state = *state_;
    const Lock one_at_a_time(state.attaching);
    UniqueLock lock(state.mutex);
    using Phase = State::Phase;
    using Reading = State::Reading;
    if (state.phase == Phase::ended) {
        return *state.error;
    }
    if (!state.limits.resume || !state.started) {
        return Error{ErrorCode::unsupported, "this channel cannot be resumed: it was not set up for it"};
    }
    const bool reporting = state.on_reader();
    if (reporting && state.reading != Reading::reporting) {
        return Error{ErrorCode::internal, "a channel cannot be resumed by a Receiver while it is being read"};
    }
    if (peer_received > state.outbox.attempted()) {
        return Error{ErrorCode::invalid_input,
                     fmt::format("cannot resume: the other side claims to have frame {}, but only {} were sent",
                                 peer_received, state.outbox.attempted())};
    }
    state.fail(lock, {ErrorCode::closed, "the connection was replaced by a new one"}, true);
    const auto reader_done = [&]() GP_REQUIRES(state.mutex) {
        return reporting || (state.reading == Reading::idle && state.reader_generation == state.generation);
    };
    state.progress.wait(lock, [&]() GP_REQUIRES(state.mutex) {
        return state.phase == Phase::ended || (!state.sending && reader_done());
    });
    if (state.phase == Phase::ended) {
        return *state.error;
    }

    // Acknowledgements may exceed `peer_received`, if the old connection still delivered frames after the peer had read
    // its number: then they are the more recent information.
    ReleasedFrames released;
    (void)state.outbox.acknowledge(peer_received, released);
    state.outbox.rewind();
    state.connection = std::move(connection);
    state.learn_connection();
    ++state.generation;
    state.phase = Phase::open;
    state.acknowledged_to_peer = 0;
    state.ack_urgent = true;
    state.wake_all_threads();
    lock.unlock();
    released.clear();
    return {};
}

void Channel::observe(TrafficObserver* observer) noexcept {
    state_->observer.store(observer, std::memory_order_release);
}

std::uint64_t Channel::last_received() const noexcept {
    const Lock lock(state_->mutex);
    return state_->received;
}

Counters Channel::counters() const noexcept {
    const Lock lock(state_->mutex);
    return {state_->frames_sent, state_->frames_received.load(std::memory_order_relaxed), state_->bytes_sent,
            state_->bytes_received.load(std::memory_order_relaxed), state_->writes};
}

Status Channel::error() const {
    const Lock lock(state_->mutex);
    if (state_->error) {
        return *state_->error;
    }
    return {};
}

}  // namespace gpupool::wire
