// How many processors this process has for itself.
//
// Threads: any. Errors: what cannot be read limits nothing.
#pragma once

#include <optional>
#include <string>

namespace gpupool {

// Those that it may run on, and no more than its control groups' quotas of processor time come to; at least 1.
unsigned processors_allowed();

// What those quotas come to, rounded down; none where there is none. `groups` is what /proc/self/cgroup holds (see
// cgroups(7)), `mount` where the groups lie. A container may see its own group as the root or under the host's name, so
// that every group on the way down counts.
std::optional<unsigned> processors_of_quota(const std::string& groups, const std::string& mount);

}  // namespace gpupool
