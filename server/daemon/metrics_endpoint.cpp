#include "server/daemon/metrics_endpoint.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <array>
#include <iterator>
#include <span>
#include <utility>

#include "common/log.h"

namespace gpupool::daemon {

namespace {

constexpr std::chrono::seconds kPauseAfterFailure{1};
constexpr std::size_t kReadBytes = 4096;  // at a time
constexpr std::string_view kEndOfHeader = "\r\n\r\n";
constexpr const char* kMetricsType = "text/plain; version=0.0.4; charset=utf-8";
constexpr const char* kTextType = "text/plain; charset=utf-8";

std::string response(std::string_view status, std::string_view type, std::string_view body, bool with_body,
                     std::string_view further = {}) {
    return fmt::format("HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n{}\r\n{}", status,
                       type, body.size(), further, with_body ? body : std::string_view());
}

}  // namespace

std::string http_response(std::string_view request, const std::function<const std::string&()>& metrics) {
    const std::string_view line = request.substr(0, request.find("\r\n"));
    const std::size_t first = line.find(' ');
    const std::size_t last = line.rfind(' ');
    if (first == std::string_view::npos || last == first || !line.substr(last + 1).starts_with("HTTP/1.")) {
        return response("400 Bad Request", kTextType, "this is not a request of HTTP/1\n", true);
    }
    const std::string_view method = line.substr(0, first);
    const std::string_view target = line.substr(first + 1, last - first - 1);
    if (method != "GET" && method != "HEAD") {
        return response("405 Method Not Allowed", kTextType, "only GET and HEAD\n", true, "Allow: GET, HEAD\r\n");
    }
    const bool with_body = method == "GET";
    if (target.substr(0, target.find('?')) != "/metrics") {
        return response("404 Not Found", kTextType, "the metrics are at /metrics\n", with_body);
    }
    return response("200 OK", kMetricsType, metrics(), with_body);
}

struct MetricsEndpoint::Peer {
    Peer(Loop& loop, std::unique_ptr<transport::Connection> its_connection)
        : connection(std::move(its_connection)), watch(loop) {}

    std::unique_ptr<transport::Connection> connection;
    std::string request;
    std::string unsent;
    std::size_t sent = 0;
    std::unique_ptr<Timer> deadline;
    Watch watch;  // destroyed before the connection closes its descriptor
};

MetricsEndpoint::MetricsEndpoint(Loop& loop, std::unique_ptr<transport::Listener> listener,
                                 std::function<std::string()> text)
    : loop_(loop), listener_(std::move(listener)), make_text_(std::move(text)), watch_(loop), retry_(loop, [this] {
          listen();
      }) {
    listen();
}

MetricsEndpoint::~MetricsEndpoint() {
    watch_.stop();
}

void MetricsEndpoint::listen() {
    if (listener_ != nullptr) {
        watch_.keep_waiting(listener_->native_handle(), [this] { accept(); });
    }
}

void MetricsEndpoint::accept() {
    for (std::size_t i = 0; i < kMaxConnections; ++i) {
        auto connection = listener_->accept_now();
        if (!connection) {
            log::warn("metrics: cannot accept a connection: {}", connection.error().message);
            watch_.stop();
            retry_.set_after(kPauseAfterFailure);
            return;
        }
        if (*connection == nullptr) {
            return;
        }
        receive(std::move(*connection));
    }
}

void MetricsEndpoint::receive(std::unique_ptr<transport::Connection> connection) {
    if (peers_.size() >= kMaxConnections) {
        log::debug("metrics: closed the connection of {}: there are {}", connection->peer(), peers_.size());
        return;
    }
    const Place place = peers_.insert(peers_.end(), std::make_unique<Peer>(loop_, std::move(connection)));
    (*place)->deadline = std::make_unique<Timer>(loop_, [this, place] { remove(place); });
    (*place)->deadline->set_after(kTimeout);
    read(place);
}

void MetricsEndpoint::remove(Place place) {
    (*place)->watch.stop();
    peers_.erase(place);
}

const std::string& MetricsEndpoint::text() {
    if (!has_text_ || loop_.now() - made_ >= kFresh) {
        text_ = make_text_();
        made_ = loop_.now();
        has_text_ = true;
    }
    return text_;
}

std::optional<std::size_t> MetricsEndpoint::receive_or_remove(Place place, std::span<std::byte> buffer) {
    const auto received = (*place)->connection->receive_some(buffer);
    if (!received) {
        remove(place);
        return std::nullopt;
    }
    return *received;
}

void MetricsEndpoint::read(Place place) {
    Peer& peer = **place;
    std::array<std::byte, kReadBytes> buffer;
    const auto received = receive_or_remove(place, buffer);
    if (!received) {
        return;
    }
    peer.request.append(reinterpret_cast<const char*>(buffer.data()), *received);
    if (peer.request.find(kEndOfHeader) != std::string::npos) {
        peer.unsent = http_response(peer.request, [this]() -> const std::string& { return text(); });
        write(place);
    } else if (peer.request.size() >= kMaxRequestBytes) {
        peer.unsent = response("431 Request Header Fields Too Large", kTextType, "the request is too long\n", true);
        write(place);
    } else {
        peer.watch.wait(peer.connection->native_handle(), Watch::For::reading, [this, place] { read(place); });
    }
}

void MetricsEndpoint::write(Place place) {
    Peer& peer = **place;
    const transport::ConstBuffer rest[] = {std::as_bytes(std::span(peer.unsent)).subspan(peer.sent)};
    const auto sent = peer.connection->send_some(rest);
    if (!sent) {
        remove(place);
        return;
    }
    peer.sent += *sent;
    if (peer.sent < peer.unsent.size()) {
        peer.watch.wait(peer.connection->native_handle(), Watch::For::writing, [this, place] { write(place); });
        return;
    }
    ::shutdown(peer.connection->native_handle(), SHUT_WR);  // the peer may read to the end
    peer.watch.wait(peer.connection->native_handle(), Watch::For::reading, [this, place] { drain(place); });
}

void MetricsEndpoint::drain(Place place) {
    std::array<std::byte, kReadBytes> buffer;
    if (!receive_or_remove(place, buffer)) {
        return;
    }
    Peer& peer = **place;
    peer.watch.wait(peer.connection->native_handle(), Watch::For::reading, [this, place] { drain(place); });
}

}  // namespace gpupool::daemon
