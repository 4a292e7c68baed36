// A private gpupoold for one program, on a free port of the loopback interface, with a token that only this process
// knows.
//
// A pipe binds the server to this process: when the process ends, in whatever way, the server stops its sessions and
// ends.
//
// Ownership: the object owns the server; its destructor stops it.
// Threads: one.
// Errors: Result; the message says what to do. The server's own messages are on stderr.
#pragma once

#include <sys/types.h>

#include <string>

#include "common/result.h"
#include "common/unique_fd.h"

namespace gpupool::cli {

class LocalServer {
  public:
    // `driver`: auto, software or a path. `config_file`: the server's configuration. Both may be empty.
    static Result<LocalServer> start(const std::string& driver, const std::string& config_file);

    LocalServer(LocalServer&& other) noexcept;
    LocalServer& operator=(LocalServer&&) = delete;
    ~LocalServer() { stop(); }

    [[nodiscard]] const std::string& address() const { return address_; }
    [[nodiscard]] const std::string& token() const { return token_; }

    // Waits until the server has ended; kills it if that takes too long.
    void stop() noexcept;

  private:
    LocalServer() = default;

    pid_t process_ = -1;
    UniqueFd lifeline_;
    std::string address_;
    std::string token_;
};

}  // namespace gpupool::cli
