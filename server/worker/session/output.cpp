#include "server/worker/session/output.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

namespace gpupool::worker {

Status DeviceOutput::capture(int descriptor) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) {
        return system_error("pipe2", errno);
    }
    pipe_ = UniqueFd(ends[0]);
    const UniqueFd writer(ends[1]);
    if (::fcntl(pipe_.get(), F_SETFL, O_NONBLOCK) != 0 || ::dup2(writer.get(), descriptor) < 0) {
        return system_error("redirecting descriptor " + std::to_string(descriptor), errno);
    }
    std::thread([this] { run(); }).detach();  // lives as long as the process, like the driver that writes
    return {};
}

std::string DeviceOutput::take() {
    const Lock lock(mutex_);
    if (pipe_.get() < 0) {
        return {};
    }
    empty_locked();
    has_text_.store(false, std::memory_order_relaxed);
    std::string text = std::exchange(text_, {});
    if (const std::size_t dropped = std::exchange(dropped_bytes_, 0); dropped != 0) {
        text += "\n[gpupool: " + std::to_string(dropped) + " bytes of kernel output were dropped]\n";
    }
    return text;
}

void DeviceOutput::empty_locked() {
    char buffer[16384];
    ssize_t count = 0;
    while ((count = ::read(pipe_.get(), buffer, sizeof buffer)) > 0) {
        const std::size_t room = kMaxBytes - text_.size();
        const std::size_t kept = std::min(room, static_cast<std::size_t>(count));
        text_.append(buffer, kept);
        dropped_bytes_ += static_cast<std::size_t>(count) - kept;
        has_text_.store(true, std::memory_order_relaxed);
    }
}

void DeviceOutput::run() {
    pollfd wanted{pipe_.get(), POLLIN, 0};
    while (::poll(&wanted, 1, -1) >= 0 || errno == EINTR) {
        {
            const Lock lock(mutex_);
            empty_locked();
        }
        if ((wanted.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0) {
            return;
        }
    }
}

}  // namespace gpupool::worker
