#include "server/daemon/reception.h"

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "common/log.h"
#include "protocol/schema/control.capnp.h"
#include "protocol/transport/shm/local_socket.h"

namespace gpupool::daemon {

namespace {

using transport::Connection;

constexpr milliseconds kLingerTime{1000};              // for a refused peer to read the reason
constexpr milliseconds kAdministrationTimeout{10000};  // between the requests of an administration connection
constexpr milliseconds kSendTimeout{5000};             // for an administrator to read an answer
constexpr milliseconds kQueueNotice{5000};             // between two messages to a client that waits
constexpr milliseconds kGoneCheck{1000};               // of a waiting client that has sent something
constexpr milliseconds kAcceptRetry{50};
constexpr std::size_t kMaxControlBytes = 64u << 10;
constexpr std::size_t kMaxDiscardedBytes = 1u << 20;
constexpr std::size_t kMaxAdministrators = 64;  // administration connections at a time
constexpr std::size_t kMaxWaiting = 1024;       // sessions that wait for a place
constexpr int kMaxAccepted = 64;                // connections in a row, before others are served

// The host of a peer, without the port or number of the connection.
std::string origin_of(const std::string& peer) {
    return peer.substr(0, peer.starts_with("tcp ") ? peer.rfind(':') : peer.find(' '));
}

std::span<const std::byte> bytes_of(const kj::Array<capnp::word>& words) {
    return std::as_bytes(std::span(words.begin(), words.size()));
}

// The user at the other end of a connection of this host.
std::optional<uid_t> local_user(const Connection& connection) {
    const int socket = connection.native_handle();
    if (!transport::shm::check_socket(socket)) {
        return std::nullopt;
    }
    const auto peer = transport::shm::peer_of(socket);
    return peer ? std::optional(peer->uid) : std::nullopt;
}

// Leaves what the peer has sent for the worker.
bool is_gone(const Connection& connection) {
    pollfd entry{connection.native_handle(), POLLRDHUP, 0};
    return ::poll(&entry, 1, 0) != 0;
}

}  // namespace

void send_refused(Connection& connection, const Refusal& refusal) {
    capnp::MallocMessageBuilder message;
    auto refused = message.initRoot<schema::Refused>();
    refused.setReason(refusal.reason);
    refused.setMessage(refusal.message.c_str());
    wire::write_frame_now(connection, wire::FrameType::refused, bytes_of(capnp::messageToFlatArray(message)));
}

struct Reception::Door {
    std::unique_ptr<transport::Listener> listener;
    Watch watch;
    Timer retry;
};

struct Reception::Visitor {
    Visitor(Loop& loop, std::unique_ptr<Connection> its_connection, Loop::Callback overdue)
        : connection(std::move(its_connection)),
          peer(connection->peer()),
          origin(origin_of(peer)),
          watch(loop),
          timer(loop, std::move(overdue)) {}

    std::unique_ptr<Connection> connection;
    const std::string peer, origin;
    Stage stage = Stage::greeting;
    std::optional<wire::FrameCollector> frame;
    std::vector<std::byte> unsent;  // an answer
    std::size_t bytes = 0;          // sent of it, or discarded
    Admission admission;
    RequestId request = 0;
    Queued place;  // while it waits
    TimeSource::TimePoint since;
    TimeSource::TimePoint told;
    Watch watch;
    Timer timer;
};

Reception::Reception(Loop& loop, const Config& config, Identify identify, SessionHost& host)
    : loop_(loop), config_(config), identify_(std::move(identify)), host_(host), asking_(loop, [this] { ask_all(); }) {}

Reception::~Reception() {
    close();
}

void Reception::open(std::vector<std::unique_ptr<transport::Listener>> listeners) {
    for (auto& listener : listeners) {
        const auto door = doors_.insert(doors_.end(), nullptr);
        const auto open = [this, door] {
            (*door)->watch.keep_waiting((*door)->listener->native_handle(), [this, door] { accept(**door); });
        };
        *door = std::unique_ptr<Door>(new Door{std::move(listener), Watch(loop_), Timer(loop_, open)});
        open();
    }
}

void Reception::close() {
    for (const auto& door : doors_) {
        door->retry.cancel();
        door->watch.stop();
        door->listener->shutdown();
    }
    for (const auto& visitor : visitors_) {
        if (visitor->stage == Stage::waiting) {
            host_.withdraw(visitor->request);
            send_refused(*visitor->connection,
                         {schema::Refused::Reason::SHUTTING_DOWN, "the server is stopping: try again later"});
        }
        visitor->watch.stop();
        visitor->connection->shutdown();
    }
    visitors_.clear();
}

void Reception::accept(Door& door) {
    for (int i = 0; i < kMaxAccepted; ++i) {
        auto connection = door.listener->accept_now();
        if (!connection) {
            log::warn("cannot accept a connection: {}", connection.error().message);
            door.watch.stop();
            door.retry.set_after(kAcceptRetry);
            return;
        }
        if (*connection == nullptr) {
            return;
        }
        receive(std::move(*connection));
    }
}

std::size_t Reception::count(Stage stage) const {
    return static_cast<std::size_t>(std::count_if(visitors_.begin(), visitors_.end(),
                                                  [&](const auto& visitor) { return visitor->stage == stage; }));
}

void Reception::receive(std::unique_ptr<Connection> connection) {
    const std::size_t pending = count(Stage::greeting) + count(Stage::leaving);
    if (pending >= config_.max_handshakes && !drop_silent()) {
        log::warn("{}: refused, {} connections are already pending", connection->peer(), pending);
        send_refused(*connection, {schema::Refused::Reason::CAPACITY,
                                   "too many connections are waiting to be admitted: try again in a moment"});
        return;
    }
    const auto place = visitors_.insert(visitors_.end(), nullptr);
    *place = std::make_shared<Visitor>(loop_, std::move(connection), [this, place] { overdue(**place); });
    Visitor& visitor = **place;
    visitor.frame.emplace(config_.max_hello_bytes);
    enter(visitor, Stage::greeting, config_.handshake_timeout);
    go_on(visitor);
}

bool Reception::drop_silent() {
    std::map<std::string_view, std::size_t> silent_of;
    for (const auto& visitor : visitors_) {
        silent_of[visitor->origin] += visitor->stage == Stage::greeting ? 1 : 0;
    }
    const auto most = std::max_element(silent_of.begin(), silent_of.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    if (most == silent_of.end() || most->second == 0) {
        return false;
    }
    Visitor& oldest = **std::find_if(visitors_.begin(), visitors_.end(), [&](const auto& visitor) {
        return visitor->stage == Stage::greeting && visitor->origin == most->first;
    });
    log::warn("{}: dropped, it has sent nothing and too many connections are pending", oldest.peer);
    send_refused(*oldest.connection,
                 {schema::Refused::Reason::CAPACITY,
                  "dropped because it had sent nothing while other clients waited: try again in a moment"});
    oldest.connection->shutdown();
    remove(oldest);
    return true;
}

void Reception::enter(Visitor& visitor, Stage stage, milliseconds timeout) {
    visitor.stage = stage;
    visitor.timer.set_after(timeout);
}

void Reception::remove(Visitor& visitor) {
    visitor.watch.stop();  // before the connection closes its descriptor
    std::erase_if(visitors_, [&](const auto& other) { return other.get() == &visitor; });
}

void Reception::await(Visitor& visitor) {
    const auto readiness = visitor.connection->receive_readiness();
    if (!readiness) {
        fail(visitor, readiness.error());
        return;
    }
    visitor.watch.wait(readiness->descriptor, Watch::For::reading, [this, &visitor] { go_on(visitor); });
}

void Reception::go_on(Visitor& visitor) {
    if (visitor.stage == Stage::leaving) {
        discard(visitor);
        return;
    }
    const auto frame = visitor.frame->receive(*visitor.connection);
    if (!frame) {
        fail(visitor, frame.error());
    } else if (!*frame) {
        await(visitor);
    } else if (visitor.stage == Stage::greeting) {
        take_hello(visitor, **frame);
    } else {
        take_request(visitor, **frame);
    }
}

void Reception::overdue(Visitor& visitor) {
    switch (visitor.stage) {
        case Stage::greeting:
            refuse(visitor,
                   {schema::Refused::Reason::PROTOCOL, fmt::format("no Hello within {} ms: is this a gpupool client?",
                                                                   config_.handshake_timeout.count())});
            break;
        case Stage::waiting: check_waiting(visitor); break;
        case Stage::administering:
        case Stage::leaving: remove(visitor); break;
    }
}

void Reception::fail(Visitor& visitor, const Error& error) {
    visitor.watch.stop();
    if (visitor.stage != Stage::greeting) {
        remove(visitor);
    } else if (error.code == ErrorCode::closed || error.code == ErrorCode::system) {
        log::debug("{}: went away before its Hello: {}", visitor.peer, error.message);
        remove(visitor);
    } else {
        refuse(visitor, {schema::Refused::Reason::PROTOCOL, error.message});
    }
}

void Reception::refuse(Visitor& visitor, const Refusal& refusal) {
    log::info("{}: refused: {}", visitor.peer, refusal.message);
    send_refused(*visitor.connection, refusal);
    visitor.bytes = 0;
    enter(visitor, Stage::leaving, kLingerTime);
    discard(visitor);
}

// Closing a socket with unread bytes resets the connection, and the peer loses the last frame. So this reads what still
// arrives, for a short time.
void Reception::discard(Visitor& visitor) {
    std::byte unread[4096];
    const auto received = visitor.connection->receive_some(unread);
    if (!received || (visitor.bytes += *received) > kMaxDiscardedBytes) {
        remove(visitor);
    } else if (*received == 0) {
        await(visitor);
    } else {
        visitor.watch.wait(-1, Watch::For::reading, [this, &visitor] { discard(visitor); });
    }
}

void Reception::take_hello(Visitor& visitor, const wire::ReceivedFrame& frame) {
    if (frame.type != wire::FrameType::hello) {
        refuse(visitor, {schema::Refused::Reason::PROTOCOL, "the first frame must be a Hello"});
        return;
    }
    auto verdict = examine_hello(frame.payload, identify_, local_user(*visitor.connection));
    if (const auto* refusal = std::get_if<Refusal>(&verdict)) {
        host_.note_refusal(visitor.peer, visitor.admission, *refusal);
        refuse(visitor, *refusal);
        return;
    }
    visitor.admission = std::get<Admission>(std::move(verdict));
    if (visitor.admission.purpose != Purpose::administration) {
        visitor.request = ++last_request_;
        ask(visitor);
    } else if (count(Stage::administering) >= kMaxAdministrators) {
        refuse(visitor, {schema::Refused::Reason::CAPACITY, "too many connections ask for the server's status"});
    } else {
        visitor.frame.emplace(kMaxControlBytes);
        enter(visitor, Stage::administering, kAdministrationTimeout);
        await(visitor);
    }
}

void Reception::ask(Visitor& visitor) {
    visitor.watch.stop();  // a worker that takes the connection over must be its only user
    const Verdict verdict = host_.admit(visitor.connection, visitor.admission, visitor.request);
    if (const auto* refusal = std::get_if<Refusal>(&verdict)) {
        refuse(visitor, *refusal);
        return;
    }
    const auto* queued = std::get_if<Queued>(&verdict);
    if (queued == nullptr) {
        remove(visitor);
        return;
    }
    if (visitor.stage != Stage::waiting && count(Stage::waiting) >= kMaxWaiting) {
        host_.withdraw(visitor.request);
        const Refusal refusal{schema::Refused::Reason::CAPACITY, "too many sessions wait for a place: try again later"};
        host_.note_refusal(visitor.peer, visitor.admission, refusal);
        refuse(visitor, refusal);
        return;
    }
    if (std::exchange(visitor.stage, Stage::waiting) != Stage::waiting) {
        visitor.since = loop_.now();
    }
    if (visitor.place.position != queued->position || visitor.place.why.empty()) {
        log::info("{}: waits for a place, at position {}: {}", visitor.peer, queued->position, queued->why);
        visitor.told = {};
    }
    visitor.place = *queued;
    check_waiting(visitor);
}

std::optional<WaitingRequest> Reception::waiting(RequestId request) const {
    const auto found = std::find_if(visitors_.begin(), visitors_.end(), [&](const auto& visitor) {
        return visitor->stage == Stage::waiting && visitor->request == request;
    });
    if (found == visitors_.end()) {
        return std::nullopt;
    }
    const Visitor& visitor = **found;
    const auto waited = std::chrono::duration_cast<std::chrono::seconds>(loop_.now() - visitor.since);
    return WaitingRequest{visitor.place.position, visitor.admission.identity.name,
                          visitor.peer,           visitor.admission.client.process_name,
                          visitor.place.why,      static_cast<std::uint64_t>(waited.count())};
}

void Reception::ask_again() {
    asking_.set(loop_.now());
}

void Reception::ask_all() {
    const auto all = visitors_;
    for (const auto& visitor : all) {
        if (visitor->stage == Stage::waiting && visitor->connection != nullptr) {
            ask(*visitor);
        }
    }
}

// Leaves what the client may have sent to the worker that will take its connection. Once something is there, the
// descriptor no longer shows the end of the connection, so the timer checks it too.
void Reception::check_waiting(Visitor& visitor) {
    const bool due = loop_.now() - visitor.told >= kQueueNotice;
    if (is_gone(*visitor.connection) || (due && !tell_position(visitor))) {
        log::info("{}: left while it waited for a place", visitor.peer);
        host_.withdraw(visitor.request);
        remove(visitor);
        return;
    }
    visitor.timer.set_after(kGoneCheck);
    visitor.watch.wait(visitor.connection->native_handle(), Watch::For::reading, [this, &visitor] {
        if (is_gone(*visitor.connection)) {
            check_waiting(visitor);
        }
    });
}

bool Reception::tell_position(Visitor& visitor) {
    visitor.told = loop_.now();
    return wire::write_frame_now(
        *visitor.connection, wire::FrameType::control,
        messages::waiting_payload({visitor.place.position, visitor.place.length, visitor.place.why}));
}

void Reception::take_request(Visitor& visitor, const wire::ReceivedFrame& frame) {
    if (frame.type == wire::FrameType::goodbye) {
        remove(visitor);
        return;
    }
    if (frame.type != wire::FrameType::control) {
        refuse(visitor, {schema::Refused::Reason::PROTOCOL, "an administration connection carries requests only"});
        return;
    }
    visitor.timer.cancel();
    const std::shared_ptr<Visitor> owner =
        *std::find_if(visitors_.begin(), visitors_.end(), [&](const auto& other) { return other.get() == &visitor; });
    host_.answer(visitor.admission, frame.payload, [this, weak = std::weak_ptr(owner)](const Answer& answer) {
        const auto asker = weak.lock();
        if (asker == nullptr) {
            return;
        }
        if (const auto* refusal = std::get_if<Refusal>(&answer)) {
            refuse(*asker, *refusal);
            return;
        }
        asker->unsent = wire::frame_bytes(wire::FrameType::control, std::get<std::vector<std::byte>>(answer));
        asker->bytes = 0;
        asker->timer.set_after(kSendTimeout);
        send(*asker);
    });
}

void Reception::send(Visitor& visitor) {
    const transport::ConstBuffer rest[] = {std::span(visitor.unsent).subspan(visitor.bytes)};
    const auto sent = visitor.connection->send_some(rest);
    if (!sent) {
        fail(visitor, sent.error());
        return;
    }
    visitor.bytes += *sent;
    if (visitor.bytes == visitor.unsent.size()) {
        visitor.unsent.clear();
        visitor.timer.set_after(kAdministrationTimeout);
        await(visitor);
        return;
    }
    const auto readiness = visitor.connection->send_readiness();
    if (!readiness) {
        fail(visitor, readiness.error());
        return;
    }
    visitor.watch.wait(readiness->descriptor, readiness->to_write ? Watch::For::writing : Watch::For::reading,
                       [this, &visitor] { send(visitor); });
}

}  // namespace gpupool::daemon
