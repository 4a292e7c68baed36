#include "server/worker/dispatch/table/entry.h"

namespace gpupool::worker {

void add_arrays_calls(DispatchTable& table) {
#include "protocol/calls/table/arrays.def"
}

}  // namespace gpupool::worker
