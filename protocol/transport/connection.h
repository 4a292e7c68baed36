// The byte stream between a client and its worker.
//
// A `Connection` is one ordered, reliable, bidirectional byte stream. Everything above it (frames, sequence numbers,
// retention, resumption) lives in `protocol/wire/`, so a transport is small and every transport passes the same
// conformance suite (`tests/conformance/`).
//
// Threads: at most one thread sends and at most one receives at a time; the two never wait for each other. Any thread
// may call `shutdown()` at any time; both then return promptly with `ErrorCode::closed`.
// Ownership: the caller's buffers are used only during the call.
// Errors: `closed` if the peer ended the stream or `shutdown()` was called, `timed_out` if a deadline was given,
// `system` otherwise. After an error other than `timed_out` the connection is of no further use.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/result.h"
#include "common/unique_fd.h"

namespace gpupool::transport {

using ConstBuffer = std::span<const std::byte>;
using MutableBuffer = std::span<std::byte>;
using Clock = std::chrono::steady_clock;
inline constexpr Clock::time_point kNoDeadline = Clock::time_point::max();
inline constexpr std::size_t kMaxDescriptors = 4;  // of one connection

class Connection {
  public:
    virtual ~Connection() = default;

    // Sends all of `buffers`, in order; blocks while the peer does not accept them.
    virtual Status send(std::span<const ConstBuffer> buffers) = 0;

    // Sends as much of `buffers` as is possible without blocking, and returns the number of bytes. A transport that
    // cannot do that sends nothing.
    virtual Result<std::size_t> send_some(std::span<const ConstBuffer> /*buffers*/) { return std::size_t{0}; }
    // True if send_some() is only a copy, without a system call except to wake a sleeping peer. A thread with a small
    // record should then send it itself.
    [[nodiscard]] virtual bool sends_by_copying() const noexcept { return false; }
    // On such a transport: sends all of `buffers`, or nothing if they do not fit or sending would fail (send_some()
    // then reports the error). Makes no system call: with all_and_peer_sleeps some thread must call wake_peer()
    // afterwards.
    enum class Copied { nothing, all, all_and_peer_sleeps };
    virtual Copied copy_whole(std::span<const ConstBuffer> /*buffers*/) noexcept { return Copied::nothing; }
    virtual void wake_peer() noexcept {}

    // Receives at least one byte into `buffer`, as much as has arrived; blocks until there is one. The caller must not
    // pass an empty buffer. `ErrorCode::closed` if the peer ended the stream in an orderly way.
    virtual Result<std::size_t> receive(MutableBuffer buffer) = 0;

    // ---- Polling. A thread that waits for data may receive it itself, which saves a hand-over from the reader. The
    // reader then waits in wait_arrival() and yields to it. Still only one thread at a time may call receive() or
    // receive_some(); the callers ensure that. tcp and shm implement this with a ReaderYield (reader_yield.h); a
    // transport that cannot poll keeps these defaults.

    [[nodiscard]] virtual bool can_poll() const noexcept { return false; }
    // False if nothing has arrived, as far as that is visible without a system call. Any thread.
    [[nodiscard]] virtual bool may_have_data() const noexcept { return true; }
    // How many bytes can be received without blocking; at least 1 if the end of the stream or an error can be received.
    // Any thread.
    [[nodiscard]] virtual std::size_t arrived_bytes() const noexcept { return 0; }
    // As receive(), but never blocks: zero bytes if nothing has arrived.
    virtual Result<std::size_t> receive_some(MutableBuffer /*buffer*/) { return std::size_t{0}; }
    // Returns when something has arrived and no thread polls; may return early. Errors as receive(). One thread.
    virtual Status wait_arrival() { return {}; }
    // Between these two calls some thread polls for data. Several threads may do so at a time.
    virtual void begin_polling() noexcept {}
    virtual void end_polling() noexcept {}

    // ---- Event loops. A thread that serves many connections never blocks in one of them. It calls receive_some() or
    // send_some() until nothing moves any more, then asks for the descriptor to wait for, and tries again when that is
    // ready. Without a descriptor it tries again at once. It may become ready without need. The callers are those of
    // receive_some() and of send_some(). `unsupported` from a transport that cannot do this.
    struct Readiness {
        int descriptor = -1;  // stays the connection's
        bool to_write = false;
    };
    virtual Result<Readiness> receive_readiness() { return no_event_loop(); }
    virtual Result<Readiness> send_readiness() { return no_event_loop(); }

    // From now on, a receive() without data by `deadline` fails with `timed_out`; `kNoDeadline`, the initial value,
    // means no limit. A point in time and not a duration per call, so that a peer cannot delay its reader by sending
    // single bytes. The connection stays usable after the failure. Called by the thread that receives.
    virtual void set_receive_deadline(Clock::time_point deadline) noexcept = 0;

    // Ends both directions, for the peer too. Destroying a connection only closes this process's descriptors: if
    // another process took them over, the stream lives on there.
    virtual void shutdown() noexcept = 0;

    // Description of the other end, for logs and status: "tcp 10.0.0.7:51234".
    [[nodiscard]] virtual std::string peer() const = 0;

    // How many of the sent bytes have not left this machine yet; 0 if unknown. Called by the thread that sends.
    [[nodiscard]] virtual std::size_t unsent_bytes() const noexcept { return 0; }

    // How long one send() may be blocked in total while the peer accepts nothing, before it fails with `timed_out`;
    // zero, the initial value, means no limit. The connection is of no further use after that. Called by the thread
    // that sends.
    virtual void set_send_timeout(std::chrono::milliseconds /*timeout*/) noexcept {}

    // The descriptor that shows when the peer is gone, or -1.
    [[nodiscard]] virtual int native_handle() const noexcept { return -1; }

    // All descriptors of the connection, for another process to take over (a worker from its daemon: adopt() in open.h)
    // or for a forked child to close. native_handle() is the first.
    [[nodiscard]] virtual std::vector<int> descriptors() const {
        return native_handle() < 0 ? std::vector<int>{} : std::vector<int>{native_handle()};
    }

    // give() passes a descriptor, which stays the caller's, to the other process, with a number that identifies it.
    // take_given() returns the received descriptor with that number, and discards those received before it. Neither
    // blocks. A descriptor is available before any byte that is sent after it. `unsupported` if the two processes do
    // not share a kernel. Each is called by one thread at a time.
    virtual Status give(int /*descriptor*/, std::uint64_t /*number*/) { return no_descriptors(); }
    virtual Result<UniqueFd> take_given(std::uint64_t /*number*/) { return no_descriptors(); }
    [[nodiscard]] virtual bool can_give() const noexcept { return false; }

  private:
    static Error no_event_loop() { return {ErrorCode::unsupported, "this transport works in no event loop"}; }
    static Error no_descriptors() { return {ErrorCode::unsupported, "this transport carries no descriptors"}; }
};

class Listener {
  public:
    virtual ~Listener() = default;
    // Blocks until the next connection; `closed` after shutdown(). `limit_exceeded` if this process or machine is
    // temporarily out of descriptors or memory: the listener stays usable, and the caller should retry after a short
    // wait. By default, waits for the descriptor and calls accept_now().
    virtual Result<std::unique_ptr<Connection>> accept();
    // As accept(), but never blocks: null if no connection waits.
    virtual Result<std::unique_ptr<Connection>> accept_now() { return std::unique_ptr<Connection>(); }
    // Readable when a connection waits, and after shutdown(); -1 if the listener works in no event loop.
    [[nodiscard]] virtual int native_handle() const noexcept { return -1; }
    virtual void shutdown() noexcept = 0;
    // The address that clients connect to, with the actual port: "127.0.0.1:9470".
    [[nodiscard]] virtual std::string address() const = 0;
};

// The error that Listener::accept() returns after accept() has failed with `error`; nullopt if the failure concerns
// only the connection that was waiting, not the listener.
std::optional<Error> accept_failure(int error);

// The timeout to pass to poll() for `deadline`: milliseconds rounded up, -1 for no limit, 0 if it has passed.
int poll_timeout_ms(Clock::time_point deadline) noexcept;

// Receives exactly `buffer.size()` bytes.
Status receive_exactly(Connection& connection, MutableBuffer buffer);

}  // namespace gpupool::transport
