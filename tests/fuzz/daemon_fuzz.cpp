// Fuzzes the daemon's readers: of a Hello from an unknown peer, and of messages on a supervision socket.
//
// The input is used as it is, and as a difference to a valid message, since random bytes alone are refused at their
// first pointer.
#include <capnp/message.h>
#include <capnp/serialize.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "server/daemon/admission.h"
#include "server/daemon/session.h"
#include "server/daemon/worker_process.h"
#include "server/supervision/message_socket.h"

namespace {

using namespace gpupool;

std::vector<std::byte> to_bytes(capnp::MessageBuilder& message) {
    const auto words = capnp::messageToFlatArray(message);
    std::vector<std::byte> out(words.asBytes().size());
    std::memcpy(out.data(), words.begin(), out.size());
    return out;
}

std::vector<std::byte> good_hello() {
    capnp::MallocMessageBuilder message;
    auto hello = message.initRoot<schema::Hello>();
    hello.setProtocolVersion(schema::PROTOCOL_VERSION);
    hello.setToken("a-good-token");
    hello.initClient().setProcessName("fuzz");
    auto session = hello.getPurpose().initSession();
    const std::byte known[24]{};
    session.setCalls({reinterpret_cast<const kj::byte*>(known), sizeof known});
    session.setNotices({reinterpret_cast<const kj::byte*>(known), sizeof known / 3});
    session.initAddressWindows(2)[1].setBytes(1u << 20);
    auto environment = session.initEnvironment(2);
    environment[0].setName("CUDA_MODULE_LOADING");
    environment[0].setValue("LAZY");
    return to_bytes(message);
}

std::vector<std::byte> good_report() {
    capnp::MallocMessageBuilder message;
    auto report = message.initRoot<schema::Report>();
    report.setSessionId("0123456789abcdef");
    report.setState("running");
    report.initMemoryUsed(3).set(1, 7);
    report.initClient().setProcessName("fuzz");
    return to_bytes(message);
}

std::vector<std::byte> changed(std::vector<std::byte> good, std::span<const std::byte> difference) {
    // Pairs of a position and a change.
    for (std::size_t i = 0; i + 1 < difference.size(); i += 2) {
        good[static_cast<std::size_t>(difference[i]) % good.size()] ^= difference[i + 1];
    }
    return good;
}

void read_hello(std::span<const std::byte> payload) {
    auto verdict = daemon::examine_hello(payload, [](std::string_view token) {
        return token == "a-good-token" ? std::optional(policy::Identity{policy::Role::tenant, "fuzz"}) : std::nullopt;
    });
    if (const auto* admission = std::get_if<daemon::Admission>(&verdict)) {
        // An accepted Hello must stay readable: the supervisor copies it without further checks.
        capnp::MallocMessageBuilder copy;
        daemon::copy_hello(*admission, copy.initRoot<schema::Hello>());
    }
}

void read_socket(std::span<const std::byte> bytes) {
    UniqueFd ours;
    UniqueFd theirs;
    if (!supervision::make_socket_pair(ours, theirs)) {
        std::abort();
    }
    [[maybe_unused]] const auto written = ::write(theirs.get(), bytes.data(), bytes.size());
    theirs.reset();
    supervision::MessageSocket socket(std::move(ours));
    while (true) {
        const auto messages = socket.receive();
        if (!messages) {
            return;
        }
        for (const auto& message : *messages) {
            (void)daemon::read_report(message);
        }
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
    static const auto hello = good_hello();
    static const auto report = good_report();
    const auto input = std::as_bytes(std::span(data, bytes));
    read_hello(input);
    read_hello(changed(hello, input));
    read_socket(input);
    auto message = changed(report, input);
    const auto length = static_cast<std::uint32_t>(message.size());
    message.insert(message.begin(), reinterpret_cast<const std::byte*>(&length),
                   reinterpret_cast<const std::byte*>(&length) + sizeof(length));
    read_socket(message);
    (void)daemon::parse_probe(std::string(reinterpret_cast<const char*>(data), bytes));
    return 0;
}
