#include "protocol/transport/shm/connection.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "protocol/transport/shm/local_socket.h"

namespace gpupool::transport::shm {
namespace {

// How much is copied before the other side may start to read it.
constexpr std::size_t kStepBytes = 64u << 10;
// At most this much per receive(), so that the writer gets room in the meantime.
constexpr std::size_t kReceiveBytes = 128u << 10;

static_assert(2 * sizeof(RingControl) <= kControlBytes);

RingMemory ring_of(const SharedMemory& memory, bool to_server) {
    auto* const controls = reinterpret_cast<RingControl*>(memory.bytes().data());
    return {controls + (to_server ? 0 : 1),
            memory.bytes().subspan(kControlBytes + (to_server ? 0 : kRingBytes), kRingBytes)};
}

enum class Woken { by_socket, otherwise, too_late };

// Sleeps until a wake-up byte arrives at `socket`, its other end is gone, the event descriptor is readable, or the
// deadline has passed.
Result<Woken> sleep_at(int socket, int event, Clock::time_point deadline) {
    for (;;) {
        std::array entries{pollfd{socket, POLLIN, 0}, pollfd{event, POLLIN, 0}};
        const int ready = ::poll(entries.data(), entries.size(), poll_timeout_ms(deadline));
        if (ready == 0) {
            return Woken::too_late;
        }
        if (ready > 0) {
            return entries[0].revents != 0 ? Woken::by_socket : Woken::otherwise;
        }
        if (errno != EINTR) {
            return system_error("poll", errno);
        }
    }
}

constexpr int kNoEvent = -1;  // poll() ignores it

}  // namespace

ShmConnection::ShmConnection(Parts parts, Side side, std::string peer)
    : parts_(std::move(parts)),
      peer_(std::move(peer)),
      out_(ring_of(parts_.memory, side == Side::client)),
      in_(ring_of(parts_.memory, side == Side::server)) {}

std::vector<int> ShmConnection::descriptors() const {
    return {parts_.socket.get(), parts_.room.get(), parts_.passage.get(), parts_.memory.descriptor()};
}

Status ShmConnection::give(int descriptor, std::uint64_t number) {
    return send_with_descriptors(parts_.passage.get(), std::as_bytes(std::span(&number, 1)), std::span(&descriptor, 1));
}

Result<UniqueFd> ShmConnection::take_given(std::uint64_t number) {
    for (;;) {
        std::uint64_t given = 0;
        auto descriptors = receive_with_descriptors(parts_.passage.get(), std::as_writable_bytes(std::span(&given, 1)));
        if (!descriptors) {
            return descriptors.error();
        }
        if (given != number) {
            continue;
        }
        if (descriptors->size() == 1) {
            return std::move(descriptors->front());
        }
        return Error{ErrorCode::invalid_input, fmt::format("{} announced a descriptor but did not pass it", peer_)};
    }
}

Error ShmConnection::closed_here() const {
    return {ErrorCode::closed, "the connection was closed"};
}

Error ShmConnection::closed_there() const {
    return {ErrorCode::closed, fmt::format("{} closed the connection", peer_)};
}

Status ShmConnection::publish() {
    if (out_.publish() && !send_wakeup(parts_.socket.get())) {
        return closed_there();
    }
    return {};
}

// Writes as much as there is room for, and publishes it in steps; the caller publishes the last one.
Result<std::size_t> ShmConnection::send_part(ConstBuffer data) {
    std::size_t total = 0;
    while (total < data.size()) {
        const auto step = data.subspan(total, std::min(kStepBytes, data.size() - total));
        auto taken = out_.write(step);
        if (!taken) {
            return taken;
        }
        total += *taken;
        if (out_.unpublished_bytes() >= kStepBytes) {
            GPUPOOL_TRY(publish());
        }
        if (*taken < step.size()) {
            break;
        }
    }
    return total;
}

Status ShmConnection::wait_for_room() {
    if (send_spin_.until([&] { return out_.may_write(); })) {
        return {};
    }
    const auto deadline = send_timeout_.count() == 0 ? kNoDeadline : Clock::now() + send_timeout_;
    while (out_.prepare_to_sleep()) {
        const auto woken = sleep_at(parts_.room.get(), kNoEvent, deadline);
        const bool there = woken && *woken == Woken::by_socket && take_wakeups(parts_.room.get());
        if (shut_down_.load(std::memory_order_acquire)) {
            return closed_here();
        }
        if (!woken) {
            return woken.error();
        }
        if (*woken == Woken::too_late) {
            return Error{ErrorCode::timed_out, fmt::format("{} accepted no data in time", peer_)};
        }
        if (!there) {
            return closed_there();
        }
    }
    return {};
}

Status ShmConnection::send(std::span<const ConstBuffer> buffers) {
    if (shut_down_.load(std::memory_order_acquire)) {
        return closed_here();
    }
    for (auto buffer : buffers) {
        while (!buffer.empty()) {
            const auto sent = send_part(buffer);
            if (!sent) {
                return sent.error();
            }
            buffer = buffer.subspan(*sent);
            if (buffer.empty()) {
                break;
            }
            GPUPOOL_TRY(publish());
            GPUPOOL_TRY(wait_for_room());
        }
    }
    return publish();
}

Result<std::size_t> ShmConnection::send_some(std::span<const ConstBuffer> buffers) {
    if (shut_down_.load(std::memory_order_acquire)) {
        return closed_here();
    }
    std::size_t total = 0;
    for (const auto& buffer : buffers) {
        auto sent = send_part(buffer);
        if (!sent) {
            return sent;
        }
        total += *sent;
        if (*sent < buffer.size()) {
            break;
        }
    }
    GPUPOOL_TRY(publish());
    return total;
}

Connection::Copied ShmConnection::copy_whole(std::span<const ConstBuffer> buffers) noexcept {
    std::size_t bytes = 0;
    for (const auto& buffer : buffers) {
        bytes += buffer.size();
    }
    if (shut_down_.load(std::memory_order_acquire) || !out_.fits(bytes)) {
        return Copied::nothing;
    }
    for (const auto& buffer : buffers) {
        (void)out_.write(buffer);
    }
    return out_.publish() ? Copied::all_and_peer_sleeps : Copied::all;
}

// If the peer is gone, nothing needs to be done: the receiving thread notices.
void ShmConnection::wake_peer() noexcept {
    (void)send_wakeup(parts_.socket.get());
}

// Called inside receive(), with the receiving role held; so a polling thread does not interfere.
Status ShmConnection::wait_for_bytes() {
    if (receive_spin_.until([&] { return in_.readable_bytes() != 0; })) {
        return {};
    }
    if (!in_.prepare_to_sleep()) {
        return {};
    }
    auto slept = sleep_for_bytes(deadline_);
    in_.stay_awake();
    return slept;
}

Status ShmConnection::sleep_for_bytes(Clock::time_point deadline) {
    const auto woken = sleep_at(parts_.socket.get(), reader_yield_.wake_descriptor(), deadline);
    if (!woken) {
        return woken.error();
    }
    if (*woken == Woken::by_socket) {
        if (!take_wakeups(parts_.socket.get())) {
            peer_gone_.store(true, std::memory_order_release);
        }
    } else if (*woken == Woken::otherwise) {
        reader_yield_.woken();
    } else if (in_.readable_bytes() == 0) {
        return Error{ErrorCode::timed_out, fmt::format("{} sent nothing in time", peer_)};
    }
    return {};
}

Status ShmConnection::wait_arrival() {
    if (reader_yield_.spin([&] { return in_.readable_bytes() != 0; })) {
        return {};
    }
    // A polling thread needs no wake-up byte, and sending one costs the sender a system call: so a reader that sleeps
    // beside a polling thread requests none.
    bool wants_wakeup = true;
    const auto prepare = [&](bool alone) {
        wants_wakeup = alone;
        return !wants_wakeup || in_.prepare_to_sleep();
    };
    if (!reader_yield_.fall_asleep(prepare)) {
        return {};
    }
    auto slept = sleep_for_bytes(wants_wakeup ? deadline_ : std::min(deadline_, Clock::now() + ReaderYield::kMaxYield));
    if (!wants_wakeup && !slept && slept.error().code == ErrorCode::timed_out && Clock::now() < deadline_) {
        slept = Status();
    }
    reader_yield_.wake_up([&] { in_.stay_awake(); });
    if (shut_down_.load(std::memory_order_acquire)) {
        return closed_here();
    }
    if (peer_gone_.load(std::memory_order_acquire) && in_.readable_bytes() == 0) {
        return closed_there();
    }
    return slept;
}

void ShmConnection::end_polling() noexcept {
    reader_yield_.end([&] { return in_.prepare_to_sleep(); });
}

Result<std::size_t> ShmConnection::receive_some(MutableBuffer buffer) {
    // Data that arrived before this side's shutdown is still readable, but the reader has been asked to stop.
    if (shut_down_.load(std::memory_order_acquire)) {
        return closed_here();
    }
    auto received = in_.read(buffer.first(std::min(buffer.size(), kReceiveBytes)));
    if (received && *received > 0 && in_.release()) {
        (void)send_wakeup(parts_.room.get());  // a writer that is gone needs no wake-up
    }
    return received;
}

Result<std::size_t> ShmConnection::receive(MutableBuffer buffer) {
    for (;;) {
        // Read before the ring: data that a peer wrote before it ended can still be received.
        const bool gone = peer_gone_.load(std::memory_order_acquire);
        auto received = receive_some(buffer);
        if (!received || *received > 0) {
            return received;
        }
        if (gone) {
            return closed_there();
        }
        GPUPOOL_TRY(wait_for_bytes());
    }
}

// Consumes wake-up bytes before it reads the ring's index: a byte that arrives later announces later data.
Result<Connection::Readiness> ShmConnection::receive_readiness() {
    const bool gone = !take_wakeups(parts_.socket.get());
    if (!in_.prepare_to_sleep()) {
        return Readiness{};
    }
    if (gone) {
        return closed_there();
    }
    return Readiness{parts_.socket.get(), false};
}

Result<Connection::Readiness> ShmConnection::send_readiness() {
    const bool gone = !take_wakeups(parts_.room.get());
    if (gone) {
        return closed_there();
    }
    return out_.prepare_to_sleep() ? Readiness{parts_.room.get(), false} : Readiness{};
}

void ShmConnection::shutdown() noexcept {
    shut_down_.store(true, std::memory_order_release);
    (void)::shutdown(parts_.socket.get(), SHUT_RDWR);
    (void)::shutdown(parts_.room.get(), SHUT_RDWR);
    (void)::shutdown(parts_.passage.get(), SHUT_RDWR);
}

Result<std::string> name_of_peer(int socket) {
    const auto peer = peer_of(socket);
    if (!peer) {
        return peer.error();
    }
    return fmt::format("shm pid {} uid {}", peer->pid, peer->uid);
}

namespace {

Result<std::unique_ptr<ShmConnection>> make_server_end(std::vector<UniqueFd> descriptors) {
    if (descriptors.size() != 4) {
        return Error{ErrorCode::invalid_input, "a shared memory connection consists of four descriptors"};
    }
    for (std::size_t i = 0; i < 3; ++i) {
        GPUPOOL_TRY(check_socket(descriptors[i].get()));
    }
    auto name = name_of_peer(descriptors[0].get());
    if (!name) {
        return name.error();
    }
    auto memory = SharedMemory::map(std::move(descriptors[3]), kMemoryBytes);
    if (!memory) {
        return memory.error();
    }
    Parts parts{std::move(descriptors[0]), std::move(descriptors[1]), std::move(descriptors[2]), std::move(*memory)};
    return std::make_unique<ShmConnection>(std::move(parts), Side::server, std::move(*name));
}

}  // namespace

Result<std::unique_ptr<Connection>> adopt(std::vector<UniqueFd> descriptors) {
    auto made = make_server_end(std::move(descriptors));
    if (!made) {
        return made.error();
    }
    return std::unique_ptr<Connection>(std::move(*made));
}

Result<std::unique_ptr<Connection>> begin(std::vector<UniqueFd> descriptors) {
    auto made = make_server_end(std::move(descriptors));
    if (!made) {
        return made.error();
    }
    // Checks the connection's own copies of the indices: the memory may change at any time.
    if ((*made)->unused()) {
        return std::unique_ptr<Connection>(std::move(*made));
    }
    return Error{ErrorCode::invalid_input,
                 fmt::format("{} sent shared memory whose rings are not new", (*made)->peer())};
}

}  // namespace gpupool::transport::shm
