// A line with latency and bounded speed: pushed bytes reach the inner connection later, in order.
//
// Ownership: the inner connection outlives the line; pushed bytes are copied. Threads: one thread pushes, any may
// finish or abandon; an own thread delivers. Errors: those of the inner connection, returned by a later push.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "protocol/transport/connection.h"

namespace gpupool::transport::faulty {

class DelayLine {
  public:
    // At most this much is buffered. A slower line buffers what it carries in 50 ms plus what its delay holds: a real
    // line buffers no more than its ends do.
    static constexpr std::size_t kMaxWaitingBytes = 8u << 20;

    DelayLine(Connection& inner, std::chrono::microseconds delay, std::uint64_t bytes_per_second);
    ~DelayLine();  // abandons what is left
    DelayLine(const DelayLine&) = delete;
    DelayLine& operator=(const DelayLine&) = delete;

    // Blocks while the line is full.
    Status push(ConstBuffer data);

    // Takes no more data; true when everything was delivered within `timeout`.
    bool finish(std::chrono::microseconds timeout) noexcept;

    // Takes no more data and drops what is not delivered.
    void abandon() noexcept;

  private:
    struct Parcel {
        Clock::time_point due;
        std::vector<std::byte> bytes;
    };

    void run();

    Connection& inner_;
    const std::chrono::microseconds delay_;
    const std::uint64_t bytes_per_second_;
    const std::size_t most_waiting_bytes_;

    std::mutex mutex_;  // guards everything below
    std::condition_variable arrived_;
    std::condition_variable left_;
    std::deque<Parcel> parcels_;
    std::size_t waiting_bytes_ = 0;  // including those being delivered
    Clock::time_point line_free_at_{};
    bool finished_ = false;
    bool abandoned_ = false;
    std::optional<Error> error_;

    std::thread thread_;  // last: it uses all of the above
};

}  // namespace gpupool::transport::faulty
