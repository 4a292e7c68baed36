#include "server/worker/dispatch/table/entry.h"

namespace gpupool::worker {

void add_general_calls(DispatchTable& table) {
#include "protocol/calls/table/general.def"
}

}  // namespace gpupool::worker
