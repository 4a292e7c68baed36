// The client's functions for calls that it handles: one declaration per line of the call table, with the symbol's name
// and parameters. Functions of calls that are not handled are never defined.
//
// Ownership: as cuda.h says for the symbol.
// Threads: any thread of the application.
// Errors: as cuda.h says for the symbol.
#pragma once

#include "protocol/calls/call.h"

namespace gpupool::client::entry {

#define GP_CALL(op, symbol, base, since, params, ...) CUresult symbol(GP_TYPED(symbol, params));
#define GP_PER_THREAD(...)
#include "protocol/calls/table.def"
#undef GP_CALL
#undef GP_PER_THREAD

}  // namespace gpupool::client::entry
