// A file descriptor with one owner.
//
// Ownership: closes its descriptor. Threads: as an int. Errors: none; failures of close() are not reported, because
// nothing could be done about them. A caller that must not lose data calls fsync() first.
#pragma once

#include <unistd.h>

#include <utility>

namespace gpupool {

class UniqueFd {
  public:
    UniqueFd() = default;
    explicit UniqueFd(int fd) noexcept : fd_(fd) {}
    UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
    UniqueFd& operator=(UniqueFd&& other) noexcept {
        reset(other.release());
        return *this;
    }
    UniqueFd(const UniqueFd&) = delete;
    UniqueFd& operator=(const UniqueFd&) = delete;
    ~UniqueFd() { reset(); }

    int get() const noexcept { return fd_; }
    explicit operator bool() const noexcept { return fd_ >= 0; }

    [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }
    void reset(int fd = -1) noexcept {
        // Linux has released the descriptor even if close() returns EINTR: never repeat it.
        if (const int old = std::exchange(fd_, fd); old >= 0 && old != fd) {
            ::close(old);
        }
    }

  private:
    int fd_ = -1;
};

}  // namespace gpupool
