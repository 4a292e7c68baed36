// How many processors this process may use.
//
// Threads: any. Errors: none; a limit that cannot be read is ignored.
#pragma once

#include <optional>
#include <string>

namespace gpupool {

// The number of processors in its affinity mask, limited by the processor time quotas of its control groups; at least
// 1.
unsigned processors_allowed();

// The number of processors that those quotas amount to, rounded down; nullopt without a quota. `groups` is the content
// of /proc/self/cgroup (see cgroups(7)), `mount` the folder where the groups are mounted. A container may see its own
// group as the root or under the host's name, so every group along the path counts.
std::optional<unsigned> processors_of_quota(const std::string& groups, const std::string& mount);

}  // namespace gpupool
