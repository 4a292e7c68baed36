#include "server/worker/dispatch/table/entry.h"

namespace gpupool::worker {

void add_streams_calls(DispatchTable& table) {
#include "protocol/calls/table/streams.def"
}

}  // namespace gpupool::worker
