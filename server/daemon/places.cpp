#include "server/daemon/places.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/daemon/session.h"

namespace gpupool::daemon {

namespace {

// The contexts of the stock are on the first device (server/worker/session/prepared.h).
std::vector<Accounts::Device> account_devices(const DriverFacts& driver, std::size_t stock_contexts) {
    std::vector<Accounts::Device> devices;
    for (const ProbedDevice& device : driver.devices) {
        const std::uint64_t set_aside = devices.empty() ? stock_contexts * device.context_bytes : 0;
        devices.push_back({device.name, device.uuid, device.memory_total_bytes, device.context_bytes, set_aside});
    }
    return devices;
}

}  // namespace

Places::Places(const Config& config, const DriverFacts& driver, std::size_t stock_contexts)
    : config_(config), devices_(driver.devices.size()), accounts_(account_devices(driver, stock_contexts)) {}

Places::Decision Places::ask(const Admission& admission, RequestId /*request*/, std::size_t sessions,
                             const std::optional<std::string>& visible) {
    if (sessions >= config_.max_sessions) {
        return Refusal{schema::Refused::Reason::CAPACITY,
                       fmt::format("all {} sessions of this server are in use: wait for one to end, or raise "
                                   "limits.sessions in the server's configuration",
                                   config_.max_sessions)};
    }
    if (const auto unknown = admission.memory.beyond(devices_)) {
        return Refusal{schema::Refused::Reason::PROTOCOL,
                       fmt::format("the client asks for memory of device {} (GPUPOOL_MEMORY), and the server has {}: "
                                   "devices have the numbers that gpupool status shows",
                                   *unknown, devices_)};
    }
    std::vector<std::uint64_t> quotas;
    for (std::size_t device = 0; device < devices_; ++device) {
        const std::uint64_t asked = admission.memory.bytes(device), most = config_.session_memory.bytes(device);
        quotas.push_back(asked == 0 || most == 0 ? std::max(asked, most) : std::min(asked, most));
    }
    std::string job = admission.job;
    if (job.empty()) {
        const auto own = make_session_id();
        if (!own) {
            return Refusal{schema::Refused::Reason::INTERNAL, own.error().message};
        }
        job = fmt::format("{}/session {}", admission.tenant, *own);  // no name that a client can choose
    }
    auto entered = accounts_.enter(job, quotas, visible);
    if (auto* const refusal = std::get_if<Refusal>(&entered)) {
        return std::move(*refusal);
    }
    return std::get<Accounts::Place>(std::move(entered));
}

void Places::withdraw(RequestId /*request*/) {}

}  // namespace gpupool::daemon
