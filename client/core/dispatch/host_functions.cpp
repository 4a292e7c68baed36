#include "client/core/dispatch/host_functions.h"

#include <algorithm>

#include "client/core/dispatch/thread.h"
#include "common/log.h"
#include "common/quiet_thread.h"
#include "protocol/codec/handles.h"

namespace gpupool::client {

void HostFunctions::start(std::function<void(std::uint64_t)> done) {
    done_ = std::move(done);
}

std::uint64_t HostFunctions::submit(Function function) {
    const Lock lock(mutex_);
    start_thread();
    entries_[next_] = {std::move(function), false};
    return next_++;
}

bool HostFunctions::run_when_due(std::uint64_t ticket, Function function) {
    {
        const Lock lock(mutex_);
        if (graph_functions_ >= kMaxGraphFunctions || entries_.contains(ticket)) {
            return false;
        }
        start_thread();
        entries_[ticket] = {std::move(function), true};
        ++graph_functions_;
    }
    return due(ticket, CUDA_SUCCESS);
}

void HostFunctions::start_thread() {
    if (!started_) {
        started_ = true;
        quiet_thread("gpupool-host", [this] { run(); }).detach();  // never ends, like the session
    }
}

void HostFunctions::cancel(std::uint64_t ticket) {
    const Lock lock(mutex_);
    entries_.erase(ticket);
}

bool HostFunctions::due(std::uint64_t ticket, CUresult status) {
    {
        const Lock lock(mutex_);
        const auto it = entries_.find(ticket);
        if (it == entries_.end() || it->second.due) {
            log::warn("the server reports a host function as due that {}",
                      it == entries_.end() ? "is not pending" : "is due already");
            return it == entries_.end() && ticket < next_;  // cancelled
        }
        it->second.due = true;
        due_.emplace_back(ticket, status);
    }
    changed_.notify_one();
    return true;
}

bool HostFunctions::any_pending() const {
    const Lock lock(mutex_);
    return !entries_.empty();
}

std::size_t HostFunctions::waiting() const {
    const Lock lock(mutex_);
    return due_.size();
}

void HostFunctions::end() {
    {
        const Lock lock(mutex_);
        ended_ = true;
    }
    changed_.notify_one();
}

void HostFunctions::run() {
    this_thread().in_host_function = true;
    UniqueLock lock(mutex_);
    while (true) {
        changed_.wait(lock, [&]() GP_REQUIRES(mutex_) { return ended_ || !due_.empty(); });
        if (ended_) {
            return;
        }
        const auto [ticket, status] = due_.front();
        due_.pop_front();
        const auto it = entries_.find(ticket);
        if (it == entries_.end()) {
            continue;
        }
        const Function function = it->second.function;
        lock.unlock();
        function(status);
        lock.lock();
        if (entries_.contains(ticket)) {
            graph_functions_ -= entries_.at(ticket).of_graph ? 1 : 0;
            entries_.erase(ticket);
        }
        lock.unlock();
        done_(ticket);
        lock.lock();
    }
}

}  // namespace gpupool::client
