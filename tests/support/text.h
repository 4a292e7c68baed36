// Helpers for text that a test has received.
//
// Ownership: values. Threads: any. Errors: none.
#pragma once

#include <cstddef>
#include <string_view>

namespace gpupool::test {

// How often `part` occurs in `text`; occurrences do not overlap.
inline std::size_t count_of(std::string_view part, std::string_view text) {
    std::size_t found = 0;
    for (std::size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + part.size())) {
        ++found;
    }
    return found;
}

}  // namespace gpupool::test
