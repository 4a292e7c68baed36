// Admission: reads a Hello and decides whether its sender may connect. No side effects.
//
// Ownership: values.
// Threads: any.
// Errors: a `Refusal` carries a message for the user of the client. An unauthenticated peer learns the server's gpupool
//   version if the protocol differs, and otherwise only that its token is missing or wrong.
#pragma once

#include <capnp/common.h>
#include <kj/array.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/quotas.h"
#include "protocol/schema/session.capnp.h"
#include "protocol/schema/supervision.capnp.h"

namespace gpupool::daemon {

struct Refusal {
    schema::Refused::Reason reason;
    std::string message;
};

enum class Purpose { session, administration, lane };

struct ClientFacts {
    std::string version;
    std::string hostname;
    std::string process_name;
    std::uint32_t process_id = 0;
    std::string user_name;  // empty: unknown
    std::uint32_t user_id = 0;
};

// What the Hello of a lane (a further connection of a session) claims. The session that it names must verify it.
struct LaneClaim {
    std::string session_id;
    std::string session_token;
    std::uint32_t index = 0;
};

struct Admission {
    Purpose purpose = Purpose::session;
    ClientFacts client;
    LaneClaim lane;                // for Purpose::lane
    Quotas memory;                 // requested
    std::string job;               // that the session belongs to, with the tenant's name; empty: one of its own
    std::string tenant;            // directory name: one per credential, or one for all clients if none is needed
    kj::Array<capnp::word> hello;  // the received message, for the Assignment
};

struct AdmissionRules {
    std::vector<std::string> tokens;  // empty: anyone may connect
    bool one_tenant = false;          // whatever the token
};

// Reads and checks the payload of a hello frame.
std::variant<Admission, Refusal> examine_hello(std::span<const std::byte> payload, const AdmissionRules& rules);

// Whether `given` is one of `tokens`. Compares in constant time.
bool token_matches(std::string_view given, const std::vector<std::string>& tokens);
// Compares one secret in constant time. An empty `secret` matches nothing.
bool secret_matches(std::string_view given, std::string_view secret);

// Writes the Hello that the worker receives: without the credential, with printable texts, and with only those CUDA_*
// variables that cannot make the server's driver load or write files. Throws kj::Exception if `hello` cannot be read.
void copy_hello(const Admission& admission, schema::Hello::Builder out);

}  // namespace gpupool::daemon
