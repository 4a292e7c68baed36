#include "server/daemon/stock.h"

#include <capnp/message.h>

#include <algorithm>

namespace gpupool::daemon {

namespace {

constexpr std::chrono::milliseconds kAfterSession{1000};
constexpr std::chrono::milliseconds kAfterFailure{500};
constexpr unsigned kMaxDoublings = 7;  // about a minute
constexpr std::int32_t kLazyByDefault = 12020;

}  // namespace

DriverEnvironment environment_of(const Admission& admission, std::int32_t driver_version) {
    capnp::MallocMessageBuilder message;
    auto hello = message.initRoot<schema::Hello>();
    copy_hello(admission, hello);  // keeps only the variables that the worker will receive
    DriverEnvironment environment;
    for (const auto entry : hello.asReader().getPurpose().getSession().getEnvironment()) {
        environment[entry.getName()] = entry.getValue().cStr();
    }
    // PyTorch sets CUDA_MODULE_LOADING to the default in every process.
    if (const auto loading = environment.find("CUDA_MODULE_LOADING");
        loading != environment.end() && driver_version >= kLazyByDefault &&
        (loading->second == "LAZY" || loading->second == "DEFAULT")) {
        environment.erase(loading);
    }
    return environment;
}

void StockPlan::note_session(const DriverEnvironment& environment) {
    if (size_ == 0) {
        return;
    }
    std::erase(recent_, environment);
    recent_.push_front(environment);
    if (recent_.size() > size_) {
        recent_.pop_back();
    }
    // A later session must not extend the delay, or a busy server would never have a stock.
    if (start_after_ < clock_.now()) {
        start_after_ = clock_.now() + kAfterSession;
    }
}

void StockPlan::note_failure(const DriverEnvironment& environment, bool was_ready) {
    if (!was_ready) {
        std::erase(recent_, environment);
        if (recent_.empty()) {
            recent_.push_back({});
        }
    }
    failures_ = was_ready ? 0 : std::min(failures_ + 1, kMaxDoublings);
    start_after_ = std::max(start_after_, clock_.now() + kAfterFailure * (1u << failures_));
}

StockPlan::Changes StockPlan::changes(const std::vector<const DriverEnvironment*>& existing) const {
    std::vector<DriverEnvironment> lacking;
    for (std::size_t i = 0; i < size_; ++i) {
        lacking.push_back(recent_[i % recent_.size()]);
    }
    Changes changes;
    for (std::size_t i = 0; i < existing.size(); ++i) {
        const auto wanted = std::find(lacking.begin(), lacking.end(), *existing[i]);
        if (wanted == lacking.end()) {
            changes.end.push_back(i);
        } else {
            lacking.erase(wanted);
        }
    }
    changes.start = std::move(lacking);
    return changes;
}

}  // namespace gpupool::daemon
