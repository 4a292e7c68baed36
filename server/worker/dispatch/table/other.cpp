#include "server/worker/dispatch/table/entry.h"

namespace gpupool::worker {

void add_other_calls(DispatchTable& table) {
#include "protocol/calls/table/other.def"
}

}  // namespace gpupool::worker
