// Accepts connections of inproc::connect().
//
// Ownership: connectors share the listener's queue, so a listener may be destroyed before them. Threads: one accepts,
// any may connect or shut down. Errors: as for Listener.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>

#include "protocol/transport/connection.h"
#include "tests/support/transport/inproc/connection.h"

namespace gpupool::transport::inproc {

// Connections that were made and not yet accepted.
class Backlog {
  public:
    static constexpr std::size_t kMaxWaiting = 128;

    Result<std::unique_ptr<Connection>> connect(std::size_t buffer_bytes);
    Result<std::unique_ptr<Connection>> accept();
    void shutdown() noexcept;

  private:
    std::mutex mutex_;  // guards everything below
    std::condition_variable changed_;
    std::deque<std::unique_ptr<Connection>> waiting_;
    bool shut_down_ = false;
};

class InprocListener final : public Listener {
  public:
    explicit InprocListener(std::size_t buffer_bytes = kDefaultBufferBytes)
        : buffer_bytes_(buffer_bytes), backlog_(std::make_shared<Backlog>()) {}
    ~InprocListener() override { backlog_->shutdown(); }

    Result<std::unique_ptr<Connection>> accept() override { return backlog_->accept(); }
    void shutdown() noexcept override { backlog_->shutdown(); }
    [[nodiscard]] std::string address() const override { return "inproc"; }

    [[nodiscard]] std::size_t buffer_bytes() const noexcept { return buffer_bytes_; }
    [[nodiscard]] std::shared_ptr<Backlog> backlog() const { return backlog_; }

  private:
    const std::size_t buffer_bytes_;
    const std::shared_ptr<Backlog> backlog_;
};

}  // namespace gpupool::transport::inproc
