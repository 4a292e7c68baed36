// The agreement of client and server on calls and notices. At the start of a session each end sends a list of the calls
// and notices that it knows, with their layouts and behaviours. A call or notice can be used if both ends know it with
// the same layout and behaviour (docs/architecture/versions.md).
//
// Ownership: values.
// Threads: any.
// Errors: Result, for an invalid list of a peer.
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

// One entry of a list, as it is sent.
struct Known {
    std::uint16_t number = 0;     // opcode or NoticeType
    std::uint16_t behaviour = 0;  // the version of its meaning
    std::uint32_t layout = 0;     // LayoutLine::hash() of its line in layout_lines()
    friend bool operator==(const Known&, const Known&) = default;
};
static_assert(sizeof(Known) == 8);

// The lists of one end, each in ascending order of its numbers.
struct Knowledge {
    std::vector<Known> calls, notices;
};
const Knowledge& own_knowledge();

// Lists as bytes, and back. A peer's list is refused if it has more than kMaxKnown entries, or if their numbers are not
// in ascending order.
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

// For messages: the end that writes them, and the gpupool versions of both.
struct Ends {
    enum class Side { client, server };
    Side here;
    std::string_view client_version, server_version;
};

class Agreement {
  public:
    // `theirs`: the lists of the peer.
    Agreement(const Knowledge& ours, const Knowledge& theirs);
    // The agreement with a peer of the same build.
    static Agreement full() { return {own_knowledge(), own_knowledge()}; }

    [[nodiscard]] bool has(std::uint16_t opcode) const noexcept { return calls_[opcode]; }
    [[nodiscard]] bool has(NoticeType type) const noexcept {
        const auto number = static_cast<std::size_t>(type);
        return number < kMaxNotices && notices_[number];
    }
    [[nodiscard]] std::size_t calls_in_common() const { return calls_.count(); }
    // First the calls and notices that this end knows, then those that only the peer knows.
    [[nodiscard]] const std::vector<Difference>& differences() const { return differences_; }
    // The reason why a call cannot be used, such as "unknown to the server"; empty if it can.
    [[nodiscard]] std::string why_not(std::uint16_t opcode, Ends::Side here) const;

    // ErrorCode::unsupported if a call or notice of the core set (core_set.h) is not agreed on. The message is for the
    // user of the client.
    [[nodiscard]] Status check_core(const Ends& ends) const;
    // One line for the log; empty if nothing differs.
    [[nodiscard]] std::string summary(const Ends& ends) const;

  private:
    static constexpr std::size_t kMaxNotices = 256;

    std::bitset<1u << 16> calls_;
    std::bitset<kMaxNotices> notices_;
    std::vector<Difference> differences_;
};

}  // namespace gpupool::codec
