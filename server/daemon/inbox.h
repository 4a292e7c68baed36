// Queue from the front door's threads to the supervisor's thread: admitted connections and status requests.
//
// Ownership: the inbox owns a posted connection until take(). After close(), post() returns it to the caller.
// Threads: any thread posts, one takes.
// Units: bounded by its producers: each session reserved a place, each status request occupies a front door thread.
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

struct AdmittedConnection {
    std::unique_ptr<transport::Connection> connection;
    Admission admission;
};

using StatusBytes = std::vector<std::byte>;
using StatusAnswer = std::promise<Result<StatusBytes>>;

class Inbox {
  public:
    static Result<std::unique_ptr<Inbox>> make();

    // Returns nothing if posted, or the connection itself if the inbox is closed.
    std::optional<AdmittedConnection> post(AdmittedConnection admitted);

    // Requests the status and blocks until it is there. An error once the inbox is closed.
    Result<StatusBytes> ask_status();

    // Takes everything posted since the last call and resets the descriptor.
    void take(std::vector<AdmittedConnection>& admitted, std::vector<StatusAnswer>& questions);

    // Refuses all later posts, and answers waiting status requests with an error.
    void close();

    // Readable while there is something to take.
    [[nodiscard]] int descriptor() const { return wake_.get(); }

  private:
    explicit Inbox(UniqueFd wake) : wake_(std::move(wake)) {}
    void wake();

    const UniqueFd wake_;
    Mutex mutex_;
    std::vector<AdmittedConnection> admitted_ GP_GUARDED_BY(mutex_);
    std::vector<StatusAnswer> questions_ GP_GUARDED_BY(mutex_);
    bool closed_ GP_GUARDED_BY(mutex_) = false;
};

}  // namespace gpupool::daemon
