#include "server/worker/dispatch/table/entry.h"

namespace gpupool::worker {

void add_copies_calls(DispatchTable& table) {
#include "protocol/calls/table/copies.def"
}

}  // namespace gpupool::worker
