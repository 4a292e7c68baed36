#include "server/worker/dispatch/table/entry.h"

namespace gpupool::worker {

void add_memory_calls(DispatchTable& table) {
#include "protocol/calls/table/memory.def"
}

}  // namespace gpupool::worker
