#include "tests/fuzz/calls/entry.h"

namespace gpupool::fuzz {

void add_code_calls(std::vector<CallFunctions>& functions) {
#include "protocol/calls/table/code.def"
#include "protocol/calls/table/general.def"
#include "protocol/calls/table/other.def"
}

}  // namespace gpupool::fuzz
