// Opens connections to an in-process listener. Threads: any. Errors: `unavailable`.
#pragma once

#include <memory>

#include "protocol/transport/connection.h"
#include "tests/support/transport/inproc/listener.h"

namespace gpupool::transport::inproc {

Result<std::unique_ptr<Connection>> connect(const InprocListener& listener);

}  // namespace gpupool::transport::inproc
