#include "common/spin.h"

#include <sched.h>

#include <cstdlib>
#include <string_view>

namespace gpupool {
namespace {

constexpr int kEnoughProcessors = 4;

bool decide() noexcept {
    const char* const asked = std::getenv("GPUPOOL_SPIN");
    if (asked != nullptr && std::string_view(asked) == "always") {
        return true;
    }
    if (asked != nullptr && std::string_view(asked) == "never") {
        return false;
    }
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    return ::sched_getaffinity(0, sizeof allowed, &allowed) == 0 && CPU_COUNT(&allowed) >= kEnoughProcessors;
}

}  // namespace

bool spinning_pays() noexcept {
    static const bool pays = decide();
    return pays;
}

}  // namespace gpupool
