#include "tests/support/transport/inproc/connection.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>

namespace gpupool::transport::inproc {
namespace {

// One direction: a ring of bytes between one writer and one reader.
class Pipe {
  public:
    explicit Pipe(std::size_t capacity_bytes)
        : capacity_(std::max<std::size_t>(capacity_bytes, 1)), ring_(std::make_unique<std::byte[]>(capacity_)) {}

    Status write(ConstBuffer data) {
        std::unique_lock lock(mutex_);
        while (!data.empty()) {
            writable_.wait(lock, [&] { return used_ < capacity_ || writer_gone_ || reader_gone_; });
            const auto taken = take(data);
            if (!taken) {
                return taken.error();
            }
            data = data.subspan(*taken);
        }
        return {};
    }

    // Writes what fits now.
    Result<std::size_t> write_some(ConstBuffer data) {
        const std::lock_guard lock(mutex_);
        std::size_t total = 0;
        while (total < data.size()) {  // two copies at most fill it: the ring may wrap
            auto taken = take(data.subspan(total));
            if (!taken) {
                return taken;
            }
            if (*taken == 0) {
                break;
            }
            total += *taken;
        }
        return total;
    }

    Result<std::size_t> read(MutableBuffer buffer, Clock::time_point deadline) {
        std::unique_lock lock(mutex_);
        const auto ready = [&] { return used_ > 0 || writer_gone_ || reader_gone_; };
        if (deadline == kNoDeadline) {
            readable_.wait(lock, ready);
        } else if (!readable_.wait_until(lock, deadline, ready)) {
            return Error{ErrorCode::timed_out, "the other side sent nothing in time"};
        }
        if (reader_gone_) {
            return Error{ErrorCode::closed, "the connection was closed"};
        }
        if (used_ == 0) {
            return Error{ErrorCode::closed, "the other side closed the connection"};
        }
        std::size_t total = 0;
        while (total < buffer.size() && used_ > 0) {  // two copies at most: the ring may wrap
            const std::size_t count = std::min({buffer.size() - total, used_, capacity_ - head_});
            std::memcpy(buffer.data() + total, ring_.get() + head_, count);
            head_ = (head_ + count) % capacity_;
            used_ -= count;
            total += count;
        }
        writable_.notify_one();
        return total;
    }

    void close_writer() noexcept { close(writer_gone_); }
    void close_reader() noexcept { close(reader_gone_); }

  private:
    Result<std::size_t> take(ConstBuffer data) {
        if (writer_gone_) {
            return Error{ErrorCode::closed, "the connection was closed"};
        }
        if (reader_gone_) {
            return Error{ErrorCode::closed, "the connection was broken by the other side"};
        }
        const std::size_t tail = (head_ + used_) % capacity_;
        const std::size_t count = std::min({data.size(), capacity_ - used_, capacity_ - tail});
        std::memcpy(ring_.get() + tail, data.data(), count);
        used_ += count;
        readable_.notify_one();
        return count;
    }

    void close(bool& side) noexcept {
        const std::lock_guard lock(mutex_);
        side = true;
        readable_.notify_all();
        writable_.notify_all();
    }

    const std::size_t capacity_;
    const std::unique_ptr<std::byte[]> ring_;
    std::mutex mutex_;  // guards everything below
    std::condition_variable readable_;
    std::condition_variable writable_;
    std::size_t head_ = 0;
    std::size_t used_ = 0;
    bool writer_gone_ = false;
    bool reader_gone_ = false;
};

class InprocConnection final : public Connection {
  public:
    InprocConnection(std::shared_ptr<Pipe> out, std::shared_ptr<Pipe> in) : out_(std::move(out)), in_(std::move(in)) {}
    ~InprocConnection() override { InprocConnection::shutdown(); }

    Status send(std::span<const ConstBuffer> buffers) override {
        for (const auto& buffer : buffers) {
            GPUPOOL_TRY(out_->write(buffer));
        }
        return {};
    }
    Result<std::size_t> send_some(std::span<const ConstBuffer> buffers) override {
        std::size_t total = 0;
        for (const auto& buffer : buffers) {
            auto taken = out_->write_some(buffer);
            if (!taken) {
                return taken;
            }
            total += *taken;
            if (*taken < buffer.size()) {
                break;
            }
        }
        return total;
    }
    Result<std::size_t> receive(MutableBuffer buffer) override { return in_->read(buffer, deadline_); }
    void set_receive_deadline(Clock::time_point deadline) noexcept override { deadline_ = deadline; }
    void shutdown() noexcept override {
        out_->close_writer();
        in_->close_reader();
    }
    [[nodiscard]] std::string peer() const override { return "inproc"; }

  private:
    const std::shared_ptr<Pipe> out_;
    const std::shared_ptr<Pipe> in_;
    Clock::time_point deadline_ = kNoDeadline;  // the receiving thread's
};

}  // namespace

std::pair<std::unique_ptr<Connection>, std::unique_ptr<Connection>> make_pair(std::size_t buffer_bytes) {
    auto there = std::make_shared<Pipe>(buffer_bytes);
    auto back = std::make_shared<Pipe>(buffer_bytes);
    return {std::make_unique<InprocConnection>(there, back), std::make_unique<InprocConnection>(back, there)};
}

}  // namespace gpupool::transport::inproc
