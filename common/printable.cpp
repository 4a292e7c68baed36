#include "common/printable.h"

#include <algorithm>

namespace gpupool {

std::string printable(std::string_view text, std::size_t max_bytes) {
    std::string out(text.substr(0, max_bytes));
    std::replace_if(
        out.begin(), out.end(), [](unsigned char c) { return c < 0x20 || c >= 0x7f; }, '?');
    return out;
}

}  // namespace gpupool
