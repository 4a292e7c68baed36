// Accepts connections, reads their Hello under a deadline, checks it, and passes the connection on.
//
// One thread per listener accepts. Each connection is pending until its Hello is admitted, and until then has a thread
// of its own. At most `Config::max_handshakes` connections may be pending. If one more arrives, the front door drops a
// silent one: the oldest of the host that has the most of them. So silent connections cannot lock other clients out,
// and an unauthenticated peer costs at most one thread, a frame header and a bounded payload for the handshake timeout.
//
// The front door passes admitted connections to the `SessionHost`, answers status requests itself, and sends Refused
// with a message to everyone else.
//
// Ownership: the front door owns a connection until `SessionHost::admit`.
// Threads: one thread calls open() and close(). The front door's threads call `SessionHost`.
// Errors: a peer's misbehaviour is logged and is no error here.
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/mutex.h"
#include "common/result.h"
#include "protocol/transport/connection.h"
#include "server/daemon/admission.h"
#include "server/daemon/config.h"

namespace gpupool::daemon {

// The daemon behind the front door. Called from many threads.
class SessionHost {
  public:
    virtual ~SessionHost() = default;

    // Reserves a place for a session, or says why there is none. The place is used by admit() or given back.
    virtual std::optional<Refusal> reserve_place() = 0;

    // Takes over an admitted connection: a session with a reserved place, or a lane of an existing session.
    virtual void admit(std::unique_ptr<transport::Connection> connection, Admission admission) = 0;

    // Returns the payload of a Control frame with the server's status.
    virtual Result<std::vector<std::byte>> status() = 0;
};

class FrontDoor {
  public:
    FrontDoor(std::vector<std::unique_ptr<transport::Listener>> listeners, const Config& config, AdmissionRules rules,
              SessionHost& host);
    ~FrontDoor();
    FrontDoor(const FrontDoor&) = delete;
    FrontDoor& operator=(const FrontDoor&) = delete;

    void open();

    // Stops accepting, closes all pending connections, and joins all threads.
    void close();

  private:
    // A connection whose Hello is not admitted yet, and the thread that reads it.
    struct PendingConnection {
        std::unique_ptr<transport::Connection> connection;
        std::thread thread;
        std::string origin;  // host name, or the local machine
        bool done = false;
        bool silent = true;        // has sent nothing yet
        bool dropped = false;      // closed to make room
        bool administers = false;  // admitted to ask for the status; not counted as pending
    };

    void accept_loop(transport::Listener& listener);
    void start_handshake(std::unique_ptr<transport::Connection> connection);
    void remove_done_connections();
    bool drop_silent_connection() GP_REQUIRES(mutex_);
    [[nodiscard]] std::size_t count_pending(bool administers) const GP_REQUIRES(mutex_);
    void handshake(PendingConnection& pending);
    void serve_administration(transport::Connection& connection);
    bool closing();

    const std::vector<std::unique_ptr<transport::Listener>> listeners_;
    const Config& config_;
    const AdmissionRules rules_;
    SessionHost& host_;
    std::vector<std::thread> acceptors_;  // one per listener

    Mutex mutex_;
    std::list<PendingConnection> pending_ GP_GUARDED_BY(mutex_);  // including the `connection` pointers
    bool closing_ GP_GUARDED_BY(mutex_) = false;
};

// Sends Refused as the last frame. Never blocks, since the supervisor's only thread calls it too: bytes that do not fit
// the send buffer are dropped. A new connection has room for the frame unless its peer prevents that.
void send_refused(transport::Connection& connection, const Refusal& refusal);

}  // namespace gpupool::daemon
