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

constexpr std::chrono::milliseconds kLingerTime{1000};  // for a refused peer to read the reason
constexpr std::chrono::milliseconds kAdministrationTimeout{
    10000};  // between the requests of an administration connection
constexpr std::size_t kMaxControlBytes = 64u << 10;
constexpr std::size_t kMaxAdministrators = 64;  // administration connections at a time

// A peer that does not read must not occupy a thread forever.
void bound_sending(Connection& connection) {
    connection.set_send_timeout(std::chrono::seconds(5));
}

// A worker's client may stop reading for long: a program under a debugger, for example.
void unbound_sending(Connection& connection) {
    connection.set_send_timeout({});
}

// Closing a socket with unread bytes resets the connection, and the peer loses the last frame. So read what still
// arrives, for a short time.
void linger(Connection& connection) {
    connection.set_receive_deadline(Clock::now() + kLingerTime);
    std::byte unread[4096];
    for (std::size_t bytes = 0; bytes < (1u << 20);) {
        const auto count = connection.receive(unread);
        if (!count) {
            return;
        }
        bytes += *count;
    }
}

// The host of a peer, without the port or number of the connection.
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
                     AdmissionRules rules, SessionHost& host)
    : listeners_(std::move(listeners)), config_(config), rules_(std::move(rules)), host_(host) {}

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
        for (auto& pending : pending_) {
            if (pending.connection) {
                pending.connection->shutdown();
            }
        }
        leaving.swap(pending_);  // list nodes do not move, so the threads' references stay valid
    }
    for (auto& pending : leaving) {
        pending.thread.join();
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
            start_handshake(std::move(connection).value());
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
        for (auto pending = pending_.begin(); pending != pending_.end();) {
            const auto next = std::next(pending);
            if (pending->done) {
                done.splice(done.end(), pending_, pending);
            }
            pending = next;
        }
    }
    for (auto& pending : done) {
        pending.thread.join();
    }
}

void FrontDoor::start_handshake(std::unique_ptr<Connection> connection) {
    remove_done_connections();
    UniqueLock lock(mutex_);
    if (closing_) {
        return;
    }
    const auto pending_count = count_pending(false);
    if (pending_count >= config_.max_handshakes && !drop_silent_connection()) {
        lock.unlock();
        log::warn("{}: refused, {} connections are already pending", connection->peer(), pending_count);
        send_refused(*connection, {schema::Refused::Reason::CAPACITY,
                                   "too many connections are waiting to be admitted: try again in a moment"});
        return;
    }
    auto& pending = pending_.emplace_back();
    pending.connection = std::move(connection);
    pending.origin = origin_of(pending.connection->peer());
    try {
        pending.thread = std::thread([this, &pending] {
            handshake(pending);
            const Lock done_lock(mutex_);
            pending.connection.reset();
            pending.done = true;
        });
    } catch (const std::system_error& error) {
        log::error("{}: refused, no thread for it: {}", pending.connection->peer(), error.what());
        pending_.pop_back();
    }
}

std::size_t FrontDoor::count_pending(bool administers) const {
    return static_cast<std::size_t>(std::count_if(
        pending_.begin(), pending_.end(),
        [&](const PendingConnection& pending) { return pending.administers == administers && !pending.dropped; }));
}

// Shuts the connection down; its thread then sees the end of the stream.
bool FrontDoor::drop_silent_connection() {
    const auto may_go = [](const PendingConnection& pending) {
        return pending.silent && !pending.dropped && !pending.done;
    };
    std::map<std::string_view, std::size_t> silent_of;
    for (const PendingConnection& pending : pending_) {
        silent_of[pending.origin] += may_go(pending) ? 1 : 0;
    }
    const auto most = std::max_element(silent_of.begin(), silent_of.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    if (most == silent_of.end() || most->second == 0) {
        return false;
    }
    const auto oldest = std::find_if(pending_.begin(), pending_.end(), [&](const PendingConnection& pending) {
        return may_go(pending) && pending.origin == most->first;
    });
    log::warn("{}: dropped, it has sent nothing and too many connections are pending", oldest->connection->peer());
    oldest->dropped = true;
    send_refused(*oldest->connection,
                 {schema::Refused::Reason::CAPACITY,
                  "dropped because it had sent nothing while other clients waited: try again in a moment"});
    oldest->connection->shutdown();
    return true;
}

void FrontDoor::handshake(PendingConnection& pending) {
    Connection& connection = *pending.connection;  // only this thread resets the pointer
    const std::string peer = connection.peer();
    const auto refuse = [&](const Refusal& refusal) {
        log::info("{}: refused: {}", peer, refusal.message);
        send_refused(connection, refusal);
        linger(connection);
    };
    auto frame = wire::read_frame(connection, config_.max_hello_bytes, config_.handshake_timeout);
    {
        const Lock lock(mutex_);
        if (pending.dropped) {
            return;
        }
        pending.silent = false;
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
    auto& admission = std::get<Admission>(verdict);
    if (admission.purpose == Purpose::administration) {
        {
            // Administration connections may stay open, so they are not counted as pending.
            UniqueLock lock(mutex_);
            if (count_pending(true) >= kMaxAdministrators) {
                lock.unlock();
                refuse({schema::Refused::Reason::CAPACITY, "too many connections ask for the server's status"});
                return;
            }
            pending.administers = true;
        }
        serve_administration(connection);
        return;
    }
    if (admission.purpose == Purpose::session) {
        if (const auto refusal = host_.reserve_place()) {
            refuse(*refusal);
            return;
        }
        // Acknowledge at once, so that the client does not time out while a driver starts. If the client is gone, its
        // worker will notice.
        bound_sending(connection);
        (void)wire::write_frame(connection, wire::FrameType::ack, {});
        unbound_sending(connection);
    }
    std::unique_ptr<Connection> moved;
    {
        const Lock lock(mutex_);
        moved = std::move(pending.connection);
    }
    host_.admit(std::move(moved), std::move(admission));
}

void FrontDoor::serve_administration(Connection& connection) {
    bound_sending(connection);
    while (true) {
        const auto frame = wire::read_frame(connection, kMaxControlBytes, kAdministrationTimeout);
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
        const auto status = host_.status();
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
