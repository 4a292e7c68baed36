// The wire layout of each call's parameters and of each notice, as text. A golden file pins it, and the fingerprint
// covers it.
//
// Threads: any. Errors: none.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpupool::codec {

// One line per call that is sent, in opcode order: "opcode name parameter:shape:bytes ..."; then one line per notice,
// by number: "notice:number name bytes ...".
std::vector<std::string> wire_layout();

// Covers opcodes, parameter layouts and record formats. Two ends with different fingerprints are incompatible.
std::uint64_t table_fingerprint() noexcept;

}  // namespace gpupool::codec
