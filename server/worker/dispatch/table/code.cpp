#include "server/worker/dispatch/table/entry.h"

namespace gpupool::worker {

void add_code_calls(DispatchTable& table) {
#include "protocol/calls/table/code.def"
}

}  // namespace gpupool::worker
