// One direction of an emulated network: what enters comes out later, at no more than its rate.
//
// A link is shared by all connections: their data follows each other on it, as on one cable. A Lane is one connection's
// way through it: data of a lane keeps its order, and a lane whose receiver is slow holds up nobody else's.
//
// A part's time on the link begins when it enters and the link is free; it comes out when its last byte has been sent
// and the delay has passed. Parts are small (part_bytes), so that a large transfer is a flow and no lump.
//
// A lane's data lies in one ring, received into it and sent out of it: what it is copied for is the sockets alone.
//
// Ownership: the link outlives its lanes; a lane's connection and traffic outlive the lane. Threads: Link::admit any;
// of
//   a lane room, has_room and push one, wait_delivered any, and it has a thread of its own that delivers. Units: in the
//   names. Limits: a lane holds what is on its way and kBufferBytes more; then room waits, and so its sender. Errors:
//   the connection's, reported by room.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "benchmarks/network/sleeper.h"
#include "common/spin.h"
#include "protocol/transport/connection.h"

namespace gpupool::network {

class Link {
  public:
    // `bytes_per_s` 0: as fast as it goes.
    Link(std::chrono::nanoseconds delay, double bytes_per_s) : delay_(delay), bytes_per_s_(bytes_per_s) {}

    // When `bytes` that enter now come out.
    Clock::time_point admit(std::size_t bytes);
    [[nodiscard]] std::size_t part_bytes() const;
    [[nodiscard]] std::chrono::nanoseconds delay() const { return delay_; }
    // What is on its way at most, when nothing is held up.
    [[nodiscard]] std::size_t in_flight_bytes() const;

  private:
    const std::chrono::nanoseconds delay_;
    const double bytes_per_s_;
    std::mutex mutex_;
    Clock::time_point free_at_{};
};

// What a connection carries. One that carries little is looked at for what comes next, where processors are to spare: a
// network wakes nobody on its way, and to wake a thread takes as long as a whole round trip. Of bulk data there are
// many connections, whose threads would keep the processors from each other.
//
// Threads: any.
class Traffic {
  public:
    void note(std::size_t bytes) noexcept {
        if (bytes > kLittleBytes) large_at_.store(Clock::now(), std::memory_order_relaxed);
    }
    // Asks `look` until it says true, for at most kPollTime: always as long, so that a round trip does not depend on
    // the ones before (as with a Spin). Its last answer. What comes is due after `delay`, and the looks are no closer
    // than that takes: on a real network's way no processor is busy.
    template <class Condition>
    bool poll_for(Condition condition, Sleeper& sleeper, Clock::duration delay) const {
        if (!spinning_pays() || Clock::now() - large_at_.load(std::memory_order_relaxed) < kBulkGoesOnFor)
            return condition();
        return sleeper.poll_for(condition, kPollTime, delay);
    }

  private:
    static constexpr std::size_t kLittleBytes = 32u << 10;
    static constexpr std::chrono::milliseconds kPollTime{20}, kBulkGoesOnFor{100};
    std::atomic<Clock::time_point> large_at_{Clock::time_point{}};
};

class Lane {
  public:
    static constexpr std::size_t kBufferBytes = 2u << 20;

    Lane(Link& link, transport::Connection& to, Traffic& traffic);
    // Everything that was pushed has been delivered, or cannot be.
    ~Lane();
    Lane(const Lane&) = delete;
    Lane& operator=(const Lane&) = delete;

    // Where to put what comes next, of a part's size, once there is room.
    Result<transport::MutableBuffer> room();
    // Does room() return at once?
    [[nodiscard]] bool has_room();
    // The first `bytes` of that enter the link now.
    void push(std::size_t bytes);
    // Pushed, and not on its way yet.
    [[nodiscard]] std::size_t unsent_bytes();
    // Waits until all of it has been delivered. False when it has not by `deadline`, or cannot be.
    bool wait_delivered(Clock::time_point deadline);

  private:
    struct Part {
        Clock::time_point due;
        std::size_t begin, bytes;
    };
    void run();
    bool find_room();

    Link& link_;
    transport::Connection& to_;
    Traffic& traffic_;
    const std::size_t part_bytes_, ring_bytes_;
    const std::unique_ptr<std::byte[]> ring_;
    std::mutex mutex_;  // guards what follows
    std::condition_variable came_, went_, delivered_;
    std::deque<Part> parts_;
    std::size_t held_bytes_ = 0;
    std::size_t head_ = 0, tail_ = 0;  // where the next part begins; where the oldest one does
    bool finished_ = false;
    std::optional<Error> error_;
    std::atomic<bool> news_{false};  // a part came, or the end; for a look without the lock
    Spin spin_;                      // the thread's, as the next
    Sleeper sleeper_;
    std::thread thread_;  // the last: it uses all of the above
};

}  // namespace gpupool::network
