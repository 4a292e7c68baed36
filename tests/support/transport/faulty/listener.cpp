#include "tests/support/transport/faulty/listener.h"

namespace gpupool::transport::faulty {

Result<std::unique_ptr<Connection>> FaultyListener::accept() {
    auto connection = inner_->accept();
    if (!connection) {
        return connection;
    }
    std::unique_ptr<Connection> wrapped = wrap(std::move(*connection), faults_);
    ++faults_.seed;
    return wrapped;
}

}  // namespace gpupool::transport::faulty
