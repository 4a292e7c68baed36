#include "common/result.h"

#include <cstring>

namespace gpupool {

std::string_view to_string(ErrorCode code) noexcept {
    switch (code) {
        case ErrorCode::invalid_input: return "invalid input";
        case ErrorCode::limit_exceeded: return "limit exceeded";
        case ErrorCode::closed: return "closed";
        case ErrorCode::timed_out: return "timed out";
        case ErrorCode::unavailable: return "unavailable";
        case ErrorCode::unresolved: return "unresolved";
        case ErrorCode::refused: return "refused";
        case ErrorCode::unsupported: return "unsupported";
        case ErrorCode::system: return "system error";
        case ErrorCode::internal: return "internal error";
    }
    return "unknown error";
}

Error Error::within(std::string_view context) const {
    return Error{code, std::string(context) + ": " + message};
}

Error system_error(std::string_view operation, int errno_value) {
    char buffer[128];
    return Error{ErrorCode::system, std::string(operation) + ": " + strerror_r(errno_value, buffer, sizeof buffer)};
}

}  // namespace gpupool
