#include "benchmarks/transport/echo.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>

#include "protocol/transport/shm/connector.h"
#include "protocol/transport/shm/listener.h"
#include "protocol/transport/tcp/connector.h"
#include "protocol/transport/tcp/listener.h"
#include "tests/support/transport/inproc/connection.h"

namespace gpupool::benchmarks {
namespace {

template <class T>
T take(Result<T> result) {
    if (!result) {
        fmt::print(stderr, "{}\n", result.error().message);
        std::exit(1);
    }
    return std::move(*result);
}

}  // namespace

Ends connected_pair(Kind kind) {
    if (kind == Kind::inproc) {
        return transport::inproc::make_pair(1u << 20);
    }
    if (kind == Kind::shm) {
        const std::string name = fmt::format("gpupool-benchmark-{}", ::getpid());
        const auto listener = take(transport::shm::listen_at_name(name));
        auto here = take(transport::shm::connect_to_name(name));
        return {std::move(here), take(listener->accept())};
    }
    const auto listener = take(transport::tcp::listen({"127.0.0.1", 0}));
    const auto endpoint = take(transport::Endpoint::parse(listener->address()));
    auto here = take(transport::tcp::connect(endpoint, transport::Clock::now() + std::chrono::seconds(5)));
    auto there = take(listener->accept());
    return {std::move(here), std::move(there)};
}

}  // namespace gpupool::benchmarks
