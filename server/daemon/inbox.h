// What the front door's threads hand to the daemon's one thread: guests with a place, and questions about the status.
//
// Ownership: a posted guest is the inbox's until taken; one that cannot be posted any more is given back. Bounded by
//   what produces it: a guest holds a place, a question a handshake slot. Threads: any post, one takes.
#pragma once

#include <future>
#include <memory>
#include <optional>
#include <vector>

#include "common/mutex.h"
#include "common/result.h"
#include "common/unique_fd.h"
#include "protocol/transport/connection.h"
#include "server/daemon/admission.h"

namespace gpupool::daemon {

struct Arrival {
    std::unique_ptr<transport::Connection> connection;
    Guest guest;
};

using StatusBytes = std::vector<std::byte>;
using StatusAnswer = std::promise<Result<StatusBytes>>;

class Inbox {
  public:
    static Result<std::unique_ptr<Inbox>> make();

    // Empty when it was posted; the arrival itself when the inbox is closed.
    std::optional<Arrival> post(Arrival arrival);

    // Asks and waits for the answer; an error once the inbox is closed.
    Result<StatusBytes> ask_status();

    // Everything since the last call. Resets the descriptor.
    void take(std::vector<Arrival>& arrivals, std::vector<StatusAnswer>& questions);

    // Nothing is posted after this; the questions that wait are answered with an error.
    void close();

    // Readable while there is something to take.
    [[nodiscard]] int descriptor() const { return wake_.get(); }

  private:
    explicit Inbox(UniqueFd wake) : wake_(std::move(wake)) {}
    void wake();

    const UniqueFd wake_;
    Mutex mutex_;
    std::vector<Arrival> arrivals_ GP_GUARDED_BY(mutex_);
    std::vector<StatusAnswer> questions_ GP_GUARDED_BY(mutex_);
    bool closed_ GP_GUARDED_BY(mutex_) = false;
};

}  // namespace gpupool::daemon
