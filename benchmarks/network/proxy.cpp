// A TCP proxy that makes one machine look like two with a network between them, for benchmarks.
//
//   gpupool_network_proxy --to HOST:PORT --rtt 100us --rate 25gbit [--listen 127.0.0.1:0]
//
// Each direction has half of the round trip as its delay, and the rate, which all connections share (link.h). It prints
// the address at which it listens.
//
// Not emulated: loss, reordering, jitter and congestion; TCP's own start (both of its connections are local, so their
// windows open at once); packets' headers, of which a real network of the same rate carries some percent. The delay
// adds to what the proxy itself costs, two more local TCP hops: some 30 us of a round trip on an idle machine (--rtt
// 0us shows it), and several times as much where nothing came for longer than Traffic::kLooksFor (link.h), since its
// threads sleep then. A rate above what the proxy can copy is its limit and not the network's: 12 GB/s were seen on 16
// processors, where bulk data has eight connections.
#include <fmt/format.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "benchmarks/network/link.h"
#include "protocol/transport/endpoint.h"
#include "protocol/transport/tcp/connector.h"
#include "protocol/transport/tcp/listener.h"

namespace gpupool::network {
namespace {

constexpr std::chrono::seconds kConnectPatience{5};
constexpr int kMaxConnections = 256;

struct Unit {
    const char* name;
    double factor;
};

// "100us" with the units that there are; nullopt where it is none of that.
template <std::size_t Count>
std::optional<double> parse(const std::string& text, const Unit (&units)[Count]) {
    std::size_t end = 0;
    double number = 0;
    try {
        number = std::stod(text, &end);
    } catch (const std::exception&) {
        return std::nullopt;
    }
    for (const Unit& unit : units) {
        if (text.substr(end) == unit.name && std::isfinite(number) && number >= 0) {
            return number * unit.factor;
        }
    }
    return std::nullopt;
}

std::optional<double> seconds(const std::string& text) {
    constexpr Unit units[] = {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}};
    const auto value = parse(text, units);
    return value && *value <= 10 ? value : std::nullopt;
}

std::optional<double> bytes_per_s(const std::string& text) {
    constexpr Unit units[] = {{"kbit", 1e3 / 8}, {"mbit", 1e6 / 8}, {"gbit", 1e9 / 8}};
    const auto value = parse(text, units);
    return value && *value > 0 ? value : std::nullopt;
}

// Until the end of what comes; then the other side is told.
void pump(transport::Connection& from, transport::Connection& to, Link& link, Traffic& traffic) {
    Lane lane(link, to, traffic);
    while (true) {
        (void)traffic.look_for([&] { return from.arrived_bytes() != 0; });
        const auto room = lane.room();
        const auto got = room ? from.receive(*room) : Result<std::size_t>(room.error());
        if (!got) {
            return;
        }
        lane.push(*got);
    }
}

void serve(std::unique_ptr<transport::Connection> client, const transport::Endpoint& server, Link& out, Link& back) {
    auto there = transport::tcp::connect(server, Clock::now() + kConnectPatience);
    if (!there) {
        std::fprintf(stderr, "gpupool_network_proxy: %s\n", there.error().message.c_str());
        client->shutdown();
        return;
    }
    Traffic traffic;
    std::thread answers([&] {
        pump(**there, *client, back, traffic);
        client->shutdown();
        (*there)->shutdown();
    });
    pump(*client, **there, out, traffic);
    (*there)->shutdown();
    client->shutdown();
    answers.join();
}

int fail(const std::string& message) {
    std::fprintf(stderr, "gpupool_network_proxy: %s\n", message.c_str());
    return 2;
}

int run(int argc, char** argv) {
    CLI::App app("A TCP proxy with the delay and the rate of a network", "gpupool_network_proxy");
    std::string listen = "127.0.0.1:0", to, rtt = "0us", rate;
    app.add_option("--listen", listen, "HOST:PORT; port 0: a free one")->capture_default_str();
    app.add_option("--to", to, "HOST:PORT of the server")->required();
    app.add_option("--rtt", rtt, "Round trip that it adds, half in each direction: 20us, 1ms")->capture_default_str();
    app.add_option("--rate", rate, "Of each direction, all connections together: 100mbit, 25gbit; default: unlimited");
    CLI11_PARSE(app, argc, argv);
    const auto round_trip_s = seconds(rtt);
    if (!round_trip_s) {
        return fail("--rtt: '" + rtt + "' is no time like 20us or 1ms, up to 10s");
    }
    const auto rate_bytes = rate.empty() ? std::optional<double>(0) : bytes_per_s(rate);
    if (!rate_bytes) {
        return fail("--rate: '" + rate + "' is no rate like 100mbit or 25gbit");
    }
    const auto server = transport::Endpoint::parse(to);
    const auto here = transport::Endpoint::parse(listen);
    if (!server || !here) {
        return fail((server ? here : server).error().message);
    }
    ::signal(SIGPIPE, SIG_IGN);
    const auto delay = std::chrono::nanoseconds(static_cast<std::int64_t>(*round_trip_s / 2 * 1e9));
    Link out(delay, *rate_bytes), back(delay, *rate_bytes);
    auto listener = transport::tcp::listen(*here);
    if (!listener) {
        return fail(listener.error().message);
    }
    std::printf("listening at %s\n", (*listener)->address().c_str());
    std::fflush(stdout);
    std::atomic<int> open{0};
    while (true) {
        auto client = (*listener)->accept();
        if (!client) {
            return fail(client.error().message);
        }
        if (open.load() >= kMaxConnections) {
            std::fprintf(stderr, "gpupool_network_proxy: more than %d connections\n", kMaxConnections);
            (*client)->shutdown();
            continue;
        }
        ++open;
        std::thread([&, client = std::move(*client)]() mutable {
            serve(std::move(client), *server, out, back);
            --open;
        }).detach();
    }
}

}  // namespace
}  // namespace gpupool::network

int main(int argc, char** argv) {
    return gpupool::network::run(argc, argv);
}
