#include "tests/support/transport/inproc/connector.h"

namespace gpupool::transport::inproc {

Result<std::unique_ptr<Connection>> connect(const InprocListener& listener) {
    return listener.backlog()->connect(listener.buffer_bytes());
}

}  // namespace gpupool::transport::inproc
