// Accepts connections, reads their Hello under a deadline, checks it, and passes the connection on.
//
// Each connection is pending until its Hello is admitted. At most `Config::max_handshakes` may be pending. If one more
// arrives, the reception drops a silent one: the oldest of the host that has the most of them. So silent connections
// cannot lock other clients out, and an unauthenticated peer costs at most a frame header and a bounded payload for the
// handshake timeout.
//
// The SessionHost takes admitted sessions and lanes. A session that has to wait for its place stays here, where the
// reception watches its client; administration connections stay as well, and send any number of requests, one after
// the other. Everyone else gets Refused with a message. Nothing here blocks: the reception drops bytes that a peer does
// not read, or the peer.
//
// Ownership: owns a connection until `SessionHost::admit` takes it.
// Threads: the loop's.
// Errors: a peer's misbehaviour is logged and is no error here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "common/result.h"
#include "protocol/transport/connection.h"
#include "protocol/wire/handshake_io.h"
#include "server/daemon/admission.h"
#include "server/daemon/config.h"
#include "server/daemon/loop.h"

namespace gpupool::daemon {

struct Admitted {};
struct Queued {
    std::size_t position = 1;  // of the request among those that wait
    std::size_t length = 1;    // how many wait
    std::string why;           // what there is no room for
};
using Verdict = std::variant<Admitted, Queued, Refusal>;
using RequestId = std::uint64_t;
// One that waits, for the status.
struct WaitingRequest {
    std::size_t position = 0;
    std::string tenant, peer, process_name, why;
    std::uint64_t waited_seconds = 0;
};
// The payload of a Control frame, or why there is none.
using Answer = std::variant<std::vector<std::byte>, Refusal>;

// The daemon behind the reception.
class SessionHost {
  public:
    virtual ~SessionHost() = default;

    // Starts a session or adds a lane to one: takes `connection` if it keeps it. Otherwise says that the request waits,
    // to be repeated after Reception::ask_again(), or why it is refused. `request` is the same each time. Sets
    // Admission::visible_devices.
    virtual Verdict admit(std::unique_ptr<transport::Connection>& connection, Admission& admission,
                          RequestId request) = 0;
    // The reception has refused a peer itself. `admission`: empty if its Hello was not admitted.
    virtual void note_refusal(const std::string& /*peer*/, const Admission& /*admission*/, const Refusal& /*refusal*/) {
    }
    // A request that waited is over: its client has left.
    virtual void withdraw(RequestId request) = 0;

    // Answers a request, the payload of a Control frame, of an administration connection that sent `admission`. Calls
    // `reply` once, at once or later.
    virtual void answer(const Admission& admission, std::span<const std::byte> request,
                        std::function<void(Answer)> reply) = 0;
};

class Reception {
  public:
    Reception(Loop& loop, const Config& config, Identify identify, SessionHost& host);
    ~Reception();
    Reception(const Reception&) = delete;

    // Begins to accept connections of these listeners.
    void open(std::vector<std::unique_ptr<transport::Listener>> listeners);
    // As if a listener had accepted it.
    void receive(std::unique_ptr<transport::Connection> connection);
    // Asks the host again, soon, about all sessions that wait, in the order of their arrival.
    void ask_again();
    // What is known of a request that waits.
    [[nodiscard]] std::optional<WaitingRequest> waiting(RequestId request) const;
    // Stops accepting and closes all connections.
    void close();

  private:
    struct Door;
    struct Visitor;
    enum class Stage {
        greeting,       // has not sent its Hello
        waiting,        // is admitted, and waits for a place
        administering,  // sends requests
        leaving,        // was refused, and has a moment to read why
    };

    void accept(Door& door);
    [[nodiscard]] std::size_t count(Stage stage) const;
    bool drop_silent();
    void enter(Visitor& visitor, Stage stage, milliseconds timeout);
    // Calls go_on() when the visitor may have sent something.
    void await(Visitor& visitor);
    void go_on(Visitor& visitor);
    void overdue(Visitor& visitor);
    void fail(Visitor& visitor, const Error& error);
    void take_hello(Visitor& visitor, const wire::ReceivedFrame& frame);
    void ask(Visitor& visitor);
    void ask_all();
    void check_waiting(Visitor& visitor);
    bool tell_position(Visitor& visitor);
    void take_request(Visitor& visitor, const wire::ReceivedFrame& frame);
    void send(Visitor& visitor);
    void refuse(Visitor& visitor, const Refusal& refusal);
    void discard(Visitor& visitor);
    void remove(Visitor& visitor);

    Loop& loop_;
    const Config& config_;
    const Identify identify_;
    SessionHost& host_;
    RequestId last_request_ = 0;
    std::list<std::unique_ptr<Door>> doors_;
    std::list<std::shared_ptr<Visitor>> visitors_;  // in the order of their arrival
    Timer asking_;
};

// Sends Refused as the last frame. Never blocks: bytes that do not fit the send buffer are dropped. A new connection
// has room for the frame unless its peer prevents that.
void send_refused(transport::Connection& connection, const Refusal& refusal);

}  // namespace gpupool::daemon
