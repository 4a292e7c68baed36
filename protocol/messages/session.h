// What a session asks for, what it got, and its place in the server's queue, as values: written into and read from the
// messages of protocol/schema/.
//
// Ownership: values. Threads: any. Errors: Result; a peer's values beyond their limits are refused.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/result.h"
#include "common/session_class.h"
#include "protocol/schema/control.capnp.h"
#include "protocol/schema/session.capnp.h"

namespace gpupool::messages {

inline constexpr std::chrono::milliseconds kMaxWait = std::chrono::hours(24);

// Beside the quota of memory, which has a message of its own. What is not set: the server decides.
struct Wishes {
    std::optional<std::size_t> gpus;  // from 1
    std::optional<SessionClass> session_class;
    std::optional<std::uint64_t> priority;
    std::chrono::milliseconds wait{0};  // at most, for room

    bool operator==(const Wishes&) const = default;
};
void write_wishes(const Wishes& wishes, schema::SessionRequest::Builder out);
Result<Wishes> read_wishes(schema::SessionRequest::Reader in);

struct Grant {
    std::string tenant;
    std::vector<std::uint32_t> devices;       // the server's numbers; the program numbers them from 0
    std::vector<std::uint64_t> memory_bytes;  // the quota of each; 0: none
    SessionClass session_class = SessionClass::shared;
    std::uint64_t priority = 0;

    bool operator==(const Grant&) const = default;
};
void write_grant(const Grant& grant, schema::Grant::Builder out);
Result<Grant> read_grant(schema::Grant::Reader in);
// "2 GPUs (0, 3 of the server) with 8 GiB each, exclusive, priority 50, as tenant alice"
std::string describe(const Grant& grant);

struct Waiting {
    std::size_t position = 0;  // from 1
    std::size_t length = 0;    // of the queue
    std::string why;

    bool operator==(const Waiting&) const = default;
};
// The payloads of a Control frame.
std::vector<std::byte> waiting_payload(const Waiting& waiting);
Result<Waiting> read_waiting(std::span<const std::byte> payload);

}  // namespace gpupool::messages
