#include "tests/fuzz/calls/entry.h"

namespace gpupool::fuzz {

void add_internal_calls(std::vector<CallFunctions>& functions) {
#include "protocol/calls/internal.def"
}

}  // namespace gpupool::fuzz
