// Serves the metrics by HTTP: GET /metrics, one request a connection.
//
// The daemon answers on its loop, from a text that it makes anew at most every kFresh. So no thread shares the
// sessions, and frequent requests cost little. Connections, their time and the size of a request are limited.
//
// Ownership: owns its listener and connections. Threads: the loop's. Errors: those of peers end their connections.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "protocol/transport/connection.h"
#include "server/daemon/loop.h"

namespace gpupool::daemon {

// The response to a request, from its method to the empty line that ends its header. `metrics` is called for a response
// that has them.
std::string http_response(std::string_view request, const std::function<const std::string&()>& metrics);

class MetricsEndpoint {
  public:
    static constexpr std::size_t kMaxConnections = 16;  // a further one is closed
    static constexpr std::size_t kMaxRequestBytes = std::size_t{16} << 10;
    static constexpr std::chrono::seconds kTimeout{10};  // of a connection
    static constexpr std::chrono::milliseconds kFresh{100};

    // `text` makes the metrics.
    MetricsEndpoint(Loop& loop, std::unique_ptr<transport::Listener> listener, std::function<std::string()> text);
    ~MetricsEndpoint();
    MetricsEndpoint(const MetricsEndpoint&) = delete;

    // As if the listener had accepted it.
    void receive(std::unique_ptr<transport::Connection> connection);
    [[nodiscard]] std::size_t connections() const { return peers_.size(); }

  private:
    struct Peer;
    using Place = std::list<std::unique_ptr<Peer>>::iterator;

    void listen();
    void accept();
    void read(Place place);
    void write(Place place);
    // Receives what the peer still sends, until it closes its end: closing a socket with unread bytes loses the rest of
    // the response.
    void drain(Place place);
    // How many bytes came; none if the peer has left, and is removed.
    std::optional<std::size_t> receive_or_remove(Place place, std::span<std::byte> buffer);
    void remove(Place place);
    const std::string& text();

    Loop& loop_;
    const std::unique_ptr<transport::Listener> listener_;
    const std::function<std::string()> make_text_;
    std::string text_;
    Loop::TimePoint made_;
    bool has_text_ = false;
    Watch watch_;
    Timer retry_;
    std::list<std::unique_ptr<Peer>> peers_;
};

}  // namespace gpupool::daemon
