// Text of a peer's, made fit for a line of a log.
//
// Ownership: values. Threads: any. Errors: none.
#pragma once

#include <string>
#include <string_view>

namespace gpupool {

// The first `max_bytes`, with a question mark for every byte that is none of ASCII's printable ones.
std::string printable(std::string_view text, std::size_t max_bytes = 128);

}  // namespace gpupool
