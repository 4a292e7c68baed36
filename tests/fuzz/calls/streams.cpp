#include "tests/fuzz/calls/entry.h"

namespace gpupool::fuzz {

void add_streams_calls(std::vector<CallFunctions>& functions) {
#include "protocol/calls/table/graphs.def"
#include "protocol/calls/table/streams.def"
}

}  // namespace gpupool::fuzz
