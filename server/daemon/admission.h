// Who may come in: reads a Hello and decides, without side effects.
//
// Ownership: values. Threads: const methods from any thread. Errors: a `Refusal` carries the message for the person at
//   the other end; nothing in it tells a stranger more than that the credential was wrong.
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

// What a further connection of a session says; whether it is true only the session can tell.
struct LaneClaim {
    std::string session_id;
    std::string session_token;
    std::uint32_t index = 0;
};

struct Guest {
    Purpose purpose = Purpose::session;
    ClientFacts client;
    LaneClaim lane;                  // of Purpose::lane
    std::uint64_t memory_bytes = 0;  // asked for; 0: nothing said
    std::string tenant;              // a folder's name: one for each credential, one for all who need none
    kj::Array<capnp::word> hello;    // the message as it came, for the Assignment
};

struct AdmissionRules {
    std::vector<std::string> tokens;  // none: everybody may connect
    bool one_tenant = false;          // whatever the token
};

// Reads and checks the payload of a hello frame.
std::variant<Guest, Refusal> examine_hello(std::span<const std::byte> payload, const AdmissionRules& rules);

// Whether `given` is one of `tokens`; takes as long for a wrong token as for a right one.
bool token_matches(std::string_view given, const std::vector<std::string>& tokens);
// The same for one secret. An empty one matches nothing.
bool secret_matches(std::string_view given, std::string_view secret);

// The Hello that the worker is to see: without the credential, with printable texts, and with only those CUDA_*
// variables that cannot make the server's driver load or write files. Throws kj::Exception when `hello` cannot be read.
void copy_hello(const Guest& guest, schema::Hello::Builder out);

}  // namespace gpupool::daemon
