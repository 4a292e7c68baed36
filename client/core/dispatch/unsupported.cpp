#include "client/core/dispatch/unsupported.h"

#include <array>
#include <atomic>

#include "client/core/session/session.h"
#include "common/log.h"
#include "common/version.h"
#include "protocol/calls/call.h"
#include "protocol/calls/table.h"

namespace gpupool::client {
namespace {

// Which calls have been reported: driver symbols, and gpupool's own calls, whose opcodes begin much higher.
struct Reported {
    std::array<std::atomic<bool>, 1024> symbols{};
    std::array<std::atomic<bool>, 256> own{};
};

// True on the first call for an opcode.
bool first_time(std::uint16_t opcode, Reported& reported) {
    const auto first = [](auto& places, std::size_t place) {
        return place < places.size() && !places[place].exchange(true, std::memory_order_relaxed);
    };
    return opcode < calls::kFirstInternalOpcode ? first(reported.symbols, opcode)
                                                : first(reported.own, opcode - calls::kFirstInternalOpcode);
}

}  // namespace

void note_unsupported(std::uint16_t opcode) noexcept {
    static Reported reported;
    if (!first_time(opcode, reported)) {
        return;
    }
    const calls::CallInfo* const call = calls::find(opcode);
    if (call != nullptr && call->why_refused != nullptr) {
        log::warn("{} is refused: {}", calls::name_of(opcode), call->why_refused);
    } else {
        log::warn("{}: gpupool or the server's driver does not support these arguments", calls::name_of(opcode));
    }
}

void note_not_agreed(const Session& session, std::uint16_t opcode) noexcept {
    static Reported reported;
    if (first_time(opcode, reported)) {
        log::warn("{} is not supported in this session: {} (client {}, server {})", calls::name_of(opcode),
                  session.agreement.why_not(opcode, codec::Ends::Side::client), version(), session.server_version());
    }
}

}  // namespace gpupool::client
