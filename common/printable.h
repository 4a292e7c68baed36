// Makes text from a peer safe to write into a log line.
//
// Ownership: values. Threads: any. Errors: none.
#pragma once

#include <string>
#include <string_view>

namespace gpupool {

// The first `max_bytes` bytes, each byte that is not printable ASCII replaced by a question mark.
std::string printable(std::string_view text, std::size_t max_bytes = 128);

}  // namespace gpupool
