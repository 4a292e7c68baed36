// Trims text.
//
// Ownership: the result refers to the characters of the argument. Threads: any. Errors: none.
#pragma once

#include <string_view>

namespace gpupool {

// Without the blanks and tabs at both ends.
inline std::string_view trim(std::string_view text) {
    const auto first = text.find_first_not_of(" \t");
    if (first == std::string_view::npos) {
        return {};
    }
    return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

}  // namespace gpupool
