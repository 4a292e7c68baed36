#include "server/worker/dispatch/table/entry.h"

namespace gpupool::worker {

void add_graphs_calls(DispatchTable& table) {
#include "protocol/calls/table/graphs.def"
}

}  // namespace gpupool::worker
