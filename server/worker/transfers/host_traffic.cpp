#include "server/worker/transfers/host_traffic.h"

#include <algorithm>

namespace gpupool::worker {

void HostTraffic::charge(Way way, std::uint64_t bytes) {
    // A piece is never larger than a graph's copy of 4 GiB, and the least bandwidth is 1 byte/s: beyond any session.
    constexpr double kMostSeconds = 1e9;
    const double seconds = std::min(
        static_cast<double>(bytes) / static_cast<double>(std::max<std::uint64_t>(bytes_per_second_, 1)), kMostSeconds);
    TimeSource::TimePoint& even_at = even_at_[static_cast<unsigned>(way)];
    even_at = std::max(even_at, clock_.now() - kBurst) +
              std::chrono::duration_cast<TimeSource::Duration>(std::chrono::duration<double>(seconds));
}

}  // namespace gpupool::worker
