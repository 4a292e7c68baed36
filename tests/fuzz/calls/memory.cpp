#include "tests/fuzz/calls/entry.h"

namespace gpupool::fuzz {

void add_memory_calls(std::vector<CallFunctions>& functions) {
#include "protocol/calls/table/arrays.def"
#include "protocol/calls/table/copies.def"
#include "protocol/calls/table/memory.def"
}

}  // namespace gpupool::fuzz
