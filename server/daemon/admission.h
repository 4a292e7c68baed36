// Admission: reads a Hello and decides whether its sender may connect. No side effects.
//
// Ownership: values.
// Threads: any.
// Errors: a `Refusal` carries a message for the user of the client. An unauthenticated peer learns the server's gpupool
//   version if the protocol differs, and otherwise only that its token is missing or wrong.
#pragma once

#include <capnp/common.h>
#include <kj/array.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/quotas.h"
#include "protocol/messages/session.h"
#include "protocol/schema/session.capnp.h"
#include "protocol/schema/supervision.capnp.h"
#include "server/policy/tokens.h"

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
    policy::Identity identity;     // whose token it has; its name is a directory's as well
    messages::Wishes wishes;       // beside memory
    std::string job;               // that the session belongs to, with the tenant's name; empty: one of its own
    kj::Array<capnp::word> hello;  // the received message, for the Assignment
    // The value of CUDA_VISIBLE_DEVICES for the session, in place of the client's, if it does not get all GPUs.
    std::optional<std::string> visible_devices;
};

// The owner of a token; nullopt: it is not one of this server's. Not set: anyone may connect.
using Identify = std::function<std::optional<policy::Identity>(std::string_view token)>;

// Reads and checks the payload of a hello frame. `local_user`: the user at the other end, if the
// connection is of this host. Root and the server's own user administer it without a token.
std::variant<Admission, Refusal> examine_hello(std::span<const std::byte> payload, const Identify& identify,
                                               std::optional<uid_t> local_user = std::nullopt);

// Compares one secret in constant time. An empty `secret` matches nothing.
bool secret_matches(std::string_view given, std::string_view secret);

// Writes the Hello that the worker receives: without the credential, with printable texts, and with only those CUDA_*
// variables that cannot make the server's driver load or write files. Throws kj::Exception if `hello` cannot be read.
void copy_hello(const Admission& admission, schema::Hello::Builder out);

}  // namespace gpupool::daemon
