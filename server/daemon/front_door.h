// Takes connections in: reads the Hello under a deadline, checks it, and shows the way.
//
// One thread for each listener accepts; each connection gets a thread of its own until it is known who it is (at most
// `Config::max_handshakes` at a time; for the next one, the oldest goes that has said nothing yet, of the place that
// most such come from: who only waits keeps nobody out). A stranger thus costs a thread for at most the handshake's
// time-out, a frame's header and a bounded payload. Who may have a session is handed to the `House`, who asks for
// status is answered here, everybody else gets Refused with a message.
//
// Ownership: a connection is the front door's until `House::arrive`. Threads: open() and close() by one thread; `House`
//   is called from the front door's threads. Errors: nothing that a peer does is an error here; it is logged.
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

// What the front door asks the daemon behind it. Called from many threads.
class House {
  public:
    virtual ~House() = default;

    // Keeps a place for a session, or says why there is none. A place kept is used by arrive() or given back.
    virtual std::optional<Refusal> reserve_place() = 0;

    // A guest with a place, or a further connection of a session that is there.
    virtual void arrive(std::unique_ptr<transport::Connection> connection, Guest guest) = 0;

    // The payload of a Control frame with the server's status.
    virtual Result<std::vector<std::byte>> status() = 0;
};

class FrontDoor {
  public:
    FrontDoor(std::vector<std::unique_ptr<transport::Listener>> listeners, const Config& config, AdmissionRules rules,
              House& house);
    ~FrontDoor();
    FrontDoor(const FrontDoor&) = delete;
    FrontDoor& operator=(const FrontDoor&) = delete;

    void open();

    // Stops accepting, hangs up on everybody still being asked, and returns when no thread is left.
    void close();

  private:
    // A connection that is being asked, and the thread that asks.
    struct PendingConnection {
        std::unique_ptr<transport::Connection> connection;
        std::thread thread;
        std::string origin;  // the host, or the machine itself
        bool done = false;
        bool silent = true;        // has said nothing yet
        bool dropped = false;      // to make room
        bool administers = false;  // rather than waiting to be admitted
    };

    void accept_loop(transport::Listener& listener);
    void welcome(std::unique_ptr<transport::Connection> connection);
    void remove_done_connections();
    bool drop_a_silent_one() GP_REQUIRES(mutex_);                                         // with mutex_ held
    [[nodiscard]] std::size_t count_pending(bool administers) const GP_REQUIRES(mutex_);  // with mutex_ held
    void ask(PendingConnection& visitor);
    void serve_administration(transport::Connection& connection);
    bool closing();

    const std::vector<std::unique_ptr<transport::Listener>> listeners_;
    const Config& config_;
    const AdmissionRules rules_;
    House& house_;
    std::vector<std::thread> acceptors_;  // one for each listener

    Mutex mutex_;
    std::list<PendingConnection> pending_ GP_GUARDED_BY(mutex_);  // their `connection` pointers too
    bool closing_ GP_GUARDED_BY(mutex_) = false;
};

// Sends Refused, as a last word. Never waits, since the daemon's one thread says it as well: what the peer does not
// take at once is dropped. A fresh connection has room for it unless the peer sees to it that it has not.
void send_refused(transport::Connection& connection, const Refusal& refusal);

}  // namespace gpupool::daemon
