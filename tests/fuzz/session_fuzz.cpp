// The client's handling of a server's frames: replies, notices, and bulk data.
//
// An input is a list of steps: a frame of records whose headers are built from the input, a raw frame, or bulk data.
#include <array>
#include <cstdlib>
#include <vector>

#include "client/core/session/session.h"
#include "tests/fuzz/command_builder.h"
#include "tests/support/transport/inproc/connection.h"

using namespace gpupool;

namespace {

constexpr std::size_t kMaxInputBytes = 4u << 10;
constexpr std::size_t kDownloadBytes = 256;
constexpr std::uint16_t kAwaitedOpcode = 7;

// A session is never destroyed, because its threads may be anywhere. A lost one is abandoned and a new one started.
client::Session& usable_session() {
    struct Kept {
        std::vector<std::unique_ptr<client::Session>> sessions;
        std::unique_ptr<transport::Connection> peer;
    };
    static auto& kept = *new Kept;
    if (kept.sessions.empty() || kept.sessions.back()->lost()) {
        auto [here, there] = transport::inproc::make_pair(1u << 20);
        if (kept.peer != nullptr) {
            kept.peer->shutdown();
        }
        kept.peer = std::move(there);
        kept.sessions.push_back(std::move(*client::Session::start(std::move(here), {}, {}, {})));
    }
    return *kept.sessions.back();
}

// A record with a valid header and any body.
void put_record(fuzz::Input& in, fuzz::Body& frame) {
    codec::ReplyHeader header{};
    const std::uint8_t how = in.byte();
    header.kind = static_cast<codec::ReplyKind>(how & 1);
    header.opcode = static_cast<std::uint16_t>((how & 1) != 0   ? in.byte() % 12
                                               : (how & 4) != 0 ? kAwaitedOpcode
                                                                : in.number(2));
    header.thread = (how & 2) != 0 ? client::this_thread().index : static_cast<std::uint32_t>(in.number(4));
    header.result = static_cast<std::int32_t>(in.byte());
    const fuzz::Body content = in.take(in.byte() % 48);
    header.bytes = static_cast<std::uint32_t>(sizeof header + codec::aligned(content.size()));
    if (how > 250) {
        header.bytes = static_cast<std::uint32_t>(in.number(4));
    }
    fuzz::put(frame, &header, sizeof header);
    fuzz::put(frame, content.data(), content.size());
}

void give_frame(wire::Receiver& receiver, wire::FrameType type, const fuzz::Body& frame) {
    auto payload = std::make_unique<std::byte[]>(frame.size());
    if (!frame.empty()) {
        std::memcpy(payload.get(), frame.data(), frame.size());
    }
    receiver.on_frame(type, std::move(payload), frame.size());
}

void give_bulk(wire::Receiver& receiver, fuzz::Input& in, std::uint64_t transfer) {
    const std::uint64_t offset = in.byte() < 240 ? in.byte() : in.number(8);
    const std::size_t bytes = in.byte() < 240 ? 1 + in.byte() : 1u << 20;
    transfer = in.byte() < 200 ? transfer : in.byte();
    const std::span<std::byte> place = receiver.bulk_destination(transfer, offset, bytes);
    if (place.empty()) {
        return;  // refused, which would end the channel
    }
    if (place.size() != bytes) {
        std::abort();
    }
    std::memset(place.data(), in.byte(), bytes);  // AddressSanitizer checks the download's memory
    receiver.on_bulk(transfer, offset, bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size > kMaxInputBytes) {
        return 0;
    }
    fuzz::Input in({data, size});
    client::Session& session = usable_session();
    wire::Receiver& receiver = session;
    const auto memory = std::make_unique<std::array<std::byte, kDownloadBytes>>();
    const std::uint64_t transfer = session.transfers.begin_download(memory->data(), memory->size());
    client::this_thread().reply.expect(kAwaitedOpcode);
    while (!in.empty()) {
        const std::uint8_t step = in.byte();
        if (step < 160) {
            fuzz::Body frame;
            for (int records = step % 4; records >= 0; --records) {
                put_record(in, frame);
            }
            give_frame(receiver, wire::FrameType::replies, frame);
        } else if (step < 200) {
            give_frame(receiver, static_cast<wire::FrameType>(step % 12), in.take(in.byte()));
        } else {
            give_bulk(receiver, in, transfer);
        }
    }
    session.transfers.cancel(transfer);
    return 0;
}
