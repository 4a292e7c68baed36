// A proxy between programs and a server that imitates a bad network or another version: it delays bytes, splits or
// damages them, ends the connection after a number of them, or changes the handshake.
//
// Ownership: owns its threads and connections; ends them when destroyed. Threads: its own. Errors: a connection that
// cannot be forwarded is closed.
#pragma once

#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "protocol/transport/connection.h"
#include "tests/support/transport/faulty/connection.h"

namespace gpupool::test {

class FaultyProxy {
  public:
    enum class Of { every_connection, first_connection };
    // `up`: from program to server; `down`: back. `bad`: which connections get the faults; others are forwarded
    // unchanged.
    FaultyProxy(const std::string& server, const transport::faulty::Faults& up, const transport::faulty::Faults& down,
                Of bad = Of::every_connection);
    // Changes the payload of each Hello and each Welcome. For sessions without lanes.
    struct Changes {
        std::function<void(std::vector<std::byte>&)> hello, welcome;
    };
    FaultyProxy(const std::string& server, Changes changes);
    ~FaultyProxy();
    FaultyProxy(const FaultyProxy&) = delete;

    [[nodiscard]] const std::string& address() const { return address_; }

  private:
    void accept();
    void begin();
    void pump(transport::Connection& from, transport::Connection& to, bool is_up);
    void pass_handshake(transport::Connection& from, transport::Connection& to, bool is_up);

    const std::string server_;
    const transport::faulty::Faults up_, down_;
    const Of bad_;
    const Changes changes_;
    std::unique_ptr<transport::Listener> listener_;
    std::string address_;
    std::mutex mutex_;
    bool over_ = false;
    std::vector<std::unique_ptr<transport::Connection>> connections_;
    std::vector<std::thread> pumps_;
    std::thread acceptor_;
};

}  // namespace gpupool::test
