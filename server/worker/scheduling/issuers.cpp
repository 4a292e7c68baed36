#include "server/worker/scheduling/issuers.h"

#include <system_error>
#include <utility>

#include "common/log.h"
#include "common/quiet_thread.h"

namespace gpupool::worker {

bool Issuers::takes(StreamState& stream, bool more) {
    if (most_ == 0) {
        return false;
    }
    const bool another = std::exchange(last_, &stream) != &stream;
    mixed_ = mixed_ - mixed_ / kMixedOver + (another ? kMixedScale / kMixedOver : 0);
    if (!more || mixed_ < kMixedEnough) {
        return false;
    }
    if (stream.issuer < 0) {
        const std::size_t place = next_place_++ % (most_ + 1);
        stream.issuer = start(place) ? static_cast<int>(place) : 0;
    }
    return stream.issuer > 0;
}

// Starts threads until there are `count`; false if one cannot be started.
bool Issuers::start(std::size_t count) {
    while (issuers_.size() < count) {
        auto issuer = std::make_unique<Issuer>();
        try {
            issuer->thread = quiet_thread("gpupool-issue", [this, &own = *issuer] { serve(own); });
        } catch (const std::system_error& error) {
            log::warn("cannot start another issuer thread, {} threads issue launches: {}", issuers_.size() + 1,
                      error.what());
            most_ = issuers_.size();
            return false;
        }
        issuers_.push_back(std::move(issuer));
        log::info("issuer {} begins", issuers_.size());
    }
    return true;
}

void Issuers::hand_out(Submission submission, const Command& command, KernelLaunch launch) {
    const StreamState& stream = submission.stream();
    Issuer& issuer = *issuers_[static_cast<std::size_t>(stream.issuer - 1)];
    const std::uint32_t place = issuer.handed.load(std::memory_order_relaxed);
    wait_for(issuer, place - kMaxWaiting + 1);
    Job& job = issuer.ring[place % kMaxWaiting];
    job.command = command;
    job.launch = std::move(launch);
    job.permit.emplace(submission.lend());
    job.mark = submission.end_elsewhere();
    job.mark_word = stream.marks.device_word;
    job.context = stream.context->driver;
    job.contexts_ended = contexts_ended_;
    issuer.handed.store(place + 1, std::memory_order_release);
    issuer.handed.notify_one();
    busy_ = true;
}

// Waits until at least `done` of its jobs are done. Counts wrap around.
void Issuers::wait_for(Issuer& issuer, std::uint32_t done) {
    const auto reached = [&] {
        return static_cast<std::int32_t>(issuer.done.load(std::memory_order_acquire) - done) >= 0;
    };
    if (reached() || issuer.waiting_for_done.until(reached)) {
        return;
    }
    for (;;) {
        const std::uint32_t seen = issuer.done.load(std::memory_order_acquire);
        if (reached()) {
            return;
        }
        issuer.done.wait(seen, std::memory_order_acquire);
    }
}

void Issuers::wait_for_all() {
    for (const auto& issuer : issuers_) {
        wait_for(*issuer, issuer->handed.load(std::memory_order_relaxed));
    }
    busy_ = false;
    std::vector<Failure> failures;
    {
        const Lock lock(failures_mutex_);
        failures = std::exchange(failures_, {});
    }
    for (const Failure& failure : failures) {
        failed_(failure);
    }
}

void Issuers::stop() {
    stopping_ = true;
    for (const auto& issuer : issuers_) {
        // The issuer checks `stopping_` before it reads the job.
        issuer->handed.fetch_add(1, std::memory_order_release);
        issuer->handed.notify_one();
    }
    for (const auto& issuer : issuers_) {
        issuer->thread.join();
    }
    issuers_.clear();
}

void Issuers::serve(Issuer& issuer) {
    Spin waiting;
    CUcontext current = nullptr;
    std::uint32_t contexts_ended = ~std::uint32_t{0};
    for (std::uint32_t next = 0;; ++next) {
        const auto handed = [&] { return issuer.handed.load(std::memory_order_acquire) != next; };
        if (!handed() && !waiting.until(handed)) {
            issuer.handed.wait(next, std::memory_order_acquire);
        }
        if (stopping_) {
            return;
        }
        Job& job = issuer.ring[next % kMaxWaiting];
        issue(job, current, contexts_ended);
        job = {};
        issuer.done.store(next + 1, std::memory_order_release);
        issuer.done.notify_one();
    }
}

void Issuers::issue(Job& job, CUcontext& current, std::uint32_t& contexts_ended) {
    CUresult result = CUDA_SUCCESS;
    if (job.context != current || job.contexts_ended != contexts_ended) {
        result = driver::call(api_.cuCtxSetCurrent, job.context);
        current = result == CUDA_SUCCESS ? job.context : nullptr;
        contexts_ended = job.contexts_ended;
    }
    result = result != CUDA_SUCCESS ? result : job.launch.issue(*job.permit, api_);
    if (job.mark != 0 && current == job.context) {
        // The scheduler finds a failure when it queries the driver.
        (void)MarkWord::write(api_, job.launch.stream, job.mark_word, job.mark);
    }
    if (result != CUDA_SUCCESS) {
        const Lock lock(failures_mutex_);
        failures_.push_back({std::move(job.command), std::move(job.launch), result});
    }
}

}  // namespace gpupool::worker
