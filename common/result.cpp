#include "common/result.h"

#include <cstring>

namespace gpupool {

Error Error::within(std::string_view context) const {
    return Error{code, std::string(context) + ": " + message};
}

Error system_error(std::string_view operation, int errno_value) {
    char buffer[128];
    return Error{ErrorCode::system, std::string(operation) + ": " + strerror_r(errno_value, buffer, sizeof buffer)};
}

}  // namespace gpupool
