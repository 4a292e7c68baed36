// A private gpupoold for one program: on a free port of the loopback interface, with a token that only we know.
//
// It is bound to us by a pipe: when we are gone, however we went, the server stops its sessions and ends.
//
// Ownership: the object owns the server; its destructor stops it. Threads: one. Errors: say what to do; what the server
// itself had to say stands on stderr.
#pragma once

#include <sys/types.h>

#include <string>

#include "common/result.h"
#include "common/unique_fd.h"

namespace gpupool::cli {

class LocalServer {
  public:
    // `driver`: auto, software or a path; `config_file`: gpupoold's. Both may be empty.
    static Result<LocalServer> start(const std::string& driver, const std::string& config_file);

    LocalServer(LocalServer&& other) noexcept;
    LocalServer& operator=(LocalServer&&) = delete;
    ~LocalServer() { stop(); }

    [[nodiscard]] const std::string& address() const { return address_; }
    [[nodiscard]] const std::string& token() const { return token_; }

    // Waits until it is gone; kills it when it takes too long.
    void stop() noexcept;

  private:
    LocalServer() = default;

    pid_t process_ = -1;
    UniqueFd lifeline_;
    std::string address_;
    std::string token_;
};

}  // namespace gpupool::cli
