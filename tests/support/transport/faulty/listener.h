// Wraps every connection that another listener accepts. Ownership: owns that listener. Threads, errors: those of that
// listener.
#pragma once

#include <cstdint>
#include <memory>

#include "protocol/transport/connection.h"
#include "tests/support/transport/faulty/connection.h"

namespace gpupool::transport::faulty {

class FaultyListener final : public Listener {
  public:
    FaultyListener(std::unique_ptr<Listener> inner, const Faults& faults) : inner_(std::move(inner)), faults_(faults) {}

    // The n-th connection's seed is the first one's plus n.
    Result<std::unique_ptr<Connection>> accept() override;
    void shutdown() noexcept override { inner_->shutdown(); }
    [[nodiscard]] std::string address() const override { return inner_->address(); }

  private:
    const std::unique_ptr<Listener> inner_;
    Faults faults_;
};

}  // namespace gpupool::transport::faulty
