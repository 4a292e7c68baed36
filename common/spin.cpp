#include "common/spin.h"

#include <cstdlib>
#include <string_view>

#include "common/processors.h"

namespace gpupool {
namespace {

constexpr unsigned kEnoughProcessors = 4;

bool decide() {
    const char* const asked = std::getenv("GPUPOOL_SPIN");
    if (asked != nullptr && std::string_view(asked) == "always") {
        return true;
    }
    if (asked != nullptr && std::string_view(asked) == "never") {
        return false;
    }
    return processors_allowed() >= kEnoughProcessors;
}

}  // namespace

bool spinning_pays() noexcept {
    static const bool pays = decide();
    return pays;
}

}  // namespace gpupool
