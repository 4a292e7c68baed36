// The client's handling of the answer to its Hello: a Welcome or a Refused, from a hostile server.
//
// The input is used as it is, and as a difference to valid messages, since random bytes alone are refused at their
// first pointer.
#include <capnp/message.h>
#include <capnp/serialize.h>

#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "client/core/session/handshake.h"
#include "common/version.h"

using namespace gpupool;

namespace {

using Bytes = std::vector<std::byte>;

constexpr std::size_t kMaxInputBytes = 4u << 10;
const client::AddressRanges kOffered = {{0x600000000000, 1ull << 40}, {0x500000000000, 1ull << 38}};

Bytes to_bytes(capnp::MessageBuilder& message) {
    const auto words = capnp::messageToFlatArray(message);
    Bytes out(words.asBytes().size());
    std::memcpy(out.data(), words.begin(), out.size());
    return out;
}

capnp::Data::Reader data_of(const std::vector<codec::Known>& list) {
    const auto bytes = codec::known_bytes(list);
    return {reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()};
}

Bytes good_welcome() {
    capnp::MallocMessageBuilder message;
    auto welcome = message.initRoot<schema::Welcome>();
    welcome.setProtocolVersion(schema::PROTOCOL_VERSION);
    welcome.setCalls(data_of(codec::own_knowledge().calls));
    welcome.setNotices(data_of(codec::own_knowledge().notices));
    welcome.setSessionId("0123456789abcdef");
    welcome.setDriverVersion(13000);
    welcome.setDriverKind("software");
    welcome.initWindow().setBase(kOffered[1].first);
    welcome.getWindow().setBytes(kOffered[1].second);
    auto devices = welcome.initDevices(2);
    for (auto device : devices) {
        device.setName("GPU");
        const std::byte uuid[16]{};
        device.setUuid(capnp::Data::Reader(reinterpret_cast<const unsigned char*>(uuid), sizeof uuid));
        auto attributes = device.initAttributes(2);
        attributes[0].setId(75);
        attributes[1].setId(4000);
    }
    auto peers = welcome.initPeers(2);
    peers[0].setDestination(1);
    peers[1].setSource(1);
    peers[1].initAttributes(1)[0].setId(2);
    auto errors = welcome.initErrors(2);
    errors[0].setCode(2);
    errors[0].setName("CUDA_ERROR_OUT_OF_MEMORY");
    errors[1].setCode(998);
    errors[1].setDescription("an error of a later driver");
    return to_bytes(message);
}

Bytes good_refusal() {
    capnp::MallocMessageBuilder message;
    auto refused = message.initRoot<schema::Refused>();
    refused.setReason(schema::Refused::Reason::CAPACITY);
    refused.setMessage("all sessions are in use");
    return to_bytes(message);
}

// Triples: a position in two bytes, and a change.
Bytes changed(Bytes good, std::span<const std::byte> difference) {
    for (std::size_t i = 0; i + 2 < difference.size(); i += 3) {
        const auto place = static_cast<std::size_t>(difference[i]) << 8 | static_cast<std::size_t>(difference[i + 1]);
        good[place % good.size()] ^= difference[i + 2];
    }
    return good;
}

void read(wire::FrameType type, Bytes payload) {
    const client::Answer answer = client::read_answer({type, std::move(payload)}, kOffered);
    if (!answer.welcome) {
        if (answer.welcome.error().message.empty()) {
            std::abort();
        }
        return;
    }
    // The session relies on what was accepted.
    const client::Welcome& welcome = *answer.welcome;
    const codec::Ends ends{codec::Ends::Side::client, version(), welcome.server_version};
    if (!welcome.agreement.check_core(ends) || welcome.agreement.summary(ends).size() > 4096) {
        std::abort();
    }
    const std::size_t devices = welcome.devices.devices.size();
    if (answer.full || welcome.devices.peers.size() != devices * devices || welcome.window_bytes == 0 ||
        (welcome.window_base != kOffered[0].first && welcome.window_base != kOffered[1].first)) {
        std::abort();
    }
    for (const client::Device& device : welcome.devices.devices) {
        for (int id = -1; id < 200; ++id) {
            int value = 0;
            device.attributes.get(id, &value);
        }
    }
}

// The lists of calls and notices alone, as both ends read them: as they are, and as a difference to good ones.
void read_lists(std::span<const std::byte> input) {
    const auto own = codec::known_bytes(codec::own_knowledge().calls);
    const Bytes other = changed({own.begin(), own.end()}, input);
    for (const auto& lists : {codec::read_knowledge(input, other), codec::read_knowledge(other, input),
                              codec::read_knowledge(other, other)}) {
        if (!lists) {
            continue;
        }
        const codec::Agreement agreement(codec::own_knowledge(), *lists);
        for (const codec::Known& known : lists->calls) {
            const bool named = !agreement.why_not(known.number, codec::Ends::Side::server).empty();
            if (named == agreement.has(known.number)) {
                std::abort();  // a call must be usable or have a reason why not, never both
            }
        }
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size > kMaxInputBytes) {
        return 0;
    }
    static const Bytes welcome = good_welcome(), refusal = good_refusal();
    static const bool usable = client::read_answer({wire::FrameType::welcome, welcome}, kOffered).welcome.ok() &&
                               client::read_answer({wire::FrameType::refused, refusal}, kOffered).full;
    if (!usable) {
        std::abort();  // the base message must be accepted, or its mutations would test nothing
    }
    const auto input = std::as_bytes(std::span(data, size));
    read_lists(input);
    read(wire::FrameType::welcome, {input.begin(), input.end()});
    read(wire::FrameType::refused, {input.begin(), input.end()});
    read(wire::FrameType::welcome, changed(welcome, input));
    read(wire::FrameType::refused, changed(refusal, input));
    read(wire::FrameType::ack, changed(welcome, input));
    return 0;
}
