// What carries bytes between a client and its worker.
//
// A `Connection` is one ordered, reliable, bidirectional byte stream. Everything above it (frames, sequence numbers,
// retention, resumption) lives in `protocol/wire/`, so a transport is small and every transport passes the same
// conformance suite (`tests/conformance/`).
//
// Threads: at most one thread sends and at most one receives at a time; the two never wait for each other.
//   `shutdown()` may be called by any thread, at any time, and makes both return promptly with `ErrorCode::closed`.
// Ownership: the caller's buffers are used only during the call.
// Errors: `closed` when the peer ended the stream or `shutdown()` was called, `timed_out` where a deadline was given,
//   `system` for everything else. After an error other than `timed_out` the connection is of no further use.
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
inline constexpr std::size_t kMaxDescriptors = 4;  // that one connection consists of

class Connection {
  public:
    virtual ~Connection() = default;

    // Sends all of `buffers`, in order; waits while the peer does not take them.
    virtual Status send(std::span<const ConstBuffer> buffers) = 0;

    // Sends as much of `buffers` as goes without waiting, and says how many bytes that were. A transport without such a
    // way takes nothing.
    virtual Result<std::size_t> send_some(std::span<const ConstBuffer> /*buffers*/) { return std::size_t{0}; }
    // Is send_some() a copy and no system call, but to wake a peer that sleeps? Then whoever has something small to
    // send does best to do so itself.
    [[nodiscard]] virtual bool sends_by_copying() const noexcept { return false; }
    // There: all of `buffers`, or nothing where that does not fit or would fail, which send_some() then says. No system
    // call: where the peer sleeps it has to be woken behind this, by any thread.
    enum class Copied { nothing, all, all_and_peer_sleeps };
    virtual Copied copy_whole(std::span<const ConstBuffer> /*buffers*/) noexcept { return Copied::nothing; }
    virtual void wake_peer() noexcept {}

    // Receives at least one byte into `buffer`, as much as has arrived; waits until there is one. Zero-sized buffers
    // are a caller's bug. An orderly end by the peer is `ErrorCode::closed`.
    virtual Result<std::size_t> receive(MutableBuffer buffer) = 0;

    // ---- Looking. The thread that waits for what will arrive may receive it itself, which saves handing it over. Who
    // receives otherwise then waits in wait_arrival() and gives way; receive() and receive_some() are still one
    // thread's at a time, which is the threads' business. tcp and shm do it with a ReaderYield (lookout.h); a transport
    // that cannot leaves all of it as it is here.

    [[nodiscard]] virtual bool can_poll() const noexcept { return false; }
    // False when nothing has arrived, as far as that can be seen without a system call; any thread.
    [[nodiscard]] virtual bool may_have_data() const noexcept { return true; }
    // That can be received without waiting, at least one where the end or an error can; any thread.
    [[nodiscard]] virtual std::size_t arrived_bytes() const noexcept { return 0; }
    // As receive(), but of what has arrived: zero bytes when nothing has.
    virtual Result<std::size_t> receive_some(MutableBuffer /*buffer*/) { return std::size_t{0}; }
    // Returns when something has arrived and nobody looks, perhaps also when not; errors as receive(). One thread.
    virtual Status wait_arrival() { return {}; }
    // Between these two calls some thread waits for what will arrive, and looks for it all the time where it can;
    // several may.
    virtual void begin_polling() noexcept {}
    virtual void end_polling() noexcept {}

    // From now on a receive() that has nothing by `deadline` fails with `timed_out`; `kNoDeadline` waits for ever, as
    // at the start. An absolute time and not a duration per call, so that a peer that sends one byte now and then
    // cannot hold its reader. The connection stays usable after such a failure. Called by the thread that receives.
    virtual void set_receive_deadline(Clock::time_point deadline) noexcept = 0;

    // Ends both directions, for the peer too. Destroying a connection only lets go of it: a descriptor that another
    // process took over lives on there.
    virtual void shutdown() noexcept = 0;

    // Who is at the other end, for logs and status: "tcp 10.0.0.7:51234".
    [[nodiscard]] virtual std::string peer() const = 0;

    // Of what was sent, how much has not left this machine yet; 0 where that cannot be told. Called by the thread that
    // sends.
    [[nodiscard]] virtual std::size_t unsent_bytes() const noexcept { return 0; }

    // How long a send() may wait in all while the peer takes nothing, before it fails with `timed_out`; zero is for
    // ever, as at the start. The connection is of no further use after that. Called by the thread that sends.
    virtual void set_send_timeout(std::chrono::milliseconds /*timeout*/) noexcept {}

    // The descriptor that says when the peer is gone, or -1 where there is none.
    [[nodiscard]] virtual int native_handle() const noexcept { return -1; }

    // All that the connection consists of, for another process to take over (a worker from its daemon: adopt() in
    // open.h) or for a forked child to close. native_handle() is the first.
    [[nodiscard]] virtual std::vector<int> descriptors() const {
        return native_handle() < 0 ? std::vector<int>{} : std::vector<int>{native_handle()};
    }

    // Gives the other process a descriptor (this one stays the caller's), with a number that says which it is; takes
    // the one that it gave with that number, and forgets those that it gave before. Neither waits. A descriptor is
    // there before any byte that is sent after it. `unsupported` where the two processes share no kernel. Each is one
    // thread's at a time.
    virtual Status give(int /*descriptor*/, std::uint64_t /*number*/) { return no_descriptors(); }
    virtual Result<UniqueFd> take_given(std::uint64_t /*number*/) { return no_descriptors(); }
    [[nodiscard]] virtual bool can_give() const noexcept { return false; }

  private:
    static Error no_descriptors() { return {ErrorCode::unsupported, "this transport carries no descriptors"}; }
};

class Listener {
  public:
    virtual ~Listener() = default;
    // Waits for the next connection; `closed` after shutdown(). `limit_exceeded` when this process or machine is out of
    // descriptors or memory for the moment: the listener stays usable, the caller should wait a little.
    virtual Result<std::unique_ptr<Connection>> accept() = 0;
    virtual void shutdown() noexcept = 0;
    // The address that clients connect to, with the real port: "127.0.0.1:9470".
    [[nodiscard]] virtual std::string address() const = 0;
};

// What Listener::accept() gives when accept() has failed with `error`. Nothing where the failure is that of the one
// connection that was waiting, not of the listener.
std::optional<Error> accept_failure(int error);

// How long poll() may wait to be back by `deadline`: milliseconds rounded up, -1 for ever, 0 when it has passed.
int poll_timeout_ms(Clock::time_point deadline) noexcept;

// Receives exactly `buffer.size()` bytes.
Status receive_exactly(Connection& connection, MutableBuffer buffer);

}  // namespace gpupool::transport
