// The functions behind the calls that the client handles: same name, same parameters as the symbol, one declaration per
// line of the table. Those of calls that are not handled are never defined.
//
// Threads: the application's, any. Errors, and who owns what a pointer names: as cuda.h says of the symbol.
#pragma once

#include "protocol/calls/call.h"

namespace gpupool::client::entry {

#define GP_CALL(op, symbol, base, since, params, ...) CUresult symbol(GP_TYPED(symbol, params));
#define GP_PER_THREAD(...)
#include "protocol/calls/table.def"
#undef GP_CALL
#undef GP_PER_THREAD

}  // namespace gpupool::client::entry
