// What client and server agree on: each tells the other at the session's start which calls and notices it knows, with
// the layout and the behaviour that it knows them with. What both know alike is usable, the rest is not
// (docs/architecture/versions.md).
//
// Ownership: values. Threads: any. Errors: Result, for what no peer says.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "protocol/codec/record.h"

namespace gpupool::codec {

// One call or notice, as it travels.
struct Known {
    std::uint16_t number = 0;     // opcode or NoticeType
    std::uint16_t behaviour = 0;  // what it means
    std::uint32_t layout = 0;     // a hash of its line in wire_layout()
    friend bool operator==(const Known&, const Known&) = default;
};
static_assert(sizeof(Known) == 8);

// What one end knows, each list in the order of its numbers.
struct Knowledge {
    std::vector<Known> calls, notices;
};
const Knowledge& own_knowledge();

// A list as bytes, and back; of a peer's, which may be anything, no more than so many entries are taken.
inline constexpr std::size_t kMaxKnown = 4096;
inline std::span<const std::byte> known_bytes(const std::vector<Known>& list) {
    return std::as_bytes(std::span(list));
}
Result<Knowledge> read_knowledge(std::span<const std::byte> calls, std::span<const std::byte> notices);

enum class Mismatch { peer_lacks_it, we_lack_it, layout, behaviour };
struct Difference {
    bool is_notice = false;
    std::uint16_t number = 0;
    Mismatch why = Mismatch::peer_lacks_it;
};

// For texts: who speaks, and which gpupool the two ends are of.
struct Ends {
    enum class Side { client, server };
    Side here;
    std::string_view client_version, server_version;
};

class Agreement {
  public:
    // `theirs` is what the peer knows.
    Agreement(const Knowledge& ours, const Knowledge& theirs);
    // With a peer of the same build.
    static Agreement full() { return {own_knowledge(), own_knowledge()}; }

    [[nodiscard]] bool has(std::uint16_t opcode) const noexcept { return calls_[opcode]; }
    [[nodiscard]] bool has(NoticeType type) const noexcept {
        const auto number = static_cast<std::size_t>(type);
        return number < kMaxNotices && notices_[number];
    }
    [[nodiscard]] std::size_t calls_in_common() const { return calls_.count(); }
    // First those that this end knows.
    [[nodiscard]] const std::vector<Difference>& differences() const { return differences_; }
    // Why a call cannot be used; empty where it can. For logs: "unknown to the server".
    [[nodiscard]] std::string why_not(std::uint16_t opcode, Ends::Side here) const;

    // `unsupported` where something of the core set is missing (core_set.h): for the client's user.
    [[nodiscard]] Status check_core(const Ends& ends) const;
    // One line for the log; empty where nothing differs.
    [[nodiscard]] std::string summary(const Ends& ends) const;

  private:
    static constexpr std::size_t kMaxNotices = 256;

    std::bitset<1u << 16> calls_;
    std::bitset<kMaxNotices> notices_;
    std::vector<Difference> differences_;
};

}  // namespace gpupool::codec
