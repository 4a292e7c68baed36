// A session in this process whose server is played by the test.
//
// Ownership: a session is never destroyed, as in the client, because its threads live as long as the process. Threads:
// one test at a time. Errors: none.
#pragma once

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "client/core/session/session.h"
#include "tests/support/transport/inproc/connection.h"

namespace gpupool::test {

inline std::vector<std::byte> record(codec::ReplyKind kind, std::uint16_t opcode, std::uint32_t thread,
                                     std::size_t body_bytes = 0) {
    codec::ReplyHeader header{};
    header.bytes = static_cast<std::uint32_t>(sizeof header + body_bytes);
    header.kind = kind;
    header.opcode = opcode;
    header.thread = thread;
    std::vector<std::byte> bytes(header.bytes);
    std::memcpy(bytes.data(), &header, sizeof header);
    return bytes;
}

template <class Notice>
std::vector<std::byte> notice(codec::NoticeType type, const Notice& content) {
    auto bytes = record(codec::ReplyKind::notice, static_cast<std::uint16_t>(type), 0, sizeof content);
    std::memcpy(bytes.data() + sizeof(codec::ReplyHeader), &content, sizeof content);
    return bytes;
}

struct Server {
    std::unique_ptr<transport::Connection> peer;  // nothing answers on it
    std::unique_ptr<client::Session> session;

    Server() {
        auto [here, there] = transport::inproc::make_pair(1u << 20);
        peer = std::move(there);
        session = std::move(*client::Session::start(std::move(here), {}, {}, {}));
    }
    static Server& fresh() {
        static auto& all = *new std::vector<std::unique_ptr<Server>>;
        return *all.emplace_back(std::make_unique<Server>());
    }
    void send(const std::vector<std::byte>& bytes, wire::FrameType type = wire::FrameType::replies) {
        auto payload = std::make_unique<std::byte[]>(bytes.size());
        std::memcpy(payload.get(), bytes.data(), bytes.size());
        static_cast<wire::Receiver&>(*session).on_frame(type, std::move(payload), bytes.size());
    }
};

}  // namespace gpupool::test
