#include "server/daemon/front_door.h"

#include <capnp/serialize.h>
#include <fmt/format.h>
#include <kj/exception.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string_view>
#include <system_error>
#include <utility>

#include "common/log.h"
#include "protocol/schema/control.capnp.h"
#include "protocol/wire/handshake_io.h"
#include "server/supervision/message_socket.h"

namespace gpupool::daemon {

namespace {

using transport::Clock;
using transport::Connection;

constexpr std::chrono::milliseconds kFarewell{1000};         // for a refused peer to read why
constexpr std::chrono::milliseconds kAdministration{10000};  // between an administrator's requests
constexpr std::size_t kMaxControlBytes = 64u << 10;
constexpr std::size_t kMaxAdministrators = 64;  // connections at a time

// A peer that does not read must not hold a thread for ever.
void bound_sending(Connection& connection) {
    connection.set_send_timeout(std::chrono::seconds(5));
}

// For a worker, whose client may take its time: a program under a debugger reads nothing.
void unbound_sending(Connection& connection) {
    connection.set_send_timeout({});
}

// Closing a socket that holds unread bytes resets the connection and takes the last word with it: so whatever still
// comes is read, for a short while.
void linger(Connection& connection) {
    connection.set_receive_deadline(Clock::now() + kFarewell);
    std::byte unread[4096];
    for (std::size_t bytes = 0; bytes < (1u << 20);) {
        const auto count = connection.receive(unread);
        if (!count) {
            return;
        }
        bytes += *count;
    }
}

// Where a peer comes from, without what tells its connections apart.
std::string origin_of(const std::string& peer) {
    return peer.substr(0, peer.starts_with("tcp ") ? peer.rfind(':') : peer.find(' '));
}

bool is_status_request(const wire::ReceivedFrame& frame) {
    if (frame.payload.empty() || frame.payload.size() % sizeof(capnp::word) != 0) {
        return false;
    }
    auto words = kj::heapArray<capnp::word>(frame.payload.size() / sizeof(capnp::word));
    std::memcpy(words.begin(), frame.payload.data(), frame.payload.size());
    try {
        capnp::FlatArrayMessageReader reader(words, supervision::bounded_reader(frame.payload.size()));
        return reader.getRoot<schema::Control>().isStatusRequest();
    } catch (const kj::Exception&) {
        return false;
    }
}

}  // namespace

void send_refused(Connection& connection, const Refusal& refusal) {
    capnp::MallocMessageBuilder message;
    auto refused = message.initRoot<schema::Refused>();
    refused.setReason(refusal.reason);
    refused.setMessage(refusal.message.c_str());
    const auto words = capnp::messageToFlatArray(message);
    const auto bytes = words.asBytes();
    wire::write_last_frame(connection, wire::FrameType::refused, std::as_bytes(std::span(bytes.begin(), bytes.size())));
}

FrontDoor::FrontDoor(std::vector<std::unique_ptr<transport::Listener>> listeners, const Config& config,
                     AdmissionRules rules, House& house)
    : listeners_(std::move(listeners)), config_(config), rules_(std::move(rules)), house_(house) {}

FrontDoor::~FrontDoor() {
    close();
}

void FrontDoor::open() {
    for (const auto& listener : listeners_) {
        acceptors_.emplace_back([this, &listener] { accept_loop(*listener); });
    }
}

void FrontDoor::close() {
    std::list<PendingConnection> leaving;
    {
        const Lock lock(mutex_);
        closing_ = true;
    }
    for (const auto& listener : listeners_) {
        listener->shutdown();
    }
    for (auto& acceptor : acceptors_) {
        acceptor.join();
    }
    acceptors_.clear();
    {
        const Lock lock(mutex_);
        for (auto& visitor : pending_) {
            if (visitor.connection) {
                visitor.connection->shutdown();
            }
        }
        leaving.swap(pending_);  // list nodes stay where they are, so the threads' references hold
    }
    for (auto& visitor : leaving) {
        visitor.thread.join();
    }
}

bool FrontDoor::closing() {
    const Lock lock(mutex_);
    return closing_;
}

void FrontDoor::accept_loop(transport::Listener& listener) {
    while (true) {
        auto connection = listener.accept();
        if (connection) {
            welcome(std::move(connection).value());
            continue;
        }
        if (closing() || connection.error().code == ErrorCode::closed) {
            return;
        }
        log::warn("cannot accept a connection: {}", connection.error().message);
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
}

void FrontDoor::remove_done_connections() {
    std::list<PendingConnection> done;
    {
        const Lock lock(mutex_);
        for (auto visitor = pending_.begin(); visitor != pending_.end();) {
            const auto next = std::next(visitor);
            if (visitor->done) {
                done.splice(done.end(), pending_, visitor);
            }
            visitor = next;
        }
    }
    for (auto& visitor : done) {
        visitor.thread.join();
    }
}

void FrontDoor::welcome(std::unique_ptr<Connection> connection) {
    remove_done_connections();
    UniqueLock lock(mutex_);
    if (closing_) {
        return;
    }
    const auto asked = count_pending(false);
    if (asked >= config_.max_handshakes && !drop_a_silent_one()) {
        lock.unlock();
        log::warn("{}: refused, {} connections are already being asked who they are", connection->peer(), asked);
        send_refused(*connection, {schema::Refused::Reason::CAPACITY,
                                   "too many connections at once are waiting to be admitted: try again in a moment"});
        return;
    }
    auto& visitor = pending_.emplace_back();
    visitor.connection = std::move(connection);
    visitor.origin = origin_of(visitor.connection->peer());
    try {
        visitor.thread = std::thread([this, &visitor] {
            ask(visitor);
            const Lock done_lock(mutex_);
            visitor.connection.reset();
            visitor.done = true;
        });
    } catch (const std::system_error& error) {
        log::error("{}: refused, no thread for it: {}", visitor.connection->peer(), error.what());
        pending_.pop_back();
    }
}

std::size_t FrontDoor::count_pending(bool administers) const {
    return static_cast<std::size_t>(std::count_if(
        pending_.begin(), pending_.end(),
        [&](const PendingConnection& visitor) { return visitor.administers == administers && !visitor.dropped; }));
}

// Its thread finds the connection at its end.
bool FrontDoor::drop_a_silent_one() {
    const auto may_go = [](const PendingConnection& visitor) {
        return visitor.silent && !visitor.dropped && !visitor.done;
    };
    std::map<std::string_view, std::size_t> silent_of;
    for (const PendingConnection& visitor : pending_) {
        silent_of[visitor.origin] += may_go(visitor) ? 1 : 0;
    }
    const auto most = std::max_element(silent_of.begin(), silent_of.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    if (most == silent_of.end() || most->second == 0) {
        return false;
    }
    const auto oldest = std::find_if(pending_.begin(), pending_.end(), [&](const PendingConnection& visitor) {
        return may_go(visitor) && visitor.origin == most->first;
    });
    log::warn("{}: dropped without a word from it: too many connections wait to be admitted",
              oldest->connection->peer());
    oldest->dropped = true;
    send_refused(*oldest->connection, {schema::Refused::Reason::CAPACITY,
                                       "said nothing while others waited to be admitted: try again in a moment"});
    oldest->connection->shutdown();
    return true;
}

void FrontDoor::ask(PendingConnection& visitor) {
    Connection& connection = *visitor.connection;  // this thread alone resets the pointer
    const std::string peer = connection.peer();
    const auto refuse = [&](const Refusal& refusal) {
        log::info("{}: refused: {}", peer, refusal.message);
        send_refused(connection, refusal);
        linger(connection);
    };
    auto frame = wire::read_frame(connection, config_.max_hello_bytes, config_.handshake_timeout);
    {
        const Lock lock(mutex_);
        if (visitor.dropped) {
            return;
        }
        visitor.silent = false;
    }
    if (!frame) {
        const Error& error = frame.error();
        if (error.code == ErrorCode::closed || error.code == ErrorCode::system) {
            log::debug("{}: went away before its Hello: {}", peer, error.message);
        } else if (error.code == ErrorCode::timed_out) {
            refuse({schema::Refused::Reason::PROTOCOL, fmt::format("no Hello within {} ms: is this a gpupool client?",
                                                                   config_.handshake_timeout.count())});
        } else {
            refuse({schema::Refused::Reason::PROTOCOL, error.message});
        }
        return;
    }
    if (frame->type != wire::FrameType::hello) {
        refuse({schema::Refused::Reason::PROTOCOL, "the first frame must be a Hello"});
        return;
    }
    auto verdict = examine_hello(frame->payload, rules_);
    if (const auto* refusal = std::get_if<Refusal>(&verdict)) {
        refuse(*refusal);
        return;
    }
    auto& guest = std::get<Guest>(verdict);
    if (guest.purpose == Purpose::administration) {
        {
            // They stay as long as they like, so that they do not count with those who have yet to be admitted.
            UniqueLock lock(mutex_);
            if (count_pending(true) >= kMaxAdministrators) {
                lock.unlock();
                refuse({schema::Refused::Reason::CAPACITY, "too many connections ask for the server's status"});
                return;
            }
            visitor.administers = true;
        }
        serve_administration(connection);
        return;
    }
    if (guest.purpose == Purpose::session) {
        if (const auto refusal = house_.reserve_place()) {
            refuse(*refusal);
            return;
        }
        // The client need not fear that it speaks to nobody while a driver starts. If it is gone, its worker will
        // notice.
        bound_sending(connection);
        (void)wire::write_frame(connection, wire::FrameType::ack, {});
        unbound_sending(connection);
    }
    std::unique_ptr<Connection> moved;
    {
        const Lock lock(mutex_);
        moved = std::move(visitor.connection);
    }
    house_.arrive(std::move(moved), std::move(guest));
}

void FrontDoor::serve_administration(Connection& connection) {
    bound_sending(connection);
    while (true) {
        const auto frame = wire::read_frame(connection, kMaxControlBytes, kAdministration);
        if (!frame || frame->type == wire::FrameType::goodbye) {
            return;
        }
        if (frame->type != wire::FrameType::control || !is_status_request(*frame)) {
            send_refused(connection, {schema::Refused::Reason::PROTOCOL,
                                      "this server does not know the request: install the same version of gpupool on "
                                      "both machines"});
            linger(connection);
            return;
        }
        const auto status = house_.status();
        if (!status) {
            send_refused(connection, {schema::Refused::Reason::SHUTTING_DOWN, status.error().message});
            linger(connection);
            return;
        }
        if (!wire::write_frame(connection, wire::FrameType::control, *status)) {
            return;
        }
    }
}

}  // namespace gpupool::daemon
