// One direction of an emulated network: data leaves it later than it enters, and at no more than its rate.
//
// All connections share a link: their data is serialized on it, as on one cable. A Path is the way of one connection's
// data through it. A path's data keeps its order, and a path with a slow receiver does not block other paths.
//
// A part's transmission begins when the part has entered and the link is free. The part leaves when its last byte has
// been sent and the delay has passed. Parts are small (part_bytes), so that a large transfer flows steadily.
//
// A path's data lies in one ring, which it is received into and sent from; only the sockets copy it again.
//
// Ownership: the link outlives its paths; a path's connection and traffic outlive the path. Threads: Link::admit any;
// one thread per path calls room, has_room and push, any calls wait_delivered, and the path has its own thread, which
// delivers. Units: in the names. Limits: a path holds what is in flight and kBufferBytes more; then room() blocks, and
// thereby the sender. Errors: the connection's, returned by room().
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
    // `bytes_per_s` 0: unlimited.
    Link(std::chrono::nanoseconds delay, double bytes_per_s) : delay_(delay), bytes_per_s_(bytes_per_s) {}

    // When `bytes` that enter now leave the link.
    Clock::time_point admit(std::size_t bytes);
    [[nodiscard]] std::size_t part_bytes() const;
    [[nodiscard]] std::chrono::nanoseconds delay() const { return delay_; }
    // The most that is in flight when no receiver is slow.
    [[nodiscard]] std::size_t in_flight_bytes() const;

  private:
    const std::chrono::nanoseconds delay_;
    const double bytes_per_s_;
    std::mutex mutex_;
    Clock::time_point free_at_{};
};

// The amount of a connection's recent traffic. A connection with little traffic polls for the next data if the process
// has enough processors: a real network wakes no thread on the way, and waking a thread takes as long as a whole round
// trip. Bulk data has many connections, whose polling threads would compete for processors.
//
// Threads: any.
class Traffic {
  public:
    void note(std::size_t bytes) noexcept {
        if (bytes > kLittleBytes) {
            large_at_.store(Clock::now(), std::memory_order_relaxed);
        }
    }
    // Polls `condition` for at most kPollTime. Unlike a Spin's, this time is constant, so that a round trip does not
    // depend on earlier ones. Returns its last value. New data is due after `delay`, so polls may be that far apart: in
    // a real network no processor is busy meanwhile.
    template <class Condition>
    bool poll_for(Condition condition, Sleeper& sleeper, Clock::duration delay) const {
        if (!spinning_pays() || Clock::now() - large_at_.load(std::memory_order_relaxed) < kBulkGoesOnFor) {
            return condition();
        }
        return sleeper.poll_for(condition, kPollTime, delay);
    }

  private:
    static constexpr std::size_t kLittleBytes = 32u << 10;
    static constexpr std::chrono::milliseconds kPollTime{20}, kBulkGoesOnFor{100};
    std::atomic<Clock::time_point> large_at_{Clock::time_point{}};
};

class Path {
  public:
    static constexpr std::size_t kBufferBytes = 2u << 20;

    Path(Link& link, transport::Connection& to, Traffic& traffic);
    // Waits until all pushed data has been delivered, or cannot be.
    ~Path();
    Path(const Path&) = delete;
    Path& operator=(const Path&) = delete;

    // Memory of a part's size for the next data, as soon as there is room.
    Result<transport::MutableBuffer> room();
    // True when room() returns at once.
    [[nodiscard]] bool has_room();
    // The first `bytes` of room()'s memory enter the link now.
    void push(std::size_t bytes);
    // Pushed, and not transmitted yet.
    [[nodiscard]] std::size_t unsent_bytes();
    // Waits until all data has been delivered. False when it was not by `deadline`, or cannot be.
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
    std::mutex mutex_;  // guards the members below
    std::condition_variable came_, went_, delivered_;
    std::deque<Part> parts_;
    std::size_t held_bytes_ = 0;
    std::size_t head_ = 0, tail_ = 0;  // where the next part begins; where the oldest one does
    bool finished_ = false;
    std::optional<Error> error_;
    std::atomic<bool> news_{false};  // a part or the end is there; read without the lock
    Spin spin_;                      // used by the thread only, as is the next
    Sleeper sleeper_;
    std::thread thread_;  // last: it uses all of the above
};

}  // namespace gpupool::network
