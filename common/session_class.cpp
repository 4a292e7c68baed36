#include "common/session_class.h"

#include <string>

namespace gpupool {

std::string_view name_of(SessionClass session_class) {
    return session_class == SessionClass::exclusive ? "exclusive" : "shared";
}

Result<SessionClass> parse_session_class(std::string_view text) {
    for (const SessionClass each : {SessionClass::shared, SessionClass::exclusive}) {
        if (text == name_of(each)) {
            return each;
        }
    }
    return Error{ErrorCode::invalid_input, "'" + std::string(text) + "' is not a class: say shared or exclusive"};
}

}  // namespace gpupool
