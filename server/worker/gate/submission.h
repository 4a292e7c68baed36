// The right to give one piece of work to a stream. The gate gives it (gate.h), and the driver calls that give the GPU
// work take it (server/driver/api.h).
//
// Ownership: one owner at a time: a handler, or an entry of a queue whose work takes several driver calls. Its end
//   accounts for the work: the stream has less credit, and the gate makes a mark when one is due.
// Threads: the dispatcher's alone. A helper or an issuer that makes the driver call gets a permit by lend().
#pragma once

#include <cstdint>
#include <utility>

#include "server/driver/api.h"

namespace gpupool::worker {

class Scheduler;
struct StreamState;

class [[nodiscard]] Submission final : public driver::WorkPermit {
  public:
    Submission(Submission&& other) noexcept
        : scheduler_(std::exchange(other.scheduler_, nullptr)), stream_(other.stream_), cost_(other.cost_) {}
    Submission& operator=(Submission&& other) noexcept {
        if (this != &other) {
            end();
            scheduler_ = std::exchange(other.scheduler_, nullptr);
            stream_ = other.stream_;
            cost_ = other.cost_;
        }
        return *this;
    }
    ~Submission() { end(); }

    [[nodiscard]] StreamState& stream() const { return *stream_; }

    // Accounts for all of the work, which has been given to the driver. The destructor does the same.
    void end();
    // Accounts for one driver call of several. The submission stays valid.
    void count();
    // Nothing was given to the driver.
    void cancel() { scheduler_ = nullptr; }
    // Accounts for a launch that an issuer will make. Returns the number of the mark that the issuer must then write
    // to the stream's word before the scheduler polls again, or 0 if no mark is due.
    std::uint32_t end_elsewhere();
    // A permit for the thread that makes the driver call, while the submission itself stays with the dispatcher.
    class Lent final : public driver::WorkPermit {
        friend class Submission;
        Lent() = default;
    };
    [[nodiscard]] Lent lend() const { return {}; }

  private:
    friend class Gate;
    Submission(Scheduler& scheduler, StreamState& stream, std::uint32_t cost)
        : scheduler_(&scheduler), stream_(&stream), cost_(cost) {}
    explicit Submission(StreamState& stream) : scheduler_(nullptr), stream_(&stream), cost_(0) {}

    Scheduler* scheduler_;  // null: nothing is accounted, or it has ended
    StreamState* stream_;
    std::uint32_t cost_;
};

}  // namespace gpupool::worker
