#include "common/processors.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>

namespace gpupool {
namespace {

// Control groups version 2 keep quota and period (microseconds, or "max") in one file; version 1 in two, with -1 for no
// quota.
std::optional<unsigned> quota_of(const std::string& folder) {
    long long quota = 0, period = 0;
    std::ifstream both(folder + "/cpu.max");
    if (!(both >> quota >> period)) {
        std::ifstream(folder + "/cpu.cfs_quota_us") >> quota;
        std::ifstream(folder + "/cpu.cfs_period_us") >> period;
    }
    if (quota <= 0 || period <= 0) {
        return std::nullopt;
    }
    return static_cast<unsigned>(std::max(1LL, std::min(quota / period, 1LL << 20)));
}

void take_least(std::optional<unsigned>& least, std::optional<unsigned> one) {
    if (one && (!least || *one < *least)) {
        least = one;
    }
}

// Lowers `least` to the smallest quota of the group and of its ancestors.
void lower_to_path_quotas(const std::string& mount, std::string group, std::optional<unsigned>& least) {
    for (;;) {
        take_least(least, quota_of(mount + group));
        const std::size_t last = group.rfind('/');
        if (last == std::string::npos) {
            return;
        }
        group.resize(last);
    }
}

}  // namespace

std::optional<unsigned> processors_of_quota(const std::string& groups, const std::string& mount) {
    std::optional<unsigned> least;
    std::istringstream lines(groups);
    for (std::string line; std::getline(lines, line);) {  // NUMBER:CONTROLLERS:/GROUP
        const std::size_t first = line.find(':'), second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) {
            continue;
        }
        const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
        const std::string group = line.substr(second + 1);
        if (controllers == ",,") {
            lower_to_path_quotas(mount, group, least);
        } else if (controllers.find(",cpu,") != std::string::npos) {
            lower_to_path_quotas(mount + "/cpu", group, least);
        }
    }
    return least;
}

unsigned processors_allowed() {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    unsigned count = ::sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? unsigned(CPU_COUNT(&allowed)) : 1;
    std::ifstream file("/proc/self/cgroup");
    const std::string groups{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (const auto quota = processors_of_quota(groups, "/sys/fs/cgroup")) {
        count = std::min(count, *quota);
    }
    return std::max(count, 1u);
}

}  // namespace gpupool
