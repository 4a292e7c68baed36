// A Connection between two processes of one host: two rings of bytes in shared memory, and three Unix sockets.
//
// The memory is a sealed memfd: a page of control blocks, then the ring from client to server, then the ring from
// server to client, each of kRingBytes. The sockets carry only the memory at the start and later single bytes that wake
// a sleeping thread: the first socket wakes a receiver that waits for bytes, the second a sender that waits for room.
// Each of them has one reader on each side, so that no thread consumes a byte meant for another; both show at once when
// the peer is gone. The third socket carries descriptors (give, take_given), each with eight bytes.
//
// The client creates the memory and the other two sockets, and sends all of them over the first socket, which it has
// connected. A client that writes garbage into the memory harms only its own session (ring.h).
//
// Ownership: owns its descriptors and its mapping; destroying it shuts nothing down, see Connection.
// Threads, errors: as Connection; `invalid_input` if the peer's index is invalid.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <memory>
#include <string>
#include <vector>

#include "common/spin.h"
#include "common/unique_fd.h"
#include "protocol/transport/connection.h"
#include "protocol/transport/reader_yield.h"
#include "protocol/transport/shm/memory.h"
#include "protocol/transport/shm/ring.h"

namespace gpupool::transport::shm {

inline constexpr std::size_t kControlBytes = 4096;
// Both sides are built with the same size and do not negotiate it: a change of it, or of the memory's layout, must also
// change the version in kGreeting (arrival.h).
inline constexpr std::size_t kRingBytes = 2u << 20;
static_assert(std::has_single_bit(kRingBytes), "places in a ring are found by masking (ring.h)");
inline constexpr std::size_t kMemoryBytes = kControlBytes + 2 * kRingBytes;

enum class Side { client, server };

// What a connection consists of.
struct Parts {
    UniqueFd socket;
    UniqueFd room;
    UniqueFd passage;  // carries descriptors
    SharedMemory memory;
};

class ShmConnection final : public Connection {
  public:
    ShmConnection(Parts parts, Side side, std::string peer);
    ShmConnection(const ShmConnection&) = delete;
    ShmConnection& operator=(const ShmConnection&) = delete;

    Status send(std::span<const ConstBuffer> buffers) override;
    Result<std::size_t> send_some(std::span<const ConstBuffer> buffers) override;
    [[nodiscard]] bool sends_by_copying() const noexcept override { return true; }
    Copied copy_whole(std::span<const ConstBuffer> buffers) noexcept override;
    void wake_peer() noexcept override;
    Result<std::size_t> receive(MutableBuffer buffer) override;
    [[nodiscard]] bool can_poll() const noexcept override { return reader_yield_.works(); }
    [[nodiscard]] bool may_have_data() const noexcept override { return in_.readable_bytes() != 0; }
    [[nodiscard]] std::size_t arrived_bytes() const noexcept override { return in_.readable_bytes(); }
    Result<std::size_t> receive_some(MutableBuffer buffer) override;
    Status wait_arrival() override;
    Result<Readiness> receive_readiness() override;
    Result<Readiness> send_readiness() override;
    void begin_polling() noexcept override { reader_yield_.begin(); }
    void end_polling() noexcept override;
    void set_receive_deadline(Clock::time_point deadline) noexcept override { deadline_ = deadline; }
    void set_send_timeout(std::chrono::milliseconds timeout) noexcept override { send_timeout_ = timeout; }
    void shutdown() noexcept override;
    [[nodiscard]] std::string peer() const override { return peer_; }
    [[nodiscard]] int native_handle() const noexcept override { return parts_.socket.get(); }
    // Whether this side has sent and received nothing yet, according to the counters in the shared memory.
    [[nodiscard]] bool unused() const noexcept { return out_.unused() && in_.unused(); }
    // The three sockets and the shared memory.
    [[nodiscard]] std::vector<int> descriptors() const override;
    Status give(int descriptor, std::uint64_t number) override;
    Result<UniqueFd> take_given(std::uint64_t number) override;
    [[nodiscard]] bool can_give() const noexcept override { return true; }

  private:
    Result<std::size_t> send_part(ConstBuffer data);
    Status publish();
    Status wait_for_room();
    Status wait_for_bytes();
    Status sleep_for_bytes(Clock::time_point deadline);
    [[nodiscard]] Error closed_here() const;
    [[nodiscard]] Error closed_there() const;

    const Parts parts_;
    const std::string peer_;
    std::atomic<bool> shut_down_{false};

    RingWriter out_;  // these are used by the sending thread only
    Spin send_spin_;
    std::chrono::milliseconds send_timeout_{0};

    RingReader in_;  // these are used by the receiving thread only
    Spin receive_spin_;
    std::atomic<bool> peer_gone_{false};
    Clock::time_point deadline_ = kNoDeadline;

    ReaderYield reader_yield_;
};

// Takes over the server's end; `descriptors` come from another process's descriptors().
Result<std::unique_ptr<Connection>> adopt(std::vector<UniqueFd> descriptors);

// Sets up the server's end of a connection that a client has just made. Refuses memory whose rings claim to have been
// used: a ring that looks full from the start would block a sender.
Result<std::unique_ptr<Connection>> begin(std::vector<UniqueFd> descriptors);

// "shm pid 4711 uid 1000": the other end of `socket`, as the kernel knows it.
Result<std::string> name_of_peer(int socket);

}  // namespace gpupool::transport::shm
