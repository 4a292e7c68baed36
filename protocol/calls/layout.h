// How each call's parameters lie on the wire, as text: what the golden file pins and the fingerprint covers.
#pragma once

#include <string>
#include <vector>

namespace gpupool::calls {

// One line per call that travels, in opcode order: "opcode name parameter:shape:bytes ...".
std::vector<std::string> wire_layout();

}  // namespace gpupool::calls
