#include "server/worker/dispatch/table/entry.h"

namespace gpupool::worker {

void add_internal_calls(DispatchTable& table) {
#include "protocol/calls/internal.def"
}

}  // namespace gpupool::worker
