// How each call's parameters, and each notice, lie on the wire, as text: what the golden file pins and the fingerprint
// covers.
//
// Threads: any. Errors: none.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpupool::codec {

// One line per call that travels, in opcode order: "opcode name parameter:shape:bytes ..."; then one per notice, by
// number: "notice:number name bytes ...".
std::vector<std::string> wire_layout();

// Covers opcodes, parameter layouts and record formats: two ends that differ in it cannot understand each other.
std::uint64_t table_fingerprint() noexcept;

}  // namespace gpupool::codec
