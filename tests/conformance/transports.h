// The transports that the conformance suite runs over: each provides a listener and a way to connect to it.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "protocol/transport/connection.h"

namespace gpupool::testing {

using Ends = std::pair<std::unique_ptr<transport::Connection>, std::unique_ptr<transport::Connection>>;

// One listener and the way to reach it.
struct Meeting {
    std::unique_ptr<transport::Listener> listener;
    std::function<Result<std::unique_ptr<transport::Connection>>()> connect;
};

struct Transport {
    std::string name;
    std::function<Meeting()> meet;

    // A connected pair; fails the test on an error.
    [[nodiscard]] Ends connected_pair() const;
};

inline void PrintTo(const Transport& transport, std::ostream* out) {
    *out << transport.name;
}

// tcp, inproc and shm: plain, split into small pieces, and delayed; shm also as a worker takes it over.
std::vector<Transport> all_transports();

// The plain ones.
std::vector<Transport> plain_transports();

// Those of these names.
std::vector<Transport> transports(const std::vector<std::string>& names);

// What a channel or lanes can tell apart: every transport once, and one line that splits and one that delays. These two
// are of a class of their own, which hides the transport behind it, so another transport behind it shows nothing more.
std::vector<Transport> channel_transports();

std::vector<std::byte> pattern(std::size_t bytes, std::uint64_t seed);

// Expects that what one end sends arrives at the other.
void expect_exchange(transport::Connection& from, transport::Connection& to);

}  // namespace gpupool::testing
